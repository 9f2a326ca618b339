/* A small job for the tests of durable state: a drawn history of records as a shard would make it,
 * with the image and the planes that it must lead to (the live side, computed record by record). */
#ifndef GK_TESTS_UNIT_STORE_JOB_H
#define GK_TESTS_UNIT_STORE_JOB_H

#include "common/backend.h"
#include "common/bits.h"
#include "proto/spec.h"
#include "server/core/image.h"

#ifdef GK_TESTS_PLAIN /* a program that cannot start with Criterion */
#include "common/assert.h"
#define cr_assert(x, ...) GK_ASSERT(x)
#else
#include <criterion/criterion.h>
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { JOB_PARAMS_MAX = 4096, JOB_WORKERS_MAX = 4 };

struct job_options {
    uint32_t optimizer;
    uint64_t params; /* d, at most JOB_PARAMS_MAX */
    uint32_t workers, servers, shard;
    uint64_t seed;
};

struct job {
    struct job_options options;
    uint64_t state; /* of the draws */
    struct gk_tensor tensors[3];
    struct gk_spec spec;
    uint8_t spec_bytes[GK_SPEC_BYTES_MAX];
    size_t spec_bytes_count;
    uint64_t lo, hi;

    const struct gk_vector_ops *ops;
    struct gk_queue *queue;
    struct gk_image *image; /* live */
    float *planes[3];
    struct gk_range decay[3];
    uint32_t decay_count;

    /* Of the record in the making. */
    struct gk_record record;
    struct gk_contribution contributions[JOB_WORKERS_MAX];
    struct gk_member_entry members[JOB_WORKERS_MAX];
    uint32_t idx[JOB_PARAMS_MAX];
    float val[JOB_PARAMS_MAX];
    float params[JOB_PARAMS_MAX];
};

static inline uint64_t job_draw(struct job *job, uint64_t below)
{
    return gk_mix64(++job->state) % below;
}

static inline float job_float(struct job *job)
{
    return (float)job_draw(job, 20001) / 10000.0f - 1.0f;
}

static inline void job_spec(struct job *job)
{
    uint64_t d = job->options.params;
    uint64_t ends[] = {d / 3, d / 3 + 7, d};
    uint64_t at = 0;

    for (uint32_t t = 0; t < 3; t++) {
        struct gk_tensor *tensor = &job->tensors[t];

        (void)snprintf(tensor->name, sizeof(tensor->name), "tensor%u", t);
        tensor->offset = at;
        tensor->count = ends[t] - at;
        tensor->dims[0] = (uint32_t)tensor->count;
        tensor->dims_count = 1;
        tensor->flags = t == 1 ? GK_TENSOR_NO_DECAY : 0;
        at = ends[t];
    }
    job->spec = (struct gk_spec){
        .workers = job->options.workers,
        .servers = job->options.servers,
        .mode = GK_MODE_BSP,
        .lost_policy = GK_LOST_WAIT,
        .nonfinite_policy = GK_NONFINITE_ABORT,
        .seed = 7,
        .steps = 100000,
        .push_max = d,
        .optimizer = job->options.optimizer,
        .lr = 0.1f,
        .momentum = job->options.optimizer >= GK_OPTIMIZER_MOMENTUM ? 0.9f : 0,
        .beta2 = job->options.optimizer == GK_OPTIMIZER_ADAMW ? 0.999f : 0,
        .epsilon = job->options.optimizer == GK_OPTIMIZER_ADAMW ? 1e-8f : 0,
        .weight_decay = job->options.seed % 2 ? 0.01f : 0,
        .schedule = GK_SCHEDULE_CONSTANT,
        .model = "toy",
        .params_count = d,
        .tensors = job->tensors,
        .tensors_count = 3,
    };
}

static inline struct job *job_new(const struct job_options *options)
{
    struct job *job = calloc(1, sizeof(*job));
    struct gk_words words = {""};

    job->options = *options;
    job->state = options->seed * 1000003;
    job->ops = gk_vector_reference();
    cr_assert(job->ops->open(&job->queue, NULL) == GK_OK);
    job_spec(job);
    cr_assert(gk_spec_encode(&job->spec, job->spec_bytes, &job->spec_bytes_count, &words) == GK_OK,
              "%s", words.text);
    job->lo = gk_partition_lo(options->params, options->servers, options->shard);
    job->hi = gk_partition_lo(options->params, options->servers, options->shard + 1);
    job->decay_count = gk_spec_decay_ranges(&job->spec, job->lo, job->hi, job->decay);
    cr_assert(gk_image_new(options->shard, options->servers, options->workers, &job->image) ==
              GK_OK);
    for (int p = 0; p < 3; p++) {
        job->planes[p] = calloc(job->hi - job->lo + 16, sizeof(float));
    }
    return job;
}

static inline void job_free(struct job *job)
{
    for (int p = 0; p < 3; p++) {
        free(job->planes[p]);
    }
    gk_image_free(job->image);
    job->ops->close(job->queue);
    free(job);
}

/* Hash of all planes as they are now. */
static inline uint64_t job_hash(const struct job *job)
{
    uint64_t sum = 0;

    for (uint32_t p = 0; p < gk_image_planes(job->image); p++) {
        for (uint64_t i = 0; i < job->hi - job->lo; i++) {
            sum += gk_hash_term(p, job->lo + i, gk_float_bits(job->planes[p][i]));
        }
    }
    return sum;
}

static inline void job_begin(struct job *job, uint32_t type)
{
    job->record = (struct gk_record){
        .type = type,
        .job_uid = job->image->job_uid,
        .version = job->image->version,
    };
}

static inline const struct gk_record *job_life(struct job *job)
{
    job_begin(job, GK_RECORD_LIFE);
    job->record.incarnation = job->image->incarnation + 1;
    return &job->record;
}

static inline const struct gk_record *job_init(struct job *job)
{
    job_begin(job, GK_RECORD_INIT);
    for (uint64_t i = 0; i < job->hi - job->lo; i++) {
        job->params[i] = job_float(job);
    }
    job->record.job_uid = (struct gk_uid){job_draw(job, 1 << 30) + 1, 5};
    job->record.init_id = job_draw(job, 1 << 30);
    job->record.optimizer = job->options.optimizer;
    job->record.lo = job->lo;
    job->record.hi = job->hi;
    job->record.spec = job->spec_bytes;
    job->record.spec_bytes = job->spec_bytes_count;
    job->record.params = job->params;
    return &job->record;
}

static inline const struct gk_record *job_member(struct job *job)
{
    uint32_t first = (uint32_t)job_draw(job, job->options.workers);

    job_begin(job, GK_RECORD_MEMBER);
    job->record.members = job->members;
    for (uint32_t r = first; r < job->options.workers && job->record.members_count < 2; r++) {
        struct gk_member_entry *entry = &job->members[job->record.members_count++];

        *entry = (struct gk_member_entry){.rank = r, .row = job->image->rows[r]};
        entry->row.incarnation += 1 + (uint32_t)job_draw(job, 3);
        entry->row.life_nonce = job_draw(job, UINT64_MAX);
    }
    return &job->record;
}

static inline const struct gk_record *job_finished(struct job *job)
{
    job_begin(job, GK_RECORD_FINISHED);
    return &job->record;
}

static inline void job_contribute(struct job *job, bool nothing)
{
    struct gk_record *record = &job->record;

    for (uint32_t r = 0; r < job->options.workers; r++) {
        bool lost = nothing || job_draw(job, 10) == 0;

        if (!nothing && job_draw(job, 10) == 0) {
            continue;
        }
        job->contributions[record->contributions_count++] = (struct gk_contribution){
            .rank = r,
            .incarnation = job->image->rows[r].incarnation,
            .step = record->step,
            .base_version = record->step,
            .samples = lost ? 0 : 1 + job_draw(job, 64),
            .push_id = job_draw(job, UINT64_MAX),
            .verdict = lost ? GK_VERDICT_LOST : GK_VERDICT_APPLIED,
        };
        record->samples += job->contributions[record->contributions_count - 1].samples;
    }
    record->contributions = job->contributions;
}

/* Dense, sparse, or of nothing at all. */
static inline const struct gk_record *job_round(struct job *job)
{
    struct gk_record *record = &job->record;
    uint64_t length = job->hi - job->lo;
    uint64_t kind = job_draw(job, 8);

    job_begin(job, GK_RECORD_ROUND);
    record->version++;
    record->step = job->image->version;
    record->optimizer_step = job->image->optimizer_step;
    record->optimizer = job->options.optimizer;
    record->hyper = gk_spec_hyper(&job->spec, record->optimizer_step);
    record->hyper.lr = 0.001f * (float)(1 + job_draw(job, 100));
    job_contribute(job, kind == 0);
    record->val = job->val;
    record->count = kind == 1 ? length : 0;
    record->idx = kind == 1 ? NULL : job->idx;
    for (uint64_t i = 0; i < length; i++) {
        if (kind > 1 && record->samples > 0 && job_draw(job, 8) == 0) {
            job->idx[record->count++] = (uint32_t)i;
        }
        job->val[i] = job_float(job) * 8;
    }
    if (job->image->version % GK_HASH_EVERY == 0) {
        record->hashed = true;
        record->state_hash = job_hash(job);
    }
    return record;
}

/* What comes next: mostly rounds. */
static inline const struct gk_record *job_next(struct job *job)
{
    return job_draw(job, 6) == 0 ? job_member(job) : job_round(job);
}

/* The live side takes the record. */
static inline void job_take(struct job *job, const struct gk_record *record)
{
    struct gk_words words = {""};

    cr_assert(gk_image_apply(job->image, record, &words) == GK_OK, "%s", words.text);
    if (record->type == GK_RECORD_INIT) {
        memcpy(job->planes[0], record->params, (job->hi - job->lo) * sizeof(float));
        memset(job->planes[1], 0, (job->hi - job->lo) * sizeof(float));
        memset(job->planes[2], 0, (job->hi - job->lo) * sizeof(float));
    } else if (record->type == GK_RECORD_ROUND) {
        struct gk_update update = {
            .idx = record->idx,
            .val = record->val,
            .n = record->count,
            .samples = record->samples,
            .hyper = record->hyper,
        };
        struct gk_apply_args args = {
            .optimizer = (enum gk_optimizer)job->options.optimizer,
            .p = job->planes[0],
            .m = gk_image_planes(job->image) > 1 ? job->planes[1] : NULL,
            .v = gk_image_planes(job->image) > 2 ? job->planes[2] : NULL,
            .len = job->hi - job->lo,
            .decay = job->decay,
            .decay_count = job->decay_count,
            .updates = &update,
            .updates_count = 1,
        };

        cr_assert(job->ops->wait(job->queue, job->ops->apply(job->queue, &args)) == GK_OK);
    }
}

static inline bool job_row_equals(const struct gk_rank_row *a, const struct gk_rank_row *b)
{
    return a->incarnation == b->incarnation && a->life_nonce == b->life_nonce &&
           a->verdict == b->verdict && a->verdict_step == b->verdict_step &&
           a->verdict_incarnation == b->verdict_incarnation && a->left == b->left &&
           a->left_at == b->left_at;
}

static inline bool job_image_equals(const struct gk_image *a, const struct gk_image *b)
{
    bool same = a->shard == b->shard && a->servers == b->servers && a->workers == b->workers &&
                a->incarnation == b->incarnation && a->epoch == b->epoch &&
                a->initialised == b->initialised && a->finished == b->finished &&
                a->job_uid.hi == b->job_uid.hi && a->job_uid.lo == b->job_uid.lo &&
                a->init_id == b->init_id && a->spec_bytes == b->spec_bytes &&
                memcmp(a->spec, b->spec, a->spec_bytes) == 0 && a->optimizer == b->optimizer &&
                a->lo == b->lo && a->hi == b->hi && a->version == b->version &&
                a->samples == b->samples && a->optimizer_step == b->optimizer_step &&
                a->applied == b->applied && a->returned == b->returned &&
                a->skipped == b->skipped && a->lost == b->lost;

    for (uint32_t r = 0; same && r < a->workers; r++) {
        same = job_row_equals(&a->rows[r], &b->rows[r]);
    }
    return same;
}

#endif
