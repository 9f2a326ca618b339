/* The state of a shard as a chain of records.
 *
 * gk_image_check() looks at everything that a record says and changes nothing; gk_image_apply()
 * checks and then takes.  A record may come from a disk that lies, so nothing of it is used as an
 * index before it was compared. */
#include "server/core/image.h"

#include "proto/spec.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum gk_err gk_image_new(uint32_t shard, uint32_t servers, uint32_t workers,
                         struct gk_image **ret_image)
{
    struct gk_image *image = calloc(1, sizeof(*image));

    if (!image) {
        return GK_E_NOMEM;
    }
    image->rows = calloc(workers, sizeof(*image->rows));
    if (!image->rows) {
        free(image);
        return GK_E_NOMEM;
    }
    image->shard = shard;
    image->servers = servers;
    image->workers = workers;
    *ret_image = image;
    return GK_OK;
}

void gk_image_free(struct gk_image *image)
{
    if (image) {
        free(image->rows);
        free(image);
    }
}

void gk_image_copy(struct gk_image *target, const struct gk_image *source)
{
    struct gk_rank_row *rows = target->rows;

    memcpy(rows, source->rows, source->workers * sizeof(*rows));
    *target = *source;
    target->rows = rows;
}

uint32_t gk_optimizer_planes(uint32_t optimizer)
{
    switch (optimizer) {
    case GK_OPTIMIZER_NONE:
    case GK_OPTIMIZER_MOMENTUM:
    case GK_OPTIMIZER_NESTEROV:
        return 2;
    case GK_OPTIMIZER_ADAMW:
        return 3;
    default:
        return 1;
    }
}

uint32_t gk_image_planes(const struct gk_image *image)
{
    return gk_optimizer_planes(image->optimizer);
}

static enum gk_err differs(struct gk_words *words, const char *field, uint64_t found,
                           uint64_t expected)
{
    gk_words_set(words, "%s is %" PRIu64 ", expected %" PRIu64, field, found, expected);
    return GK_E_CORRUPT;
}

static enum gk_err wrong(struct gk_words *words, const char *what)
{
    gk_words_set(words, "%s", what);
    return GK_E_CORRUPT;
}

static bool uid_equals(struct gk_uid a, struct gk_uid b)
{
    return a.hi == b.hi && a.lo == b.lo;
}

enum gk_err gk_image_check_spec(const struct gk_image *image, const struct gk_image_shape *shape,
                                uint32_t *ret_optimizer, struct gk_words *words)
{
    struct gk_spec spec = {0};
    enum gk_err err;
    uint64_t lo, hi;

    if (shape->spec_bytes > GK_SPEC_BYTES_MAX) {
        return differs(words, "spec bytes", shape->spec_bytes, GK_SPEC_BYTES_MAX);
    }
    err = gk_spec_decode(shape->spec, shape->spec_bytes, &spec, words);
    if (err) {
        return err == GK_E_NOMEM ? err : GK_E_CORRUPT;
    }
    lo = gk_partition_lo(spec.params_count, spec.servers, image->shard);
    hi = gk_partition_lo(spec.params_count, spec.servers, image->shard + 1);
    if (spec.workers != image->workers) {
        err = differs(words, "workers of the spec", spec.workers, image->workers);
    } else if (spec.servers != image->servers) {
        err = differs(words, "servers of the spec", spec.servers, image->servers);
    } else if (shape->lo != lo) {
        err = differs(words, "first parameter", shape->lo, lo);
    } else if (shape->hi != hi) {
        err = differs(words, "end of the parameters", shape->hi, hi);
    } else {
        *ret_optimizer = spec.optimizer;
    }
    gk_spec_clear(&spec);
    return err;
}

static bool verdict_known(uint32_t verdict)
{
    return verdict >= GK_VERDICT_APPLIED && verdict <= GK_VERDICT_LOST;
}

static enum gk_err check_contributions(const struct gk_image *image, const struct gk_record *record,
                                       struct gk_words *words)
{
    uint64_t samples = 0;

    if (record->contributions_count > image->workers) {
        return differs(words, "number of contributions", record->contributions_count,
                       image->workers);
    }
    for (uint32_t i = 0; i < record->contributions_count; i++) {
        const struct gk_contribution *c = &record->contributions[i];

        if (c->rank >= image->workers || (i > 0 && c->rank <= c[-1].rank)) {
            return wrong(words, "the ranks of the contributions do not rise within the job");
        }
        if (!verdict_known(c->verdict)) {
            return differs(words, "verdict", c->verdict, GK_VERDICT_APPLIED);
        }
        if (c->step != record->step) {
            return differs(words, "step of a contribution", c->step, record->step);
        }
        if (c->verdict == GK_VERDICT_APPLIED || c->verdict == GK_VERDICT_LOST) {
            if (samples + c->samples < samples) {
                return wrong(words, "the samples overflow");
            }
            samples += c->samples;
        }
    }
    return samples == record->samples ? GK_OK
                                      : differs(words, "sum of samples", record->samples, samples);
}

static enum gk_err check_arrays(const struct gk_image *image, const struct gk_record *record,
                                struct gk_words *words)
{
    uint64_t length = image->hi - image->lo;

    if (!record->idx) {
        return record->count == length
                   ? GK_OK
                   : differs(words, "number of dense values", record->count, length);
    }
    if (record->count > length) {
        return differs(words, "number of values", record->count, length);
    }
    for (uint64_t i = 0; i < record->count; i++) {
        if (record->idx[i] >= length || (i > 0 && record->idx[i] <= record->idx[i - 1])) {
            gk_words_set(words,
                         "index %" PRIu32 " at %" PRIu64
                         " does not rise within the shard of %" PRIu64 " parameters",
                         record->idx[i], i, length);
            return GK_E_CORRUPT;
        }
    }
    return GK_OK;
}

static enum gk_err check_round(const struct gk_image *image, const struct gk_record *record,
                               struct gk_words *words)
{
    enum gk_err err;

    if (!image->initialised || image->finished) {
        return wrong(words, image->finished ? "a round after the end of the job"
                                            : "a round before version 0");
    }
    if (record->version != image->version + 1) {
        return differs(words, "version", record->version, image->version + 1);
    }
    if (record->step != image->version) {
        return differs(words, "step", record->step, image->version);
    }
    if (record->optimizer_step != image->optimizer_step) {
        return differs(words, "optimizer step", record->optimizer_step, image->optimizer_step);
    }
    if (record->optimizer != image->optimizer) {
        return differs(words, "optimizer", record->optimizer, image->optimizer);
    }
    if (record->hashed && image->version % GK_HASH_EVERY != 0) {
        return wrong(words, "a state hash at a version that has none");
    }
    err = check_contributions(image, record, words);
    return err ? err : check_arrays(image, record, words);
}

static enum gk_err check_row(const struct gk_rank_row *old, const struct gk_rank_row *row,
                             struct gk_words *words)
{
    if (row->incarnation < old->incarnation) {
        return differs(words, "incarnation of a rank", row->incarnation, old->incarnation);
    }
    if (row->verdict != GK_VERDICT_NONE && !verdict_known(row->verdict)) {
        return differs(words, "verdict", row->verdict, GK_VERDICT_APPLIED);
    }
    if (old->verdict != GK_VERDICT_NONE &&
        (row->verdict == GK_VERDICT_NONE || row->verdict_step < old->verdict_step)) {
        return differs(words, "step of a verdict", row->verdict_step, old->verdict_step);
    }
    if (old->left && (!row->left || row->left_at != old->left_at)) {
        return wrong(words, "a rank that had left comes back");
    }
    return GK_OK;
}

static enum gk_err check_members(const struct gk_image *image, const struct gk_record *record,
                                 struct gk_words *words)
{
    enum gk_err err = GK_OK;

    if (record->members_count < 1 || record->members_count > image->workers) {
        return differs(words, "number of members", record->members_count, image->workers);
    }
    for (uint32_t i = 0; i < record->members_count && !err; i++) {
        const struct gk_member_entry *entry = &record->members[i];

        if (entry->rank >= image->workers || (i > 0 && entry->rank <= entry[-1].rank)) {
            return wrong(words, "the ranks of the members do not rise within the job");
        }
        err = check_row(&image->rows[entry->rank], &entry->row, words);
    }
    return err;
}

static enum gk_err check_init(const struct gk_image *image, const struct gk_record *record,
                              struct gk_words *words)
{
    const struct gk_image_shape shape = {record->spec, record->spec_bytes, record->lo, record->hi};
    uint32_t optimizer;
    enum gk_err err;

    if (image->version > 0 || image->finished) {
        return wrong(words, "initial parameters behind version 0");
    }
    if (record->version != 0) {
        return differs(words, "version", record->version, 0);
    }
    err = gk_image_check_spec(image, &shape, &optimizer, words);
    if (!err && record->optimizer != optimizer) {
        err = differs(words, "optimizer", record->optimizer, optimizer);
    }
    return err;
}

/* Who may say it, and when: what all kinds of records share. */
static enum gk_err check_common(const struct gk_image *image, const struct gk_record *record,
                                struct gk_words *words)
{
    bool anonymous = record->job_uid.hi == 0 && record->job_uid.lo == 0;

    if (record->epoch != image->epoch) {
        return differs(words, "epoch", record->epoch, image->epoch);
    }
    /* While another init replaces version 0, the records of members know of no job. */
    if (record->type != GK_RECORD_INIT && !uid_equals(record->job_uid, image->job_uid) &&
        !(anonymous && record->type == GK_RECORD_MEMBER && image->version == 0)) {
        gk_words_set(words, "job %016" PRIx64 "%016" PRIx64 ", expected %016" PRIx64 "%016" PRIx64,
                     record->job_uid.hi, record->job_uid.lo, image->job_uid.hi, image->job_uid.lo);
        return GK_E_CORRUPT;
    }
    if (record->type != GK_RECORD_INIT && record->type != GK_RECORD_ROUND &&
        record->version != image->version) {
        return differs(words, "version", record->version, image->version);
    }
    return GK_OK;
}

enum gk_err gk_image_check(const struct gk_image *image, const struct gk_record *record,
                           struct gk_words *words)
{
    enum gk_err err = check_common(image, record, words);

    if (err) {
        return err;
    }
    switch (record->type) {
    case GK_RECORD_ROUND:
        return check_round(image, record, words);
    case GK_RECORD_MEMBER:
        return check_members(image, record, words);
    case GK_RECORD_FINISHED:
        if (!image->initialised || image->finished) {
            return wrong(words, "an end of the job that is not running");
        }
        return GK_OK;
    case GK_RECORD_INIT:
        return check_init(image, record, words);
    case GK_RECORD_LIFE:
        return record->incarnation > image->incarnation
                   ? GK_OK
                   : differs(words, "incarnation", record->incarnation, image->incarnation + 1);
    default:
        gk_words_set(words, "a record of unknown type %" PRIu32, record->type);
        return GK_E_CORRUPT;
    }
}

static void take_contribution(struct gk_image *image, const struct gk_contribution *contribution)
{
    struct gk_rank_row *row = &image->rows[contribution->rank];

    row->verdict = contribution->verdict;
    row->verdict_step = contribution->step;
    row->verdict_incarnation = contribution->incarnation;
    image->applied += contribution->verdict == GK_VERDICT_APPLIED;
    image->returned += contribution->verdict == GK_VERDICT_RETURNED;
    image->skipped += contribution->verdict == GK_VERDICT_SKIPPED;
    image->lost += contribution->verdict == GK_VERDICT_LOST;
}

static void take_init(struct gk_image *image, const struct gk_record *record)
{
    memcpy(image->spec, record->spec, record->spec_bytes);
    image->spec_bytes = record->spec_bytes;
    image->optimizer = record->optimizer;
    image->initialised = true;
    image->job_uid = record->job_uid;
    image->init_id = record->init_id;
    image->lo = record->lo;
    image->hi = record->hi;
}

void gk_image_take(struct gk_image *image, const struct gk_record *record)
{
    switch ((enum gk_record_type)record->type) {
    case GK_RECORD_ROUND:
        for (uint32_t i = 0; i < record->contributions_count; i++) {
            take_contribution(image, &record->contributions[i]);
        }
        image->version = record->version;
        image->samples = record->samples;
        image->optimizer_step += record->samples > 0 ? 1 : 0;
        break;
    case GK_RECORD_MEMBER:
        for (uint32_t i = 0; i < record->members_count; i++) {
            image->rows[record->members[i].rank] = record->members[i].row;
        }
        break;
    case GK_RECORD_FINISHED:
        image->finished = true;
        break;
    case GK_RECORD_INIT:
        take_init(image, record);
        break;
    case GK_RECORD_LIFE:
        image->incarnation = record->incarnation;
        break;
    }
}

enum gk_err gk_image_apply(struct gk_image *image, const struct gk_record *record,
                           struct gk_words *words)
{
    enum gk_err err = gk_image_check(image, record, words);

    if (!err) {
        gk_image_take(image, record);
    }
    return err;
}
