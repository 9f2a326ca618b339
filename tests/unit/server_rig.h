/* A shell for the server core in one thread: hand-made messages in, actions performed at once (or
 * held back), replies kept for inspection.  Every reply also goes over the wire format and back, so
 * that no test passes with a message that could not be sent; the invariants are asserted after
 * every step. */
#ifndef GK_TESTS_SERVER_RIG_H
#define GK_TESTS_SERVER_RIG_H

#include "common/assert.h"
#include "common/backend.h"
#include "common/bits.h"
#include "common/hash.h"
#include "common/rng.h"
#include "proto/msg.h"
#include "proto/spec.h"
#include "server/core/server.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    RIG_PARAMS = 80, /* d; with 2 servers shard 0 has [0, 32), shard 1 [32, 80) */
    RIG_CHUNK = 8,   /* floats per chunk, so that small slices have several */
    RIG_RANKS_MAX = 8,
    RIG_REPLIES_MAX = 4096,
    RIG_OPS_MAX = 64,
};

struct rig_reply {
    uint64_t route;
    struct gk_msg msg;        /* without frames */
    float values[RIG_PARAMS]; /* of PARAMS */
};

struct rig_record { /* what a WRITE said, kept after the core forgets it */
    struct gk_record record;
    struct gk_contribution contributions[RIG_RANKS_MAX];
    struct gk_member_entry members[GK_SERVER_MEMBERS_MAX];
};

struct rig {
    struct gk_server_config config;
    struct gk_server *core;
    struct gk_server_actions *actions;
    const struct gk_vector_ops *ops;
    struct gk_queue *queue;
    struct gk_server_memory memory;
    float *pins[GK_PINS_MAX];
    uint64_t now_us;

    struct gk_spec spec;
    struct gk_tensor tensors[2];
    uint8_t spec_bytes[GK_SPEC_BYTES_MAX];
    size_t spec_bytes_count;
    uint64_t spec_hash, signature;
    float initial[RIG_PARAMS];
    uint64_t lo, hi;

    uint64_t session[RIG_RANKS_MAX]; /* as the last WELCOME said */
    uint64_t req_ids;

    uint32_t held; /* bits of enum gk_server_action_kind that are not performed but queued */
    struct gk_server_action ops_queued[RIG_OPS_MAX];
    uint32_t ops_count;

    struct rig_reply *replies;
    uint32_t replies_count;
    struct rig_record records[256];
    uint32_t records_count;
    uint64_t timer_us;
    bool exited;
    int exit_code;
    const char *exit_id;
    struct gk_words exit_words;
    char traces[8192]; /* "ID words\n" of all levels but debug */
    bool refuse_memory;
};

static inline void rig_event(struct rig *rig, struct gk_server_event event);

/* Over the wire and back: what the other side would read. */
static inline void rig_over_the_wire(const struct gk_msg *msg)
{
    struct gk_buf *parts[GK_PARTS_MAX];
    uint32_t parts_count;
    struct gk_msg again;
    struct gk_words words;

    cr_assert(gk_msg_to_wire(msg, parts, &parts_count) == GK_OK);
    cr_assert(gk_msg_from_wire(parts, parts_count, &again, &words) == GK_OK, "%s: %s",
              gk_kind_name(msg->h.kind), words.text);
    cr_assert(again.h.session == msg->h.session && again.h.req_id == msg->h.req_id &&
              again.h.version == msg->h.version && again.h.lo == msg->h.lo &&
              again.h.hi == msg->h.hi && again.h.verdict == msg->h.verdict &&
              again.h.verdict_step == msg->h.verdict_step && again.h.code == msg->h.code &&
              again.h.flags == msg->h.flags);
    gk_msg_clear(&again);
    for (uint32_t i = 0; i < parts_count; i++) {
        gk_buf_unref(parts[i]);
    }
}

static inline void rig_keep(struct rig *rig, const struct gk_server_action *action,
                            struct gk_buf *frame)
{
    struct rig_reply *reply = &rig->replies[rig->replies_count++];
    struct gk_msg msg = action->msg;

    cr_assert(rig->replies_count < RIG_REPLIES_MAX);
    reply->route = action->route;
    reply->msg = action->msg;
    if (frame) {
        msg.frame[0] = frame;
        msg.frames_count = 1;
        if (action->kind == GK_SERVER_PARAMS || action->msg.h.kind == GK_KIND_PIN_PARAMS) {
            memcpy(reply->values, frame->data, frame->size);
        }
    }
    rig_over_the_wire(&msg);
}

static inline void rig_keep_record(struct rig *rig, const struct gk_record *record)
{
    struct rig_record *kept = &rig->records[rig->records_count++ % 256];

    kept->record = *record;
    if (record->contributions_count > 0) {
        memcpy(kept->contributions, record->contributions,
               record->contributions_count * sizeof(kept->contributions[0]));
    }
    if (record->members_count > 0) {
        memcpy(kept->members, record->members, record->members_count * sizeof(kept->members[0]));
    }
}

static inline enum gk_err rig_pin(struct rig *rig, struct gk_pin_args *args)
{
    struct gk_hash_args hash = {
        .x = args->x, .n = args->n, .index0 = args->index0, .hash = &args->hash};

    if (rig->refuse_memory) {
        return GK_E_NOMEM;
    }
    cr_assert(!rig->pins[args->slot], "a copy that was not given back");
    args->values = malloc(args->n * sizeof(float));
    memcpy(args->values, args->x, args->n * sizeof(float));
    rig->pins[args->slot] = args->values;
    return rig->ops->wait(rig->queue, rig->ops->hash(rig->queue, &hash));
}

/* Perform what takes time, and tell its end. */
static inline void rig_perform(struct rig *rig, const struct gk_server_action *action)
{
    struct gk_server_event event = {.op = action->op};

    if (action->kind == GK_SERVER_SETUP) {
        const struct gk_server_setup *setup = &action->u.setup;

        event.kind = GK_SERVER_SETUP_DONE;
        free(rig->memory.planes[0]);
        memset(&rig->memory, 0, sizeof(rig->memory));
        if (rig->refuse_memory) {
            event.err = GK_E_NOMEM;
            event.words = "the system has none";
        } else { /* one block, in the order of the struct; freed by its first plane */
            char *block = calloc(1, setup->planes_count * setup->plane_bytes +
                                        2 * setup->sum_bytes + setup->tables_bytes + 64);

            for (uint32_t i = 0; i < setup->planes_count; i++, block += setup->plane_bytes) {
                rig->memory.planes[i] = (float *)(void *)block;
            }
            rig->memory.sum_idx = (uint32_t *)(void *)block;
            rig->memory.sum_val = (float *)(void *)(block + setup->sum_bytes);
            rig->memory.tables = block + 2 * setup->sum_bytes;
        }
        event.memory = rig->memory;
    } else if (action->kind == GK_SERVER_SUM) {
        event.kind = GK_SERVER_SUM_DONE;
        event.err = rig->ops->wait(rig->queue, rig->ops->sum(rig->queue, action->u.sum));
    } else if (action->kind == GK_SERVER_APPLY) {
        event.kind = GK_SERVER_APPLY_DONE;
        event.err = rig->ops->wait(rig->queue, rig->ops->apply(rig->queue, action->u.apply));
    } else if (action->kind == GK_SERVER_HASH) {
        event.kind = GK_SERVER_HASH_DONE;
        event.err = rig->ops->wait(rig->queue, rig->ops->hash(rig->queue, action->u.hash));
    } else if (action->kind == GK_SERVER_PIN) {
        event.kind = GK_SERVER_PIN_DONE;
        event.err = rig_pin(rig, action->u.pin);
    } else {
        cr_assert(action->kind == GK_SERVER_WRITE);
        event.kind = GK_SERVER_WRITE_DONE;
        rig_keep_record(rig, action->u.record);
    }
    rig_event(rig, event);
}

static inline void rig_trace(struct rig *rig, const struct gk_server_action *action)
{
    size_t used = strlen(rig->traces);

    if (action->u.trace.level != GK_LOG_DEBUG) {
        (void)snprintf(rig->traces + used, sizeof(rig->traces) - used, "%s %s\n",
                       action->u.trace.id, action->words.text);
    }
}

static inline void rig_action(struct rig *rig, const struct gk_server_action *action)
{
    struct gk_buf *frame = NULL;

    switch (action->kind) {
    case GK_SERVER_SEND:
        rig_keep(rig, action, NULL);
        break;
    case GK_SERVER_PARAMS:
        frame = gk_buf_copy(action->u.params.values, action->u.params.count * sizeof(float));
        rig_keep(rig, action, frame);
        break;
    case GK_SERVER_STATUS:
        frame = gk_buf_copy("{}", 2);
        rig_keep(rig, action, frame);
        break;
    case GK_SERVER_SETUP:
    case GK_SERVER_SUM:
    case GK_SERVER_WRITE:
    case GK_SERVER_APPLY:
    case GK_SERVER_HASH:
    case GK_SERVER_PIN:
        cr_assert(rig->ops_count < RIG_OPS_MAX);
        rig->ops_queued[rig->ops_count++] = *action;
        break;
    case GK_SERVER_FRAME:
        frame = gk_buf_copy(action->u.bytes.data, action->u.bytes.count);
        rig_keep(rig, action, frame);
        break;
    case GK_SERVER_UNPIN:
        cr_assert(rig->pins[action->u.unpin], "a copy that is not there");
        free(rig->pins[action->u.unpin]);
        rig->pins[action->u.unpin] = NULL;
        break;
    case GK_SERVER_ARM_TIMER:
        rig->timer_us = action->u.at_us;
        break;
    case GK_SERVER_TRACE:
        rig_trace(rig, action);
        break;
    case GK_SERVER_EXIT:
        rig->exited = true;
        rig->exit_code = action->u.exit.code;
        rig->exit_id = action->u.exit.id;
        rig->exit_words = action->words;
        break;
    case GK_SERVER_ACTION_KINDS_COUNT:
        cr_assert(false);
    }
    gk_buf_unref(frame);
}

/* Perform the oldest queued operation whose kind is not held (or, with `all`, whatever it is). */
static inline bool rig_work(struct rig *rig, bool all)
{
    for (uint32_t i = 0; i < rig->ops_count; i++) {
        struct gk_server_action action = rig->ops_queued[i];

        if (all || !(rig->held >> action.kind & 1)) {
            memmove(&rig->ops_queued[i], &rig->ops_queued[i + 1],
                    (rig->ops_count - i - 1) * sizeof(action));
            rig->ops_count--;
            rig_perform(rig, &action);
            return true;
        }
    }
    return false;
}

static inline void rig_step(struct rig *rig, struct gk_server_event event)
{
    uint32_t count;

    event.now_us = rig->now_us;
    rig->actions->count = 0;
    gk_server_step(rig->core, &event, rig->actions);
    gk_server_check(rig->core);
    count = rig->actions->count;
    for (uint32_t i = 0; i < count; i++) {
        rig_action(rig, &rig->actions->list[i]);
    }
}

/* One event, and the end of everything it started that is not held. */
static inline void rig_event(struct rig *rig, struct gk_server_event event)
{
    static int depth; /* completions are queued, not nested */

    rig_step(rig, event);
    if (depth == 0) {
        depth++;
        while (rig_work(rig, false)) {
        }
        depth--;
    }
}

static inline void rig_release(struct rig *rig)
{
    rig->held = 0;
    while (rig_work(rig, false)) {
    }
}

static inline struct gk_server_view rig_view(const struct rig *rig)
{
    struct gk_server_view view;

    gk_server_view(rig->core, &view);
    return view;
}

static inline void rig_make_spec(struct rig *rig, uint32_t workers, uint32_t servers)
{
    static const char *const names[] = {"weight", "bias"};
    static const uint64_t counts[] = {64, RIG_PARAMS - 64};
    struct gk_words words;
    uint64_t offset = 0;

    for (int i = 0; i < 2; i++) {
        (void)snprintf(rig->tensors[i].name, sizeof(rig->tensors[i].name), "%s", names[i]);
        rig->tensors[i].offset = offset;
        rig->tensors[i].count = counts[i];
        rig->tensors[i].dims[0] = (uint32_t)counts[i];
        rig->tensors[i].dims_count = 1;
        offset += counts[i];
    }
    rig->tensors[1].flags = GK_TENSOR_NO_DECAY;
    rig->spec = (struct gk_spec){
        .workers = workers,
        .servers = servers,
        .mode = GK_MODE_BSP,
        .lost_policy = GK_LOST_WAIT,
        .nonfinite_policy = GK_NONFINITE_ABORT,
        .seed = 7,
        .steps = 100,
        .push_max = RIG_PARAMS,
        .optimizer = GK_OPTIMIZER_MOMENTUM,
        .lr = 0.1f,
        .momentum = 0.9f,
        .weight_decay = 0.01f,
        .schedule = GK_SCHEDULE_CONSTANT,
        .model = "tiny",
        .params_count = RIG_PARAMS,
        .tensors = rig->tensors,
        .tensors_count = 2,
    };
    cr_assert(gk_spec_encode(&rig->spec, rig->spec_bytes, &rig->spec_bytes_count, &words) == GK_OK,
              "%s", words.text);
    rig->spec_hash = gk_spec_hash(rig->spec_bytes, rig->spec_bytes_count);
    rig->signature = gk_spec_model_signature(&rig->spec);
    for (uint32_t i = 0; i < RIG_PARAMS; i++) {
        rig->initial[i] = 0.01f * (float)i - 0.3f;
    }
}

/* Shard `shard` of `servers`; the core exists, START has not come. */
static inline struct rig *rig_new(uint32_t workers, uint32_t servers, uint32_t shard)
{
    struct rig *rig = calloc(1, sizeof(*rig));
    struct gk_words words;

    rig->replies = calloc(RIG_REPLIES_MAX, sizeof(*rig->replies));
    rig->actions = calloc(1, sizeof(*rig->actions));
    rig->config = (struct gk_server_config){
        .job = "job",
        .shard = shard,
        .servers = servers,
        .workers = workers,
        .chunk_floats = RIG_CHUNK,
        .seed = 42,
        .local = true,
    };
    rig->now_us = 1000 * 1000;
    rig->ops = gk_vector_reference();
    cr_assert(rig->ops->open(&rig->queue, &words) == GK_OK);
    rig_make_spec(rig, workers, servers);
    rig->lo = gk_partition_lo(RIG_PARAMS, servers, shard);
    rig->hi = gk_partition_lo(RIG_PARAMS, servers, shard + 1);
    cr_assert(gk_server_new(&rig->config, &rig->core) == GK_OK);
    return rig;
}

/* With other configuration than at rig_new(). */
static inline void rig_again(struct rig *rig)
{
    gk_server_free(rig->core);
    cr_assert(gk_server_new(&rig->config, &rig->core) == GK_OK);
}

static inline void rig_free(struct rig *rig)
{
    gk_server_free(rig->core);
    free(rig->memory.planes[0]);
    for (uint32_t i = 0; i < GK_PINS_MAX; i++) {
        free(rig->pins[i]);
    }
    rig->ops->close(rig->queue);
    free(rig->actions);
    free(rig->replies);
    free(rig);
}

static inline void rig_start(struct rig *rig)
{
    rig_event(rig, (struct gk_server_event){.kind = GK_SERVER_START});
}

/* kill -9 and a new process that finds the records: what was not done is forgotten. */
static inline void rig_restart(struct rig *rig)
{
    rig->ops_count = 0;
    for (uint32_t i = 0; i < GK_PINS_MAX; i++) {
        free(rig->pins[i]);
        rig->pins[i] = NULL;
    }
    gk_server_restart(rig->core);
    rig->exited = false;
    rig_start(rig);
}

/* The process stands still, as its timer does not fire; then it does. */
static inline void rig_pause(struct rig *rig, uint64_t length_us)
{
    rig->now_us += length_us;
    rig_event(rig, (struct gk_server_event){.kind = GK_SERVER_TICK});
}

/* Time passes, timer by timer, and ends with a tick. */
static inline void rig_tick(struct rig *rig, uint64_t later_us)
{
    uint64_t until_us = rig->now_us + later_us;

    while (rig->timer_us < until_us && !rig->exited) {
        rig->now_us = rig->timer_us > rig->now_us ? rig->timer_us : rig->now_us;
        rig_event(rig, (struct gk_server_event){.kind = GK_SERVER_TICK});
    }
    rig->now_us = until_us;
    rig_event(rig, (struct gk_server_event){.kind = GK_SERVER_TICK});
}

/* Forget the replies and traces so far. */
static inline void rig_clear(struct rig *rig)
{
    rig->replies_count = 0;
    rig->traces[0] = '\0';
}

static inline void rig_send(struct rig *rig, uint64_t route, const struct gk_msg *msg)
{
    rig_event(rig, (struct gk_server_event){.kind = GK_SERVER_MESSAGE, .route = route, .msg = msg});
}

/* The reply to the newest request; NULL: none. */
static inline const struct rig_reply *rig_reply_to(const struct rig *rig, uint64_t req_id)
{
    for (uint32_t i = rig->replies_count; i-- > 0;) {
        if (rig->replies[i].msg.h.req_id == req_id) {
            return &rig->replies[i];
        }
    }
    return NULL;
}

static inline const struct rig_reply *rig_last(const struct rig *rig)
{
    return rig_reply_to(rig, rig->req_ids);
}

/* Kind of the last answer; 0: none. */
static inline uint32_t rig_kind(const struct rig *rig)
{
    const struct rig_reply *reply = rig_last(rig);

    return reply ? reply->msg.h.kind : 0;
}

static inline uint32_t rig_code(const struct rig *rig)
{
    const struct rig_reply *reply = rig_last(rig);

    return reply ? reply->msg.h.code : 0;
}

static inline bool rig_retryable(const struct rig *rig)
{
    const struct rig_reply *reply = rig_last(rig);

    return reply && (reply->msg.h.flags & GK_FLAG_RETRYABLE) != 0;
}

#define cr_code(rig, code_)                                                                        \
    cr_assert(rig_code(rig) == (code_), "%s, expected %s", gk_code_name(rig_code(rig)),            \
              gk_code_name(code_))
#define cr_kind(rig, kind_)                                                                        \
    cr_assert(rig_kind(rig) == (kind_), "%s (%s), expected %s", gk_kind_name(rig_kind(rig)),       \
              gk_code_name(rig_code(rig)), gk_kind_name(kind_))

#endif
