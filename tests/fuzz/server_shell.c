#include "tests/fuzz/server_shell.h"

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/job.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BUDGET_BYTES = 1 << 20, BUDGET_BYTES_SMALL = 2000, CHUNK_FLOATS = 8 };

static void pin_free(struct server_shell *shell, uint32_t slot)
{
    free(shell->pins[slot]);
    shell->pins[slot] = NULL;
}

static void pins_free(struct server_shell *shell)
{
    for (uint32_t i = 0; i < GK_PINS_MAX; i++) {
        pin_free(shell, i);
    }
}

static void memory_free(struct server_shell *shell)
{
    for (uint32_t i = 0; i < 3; i++) {
        free(shell->memory.planes[i]);
    }
    free(shell->memory.sum_idx);
    free(shell->memory.sum_val);
    free(shell->memory.tables);
    memset(&shell->memory, 0, sizeof(shell->memory));
}

/* Exactly what was asked for, so that a sanitizer sees one byte more. */
static void *memory_of(uint64_t bytes)
{
    void *memory = calloc(1, bytes);

    FUZZ_CHECK(memory);
    return memory;
}

static void memory_alloc(struct server_shell *shell, const struct gk_server_setup *setup)
{
    uint64_t sum =
        setup->planes_count * setup->plane_bytes + 2 * setup->sum_bytes + setup->tables_bytes;

    FUZZ_CHECK(setup->planes_count > 0 && setup->planes_count <= 3);
    FUZZ_CHECK(sum <= setup->total_bytes && setup->total_bytes <= shell->config.memory_bytes);
    for (uint32_t i = 0; i < setup->planes_count; i++) {
        shell->memory.planes[i] = memory_of(setup->plane_bytes);
    }
    shell->memory.sum_idx = memory_of(setup->sum_bytes);
    shell->memory.sum_val = memory_of(setup->sum_bytes);
    shell->memory.tables = memory_of(setup->tables_bytes);
}

static bool is_pending(const struct server_shell *shell, enum gk_server_action_kind kind)
{
    for (uint32_t i = 0; i < shell->pending_count; i++) {
        if (shell->pending[i].kind == kind) {
            return true;
        }
    }
    return false;
}

static void send_message(struct server_shell *shell, const struct gk_server_action *action,
                         struct gk_buf *frame)
{
    struct gk_msg msg = action->msg;
    struct fuzz_message message;

    FUZZ_CHECK(action->route != 0);
    if (frame) {
        msg.frame[0] = frame;
        msg.frames_count = 1;
    }
    if (msg.h.kind == GK_KIND_WELCOME) {
        FUZZ_CHECK(msg.h.rank < shell->config.workers);
        shell->session[msg.h.rank] = msg.h.session;
    }
    if (msg.words.text[0]) { /* what is not ours in it was mended */
        fuzz_message_check_ours(&msg);
    }
    fuzz_message_send(&msg, &message);
    if (shell->sent) {
        shell->sent(shell->context, action->route, &message);
    }
    fuzz_message_clear(&message);
    gk_buf_unref(frame);
}

/* Parameters that no peer would take are not sent: the shell tells the core to stop. */
static void send_params(struct server_shell *shell, const struct gk_server_action *action)
{
    bool finite = true;

    FUZZ_CHECK(!is_pending(shell, GK_SERVER_APPLY));
    for (uint64_t i = 0; i < action->u.params.count; i++) {
        finite = finite && isfinite(action->u.params.values[i]);
    }
    if (finite) {
        send_message(shell, action,
                     gk_buf_copy(action->u.params.values, action->u.params.count * sizeof(float)));
    }
    shell->diverged = shell->diverged || !finite;
}

static void put_off(struct server_shell *shell, const struct gk_server_action *action)
{
    FUZZ_CHECK(shell->pending_count < FUZZ_SERVER_PENDING_MAX);
    FUZZ_CHECK(!is_pending(shell, action->kind));
    shell->pending[shell->pending_count++] = *action;
}

/* The memory is taken at once, the plane is copied later: no APPLY of a later action has run then,
 * and whatever stands there is a version. */
static enum gk_err pin_copy(struct server_shell *shell, struct gk_pin_args *args)
{
    struct gk_hash_args hash = {
        .x = args->x, .n = args->n, .index0 = args->index0, .hash = &args->hash};

    FUZZ_CHECK(args->slot < GK_PINS_MAX && !shell->pins[args->slot]);
    args->values = memory_of(args->n * sizeof(float));
    memcpy(args->values, args->x, args->n * sizeof(float));
    shell->pins[args->slot] = args->values;
    return shell->ops->wait(shell->queue, shell->ops->hash(shell->queue, &hash));
}

static void send_frame(struct server_shell *shell, const struct gk_server_action *action)
{
    const float *values = action->u.bytes.data;
    bool finite = true;

    for (size_t i = 0; action->msg.h.kind == GK_KIND_PIN_PARAMS && i < action->msg.h.count; i++) {
        finite = finite && isfinite(values[i]);
    }
    if (finite) {
        send_message(shell, action, gk_buf_copy(action->u.bytes.data, action->u.bytes.count));
    }
}

static void perform(struct server_shell *shell, const struct gk_server_action *action)
{
    switch (action->kind) {
    case GK_SERVER_SEND:
        send_message(shell, action, NULL);
        break;
    case GK_SERVER_PARAMS:
        send_params(shell, action);
        break;
    case GK_SERVER_STATUS:
        send_message(shell, action, gk_buf_copy("{}", 2));
        break;
    case GK_SERVER_SETUP:
        memory_free(shell);
        put_off(shell, action);
        break;
    case GK_SERVER_SUM:
    case GK_SERVER_WRITE:
    case GK_SERVER_APPLY:
    case GK_SERVER_HASH:
    case GK_SERVER_PIN:
        put_off(shell, action);
        break;
    case GK_SERVER_FRAME:
        send_frame(shell, action);
        break;
    case GK_SERVER_UNPIN:
        FUZZ_CHECK(shell->pins[action->u.unpin]);
        pin_free(shell, action->u.unpin);
        break;
    case GK_SERVER_ARM_TIMER:
        shell->timer_us = action->u.at_us;
        break;
    case GK_SERVER_TRACE:
        FUZZ_CHECK(action->u.trace.id && action->words.text[0]);
        break;
    case GK_SERVER_EXIT:
        fuzz_check_words(action->words.text);
        shell->exited = true;
        break;
    case GK_SERVER_ACTION_KINDS_COUNT:
        fuzz_failed("an action", __FILE__, __LINE__);
    }
}

static void step(struct server_shell *shell, const struct gk_server_event *event)
{
    bool exited = shell->exited;
    uint32_t count;

    shell->actions->count = 0;
    gk_server_step(shell->core, event, shell->actions);
    gk_server_check(shell->core);
    count = shell->actions->count;
    FUZZ_CHECK(!exited || count == 0);
    for (uint32_t i = 0; i < count; i++) {
        FUZZ_CHECK(!shell->exited);
        perform(shell, &shell->actions->list[i]);
    }
}

/* A record that was asked for can be written: everything that it points to is there. */
static void read_record(const struct gk_record *record)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < record->contributions_count; i++) {
        sum += record->contributions[i].push_id;
    }
    for (uint32_t i = 0; i < record->members_count; i++) {
        sum += record->members[i].row.life_nonce;
    }
    for (uint64_t i = 0; i < record->count; i++) {
        sum += (record->idx ? record->idx[i] : 0) + (record->val[i] < 0 ? 1u : 0u);
    }
    for (uint64_t i = 0; record->params && i < record->hi - record->lo; i++) {
        sum += record->params[i] < 0 ? 1u : 0u;
    }
    for (size_t i = 0; i < record->spec_bytes; i++) {
        sum += record->spec[i];
    }
    FUZZ_CHECK(sum != UINT64_MAX); /* so that nothing above is left out */
}

static void done(struct server_shell *shell, bool fails)
{
    static const enum gk_server_event_kind kinds[GK_SERVER_ACTION_KINDS_COUNT] = {
        [GK_SERVER_SETUP] = GK_SERVER_SETUP_DONE, [GK_SERVER_SUM] = GK_SERVER_SUM_DONE,
        [GK_SERVER_WRITE] = GK_SERVER_WRITE_DONE, [GK_SERVER_APPLY] = GK_SERVER_APPLY_DONE,
        [GK_SERVER_HASH] = GK_SERVER_HASH_DONE,   [GK_SERVER_PIN] = GK_SERVER_PIN_DONE,
    };
    static struct gk_server_action action; /* large */
    struct gk_server_event event = {.now_us = shell->now_us};

    if (shell->pending_count == 0) {
        return;
    }
    action = shell->pending[0];
    shell->pending_count--;
    memmove(&shell->pending[0], &shell->pending[1],
            shell->pending_count * sizeof(shell->pending[0]));
    event.kind = kinds[action.kind];
    event.op = action.op;
    if (fails && action.kind != GK_SERVER_WRITE) {
        event.err = action.kind == GK_SERVER_SETUP ? GK_E_NOMEM : GK_E_IO;
        event.words = "it failed";
    } else if (action.kind == GK_SERVER_SETUP) {
        memory_alloc(shell, &action.u.setup);
        event.memory = shell->memory;
    } else if (action.kind == GK_SERVER_WRITE) {
        read_record(action.u.record);
    } else if (action.kind == GK_SERVER_SUM) {
        event.err = shell->ops->wait(shell->queue, shell->ops->sum(shell->queue, action.u.sum));
    } else if (action.kind == GK_SERVER_APPLY) {
        event.err = shell->ops->wait(shell->queue, shell->ops->apply(shell->queue, action.u.apply));
    } else if (action.kind == GK_SERVER_PIN) {
        event.err = pin_copy(shell, action.u.pin);
    } else {
        event.err = shell->ops->wait(shell->queue, shell->ops->hash(shell->queue, action.u.hash));
    }
    step(shell, &event);
}

static void take_message(struct server_shell *shell, const struct fuzz_event *event)
{
    struct gk_server_event in = {
        .kind = GK_SERVER_MESSAGE, .now_us = shell->now_us, .route = 1 + (uint64_t)event->who};
    struct gk_msg msg;
    struct gk_words words;

    in.err = fuzz_message_take(&event->message, &msg, &words);
    if (in.err) {
        in.kind = GK_SERVER_BAD_MESSAGE;
        in.header = &msg.h;
        in.words = words.text;
    } else {
        in.msg = &msg;
        if (msg.h.session == FUZZ_THE_SESSION && msg.h.rank < FUZZ_SERVER_WORKERS_MAX) {
            msg.h.session = shell->session[msg.h.rank];
        }
    }
    step(shell, &in);
    gk_msg_clear(&msg);
}

/* Kill -9, and a new process that finds the records. */
static void restart(struct server_shell *shell)
{
    struct gk_server_event event = {.kind = GK_SERVER_START, .now_us = shell->now_us};

    shell->pending_count = 0;
    shell->exited = false;
    pins_free(shell);
    gk_server_restart(shell->core);
    step(shell, &event);
}

void server_shell_apply(struct server_shell *shell, const struct fuzz_event *event)
{
    struct gk_server_event in = {.now_us = shell->now_us};

    switch (event->op) {
    case FUZZ_MESSAGE:
        take_message(shell, event);
        break;
    case FUZZ_TICK:
        shell->now_us += event->argument;
        in.now_us = shell->now_us;
        in.kind = GK_SERVER_TICK;
        step(shell, &in);
        break;
    case FUZZ_DONE:
        done(shell, (event->argument & FUZZ_DONE_FAILS) != 0);
        break;
    case FUZZ_DOWN:
        in.kind = GK_SERVER_PEER_GONE;
        in.route = 1 + (uint64_t)event->who;
        step(shell, &in);
        break;
    case FUZZ_STOP:
        in.kind = GK_SERVER_STOP;
        in.exit_code = (int)(event->argument % 256);
        in.words = "stopped";
        step(shell, &in);
        break;
    case FUZZ_RESTART:
        restart(shell);
        break;
    case FUZZ_UP: /* a server does not hear of it */
    case FUZZ_OPS:
        break;
    }
    if (shell->diverged) {
        shell->diverged = false;
        in.now_us = shell->now_us;
        in.kind = GK_SERVER_STOP;
        in.exit_code = 65;
        in.words = "diverged";
        step(shell, &in);
    }
}

void server_shell_init(struct server_shell *shell, uint8_t setup)
{
    struct gk_server_event event = {.kind = GK_SERVER_START};
    struct gk_words words;
    bool two = (setup & FUZZ_SERVER_TWO) != 0;

    memset(shell, 0, sizeof(*shell));
    shell->config = (struct gk_server_config){
        .job = JOB_NAME,
        .workers = 1 + (setup & 3u),
        .servers = two ? 2 : 1,
        .shard = two && (setup & FUZZ_SERVER_SECOND) ? 1 : 0,
        .memory_bytes = setup & FUZZ_SERVER_SMALL ? BUDGET_BYTES_SMALL : BUDGET_BYTES,
        .deadline_us = 120 * UINT64_C(1000000),
        .chunk_floats = CHUNK_FLOATS,
        .seed = 42,
        .local = !(setup & FUZZ_SERVER_REMOTE),
    };
    shell->now_us = 1000000;
    shell->ops = gk_vector_reference();
    FUZZ_CHECK(shell->ops->open(&shell->queue, &words) == GK_OK);
    FUZZ_CHECK(gk_server_new(&shell->config, &shell->core) == GK_OK);
    shell->actions = calloc(1, sizeof(*shell->actions));
    FUZZ_CHECK(shell->actions);
    event.now_us = shell->now_us;
    step(shell, &event);
}

void server_shell_fini(struct server_shell *shell)
{
    gk_server_free(shell->core);
    shell->ops->close(shell->queue);
    memory_free(shell);
    pins_free(shell);
    free(shell->actions);
    memset(shell, 0, sizeof(*shell));
}
