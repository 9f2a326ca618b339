/* What workers of a small job say to a server: HELLO to LEAVE, pushes, and the planes that the job
 * must end with. */
#ifndef GK_TESTS_SERVER_JOB_H
#define GK_TESTS_SERVER_JOB_H

#include "server_rig.h"

/* Requests.  Rank r's life n has nonce 1000 (r + 1) + n, route 10 (r + 1) + n and incarnation n. */
static inline uint64_t rig_route(uint32_t rank, uint32_t life)
{
    return 10 * (rank + 1) + life;
}

static inline struct gk_msg rig_msg(struct rig *rig, uint32_t kind, uint32_t rank)
{
    return (struct gk_msg){.h = {
                               .kind = kind,
                               .session = rank < RIG_RANKS_MAX ? rig->session[rank] : 0,
                               .req_id = ++rig->req_ids,
                               .rank = rank,
                               .shard = rig->config.shard,
                               .incarnation = 1,
                           }};
}

static inline struct gk_msg rig_hello_msg(struct rig *rig, uint32_t rank, uint32_t life)
{
    struct gk_msg msg = rig_msg(rig, GK_KIND_HELLO, rank);

    msg.h.session = 0;
    msg.h.incarnation = life;
    msg.body.hello = (struct gk_hello){
        .protocol_min = GK_PROTOCOL_VERSION,
        .protocol_max = GK_PROTOCOL_VERSION,
        .spec_hash = rig->spec_hash,
        .model_signature = rig->signature,
        .workers = rig->config.workers,
        .servers = rig->config.servers,
        .role = 1,
        .life_nonce = 1000 * (rank + 1) + life,
    };
    gk_words_set(&msg.words, "%s", rig->config.job);
    return msg;
}

/* Send a HELLO and remember the session. */
static inline void rig_say_hello(struct rig *rig, uint32_t rank, uint32_t life,
                                 const struct gk_msg *msg)
{
    rig_send(rig, rig_route(rank, life), msg);
    if (rig_kind(rig) == GK_KIND_WELCOME) {
        rig->session[rig_last(rig)->msg.h.rank] = rig_last(rig)->msg.h.session;
    }
}

static inline void rig_hello(struct rig *rig, uint32_t rank, uint32_t life)
{
    struct gk_msg msg = rig_hello_msg(rig, rank, life);

    rig_say_hello(rig, rank, life, &msg);
}

static inline struct gk_uid rig_uid(void)
{
    return (struct gk_uid){.hi = 11, .lo = 22};
}

static inline uint32_t rig_chunks(const struct rig *rig)
{
    return (uint32_t)((rig->hi - rig->lo + RIG_CHUNK - 1) / RIG_CHUNK);
}

/* Chunk of INIT; the caller clears it. */
static inline struct gk_msg rig_init_msg(struct rig *rig, uint32_t chunk, uint64_t init_id)
{
    struct gk_msg msg = rig_msg(rig, GK_KIND_INIT, 0);

    msg.h.init_id = init_id;
    msg.h.job_uid = rig_uid();
    msg.h.chunk = chunk;
    msg.h.chunks = rig_chunks(rig);
    msg.h.lo = rig->lo + (uint64_t)chunk * RIG_CHUNK;
    msg.h.hi = gk_min_u64(msg.h.lo + RIG_CHUNK, rig->hi);
    msg.h.index_encoding = GK_INDEX_DENSE;
    msg.h.value_encoding = GK_VALUE_F32;
    msg.h.count = msg.h.hi - msg.h.lo;
    if (chunk == 0) {
        msg.frame[msg.frames_count++] = gk_buf_copy(rig->spec_bytes, rig->spec_bytes_count);
    }
    msg.frame[msg.frames_count++] =
        gk_buf_copy(rig->initial + msg.h.lo, msg.h.count * sizeof(float));
    return msg;
}

static inline void rig_init_chunk(struct rig *rig, uint32_t chunk, uint64_t init_id)
{
    struct gk_msg msg = rig_init_msg(rig, chunk, init_id);

    rig_send(rig, rig_route(0, 1), &msg);
    gk_msg_clear(&msg);
}

enum { RIG_INIT_ID = 77 };

static inline void rig_init(struct rig *rig)
{
    for (uint32_t c = 0; c < rig_chunks(rig); c++) {
        rig_init_chunk(rig, c, RIG_INIT_ID);
    }
}

/* Before START. */
static inline void rig_set_optimizer(struct rig *rig, enum gk_optimizer optimizer)
{
    struct gk_words words = {""};

    rig->spec.optimizer = optimizer;
    rig->spec.momentum = optimizer >= GK_OPTIMIZER_MOMENTUM ? 0.9f : 0;
    cr_assert(gk_spec_encode(&rig->spec, rig->spec_bytes, &rig->spec_bytes_count, &words) == GK_OK,
              "%s", words.text);
    rig->spec_hash = gk_spec_hash(rig->spec_bytes, rig->spec_bytes_count);
}

/* START, all HELLOs, INIT: version 0 is there. */
static inline struct rig *rig_running_with(uint32_t workers, enum gk_optimizer optimizer)
{
    struct rig *rig = rig_new(workers, 1, 0);

    rig_set_optimizer(rig, optimizer);
    rig_start(rig);
    for (uint32_t r = 0; r < workers; r++) {
        rig_hello(rig, r, 1);
    }
    rig_init(rig);
    cr_assert(rig_view(rig).state == GK_SHARD_RUNNING);
    rig_clear(rig);
    return rig;
}

static inline struct rig *rig_running(uint32_t workers)
{
    return rig_running_with(workers, GK_OPTIMIZER_MOMENTUM);
}

/* The push of a rank and step, in `variant`: about a quarter of the elements, values of very
 * different sizes, so that the order of a sum shows.  Chunks of RIG_CHUNK elements. */
struct rig_push {
    uint64_t id, bytes, samples, step;
    uint32_t flags, lr_bits;
    uint32_t chunks;
    uint32_t counts[RIG_PARAMS / RIG_CHUNK + 1];
    uint32_t idx[RIG_PARAMS / RIG_CHUNK + 1][RIG_CHUNK];
    float val[RIG_PARAMS / RIG_CHUNK + 1][RIG_CHUNK];
};

static inline struct rig_push rig_make_push(const struct rig *rig, uint32_t rank, uint64_t step,
                                            uint32_t variant)
{
    struct gk_rng rng = {.seed = 5, .purpose = GK_RNG_BATCH, .a = step, .b = rank * 16 + variant};
    struct rig_push push = {.step = step, .samples = 3 + rank, .chunks = rig_chunks(rig)};
    uint64_t draw = 0;

    for (uint64_t i = rig->lo; i < rig->hi; i++) {
        uint32_t c = (uint32_t)((i - rig->lo) / RIG_CHUNK);
        uint32_t bits = gk_rng_u32(&rng, draw++);

        if ((bits & 3) == 0) {
            float scale = bits & 4 ? 1e4f : 1e-3f;

            push.idx[c][push.counts[c]] = (uint32_t)((i - rig->lo) % RIG_CHUNK);
            push.val[c][push.counts[c]++] = scale * (gk_rng_float(&rng, draw++) - 0.5f);
            push.bytes += 8;
        }
    }
    push.id = gk_mix64((step + 1) * 1000 + rank * 16 + variant);
    return push;
}

static inline struct gk_msg rig_push_msg(struct rig *rig, uint32_t rank,
                                         const struct rig_push *push, uint32_t chunk)
{
    struct gk_msg msg = rig_msg(rig, GK_KIND_PUSH, rank);
    uint32_t count = push->counts[chunk];

    msg.h.step = push->step;
    msg.h.base_version = push->step;
    msg.h.samples = push->samples;
    msg.h.flags = push->flags;
    msg.h.lr_bits = push->lr_bits;
    msg.h.push_id = push->id;
    msg.h.push_bytes = push->bytes;
    msg.h.chunk = chunk;
    msg.h.chunks = push->chunks;
    msg.h.lo = rig->lo + (uint64_t)chunk * RIG_CHUNK;
    msg.h.hi = push->chunks == 1 ? rig->hi : gk_min_u64(msg.h.lo + RIG_CHUNK, rig->hi);
    msg.h.count = count;
    if (count > 0) {
        msg.h.index_encoding = GK_INDEX_RAW32;
        msg.h.value_encoding = GK_VALUE_F32;
        msg.frame[0] = gk_buf_copy(push->idx[chunk], count * sizeof(uint32_t));
        msg.frame[1] = gk_buf_copy(push->val[chunk], count * sizeof(float));
        msg.frames_count = 2;
    }
    return msg;
}

static inline void rig_push_chunk(struct rig *rig, uint32_t rank, const struct rig_push *push,
                                  uint32_t chunk)
{
    struct gk_msg msg = rig_push_msg(rig, rank, push, chunk);

    rig_send(rig, rig_route(rank, 1), &msg);
    gk_msg_clear(&msg);
}

static inline void rig_push_all(struct rig *rig, uint32_t rank, const struct rig_push *push)
{
    for (uint32_t c = 0; c < push->chunks; c++) {
        rig_push_chunk(rig, rank, push, c);
    }
}

static inline void rig_push(struct rig *rig, uint32_t rank, uint64_t step)
{
    struct rig_push push = rig_make_push(rig, rank, step, 0);

    rig_push_all(rig, rank, &push);
}

/* An empty push; LOST with samples 0. */
static inline struct rig_push rig_empty_push(uint32_t rank, uint64_t step, uint64_t samples)
{
    return (struct rig_push){
        .step = step, .samples = samples, .chunks = 1, .id = 900 + 10 * step + rank};
}

/* The push brings the learning rate of its step. */
static inline void rig_bring_rate(struct rig_push *push, float lr)
{
    push->flags |= GK_FLAG_LR_FROM_CLIENT;
    push->lr_bits = gk_float_bits(lr);
}

static inline void rig_round(struct rig *rig, uint64_t step)
{
    for (uint32_t r = 0; r < rig->config.workers; r++) {
        rig_push(rig, r, step);
    }
}

static inline void rig_pull_range(struct rig *rig, uint32_t rank, uint64_t version, uint64_t lo,
                                  uint64_t hi)
{
    struct gk_msg msg = rig_msg(rig, GK_KIND_PULL_DENSE, rank);

    msg.h.version = version;
    msg.h.lo = lo;
    msg.h.hi = hi;
    rig_send(rig, rig_route(rank, 1), &msg);
}

static inline void rig_pull(struct rig *rig, uint32_t rank, uint64_t version)
{
    rig_pull_range(rig, rank, version, rig->lo, rig->hi);
}

static inline void rig_leave(struct rig *rig, uint32_t rank, uint64_t step)
{
    struct gk_msg msg = rig_msg(rig, GK_KIND_LEAVE, rank);

    msg.h.step = step;
    rig_send(rig, rig_route(rank, 1), &msg);
}

static inline void rig_ping(struct rig *rig, uint32_t rank, uint32_t life)
{
    struct gk_msg msg = rig_msg(rig, GK_KIND_PING, rank);

    msg.body.ping.sent_us = 5;
    rig_send(rig, rig_route(rank, life), &msg);
}

/* What a job without any fault would have as planes: the reference table, pushes in rank order. */
struct rig_model {
    float p[RIG_PARAMS], m[RIG_PARAMS];
    uint64_t optimizer_step;
};

static inline void rig_model_init(const struct rig *rig, struct rig_model *model)
{
    memset(model, 0, sizeof(*model));
    memcpy(model->p, rig->initial + rig->lo, (rig->hi - rig->lo) * sizeof(float));
}

static inline void rig_model_commit(struct rig *rig, struct rig_model *model,
                                    const struct rig_push *pushes, uint32_t count)
{
    struct gk_list lists[RIG_RANKS_MAX * (RIG_PARAMS / RIG_CHUNK + 1)];
    uint32_t idx[RIG_PARAMS];
    float val[RIG_PARAMS];
    struct gk_range decay[2];
    struct gk_sum_report report;
    struct gk_sum_args sum = {
        .lists = lists, .len = rig->hi - rig->lo, .idx = idx, .val = val, .report = &report};
    struct gk_update update = {.hyper = {.lr = gk_spec_lr(&rig->spec, model->optimizer_step),
                                         .momentum = rig->spec.momentum,
                                         .weight_decay = rig->spec.weight_decay}};
    struct gk_apply_args apply = {.optimizer = rig->spec.optimizer,
                                  .p = model->p,
                                  .m = model->m,
                                  .len = rig->hi - rig->lo,
                                  .decay = decay,
                                  .updates = &update,
                                  .updates_count = 1};

    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t c = 0; c < pushes[i].chunks; c++) {
            if (pushes[i].counts[c] > 0) {
                lists[sum.lists_count++] = (struct gk_list){.idx = pushes[i].idx[c],
                                                            .val = pushes[i].val[c],
                                                            .n = pushes[i].counts[c],
                                                            .base = (uint64_t)c * RIG_CHUNK};
            }
        }
        update.samples += pushes[i].samples;
    }
    apply.decay_count = gk_spec_decay_ranges(&rig->spec, rig->lo, rig->hi, decay);
    cr_assert(rig->ops->wait(rig->queue, rig->ops->sum(rig->queue, &sum)) == GK_OK);
    update.idx = report.dense ? NULL : idx;
    update.val = val;
    update.n = report.n;
    cr_assert(rig->ops->wait(rig->queue, rig->ops->apply(rig->queue, &apply)) == GK_OK);
    model->optimizer_step += update.samples > 0 ? 1 : 0;
}

/* Steps 0 .. steps-1 with variant 0 of every rank. */
static inline void rig_model_run(struct rig *rig, struct rig_model *model, uint64_t steps)
{
    rig_model_init(rig, model);
    for (uint64_t t = 0; t < steps; t++) {
        struct rig_push pushes[RIG_RANKS_MAX];

        for (uint32_t r = 0; r < rig->config.workers; r++) {
            pushes[r] = rig_make_push(rig, r, t, 0);
        }
        rig_model_commit(rig, model, pushes, rig->config.workers);
    }
}

static inline bool rig_same(const struct rig *rig, const struct rig_model *model)
{
    size_t bytes = (rig->hi - rig->lo) * sizeof(float);

    return memcmp(gk_server_plane(rig->core, 0), model->p, bytes) == 0 &&
           memcmp(gk_server_plane(rig->core, 1), model->m, bytes) == 0;
}

#endif
