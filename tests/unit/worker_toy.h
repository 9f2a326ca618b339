/* Toy servers for the tests of worker/core: what proto/README.md says of a shard that one rank
 * talks to, and nothing else.  The other ranks are assumed to be quick: a round closes when this
 * rank's push is whole, if `closes` says so, or when the test calls toy_commit().
 *
 * A request goes in, answers go into a queue; whatever lies between them and the core (nothing, or
 * a bad network) is the business of the test. */
#ifndef GK_TESTS_UNIT_WORKER_TOY_H
#define GK_TESTS_UNIT_WORKER_TOY_H

#include "common/bits.h"
#include "worker_rig.h"

enum { TOY_CHUNKS_MAX = 64, TOY_HELD_MAX = 16, TOY_REPLIES_MAX = 256, TOY_VERSIONS_MAX = 512 };

struct toy_shard {
    uint32_t index;
    uint64_t lo, hi;
    /* What survives a restart. */
    uint32_t incarnation;
    bool initialised;
    uint64_t init_id;
    struct gk_uid uid;
    uint64_t version, durable;
    uint32_t rank_incarnation;
    uint64_t rank_nonce;
    uint32_t rank_slot;
    uint32_t verdict;
    uint64_t verdict_step;
    uint32_t verdict_incarnation;
    bool left, finished;
    uint64_t applied[TOY_VERSIONS_MAX]; /* push id of the commit that made version v + 1 */
    bool lost[TOY_VERSIONS_MAX];
    /* What does not. */
    uint64_t session;
    uint32_t present;
    uint32_t missing; /* that its PONGs name, from rank 0 on */
    uint64_t push_id;
    uint32_t push_chunks, push_have;
    bool have[TOY_CHUNKS_MAX], push_lost, whole;
    bool locked; /* the round is being committed: its push can no longer be dropped */
    uint64_t init_seen, init_have;
    struct gk_header held[TOY_HELD_MAX];
    uint32_t held_count;
    /* How it behaves. */
    uint32_t assigns;                  /* to whom asks for any rank */
    bool closes;                       /* a round, as soon as this rank's push is whole */
    bool lags;                         /* a commit is not durable until the test says so */
    uint32_t handled[GK_KIND_MAX + 1]; /* requests, by kind */
};

struct toy_reply {
    uint32_t shard;
    struct gk_msg msg;
};

struct toy {
    struct rig *rig;
    struct toy_shard shards[RIG_SERVERS_MAX];
    struct toy_reply *replies;
    uint32_t replies_count;
    uint64_t sessions;
};

static inline void toy_open(struct toy *toy, struct rig *rig)
{
    memset(toy, 0, sizeof(*toy));
    toy->rig = rig;
    toy->replies = calloc(TOY_REPLIES_MAX, sizeof(*toy->replies));
    cr_assert(toy->replies != NULL);
    for (uint32_t s = 0; s < rig->options.servers; s++) {
        struct toy_shard *shard = &toy->shards[s];

        shard->index = s;
        shard->incarnation = 1;
        shard->present = rig->options.workers;
        shard->closes = true;
        shard->lo = gk_partition_lo(rig->options.params, rig->options.servers, s);
        shard->hi = gk_partition_lo(rig->options.params, rig->options.servers, s + 1);
    }
}

static inline void toy_close(struct toy *toy)
{
    for (uint32_t i = 0; i < toy->replies_count; i++) {
        gk_msg_clear(&toy->replies[i].msg);
    }
    free(toy->replies);
}

/* Every shard has had version `version` all along. */
static inline void toy_begun(struct toy *toy, uint64_t version)
{
    for (uint32_t s = 0; s < toy->rig->options.servers; s++) {
        struct toy_shard *shard = &toy->shards[s];

        shard->initialised = true;
        shard->init_id = 0x1111;
        shard->uid = (struct gk_uid){.hi = 7, .lo = 8};
        shard->version = version;
        shard->durable = version;
    }
}

static inline void toy_fill(const struct toy_shard *shard, struct gk_msg *msg, uint32_t kind,
                            const struct gk_header *request)
{
    memset(msg, 0, sizeof(*msg));
    msg->h = (struct gk_header){
        .kind = kind,
        .session = shard->session,
        .req_id = request->req_id,
        .rank = request->rank == GK_RANK_ANY ? shard->assigns : request->rank,
        .shard = shard->index,
        .incarnation = shard->incarnation,
        .version = shard->initialised ? shard->version : 0,
        .durable_version = shard->initialised ? shard->durable : 0,
        .verdict = shard->verdict,
        .verdict_step = shard->verdict_step,
        .verdict_incarnation = shard->verdict_incarnation,
    };
}

static inline struct gk_msg *toy_reply(struct toy *toy, struct toy_shard *shard, uint32_t kind,
                                       const struct gk_header *request)
{
    struct toy_reply *reply = &toy->replies[toy->replies_count++];

    cr_assert(toy->replies_count <= TOY_REPLIES_MAX);
    reply->shard = shard->index;
    toy_fill(shard, &reply->msg, kind, request);
    return &reply->msg;
}

static inline struct gk_msg *toy_nack(struct toy *toy, struct toy_shard *shard,
                                      const struct gk_header *request, uint32_t code,
                                      const char *words)
{
    struct gk_msg *msg = toy_reply(toy, shard, GK_KIND_NACK, request);

    msg->h.code = code;
    gk_words_set(&msg->words, "%s", words);
    return msg;
}

static inline void toy_refuse(struct toy *toy, struct toy_shard *shard,
                              const struct gk_header *request, uint32_t code, bool retryable)
{
    struct gk_msg *msg = toy_reply(toy, shard, GK_KIND_REFUSE, request);

    msg->h.session = 0;
    msg->h.code = code;
    msg->h.incarnation = shard->rank_incarnation;
    msg->h.flags = retryable ? GK_FLAG_RETRYABLE : 0;
    gk_words_set(&msg->words, "the toy says so");
}

static inline void toy_welcome_body(const struct toy_shard *shard, struct gk_msg *msg)
{
    msg->h.lo = shard->initialised ? shard->lo : 0;
    msg->h.hi = shard->initialised ? shard->hi : 0;
    msg->h.init_id = shard->initialised ? shard->init_id : 0;
    msg->body.welcome = (struct gk_welcome){
        .life_nonce = shard->rank_nonce,
        .job_uid = shard->initialised ? shard->uid : (struct gk_uid){0},
        .initialised = shard->initialised,
        .highest_incarnation = shard->rank_incarnation,
        .finished = shard->finished,
        .workers_present = shard->present,
        .workers = 1,
    };
}

static inline void toy_drop_push(struct toy_shard *shard)
{
    shard->push_id = 0;
    shard->push_chunks = 0;
    shard->push_have = 0;
    shard->whole = false;
    shard->locked = false;
    shard->push_lost = false;
    memset(shard->have, 0, sizeof(shard->have));
}

static inline void toy_hello(struct toy *toy, struct toy_shard *shard, const struct gk_msg *msg)
{
    const struct gk_hello *hello = &msg->body.hello;
    bool same = shard->rank_nonce == hello->life_nonce;

    if (!same && msg->h.incarnation <= shard->rank_incarnation) {
        toy_refuse(toy, shard, &msg->h, GK_CODE_STALE_LIFE, true);
        return;
    }
    if (!same || shard->session == 0) {
        shard->session = gk_mix64(++toy->sessions) | 1;
        shard->held_count = 0;
        if (!shard->locked && (hello->slot_push_id == 0 || hello->slot_push_id != shard->push_id)) {
            toy_drop_push(shard);
        }
    }
    shard->rank_nonce = hello->life_nonce;
    shard->rank_slot = hello->slot;
    shard->rank_incarnation =
        msg->h.incarnation > shard->rank_incarnation ? msg->h.incarnation : shard->rank_incarnation;
    toy_welcome_body(shard, toy_reply(toy, shard, GK_KIND_WELCOME, &msg->h));
}

static inline void toy_init(struct toy *toy, struct toy_shard *shard, const struct gk_msg *msg)
{
    const struct gk_header *h = &msg->h;
    struct gk_msg *answer;

    if (shard->present < toy->rig->options.workers) {
        answer = toy_nack(toy, shard, h, GK_CODE_NOT_READY, "waiting for worker 2 of 2");
        answer->h.flags = GK_FLAG_RETRYABLE;
        return;
    }
    if (shard->init_seen != h->init_id || shard->uid.hi != h->job_uid.hi) {
        if (h->chunk != 0) {
            answer = toy_nack(toy, shard, h, GK_CODE_NOT_READY, "the first chunk is missing");
            answer->h.flags = GK_FLAG_RETRYABLE;
            return;
        }
        shard->init_seen = h->init_id;
        shard->init_have = 0;
        shard->initialised = false;
        shard->uid = h->job_uid;
    }
    shard->init_have |= UINT64_C(1) << h->chunk;
    if (shard->init_have == (UINT64_C(1) << h->chunks) - 1) {
        shard->initialised = true;
        shard->init_id = h->init_id;
    }
    answer = toy_reply(toy, shard, GK_KIND_INIT_OK, h);
    answer->h.init_id = h->init_id;
    answer->h.chunk = h->chunk;
    answer->h.chunks = h->chunks;
}

static inline void toy_params(struct toy *toy, struct toy_shard *shard,
                              const struct gk_header *request)
{
    struct gk_msg *msg = toy_reply(toy, shard, GK_KIND_PARAMS, request);
    uint64_t count = request->hi - request->lo;
    float first = (float)shard->version;

    msg->h.lo = request->lo;
    msg->h.hi = request->hi;
    msg->h.count = count;
    msg->h.plane = request->plane;
    msg->h.samples = request->plane == 1 ? 100 + shard->version : 0;
    msg->h.index_encoding = GK_INDEX_DENSE;
    msg->h.value_encoding = GK_VALUE_F32;
    msg->frame[0] = gk_buf_new(count * sizeof(float));
    msg->frames_count = 1;
    memcpy(msg->frame[0]->data, &first, sizeof(first));
}

static inline void toy_pull(struct toy *toy, struct toy_shard *shard, const struct gk_header *h)
{
    if (h->version < shard->version) {
        (void)toy_reply(toy, shard, GK_KIND_GONE, h);
    } else if (h->version == shard->version) {
        toy_params(toy, shard, h);
    } else {
        for (uint32_t i = 0; i < shard->held_count; i++) {
            if (shard->held[i].lo == h->lo) {
                shard->held[i] = *h;
                return;
            }
        }
        cr_assert(shard->held_count < TOY_HELD_MAX);
        shard->held[shard->held_count++] = *h;
    }
}

/* The round of the shard's version closes. */
static inline void toy_commit(struct toy *toy, uint32_t s)
{
    struct toy_shard *shard = &toy->shards[s];
    uint32_t held_count = shard->held_count;

    cr_assert(shard->version < TOY_VERSIONS_MAX && shard->whole);
    shard->applied[shard->version] = shard->push_id;
    shard->lost[shard->version] = shard->push_lost;
    shard->verdict = shard->push_lost ? GK_VERDICT_LOST : GK_VERDICT_APPLIED;
    shard->verdict_step = shard->version;
    shard->verdict_incarnation = shard->rank_incarnation;
    shard->version++;
    shard->durable = shard->lags ? shard->durable : shard->version;
    toy_drop_push(shard);
    shard->held_count = 0;
    for (uint32_t i = 0; i < held_count; i++) {
        toy_pull(toy, shard, &shard->held[i]);
    }
}

static inline void toy_push(struct toy *toy, struct toy_shard *shard, const struct gk_msg *msg)
{
    const struct gk_header *h = &msg->h;
    struct gk_msg *answer;

    cr_assert(h->step <= shard->version, "step %llu at version %llu", (unsigned long long)h->step,
              (unsigned long long)shard->version);
    cr_assert(h->chunks <= TOY_CHUNKS_MAX && h->lo >= shard->lo && h->hi <= shard->hi);
    if (h->step == shard->version && shard->locked) {
        return; /* left to the retry, which will hear the verdict */
    }
    if (h->step == shard->version) {
        if (shard->push_id != h->push_id) {
            toy_drop_push(shard);
            shard->push_id = h->push_id;
            shard->push_chunks = h->chunks;
            shard->push_lost = h->flags & GK_FLAG_LOST;
        }
        cr_assert(shard->push_chunks == h->chunks);
        shard->push_have += !shard->have[h->chunk];
        shard->have[h->chunk] = true;
        shard->whole = shard->push_have == shard->push_chunks;
    }
    answer = toy_reply(toy, shard, GK_KIND_PUSH_OK, h);
    answer->h.step = h->step;
    answer->h.push_id = h->push_id;
    answer->h.chunk = h->chunk;
    answer->h.chunks = h->chunks;
    if (shard->whole && shard->closes) {
        toy_commit(toy, shard->index);
    }
}

static inline void toy_leave(struct toy *toy, struct toy_shard *shard, const struct gk_header *h)
{
    shard->left = true;
    shard->durable = shard->version; /* the record of the leave is synced, and all before it */
    toy_reply(toy, shard, GK_KIND_LEAVE_OK, h)->h.step = h->step;
}

/* One request.  The answers are in toy->replies. */
static inline void toy_handle(struct toy *toy, uint32_t s, const struct gk_msg *msg)
{
    struct toy_shard *shard = &toy->shards[s];
    const struct gk_header *h = &msg->h;

    shard->handled[h->kind]++;
    if (h->kind == GK_KIND_HELLO) {
        toy_hello(toy, shard, msg);
        return;
    }
    if (shard->session == 0 || h->session != shard->session) {
        struct gk_msg *nack = toy_nack(toy, shard, h, GK_CODE_NO_SESSION, "who are you?");

        nack->h.session = h->session;
        nack->h.version = nack->h.durable_version = 0;
        nack->h.verdict = 0;
        nack->h.verdict_step = 0;
        nack->h.verdict_incarnation = 0;
        return;
    }
    if (h->kind == GK_KIND_INIT) {
        toy_init(toy, shard, msg);
    } else if (h->kind == GK_KIND_PUSH) {
        toy_push(toy, shard, msg);
    } else if (h->kind == GK_KIND_PULL_DENSE) {
        toy_pull(toy, shard, h);
    } else if (h->kind == GK_KIND_LEAVE) {
        toy_leave(toy, shard, h);
    } else {
        cr_assert(h->kind == GK_KIND_PING);
        toy_reply(toy, shard, GK_KIND_PONG, h)->body.ping =
            (struct gk_ping){.sent_us = msg->body.ping.sent_us,
                             .waits = shard->missing > 0 ? GK_WAIT_RANK : GK_WAIT_NONE,
                             .waits_count = shard->missing};
    }
}

/* The process dies; what the disk has comes back with the next HELLO. */
static inline void toy_restart(struct toy *toy, uint32_t s)
{
    struct toy_shard *shard = &toy->shards[s];

    shard->incarnation++;
    shard->session = 0;
    shard->held_count = 0;
    shard->version = shard->durable;
    if (shard->verdict_step >= shard->version && shard->verdict) {
        shard->verdict = shard->version > 0 ? GK_VERDICT_APPLIED : GK_VERDICT_NONE;
        shard->verdict_step = shard->version > 0 ? shard->version - 1 : 0;
        shard->verdict_incarnation = shard->version > 0 ? shard->rank_incarnation : 0;
    }
    toy_drop_push(shard);
}

/* Deliver the answers, the oldest first. */
static inline void toy_deliver(struct toy *toy)
{
    for (uint32_t i = 0; i < toy->replies_count; i++) {
        struct toy_reply reply = toy->replies[i];

        memset(&toy->replies[i].msg, 0, sizeof(toy->replies[i].msg));
        rig_give(toy->rig, reply.shard, &reply.msg);
    }
    toy->replies_count = 0;
}

/* Answer everything that was sent to the shards of `mask`, until the core says nothing more. */
static inline void toy_serve_some(struct toy *toy, uint32_t mask)
{
    struct rig *rig = toy->rig;

    for (bool again = true; again;) {
        again = false;
        for (uint32_t i = 0; i < rig->sent_count; i++) {
            struct rig_sent *sent = &rig->sent[i];

            if (!sent->taken && (mask >> sent->shard & 1)) {
                sent->taken = true;
                again = true;
                toy_handle(toy, sent->shard, &sent->msg);
            }
        }
        toy_deliver(toy);
    }
}

static inline void toy_serve(struct toy *toy)
{
    toy_serve_some(toy, ~0u);
    rig_forget_sent(toy->rig);
}

/* Let time pass, with an answer to everything. */
static inline void toy_wait(struct toy *toy, uint64_t us)
{
    uint64_t until_us = toy->rig->now_us + us;

    toy_serve(toy);
    while (!toy->rig->exited && toy->rig->armed_us <= until_us) {
        rig_tick(toy->rig);
        toy_serve(toy);
    }
    toy->rig->now_us = until_us;
}

/* Start, connect, and join at the shards' version, up to the first STEP. */
static inline void toy_join(struct toy *toy)
{
    rig_start(toy->rig);
    for (uint32_t s = 0; s < toy->rig->options.servers; s++) {
        rig_up(toy->rig, s);
    }
    toy_serve(toy);
}

/* From COMPUTING to the push on its way, without an answer yet. */
static inline void toy_compute(struct toy *toy)
{
    cr_assert(rig_in(toy->rig, GK_PHASE_COMPUTING));
    rig_step_done(toy->rig);
    rig_persisted(toy->rig);
}

#endif
