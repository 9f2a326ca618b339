/* Drives one worker core in virtual time, for the tests of worker/core.
 *
 * Every step of the core is judged here: messages must survive the wire, EXIT comes last, the timer
 * is armed once, in the future, and never for nothing.  What the core sent lies in `sent` until a
 * test takes it. */
#ifndef GK_TESTS_UNIT_WORKER_RIG_H
#define GK_TESTS_UNIT_WORKER_RIG_H

#include "common/exit.h"
#include "worker/core/worker.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RIG_SERVERS_MAX = 8, RIG_SENT_MAX = 2048, RIG_INSTALLS_MAX = 16384, RIG_TRACES_MAX = 64 };

struct rig_options {
    uint32_t servers, workers, rank; /* 0 servers or workers: 1 */
    uint64_t params;                 /* 0: 64 a shard */
    uint64_t steps;                  /* 0: 1000 */
    uint64_t eval_every, deadline_us, seed;
    uint32_t plant;
    bool evaluates, sums;
    float rate;            /* that every step brings; 0: none */
    uint64_t entries;      /* of a push; 0: 4 */
    uint32_t chunk_floats; /* of a push; 0: GK_CHUNK_FLOATS */
    uint32_t pull_floats;  /* of INIT and pulls; 0: GK_CHUNK_FLOATS */
};

struct rig_sent {
    bool taken;
    uint32_t shard;
    uint64_t at_us;
    struct gk_msg msg;
};

struct rig_install {
    uint64_t version, lo, hi;
    float first;
    uint32_t plane;
    uint64_t samples;
};

struct rig_trace {
    const char *id;
    enum gk_log_level level;
    struct gk_words words;
    uint64_t at_us;
};

struct rig {
    struct rig_options options;
    struct gk_worker_config config;
    struct gk_spec spec;
    struct gk_worker *core;
    struct gk_worker_actions *actions;
    uint64_t now_us;
    uint64_t armed_us, armed_at_us; /* the timer, and when it was armed */
    struct rig_sent *sent;
    uint32_t sent_count;
    struct rig_install *installs;
    uint32_t installs_count;
    struct rig_trace *traces;
    uint64_t traces_count; /* all; the last ones are kept */
    uint64_t counts[GK_WORKER_EXIT + 1];
    uint64_t asked[GK_WORKER_EXIT + 1]; /* step of the last action of each kind */
    uint32_t most;                      /* actions of one step */
    uint32_t rank;                      /* that was assigned */
    struct gk_worker_identity identity; /* that was to be remembered last */
    struct gk_worker_memory memory;     /* that was to be persisted last */
    bool exited;
    int exit_code;
    struct gk_words exit_words;
};

static const char *const rig_addresses[RIG_SERVERS_MAX] = {"tcp://a:1", "tcp://b:2", "tcp://c:3",
                                                           "tcp://d:4", "tcp://e:5", "tcp://f:6",
                                                           "tcp://g:7", "tcp://h:8"};

static inline void rig_open(struct rig *rig, struct rig_options options)
{
    memset(rig, 0, sizeof(*rig));
    options.servers = options.servers ? options.servers : 1;
    options.workers = options.workers ? options.workers : 1;
    options.params = options.params ? options.params : 64 * options.servers;
    options.steps = options.steps ? options.steps : 1000;
    options.entries = options.entries ? options.entries : 4;
    options.chunk_floats = options.chunk_floats ? options.chunk_floats : GK_CHUNK_FLOATS;
    rig->options = options;
    rig->spec.workers = options.workers;
    rig->spec.servers = options.servers;
    rig->spec.steps = options.steps;
    rig->spec.optimizer = options.sums ? GK_OPTIMIZER_NONE : GK_OPTIMIZER_SGD;
    rig->spec.params_count = options.params;
    rig->config = (struct gk_worker_config){
        .job = "rig",
        .addresses = rig_addresses,
        .servers = options.servers,
        .workers = options.workers,
        .rank = options.rank,
        .spec = &rig->spec,
        .spec_hash = 0x5bec,
        .model_signature = 0x30de1,
        .seed = options.seed,
        .deadline_us = options.deadline_us,
        .eval_every = options.eval_every,
        .evaluates = options.evaluates,
        .sums = options.sums,
        .chunk_floats = options.pull_floats,
        .plant = options.plant,
    };
    rig->sent = calloc(RIG_SENT_MAX, sizeof(*rig->sent));
    rig->installs = calloc(RIG_INSTALLS_MAX, sizeof(*rig->installs));
    rig->traces = calloc(RIG_TRACES_MAX, sizeof(*rig->traces));
    cr_assert(rig->sent && rig->installs && rig->traces);
    cr_assert(gk_worker_new(&rig->config, &rig->core) == GK_OK);
    cr_assert(gk_worker_actions_new(options.servers, &rig->actions) == GK_OK);
}

static inline void rig_forget_sent(struct rig *rig)
{
    for (uint32_t i = 0; i < rig->sent_count; i++) {
        gk_msg_clear(&rig->sent[i].msg);
    }
    rig->sent_count = 0;
}

static inline void rig_close(struct rig *rig)
{
    rig_forget_sent(rig);
    gk_worker_actions_free(rig->actions);
    gk_worker_free(rig->core);
    free(rig->sent);
    free(rig->installs);
    free(rig->traces);
}

/* What the shell does with INIT. */
static inline void rig_attach_init(struct gk_msg *msg)
{
    if (msg->h.chunk == 0) {
        msg->frame[msg->frames_count++] = gk_buf_copy("spec", 4);
    }
    msg->frame[msg->frames_count++] = gk_buf_new((msg->h.hi - msg->h.lo) * sizeof(float));
}

/* Through bytes and back; the message is replaced by what the other side reads. */
static inline void rig_over_wire(struct gk_msg *msg)
{
    struct gk_buf *parts[GK_PARTS_MAX];
    struct gk_words words;
    uint32_t count;

    cr_assert(gk_msg_to_wire(msg, parts, &count) == GK_OK);
    gk_msg_clear(msg);
    cr_assert(gk_msg_from_wire(parts, count, msg, &words) == GK_OK, "%s", words.text);
    for (uint32_t i = 0; i < count; i++) {
        gk_buf_unref(parts[i]);
    }
}

static inline void rig_keep_sent(struct rig *rig, struct gk_worker_action *action)
{
    struct rig_sent *sent = &rig->sent[rig->sent_count++];

    cr_assert(rig->sent_count <= RIG_SENT_MAX);
    *sent = (struct rig_sent){.shard = action->shard, .at_us = rig->now_us, .msg = action->msg};
    memset(&action->msg, 0, sizeof(action->msg)); /* its references are ours now */
    if (action->kind == GK_WORKER_SEND_INIT) {
        rig_attach_init(&sent->msg);
    }
    rig_over_wire(&sent->msg);
    cr_assert(sent->msg.h.shard == sent->shard);
}

static inline void rig_perform(struct rig *rig, struct gk_worker_action *action, bool last)
{
    rig->counts[action->kind]++;
    rig->asked[action->kind] = action->step;
    switch (action->kind) {
    case GK_WORKER_SEND:
    case GK_WORKER_SEND_INIT:
        cr_assert(action->msg.h.incarnation == rig->identity.incarnation, "remembered before used");
        rig_keep_sent(rig, action);
        break;
    case GK_WORKER_INSTALL:
        cr_assert(action->buf->size == (action->hi - action->lo) * sizeof(float));
        cr_assert(rig->installs_count < RIG_INSTALLS_MAX);
        rig->installs[rig->installs_count] = (struct rig_install){.version = action->step,
                                                                  .lo = action->lo,
                                                                  .hi = action->hi,
                                                                  .plane = action->plane,
                                                                  .samples = action->samples};
        memcpy(&rig->installs[rig->installs_count++].first, action->buf->data, sizeof(float));
        break;
    case GK_WORKER_ARM_TIMER:
        cr_assert(action->at_us > rig->now_us && action->at_us <= rig->now_us + GK_PING_US);
        rig->armed_us = action->at_us;
        rig->armed_at_us = rig->now_us;
        break;
    case GK_WORKER_TRACE:
        rig->traces[rig->traces_count++ % RIG_TRACES_MAX] = (struct rig_trace){
            .id = action->id, .level = action->level, .words = action->words, .at_us = rig->now_us};
        break;
    case GK_WORKER_EXIT:
        cr_assert(last, "EXIT is the last action");
        rig->exited = true;
        rig->exit_code = action->exit_code;
        rig->exit_words = action->words;
        break;
    case GK_WORKER_RANK:
        rig->rank = action->rank;
        break;
    case GK_WORKER_MAKE_INIT:
    case GK_WORKER_STEP:
    case GK_WORKER_PERSIST:
        rig->memory = action->memory;
        break;
    case GK_WORKER_REMEMBER:
        rig->identity = action->identity;
        break;
    case GK_WORKER_EVALUATE:
    case GK_WORKER_RESET:
        break;
    }
}

/* One step of the core, with everything that holds for every step. */
static inline void rig_event(struct rig *rig, struct gk_worker_event event)
{
    bool was_done = gk_worker_phase(rig->core) == GK_PHASE_DONE;
    uint64_t armed = rig->counts[GK_WORKER_ARM_TIMER];
    bool done, idle;

    event.now_us = rig->now_us;
    gk_worker_step(rig->core, &event, rig->actions);
    cr_assert(!was_done || rig->actions->count == 0, "nothing comes after EXIT");
    rig->most = rig->actions->count > rig->most ? rig->actions->count : rig->most;
    for (uint32_t i = 0; i < rig->actions->count; i++) {
        rig_perform(rig, &rig->actions->list[i], i + 1 == rig->actions->count);
    }
    gk_worker_actions_clear(rig->actions);
    done = gk_worker_phase(rig->core) == GK_PHASE_DONE;
    idle = gk_worker_phase(rig->core) == GK_PHASE_IDLE;
    cr_assert(done == rig->exited);
    cr_assert_eq(rig->counts[GK_WORKER_ARM_TIMER] - armed, done || idle ? 0 : 1);
}

/* A new life of the process, with a slot that holds the pushes below `next_step` (0: none). */
static inline void rig_restart(struct rig *rig, uint64_t next_step)
{
    rig_forget_sent(rig);
    gk_worker_restart(rig->core, next_step);
    rig->exited = false;
    cr_assert(gk_worker_phase(rig->core) == GK_PHASE_IDLE);
}

static inline void rig_start(struct rig *rig)
{
    rig_event(rig, (struct gk_worker_event){.kind = GK_WORKER_START});
}

static inline void rig_up(struct rig *rig, uint32_t shard)
{
    rig_event(rig, (struct gk_worker_event){.kind = GK_WORKER_PEER_UP, .shard = shard});
}

static inline void rig_down(struct rig *rig, uint32_t shard)
{
    rig_event(rig, (struct gk_worker_event){.kind = GK_WORKER_PEER_DOWN, .shard = shard});
}

/* The timer fires.  One that was armed for less than the second in which deadlines are looked at
 * was armed for something, and it must be done now. */
static inline void rig_tick(struct rig *rig)
{
    bool for_something = rig->armed_us < rig->armed_at_us + GK_PING_US;
    uint64_t before = 0, after = 0;

    for (uint32_t i = 0; i <= GK_WORKER_EXIT; i++) {
        before += i == GK_WORKER_ARM_TIMER ? 0 : rig->counts[i];
    }
    rig->now_us = rig->armed_us;
    rig_event(rig, (struct gk_worker_event){.kind = GK_WORKER_TICK});
    for (uint32_t i = 0; i <= GK_WORKER_EXIT; i++) {
        after += i == GK_WORKER_ARM_TIMER ? 0 : rig->counts[i];
    }
    cr_assert(!for_something || after > before, "a timer armed for nothing, in phase %s",
              gk_worker_phase_name(gk_worker_phase(rig->core)));
}

/* Let time pass, timer by timer. */
static inline void rig_wait(struct rig *rig, uint64_t us)
{
    uint64_t until_us = rig->now_us + us;

    while (!rig->exited && rig->armed_us <= until_us) {
        rig_tick(rig);
    }
    rig->now_us = until_us;
}

static inline uint32_t rig_count(const struct rig *rig, uint32_t shard, enum gk_kind kind)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < rig->sent_count; i++) {
        const struct rig_sent *sent = &rig->sent[i];

        count += !sent->taken && sent->shard == shard && sent->msg.h.kind == kind;
    }
    return count;
}

/* The oldest message of a kind to a shard that nobody has taken; NULL: none. */
static inline struct gk_msg *rig_take(struct rig *rig, uint32_t shard, enum gk_kind kind)
{
    for (uint32_t i = 0; i < rig->sent_count; i++) {
        struct rig_sent *sent = &rig->sent[i];

        if (!sent->taken && sent->shard == shard && sent->msg.h.kind == kind) {
            sent->taken = true;
            return &sent->msg;
        }
    }
    return NULL;
}

/* Give the core a message, and drop it. */
static inline void rig_give(struct rig *rig, uint32_t shard, struct gk_msg *msg)
{
    rig_over_wire(msg);
    rig_event(rig, (struct gk_worker_event){.kind = GK_WORKER_MESSAGE, .shard = shard, .msg = msg});
    gk_msg_clear(msg);
}

static inline bool rig_in(const struct rig *rig, enum gk_worker_phase phase)
{
    return gk_worker_phase(rig->core) == phase;
}

/* Whether a line with this id and this text in it was said; among the last ones. */
static inline bool rig_said(const struct rig *rig, const char *id, const char *text)
{
    for (uint64_t i = 0; i < rig->traces_count && i < RIG_TRACES_MAX; i++) {
        if (strcmp(rig->traces[i].id, id) == 0 && strstr(rig->traces[i].words.text, text)) {
            return true;
        }
    }
    return false;
}

static inline const struct rig_trace *rig_last_line(const struct rig *rig)
{
    static const struct rig_trace none = {.id = "", .words.text = ""};

    return rig->traces_count > 0 ? &rig->traces[(rig->traces_count - 1) % RIG_TRACES_MAX] : &none;
}

/* The push of a step: `entries` entries that depend on the step. */
static inline struct gk_push *rig_push(const struct rig *rig, uint64_t step)
{
    uint64_t d = rig->options.params, n = rig->options.entries;
    struct gk_push_source source = {.step = step,
                                    .samples = 32,
                                    .has_rate = rig->options.rate > 0,
                                    .lr = rig->options.rate,
                                    .rank = rig->options.rank,
                                    .servers = rig->options.servers,
                                    .params_count = d,
                                    .n = n,
                                    .chunk_floats = rig->options.chunk_floats};
    uint32_t *idx = calloc(n, sizeof(*idx));
    float *val = calloc(n, sizeof(*val));
    struct gk_push *push;
    struct gk_words words;

    cr_assert(idx && val && n <= d);
    for (uint64_t i = 0; i < n; i++) {
        idx[i] = (uint32_t)(i * (d / n));
        val[i] = (float)(step + 1) + (float)i / 1024;
    }
    source.idx = idx;
    source.val = val;
    cr_assert(gk_push_encode(&source, &push, &words) == GK_OK);
    free(idx);
    free(val);
    return push;
}

static inline void rig_step_done(struct rig *rig)
{
    struct gk_push *push = rig_push(rig, rig->asked[GK_WORKER_STEP]);

    rig_event(rig, (struct gk_worker_event){.kind = GK_WORKER_STEP_DONE, .push = push});
}

static inline void rig_persisted(struct rig *rig)
{
    rig_event(rig, (struct gk_worker_event){.kind = GK_WORKER_PERSISTED});
}

static inline void rig_init_made(struct rig *rig, uint64_t init_id)
{
    rig_event(rig, (struct gk_worker_event){.kind = GK_WORKER_INIT_MADE, .init_id = init_id});
}

static inline void rig_evaluated(struct rig *rig)
{
    rig_event(rig, (struct gk_worker_event){.kind = GK_WORKER_EVALUATED});
}

#endif
