#include "tests/fuzz/worker_shell.h"

#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

enum { INIT_ID = 77, SAMPLES = 4 };

/* The kind of request that a message of this kind answers; 0: any. */
static uint32_t request_of(uint32_t kind)
{
    static const uint32_t requests[GK_KIND_MAX + 1] = {
        [GK_KIND_WELCOME] = GK_KIND_HELLO,     [GK_KIND_REFUSE] = GK_KIND_HELLO,
        [GK_KIND_INIT_OK] = GK_KIND_INIT,      [GK_KIND_PUSH_OK] = GK_KIND_PUSH,
        [GK_KIND_PARAMS] = GK_KIND_PULL_DENSE, [GK_KIND_GONE] = GK_KIND_PULL_DENSE,
        [GK_KIND_LEAVE_OK] = GK_KIND_LEAVE,    [GK_KIND_PONG] = GK_KIND_PING,
    };

    return requests[kind];
}

/* The requests that a message of `kind` may answer, from the newest; false: `back` is too far. */
static bool find_request(const struct worker_shell *shell, uint32_t shard, uint32_t kind,
                         uint64_t back, uint64_t *ret_req_id)
{
    uint64_t count = shell->requests_count[shard];

    for (uint64_t i = 1; i <= count && i <= FUZZ_WORKER_REQUESTS_MAX; i++) {
        const struct worker_request *request =
            &shell->requests[shard][(count - i) % FUZZ_WORKER_REQUESTS_MAX];

        if ((request_of(kind) == 0 || request->kind == request_of(kind)) && back-- == 0) {
            *ret_req_id = request->req_id;
            return true;
        }
    }
    return false;
}

uint64_t worker_shell_alias(const struct worker_shell *shell, uint32_t shard,
                            const struct gk_header *h)
{
    uint64_t req_id;

    for (uint64_t back = 0; find_request(shell, shard, h->kind, back, &req_id); back++) {
        if (req_id == h->req_id) {
            return FUZZ_THE_REQUEST + back;
        }
    }
    return h->req_id;
}

static void attach_init(const struct worker_shell *shell, struct gk_msg *msg)
{
    float values[JOB_PARAMS];

    FUZZ_CHECK(msg->h.lo < msg->h.hi && msg->h.hi <= JOB_PARAMS && msg->frames_count == 0);
    for (uint64_t i = msg->h.lo; i < msg->h.hi; i++) {
        values[i - msg->h.lo] = job_initial(i);
    }
    if (msg->h.chunk == 0) {
        msg->frame[msg->frames_count++] = gk_buf_copy(shell->job.bytes, shell->job.bytes_count);
    }
    msg->frame[msg->frames_count++] =
        gk_buf_copy(values, (msg->h.hi - msg->h.lo) * sizeof(values[0]));
}

static void send_message(struct worker_shell *shell, struct gk_worker_action *action)
{
    uint64_t *count = &shell->requests_count[action->shard];
    struct fuzz_message message;

    FUZZ_CHECK(action->shard < shell->config.servers);
    if (action->kind == GK_WORKER_SEND_INIT) {
        attach_init(shell, &action->msg);
    }
    shell->requests[action->shard][(*count)++ % FUZZ_WORKER_REQUESTS_MAX] =
        (struct worker_request){.kind = action->msg.h.kind, .req_id = action->msg.h.req_id};
    fuzz_message_send(&action->msg, &message);
    if (shell->sent) {
        shell->sent(shell->context, action->shard, &message);
    }
    fuzz_message_clear(&message);
}

static void put_off(struct worker_shell *shell, const struct gk_worker_action *action)
{
    FUZZ_CHECK(shell->pending_count < FUZZ_WORKER_PENDING_MAX);
    for (uint32_t i = 0; i < shell->pending_count; i++) {
        FUZZ_CHECK(shell->pending[i] != action->kind);
    }
    shell->pending_step[shell->pending_count] = action->step;
    shell->pending[shell->pending_count++] = action->kind;
}

static void install(const struct gk_worker_action *action)
{
    FUZZ_CHECK(action->buf && action->lo < action->hi && action->hi <= JOB_PARAMS);
    FUZZ_CHECK(action->buf->size == (action->hi - action->lo) * sizeof(float));
}

static void perform(struct worker_shell *shell, struct gk_worker_action *action)
{
    switch (action->kind) {
    case GK_WORKER_SEND:
    case GK_WORKER_SEND_INIT:
        send_message(shell, action);
        break;
    case GK_WORKER_RANK:
        FUZZ_CHECK(shell->config.rank == GK_RANK_ANY && action->rank < FUZZ_WORKERS);
        FUZZ_CHECK(!shell->stepped);
        shell->rank = action->rank;
        break;
    case GK_WORKER_STEP:
        FUZZ_CHECK(shell->rank < FUZZ_WORKERS);
        shell->stepped = true;
        put_off(shell, action);
        break;
    case GK_WORKER_MAKE_INIT:
    case GK_WORKER_PERSIST:
    case GK_WORKER_EVALUATE:
        put_off(shell, action);
        break;
    case GK_WORKER_INSTALL:
        install(action);
        break;
    case GK_WORKER_ARM_TIMER:
        FUZZ_CHECK(action->at_us > shell->now_us);
        shell->timer_us = action->at_us;
        break;
    case GK_WORKER_TRACE:
        FUZZ_CHECK(action->id);
        fuzz_check_words(action->words.text);
        break;
    case GK_WORKER_EXIT:
        fuzz_check_words(action->words.text);
        shell->exited = true;
        shell->exit_code = action->exit_code;
        break;
    case GK_WORKER_REMEMBER:
        FUZZ_CHECK(action->identity.incarnation > 0);
        break;
    case GK_WORKER_RESET:
        shell->slot = 0;
        break;
    }
}

static void step(struct worker_shell *shell, const struct gk_worker_event *event)
{
    bool exited = shell->exited;

    gk_worker_step(shell->core, event, shell->actions);
    gk_worker_check(shell->core);
    FUZZ_CHECK(!exited || shell->actions->count == 0);
    for (uint32_t i = 0; i < shell->actions->count; i++) {
        FUZZ_CHECK(!shell->exited);
        perform(shell, &shell->actions->list[i]);
    }
    gk_worker_actions_clear(shell->actions);
}

/* A push of step `t`: some entries, the same ones each time. */
static struct gk_push *make_push(const struct worker_shell *shell, uint64_t t)
{
    uint32_t idx[JOB_PARAMS];
    float val[JOB_PARAMS];
    struct fuzz_random random = {.state = t + shell->rank * UINT64_C(1000)};
    struct gk_push_source source = {
        .step = t,
        .samples = SAMPLES,
        .rank = shell->rank,
        .servers = shell->config.servers,
        .params_count = JOB_PARAMS,
        .idx = idx,
        .val = val,
        .chunk_floats = JOB_CHUNK,
    };
    struct gk_push *push;
    struct gk_words words;

    for (uint32_t i = 0; i < JOB_PARAMS; i++) {
        if (fuzz_below(&random, 6) == 0) {
            idx[source.n] = i;
            val[source.n++] = 0.1f * (float)((int)fuzz_below(&random, 20) - 10) + 0.05f;
        }
    }
    if (shell->huge) {
        idx[0] = 0;
        val[0] = 3e38f;
        source.n = source.n > 0 ? source.n : 1;
    }
    FUZZ_CHECK(gk_push_encode(&source, &push, &words) == GK_OK);
    return push;
}

static void done(struct worker_shell *shell, bool fails)
{
    struct gk_worker_event event = {.now_us = shell->now_us};
    enum gk_worker_action_kind kind;
    uint64_t t;

    if (shell->pending_count == 0) {
        return;
    }
    kind = shell->pending[0];
    t = shell->pending_step[0];
    shell->pending_count--;
    memmove(&shell->pending[0], &shell->pending[1],
            shell->pending_count * sizeof(shell->pending[0]));
    memmove(&shell->pending_step[0], &shell->pending_step[1],
            shell->pending_count * sizeof(shell->pending_step[0]));
    if (kind == GK_WORKER_MAKE_INIT) {
        event.kind = GK_WORKER_INIT_MADE;
        event.init_id = INIT_ID;
    } else if (kind == GK_WORKER_PERSIST) {
        event.kind = GK_WORKER_PERSISTED;
        shell->slot = t + 1;
    } else if (kind == GK_WORKER_EVALUATE) {
        event.kind = GK_WORKER_EVALUATED;
    } else if (fails && t % 2) {
        event.kind = GK_WORKER_LEAVE;
    } else {
        event.kind = GK_WORKER_STEP_DONE;
        if (fails) {
            event.exit_code = 65;
            event.words = "the loss is not finite";
        } else {
            event.push = make_push(shell, t);
        }
    }
    step(shell, &event);
}

static void take_message(struct worker_shell *shell, const struct fuzz_event *event)
{
    struct gk_worker_event in = {.kind = GK_WORKER_MESSAGE,
                                 .now_us = shell->now_us,
                                 .shard = event->who % shell->config.servers};
    struct gk_msg msg;
    struct gk_words words;

    if (fuzz_message_take(&event->message, &msg, &words)) {
        in.kind = GK_WORKER_BAD_MESSAGE;
        in.words = words.text;
    } else {
        in.msg = &msg;
        if (msg.h.req_id - FUZZ_THE_REQUEST < FUZZ_WORKER_REQUESTS_MAX) {
            (void)find_request(shell, in.shard, msg.h.kind, msg.h.req_id - FUZZ_THE_REQUEST,
                               &msg.h.req_id);
        }
    }
    step(shell, &in);
    gk_msg_clear(&msg);
}

/* Kill -9, and a new process that finds the slot, or that its disk is lost. */
static void restart(struct worker_shell *shell, bool keeps_slot)
{
    const struct gk_worker_event event = {.kind = GK_WORKER_START, .now_us = shell->now_us};

    shell->slot = keeps_slot ? shell->slot : 0;
    shell->pending_count = 0;
    shell->exited = false;
    shell->rank = shell->slot > 0 ? shell->rank : shell->config.rank;
    shell->stepped = false;
    gk_worker_restart(shell->core, shell->slot);
    step(shell, &event);
}

void worker_shell_apply(struct worker_shell *shell, const struct fuzz_event *event)
{
    struct gk_worker_event in = {.now_us = shell->now_us,
                                 .shard = event->who % shell->config.servers};

    switch (event->op) {
    case FUZZ_MESSAGE:
        take_message(shell, event);
        break;
    case FUZZ_TICK:
        shell->now_us += event->argument;
        in.now_us = shell->now_us;
        in.kind = GK_WORKER_TICK;
        step(shell, &in);
        break;
    case FUZZ_DONE:
        done(shell, (event->argument & FUZZ_DONE_FAILS) != 0);
        break;
    case FUZZ_UP:
    case FUZZ_DOWN:
        in.kind = event->op == FUZZ_UP ? GK_WORKER_PEER_UP : GK_WORKER_PEER_DOWN;
        step(shell, &in);
        break;
    case FUZZ_STOP:
        in.kind = GK_WORKER_STOP;
        in.exit_code = (int)(event->argument % 256);
        in.words = "stopped";
        step(shell, &in);
        break;
    case FUZZ_RESTART:
        restart(shell, event->who % 2 == 0);
        break;
    case FUZZ_OPS:
        break;
    }
}

void worker_shell_init(struct worker_shell *shell, uint8_t setup)
{
    static const char *const addresses[] = {"tcp://127.0.0.1:7070", "tcp://127.0.0.1:7071"};
    struct gk_worker_event event = {.kind = GK_WORKER_START};

    memset(shell, 0, sizeof(*shell));
    shell->config = (struct gk_worker_config){
        .job = JOB_NAME,
        .addresses = addresses,
        .servers = setup & FUZZ_WORKER_TWO ? 2 : 1,
        .workers = FUZZ_WORKERS,
        .rank = setup & FUZZ_WORKER_ANY ? GK_RANK_ANY : setup & 1u,
        .spec = &shell->job.spec,
        .seed = setup & FUZZ_WORKER_SECOND_LIFE ? 43 : 42,
        .chunk_floats = JOB_CHUNK,
        .takeover = (setup & FUZZ_WORKER_TAKEOVER) != 0,
        .deadline_us = setup & FUZZ_WORKER_PATIENT ? 0 : 120 * UINT64_C(1000000),
        .eval_every = setup & FUZZ_WORKER_EVALUATES ? 1 : 0,
        .evaluates = (setup & 1u) == 0,
    };
    shell->rank = shell->config.rank;
    shell->huge = (setup & FUZZ_WORKER_HUGE) != 0;
    job_make(&shell->job, FUZZ_WORKERS, shell->config.servers);
    shell->config.spec_hash = shell->job.hash;
    shell->config.model_signature = shell->job.signature;
    shell->now_us = 1000000;
    FUZZ_CHECK(gk_worker_new(&shell->config, &shell->core) == GK_OK);
    FUZZ_CHECK(gk_worker_actions_new(shell->config.servers, &shell->actions) == GK_OK);
    event.now_us = shell->now_us;
    step(shell, &event);
}

void worker_shell_fini(struct worker_shell *shell)
{
    gk_worker_free(shell->core);
    gk_worker_actions_free(shell->actions);
    memset(shell, 0, sizeof(*shell));
}
