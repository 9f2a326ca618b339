/* The rules of a job spec, and what follows from one: partition, learning rate, ranges of weight
 * decay.  Its bytes are in spec_wire.c. */
#include "proto/spec.h"

#include "common/assert.h"
#include "common/bits.h"
#include "common/hash.h"
#include "proto/check.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

static enum gk_err wrong(struct gk_words *words, const char *field, uint64_t value,
                         const char *rule)
{
    gk_words_set(words, "spec: %s is %" PRIu64 ", %s", field, value, rule);
    return GK_E_CONFIG;
}

static enum gk_err wrong_float(struct gk_words *words, const char *field, float value,
                               const char *rule)
{
    gk_words_set(words, "spec: %s is %g, %s", field, (double)value, rule);
    return GK_E_CONFIG;
}

/* A choice is 1 .. last; what this version does not do yet is named as such. */
static enum gk_err check_choice(const char *field, uint64_t value, uint64_t supported,
                                uint64_t last, struct gk_words *words)
{
    if (value < 1 || value > last) {
        return wrong(words, field, value, "no known choice");
    }
    return value <= supported ? GK_OK
                              : wrong(words, field, value, "which is reserved for a later version");
}

static enum gk_err check_job(const struct gk_spec *spec, struct gk_words *words)
{
    enum gk_err err;

    if (spec->workers < 1 || spec->workers > GK_WORKERS_MAX) {
        return wrong(words, "workers", spec->workers, "not within 1 and 1024");
    }
    if (spec->servers < 1 || spec->servers > GK_SERVERS_MAX) {
        return wrong(words, "servers", spec->servers, "not within 1 and 256");
    }
    err = check_choice("mode", spec->mode, GK_MODE_BSP, GK_MODE_ASP, words);
    err = err ? err
              : check_choice("lost_policy", spec->lost_policy, GK_LOST_WAIT, GK_LOST_DROP, words);
    if (err) {
        return err;
    }
    if (spec->nonfinite_policy != GK_NONFINITE_ABORT &&
        spec->nonfinite_policy != GK_NONFINITE_ZERO) {
        return wrong(words, "nonfinite_policy", spec->nonfinite_policy, "neither abort nor zero");
    }
    if (spec->steps < 1 || spec->steps > UINT32_MAX) {
        return wrong(words, "steps", spec->steps, "not within 1 and 2^32 - 1");
    }
    if (spec->params_count > GK_PARAMS_MAX) {
        return wrong(words, "the number of parameters", spec->params_count, "above 2^40");
    }
    if (spec->params_count < (uint64_t)GK_PARTITION_ALIGN * spec->servers) {
        return wrong(words, "the number of parameters", spec->params_count,
                     "below 16 for each server: use fewer servers or a larger model");
    }
    if (spec->push_max < 1 || spec->push_max > spec->params_count) {
        return wrong(words, "push_max", spec->push_max, "not within 1 and params_count");
    }
    for (uint32_t shard = 0; shard < spec->servers; shard++) {
        uint64_t length = gk_partition_lo(spec->params_count, spec->servers, shard + 1) -
                          gk_partition_lo(spec->params_count, spec->servers, shard);

        if (length > UINT32_MAX) {
            return wrong(words, "the number of elements of a shard", length,
                         "not below 2^32: use more servers");
        }
    }
    return GK_OK;
}

/* Finite, not negative (which includes -0: one value, one byte string), at most `max`. */
static bool float_good(float x, float max)
{
    return isfinite(x) && !signbit(x) && x <= max;
}

static const float most = 1e30f; /* keeps every product of two finite */

bool gk_rate_good(float lr)
{
    return float_good(lr, most);
}

/* Without an epsilon a parameter whose gradients underflow when they are squared would be divided
 * by 0. */
static enum gk_err check_adamw(const struct gk_spec *spec, struct gk_words *words)
{
    const float least = 1e-30f;

    if (spec->optimizer != GK_OPTIMIZER_ADAMW) {
        if (gk_float_bits(spec->beta2) != 0) {
            return wrong_float(words, "beta2", spec->beta2, "but the optimizer has none");
        }
        return gk_float_bits(spec->epsilon) == 0
                   ? GK_OK
                   : wrong_float(words, "epsilon", spec->epsilon, "but the optimizer has none");
    }
    if (!float_good(spec->beta2, 1.0f) || spec->beta2 == 1.0f) {
        return wrong_float(words, "beta2", spec->beta2, "not within 0 and 1, 1 excluded");
    }
    if (!float_good(spec->epsilon, 1.0f) || spec->epsilon < least) {
        return wrong_float(words, "epsilon", spec->epsilon, "not within 1e-30 and 1");
    }
    return GK_OK;
}

static enum gk_err check_optimizer(const struct gk_spec *spec, struct gk_words *words)
{
    bool momentum = spec->optimizer >= GK_OPTIMIZER_MOMENTUM;
    enum gk_err err =
        check_choice("optimizer", spec->optimizer, GK_OPTIMIZER_ADAMW, GK_OPTIMIZER_ADAMW, words);

    if (err) {
        return err;
    }
    if (!gk_rate_good(spec->lr)) {
        return wrong_float(words, "lr", spec->lr, "not a number of 0 or more");
    }
    if (!float_good(spec->weight_decay, most)) {
        return wrong_float(words, "weight_decay", spec->weight_decay, "not a number of 0 or more");
    }
    if (!float_good(spec->momentum, 1.0f) || spec->momentum == 1.0f) {
        return wrong_float(words, "momentum", spec->momentum, "not within 0 and 1, 1 excluded");
    }
    if (!momentum && spec->momentum != 0.0f) {
        return wrong_float(words, "momentum", spec->momentum, "but the optimizer has none");
    }
    return check_adamw(spec, words);
}

static enum gk_err check_schedule(const struct gk_spec *spec, struct gk_words *words)
{
    bool milestones = spec->schedule == GK_SCHEDULE_MILESTONES;
    enum gk_err err =
        check_choice("schedule", spec->schedule, GK_SCHEDULE_COSINE, GK_SCHEDULE_COSINE, words);

    if (err) {
        return err;
    }
    if (spec->warmup_steps > spec->steps) {
        return wrong(words, "warmup_steps", spec->warmup_steps, "above steps");
    }
    if (milestones ? spec->milestones_count < 1 || spec->milestones_count > GK_MILESTONES_MAX
                   : spec->milestones_count != 0) {
        return wrong(words, "milestones_count", spec->milestones_count,
                     milestones ? "not within 1 and 8" : "but the schedule has none");
    }
    for (uint32_t i = 0; i < spec->milestones_count; i++) {
        uint64_t least = i == 0 ? 1 : spec->milestones[i - 1] + 1;

        if (spec->milestones[i] < least || spec->milestones[i] > UINT32_MAX) {
            return wrong(words, "a milestone", spec->milestones[i],
                         "not above the one before, or out of range");
        }
    }
    if (milestones ? !float_good(spec->lr_gamma, 1e3f) : gk_float_bits(spec->lr_gamma) != 0) {
        return wrong_float(words, "lr_gamma", spec->lr_gamma,
                           milestones ? "not within 0 and 1000"
                                      : "but the schedule has no milestones");
    }
    if (spec->schedule == GK_SCHEDULE_COSINE ? !float_good(spec->lr_min, spec->lr)
                                             : gk_float_bits(spec->lr_min) != 0) {
        return wrong_float(words, "lr_min", spec->lr_min,
                           "not within 0 and lr, or the schedule is not cosine");
    }
    return GK_OK;
}

static bool name_good(const char *name)
{
    size_t length = strnlen(name, GK_TENSOR_NAME_BYTES);

    return length > 0 && length < GK_TENSOR_NAME_BYTES &&
           gk_text_good((const uint8_t *)name, length, false) == length;
}

static enum gk_err check_tensor(const struct gk_spec *spec, uint32_t i, uint64_t offset,
                                struct gk_words *words)
{
    const struct gk_tensor *tensor = &spec->tensors[i];
    uint64_t product = 1;
    const char *what = NULL;

    if (!name_good(tensor->name)) {
        gk_words_set(words, "spec: tensor %" PRIu32 " has no printable name of 1 to 63 bytes", i);
        return GK_E_CONFIG;
    }
    if (tensor->dims_count < 1 || tensor->dims_count > GK_TENSOR_DIMS_MAX) {
        what = "does not have 1 to 4 dimensions";
    } else if (tensor->flags & ~(uint32_t)GK_TENSOR_FLAGS_ALL) {
        what = "has an unknown flag";
    } else if (tensor->offset != offset) {
        what = "does not begin where the one before ends";
    }
    for (uint32_t dim = 0; !what && dim < GK_TENSOR_DIMS_MAX; dim++) {
        if (dim >= tensor->dims_count) {
            what = tensor->dims[dim] != 0 ? "has sizes beyond its dimensions" : NULL;
        } else if (tensor->dims[dim] == 0 || tensor->dims[dim] > GK_PARAMS_MAX / product) {
            what = "has a size of 0, or is too large";
        } else {
            product *= tensor->dims[dim];
        }
    }
    if (!what && tensor->count != product) {
        what = "has a count that is not the product of its sizes";
    }
    if (!what && product > spec->params_count - offset) {
        what = "ends beyond params_count";
    }
    if (what) {
        gk_words_set(words, "spec: tensor %" PRIu32 ", \"%s\", %s", i, tensor->name, what);
        return GK_E_CONFIG;
    }
    return GK_OK;
}

/* A thousand names, half a million pairs: compared as hashes. */
static enum gk_err check_unique(const struct gk_spec *spec, struct gk_words *words)
{
    uint64_t hashes[GK_TENSORS_MAX];

    for (uint32_t i = 0; i < spec->tensors_count; i++) {
        hashes[i] = gk_hash64(spec->tensors[i].name, strlen(spec->tensors[i].name));
        for (uint32_t j = 0; j < i; j++) {
            if (hashes[i] == hashes[j] &&
                strcmp(spec->tensors[i].name, spec->tensors[j].name) == 0) {
                gk_words_set(words,
                             "spec: tensors %" PRIu32 " and %" PRIu32 " are both named \"%s\"", j,
                             i, spec->tensors[i].name);
                return GK_E_CONFIG;
            }
        }
    }
    return GK_OK;
}

enum gk_err gk_spec_check(const struct gk_spec *spec, struct gk_words *words)
{
    uint64_t offset = 0;
    enum gk_err err = check_job(spec, words);

    err = err ? err : check_optimizer(spec, words);
    err = err ? err : check_schedule(spec, words);
    if (err) {
        return err;
    }
    if (!name_good(spec->model)) {
        gk_words_set(words, "spec: the model has no printable name of 1 to 63 bytes");
        return GK_E_CONFIG;
    }
    if (spec->tensors_count < 1 || spec->tensors_count > GK_TENSORS_MAX) {
        return wrong(words, "tensors_count", spec->tensors_count, "not within 1 and 1024");
    }
    for (uint32_t i = 0; i < spec->tensors_count; i++) {
        err = check_tensor(spec, i, offset, words);
        if (err) {
            return err;
        }
        offset += spec->tensors[i].count;
    }
    if (offset != spec->params_count) {
        return wrong(words, "the sum of the tensors", offset, "not params_count");
    }
    return check_unique(spec, words);
}

uint64_t gk_partition_lo(uint64_t params_count, uint32_t servers, uint32_t shard)
{
    uint64_t quotient, rest, lo;

    GK_ASSERT(servers > 0 && shard <= servers);
    if (shard == servers) {
        return params_count;
    }
    /* d s / S in two parts, so that no product leaves 64 bits. */
    quotient = params_count / servers;
    rest = params_count % servers;
    lo = quotient * shard + rest * shard / servers;
    return lo - lo % GK_PARTITION_ALIGN;
}

/* sin(h) for 0 <= h <= pi/4 by its series up to h^17, in a fixed order of operations: libm's
 * differs between versions, and a learning rate is part of the model's bits. */
static double sin_quarter(double h)
{
    static const double FACTORS[] = {17.0 * 16.0, 15.0 * 14.0, 13.0 * 12.0, 11.0 * 10.0,
                                     9.0 * 8.0,   7.0 * 6.0,   5.0 * 4.0,   3.0 * 2.0};
    double square = h * h, sum = 1.0;

    for (size_t i = 0; i < sizeof(FACTORS) / sizeof(FACTORS[0]); i++) {
        sum = 1.0 - square / FACTORS[i] * sum;
    }
    return h * sum;
}

/* (1 + cos(pi t / steps)) / 2, 1 at t = 0 and 0 at t = steps. */
static double cosine_fall(uint64_t t, uint64_t steps)
{
    const double half_pi = 1.5707963267948966;
    double s;

    if (t <= steps - t) {
        s = sin_quarter(half_pi * ((double)t / (double)steps));
        return 1.0 - s * s;
    }
    s = sin_quarter(half_pi * ((double)(steps - t) / (double)steps));
    return s * s;
}

float gk_spec_lr(const struct gk_spec *spec, uint64_t t)
{
    double lr = (double)spec->lr;

    switch ((enum gk_schedule_kind)spec->schedule) {
    case GK_SCHEDULE_MILESTONES:
        for (uint32_t i = 0; i < spec->milestones_count && spec->milestones[i] <= t; i++) {
            lr *= (double)spec->lr_gamma;
        }
        break;
    case GK_SCHEDULE_COSINE:
        lr = (double)spec->lr_min +
             (lr - (double)spec->lr_min) * cosine_fall(gk_min_u64(t, spec->steps), spec->steps);
        break;
    case GK_SCHEDULE_CONSTANT:
        break;
    }
    if (t < spec->warmup_steps) {
        lr = lr * (double)(t + 1) / (double)spec->warmup_steps;
    }
    return (float)lr;
}

/* 1 - beta^t: squares and products in double, in a fixed order; a library's pow() may differ in the
 * last bit from machine to machine. */
static float bias_correction(float beta, uint64_t t)
{
    double power = 1.0, square = (double)beta;

    for (; t > 0; t >>= 1) {
        power = t & 1 ? power * square : power;
        square *= square;
    }
    return (float)(1.0 - power);
}

struct gk_hyper gk_spec_hyper(const struct gk_spec *spec, uint64_t t)
{
    struct gk_hyper hyper = {
        .lr = gk_spec_lr(spec, t),
        .momentum = spec->momentum,
        .weight_decay = spec->weight_decay,
    };

    if (spec->optimizer == GK_OPTIMIZER_ADAMW) {
        hyper.beta2 = spec->beta2;
        hyper.epsilon = spec->epsilon;
        hyper.bias1 = bias_correction(spec->momentum, t + 1);
        hyper.bias2 = bias_correction(spec->beta2, t + 1);
    }
    return hyper;
}

uint32_t gk_spec_decay_ranges(const struct gk_spec *spec, uint64_t lo, uint64_t hi,
                              struct gk_range *ret)
{
    uint32_t count = 0;

    GK_ASSERT(lo <= hi);
    for (uint32_t i = 0; i < spec->tensors_count; i++) {
        const struct gk_tensor *tensor = &spec->tensors[i];
        uint64_t first = gk_max_u64(tensor->offset, lo);
        uint64_t last = gk_min_u64(tensor->offset + tensor->count, hi);

        if (first >= last || (tensor->flags & (GK_TENSOR_NO_DECAY | GK_TENSOR_FROZEN))) {
            continue;
        }
        if (count > 0 && ret[count - 1].hi == first - lo) {
            ret[count - 1].hi = last - lo;
        } else {
            ret[count++] = (struct gk_range){.lo = first - lo, .hi = last - lo};
        }
    }
    return count;
}
