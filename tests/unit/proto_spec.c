/* Goal: a job spec has one byte string, bad ones are refused by name, and what follows from a spec
 * is exact. Method: random legal specs go to bytes and back; a sample spec is broken one rule at a
 * time, as a struct and as bytes; partition and learning rate are compared with values worked out
 * by hand or by another way of computing them. */
#include "tests/unit/proto_legal.h"
#include "tests/unit/proto_sample.h"

#include "common/hash.h"
#include "proto/spec.h"

#include <criterion/criterion.h>
#include <math.h>

static uint8_t bytes[GK_SPEC_BYTES_MAX + 1], again[GK_SPEC_BYTES_MAX];

Test(proto_spec, sample_is_legal)
{
    struct gk_tensor tensors[SAMPLE_TENSORS];
    struct gk_spec spec = sample_spec(tensors), back;
    struct gk_words words = {""};
    size_t count = 0;

    cr_assert(gk_spec_check(&spec, &words) == GK_OK, "%s", words.text);
    cr_assert(gk_spec_encode(&spec, bytes, &count, &words) == GK_OK);
    cr_expect(count == 112 + 16 + 8 + (8 + 8 + 7) + (8 + 4 + 5), "%zu", count);
    cr_assert(gk_spec_decode(bytes, count, &back, &words) == GK_OK, "%s", words.text);
    cr_expect(back.workers == 4 && back.servers == 2 && back.seed == 42 && back.steps == 1000);
    cr_expect(back.push_max == 65 && back.warmup_steps == 10 && back.params_count == 650);
    cr_expect(back.lr == 0.1f && back.momentum == 0.9f && back.weight_decay == 0.0f);
    cr_expect(back.lr_gamma == 0.5f && back.lr_min == 0.0f &&
              back.schedule == GK_SCHEDULE_MILESTONES);
    cr_expect(back.mode == GK_MODE_BSP && back.lost_policy == GK_LOST_WAIT);
    cr_expect(back.nonfinite_policy == GK_NONFINITE_ABORT &&
              back.optimizer == GK_OPTIMIZER_MOMENTUM);
    cr_expect(back.milestones_count == 2 && back.milestones[0] == 500 && back.milestones[1] == 750);
    cr_expect_str_eq(back.model, "softmax");
    cr_assert(back.tensors_count == SAMPLE_TENSORS);
    for (uint32_t i = 0; i < SAMPLE_TENSORS; i++) {
        cr_expect_str_eq(back.tensors[i].name, tensors[i].name);
        cr_expect(back.tensors[i].offset == tensors[i].offset &&
                  back.tensors[i].count == tensors[i].count);
        cr_expect(back.tensors[i].dims_count == tensors[i].dims_count &&
                  back.tensors[i].flags == tensors[i].flags);
        cr_expect(memcmp(back.tensors[i].dims, tensors[i].dims, sizeof(tensors[i].dims)) == 0);
    }
    cr_expect(gk_spec_model_signature(&back) == gk_spec_model_signature(&spec));
    gk_spec_clear(&back);
    cr_expect(back.tensors == NULL && back.tensors_count == 0);
}

static void draw_tensors(struct draw *draw, struct gk_spec *spec, struct gk_tensor *tensors)
{
    spec->tensors = tensors;
    spec->tensors_count = 1 + below(draw, 60);
    for (uint32_t i = 0; i < spec->tensors_count; i++) {
        struct gk_tensor *tensor = &tensors[i];

        *tensor = (struct gk_tensor){.offset = spec->params_count, .count = 1};
        snprintf(tensor->name, sizeof(tensor->name), "%.*s%03u", (int)below(draw, 50),
                 "a.layer.of.a.model.whose.names.are.long.and.descriptive", i % 1000);
        if (below(draw, 4) == 0 && strlen(tensor->name) >= 5) {
            memcpy(tensor->name, "\xc3\xa9", 2);
        }
        tensor->flags = below(draw, 2);
        tensor->dims_count = 1 + below(draw, GK_TENSOR_DIMS_MAX);
        for (uint32_t d = 0; d < tensor->dims_count; d++) {
            tensor->dims[d] = 1 + below(draw, 40);
            tensor->count *= tensor->dims[d];
        }
        spec->params_count += tensor->count;
    }
}

static struct gk_spec draw_spec(struct draw *draw, struct gk_tensor *tensors)
{
    struct gk_spec spec = {.mode = GK_MODE_BSP, .lost_policy = GK_LOST_WAIT, .model = "m"};
    bool momentum;

    draw_tensors(draw, &spec, tensors);
    spec.workers = 1 + below(draw, GK_WORKERS_MAX);
    spec.servers = 1 + below(draw, GK_SERVERS_MAX);
    while (spec.params_count < 16 * spec.servers) {
        spec.servers = spec.servers / 2;
    }
    if (spec.servers == 0) {
        spec.servers = 1;
        tensors[0].dims[0] += 16;
        tensors[0].dims_count = 1;
        memset(tensors[0].dims + 1, 0, 3 * sizeof(uint32_t));
        spec.params_count = 0;
        for (uint32_t i = 0; i < spec.tensors_count; i++) {
            tensors[i].count = i ? tensors[i].count : tensors[i].dims[0];
            tensors[i].offset = spec.params_count;
            spec.params_count += tensors[i].count;
        }
    }
    spec.nonfinite_policy = below(draw, 2) ? GK_NONFINITE_ABORT : GK_NONFINITE_ZERO;
    spec.seed = any(draw, UINT64_MAX);
    spec.steps = 1 + any(draw, UINT32_MAX - 1);
    spec.push_max = 1 + any(draw, spec.params_count - 1);
    spec.optimizer = 1 + below(draw, 5);
    momentum = spec.optimizer >= GK_OPTIMIZER_MOMENTUM;
    spec.lr = gk_rng_float(&draw->rng, draw->next++);
    spec.momentum = momentum ? gk_rng_float(&draw->rng, draw->next++) : 0.0f;
    spec.weight_decay = gk_rng_float(&draw->rng, draw->next++);
    if (spec.optimizer == GK_OPTIMIZER_ADAMW) {
        spec.beta2 = gk_rng_float(&draw->rng, draw->next++);
        spec.epsilon = 1e-30f + gk_rng_float(&draw->rng, draw->next++) * 0.5f;
    }
    spec.schedule = 1 + below(draw, 3);
    spec.warmup_steps = any(draw, spec.steps);
    if (spec.schedule == GK_SCHEDULE_MILESTONES) {
        spec.lr_gamma = 2.0f * gk_rng_float(&draw->rng, draw->next++);
        spec.milestones_count = 1 + below(draw, GK_MILESTONES_MAX);
        for (uint32_t i = 0; i < spec.milestones_count; i++) {
            spec.milestones[i] = (i ? spec.milestones[i - 1] : 0) + 1 + below(draw, 1000);
        }
    }
    spec.lr_min = spec.schedule == GK_SCHEDULE_COSINE ? spec.lr * 0.25f : 0.0f;
    return spec;
}

Test(proto_spec, round_trip)
{
    struct draw draw = {.rng = {.seed = 11, .purpose = GK_RNG_IDENTITY}};
    struct gk_tensor tensors[64];
    struct gk_words words = {""};

    for (uint32_t round = 0; round < 1000; round++) {
        struct gk_spec spec = draw_spec(&draw, tensors), back;
        size_t count = 0, again_count = 0;

        cr_assert(gk_spec_encode(&spec, bytes, &count, &words) == GK_OK, "%u: %s", round,
                  words.text);
        cr_assert(gk_spec_decode(bytes, count, &back, &words) == GK_OK, "%u: %s", round,
                  words.text);
        cr_assert(gk_spec_encode(&back, again, &again_count, &words) == GK_OK);
        cr_assert(again_count == count && memcmp(bytes, again, count) == 0);
        cr_assert(gk_spec_hash(bytes, count) == gk_spec_hash(again, again_count));
        cr_assert(gk_spec_model_signature(&back) == gk_spec_model_signature(&spec));
        gk_spec_clear(&back);
    }
}

/* One rule broken by one member: offset and size in struct gk_spec, the new value. */
struct breakage {
    size_t offset, size;
    uint64_t value;
    const char *said;
};

#define WITH(member, to, words)                                                                    \
    {                                                                                              \
        offsetof(struct gk_spec, member), sizeof(((struct gk_spec *)0)->member), to, words         \
    }
#define FLOAT_NAN 0x7fc00000
#define FLOAT_MINUS 0x80000000
#define FLOAT_ONE 0x3f800000
#define FLOAT_INF 0x7f800000

static const struct breakage BREAKAGES[] = {
    WITH(workers, 0, "workers"),
    WITH(workers, GK_WORKERS_MAX + 1, "workers"),
    WITH(servers, 0, "servers"),
    WITH(servers, GK_SERVERS_MAX + 1, "servers"),
    WITH(servers, 41, "number of parameters"),
    WITH(mode, 0, "mode"),
    WITH(mode, GK_MODE_SSP, "mode is 2, which is reserved"),
    WITH(mode, 4, "mode"),
    WITH(lost_policy, 0, "lost_policy"),
    WITH(lost_policy, GK_LOST_DROP, "lost_policy is 2, which is reserved"),
    WITH(nonfinite_policy, GK_NONFINITE_SKIP, "nonfinite_policy"),
    WITH(nonfinite_policy, 3, "nonfinite_policy"),
    WITH(steps, 0, "steps"),
    WITH(steps, UINT64_C(1) << 32, "steps"),
    WITH(push_max, 0, "push_max"),
    WITH(push_max, 651, "push_max"),
    WITH(optimizer, 0, "optimizer"),
    WITH(optimizer, GK_OPTIMIZER_ADAMW, "epsilon"),
    WITH(optimizer, 6, "optimizer"),
    WITH(optimizer, GK_OPTIMIZER_SGD, "momentum"),
    WITH(lr, FLOAT_NAN, "lr"),
    WITH(lr, FLOAT_INF, "lr"),
    WITH(lr, FLOAT_MINUS, "lr"),
    WITH(momentum, FLOAT_ONE, "momentum"),
    WITH(momentum, FLOAT_NAN, "momentum"),
    WITH(momentum, FLOAT_MINUS, "momentum"),
    WITH(beta2, 1, "beta2"),
    WITH(beta2, FLOAT_MINUS, "beta2"),
    WITH(epsilon, 1, "epsilon"),
    WITH(weight_decay, FLOAT_MINUS | FLOAT_ONE, "weight_decay"),
    WITH(weight_decay, FLOAT_INF, "weight_decay"),
    WITH(schedule, 0, "schedule"),
    WITH(schedule, 4, "schedule"),
    WITH(schedule, GK_SCHEDULE_CONSTANT, "milestones_count"),
    WITH(warmup_steps, 1001, "warmup_steps"),
    WITH(lr_gamma, FLOAT_NAN, "lr_gamma"),
    WITH(lr_gamma, FLOAT_MINUS, "lr_gamma"),
    WITH(milestones_count, 0, "milestones_count"),
    WITH(milestones_count, GK_MILESTONES_MAX + 1, "milestones_count"),
    WITH(milestones[0], 0, "milestone"),
    WITH(milestones[0], 750, "milestone"),
    WITH(milestones[1], UINT64_C(1) << 32, "milestone"),
    WITH(lr_min, FLOAT_ONE, "lr_min"),
    WITH(lr_min, FLOAT_MINUS, "lr_min"),
    WITH(model[0], 0, "model"),
    WITH(model[0], '\n', "model"),
    WITH(params_count, 651, "params_count"),
    WITH(params_count, 649, "params_count"),
    WITH(params_count, GK_PARAMS_MAX + 1, "number of parameters"),
    WITH(tensors_count, 0, "tensors_count"),
    WITH(tensors_count, GK_TENSORS_MAX + 1, "tensors_count"),
    WITH(tensors_count, 1, "sum of the tensors"),
};

Test(proto_spec, rules)
{
    for (uint32_t i = 0; i < sizeof(BREAKAGES) / sizeof(BREAKAGES[0]); i++) {
        struct gk_tensor tensors[SAMPLE_TENSORS];
        struct gk_spec spec = sample_spec(tensors);
        struct gk_words words = {""};
        size_t count = 77;
        enum gk_err err;

        memcpy((uint8_t *)&spec + BREAKAGES[i].offset, &BREAKAGES[i].value, BREAKAGES[i].size);
        err = gk_spec_check(&spec, &words);
        cr_expect(err == GK_E_CONFIG && strstr(words.text, BREAKAGES[i].said), "%u: %s: %s", i,
                  BREAKAGES[i].said, words.text);
        cr_expect(gk_spec_encode(&spec, bytes, &count, NULL) == GK_E_CONFIG && count == 77);
    }
}

#define TENSOR(member, to, words)                                                                  \
    {                                                                                              \
        offsetof(struct gk_tensor, member), sizeof(((struct gk_tensor *)0)->member), to, words     \
    }

/* Of the second tensor, "bias", 10 elements from 640. */
static const struct breakage TENSOR_BREAKAGES[] = {
    TENSOR(name[0], 0, "printable name"),
    TENSOR(name[1], 0x80, "printable name"),
    TENSOR(offset, 639, "does not begin"),
    TENSOR(offset, 641, "does not begin"),
    TENSOR(count, 9, "product"),
    TENSOR(dims_count, 0, "dimensions"),
    TENSOR(dims_count, 5, "dimensions"),
    TENSOR(dims_count, 2, "size of 0"),
    TENSOR(dims[0], 0, "size of 0"),
    TENSOR(dims[0], 11, "product"),
    TENSOR(dims[1], 1, "beyond its dimensions"),
    TENSOR(flags, 8, "unknown flag"),
};

Test(proto_spec, rules_of_tensors)
{
    struct gk_tensor tensors[SAMPLE_TENSORS];
    struct gk_spec spec;
    struct gk_words words;

    for (uint32_t i = 0; i < sizeof(TENSOR_BREAKAGES) / sizeof(TENSOR_BREAKAGES[0]); i++) {
        const struct breakage *b = &TENSOR_BREAKAGES[i];

        spec = sample_spec(tensors);
        memcpy((uint8_t *)&tensors[1] + b->offset, &b->value, b->size);
        cr_expect(gk_spec_check(&spec, &words) == GK_E_CONFIG);
        cr_expect(strstr(words.text, b->said) && strstr(words.text, "tensor 1"), "%u: %s", i,
                  words.text);
    }
    spec = sample_spec(tensors);
    snprintf(tensors[1].name, sizeof(tensors[1].name), "weight");
    cr_expect(gk_spec_check(&spec, &words) == GK_E_CONFIG &&
              strstr(words.text, "both named \"weight\""));
    spec = sample_spec(tensors);
    memset(tensors[0].name, 'n', sizeof(tensors[0].name));
    cr_expect(gk_spec_check(&spec, &words) == GK_E_CONFIG && strstr(words.text, "printable name"));
    /* A product that wraps around 64 bits to the right number. */
    spec = sample_spec(tensors);
    tensors[1] = (struct gk_tensor){.name = "bias", .offset = 640, .count = 0, .dims_count = 3};
    tensors[1].dims[0] = tensors[1].dims[1] = tensors[1].dims[2] = UINT32_C(1) << 31;
    spec.params_count = 640;
    cr_expect(gk_spec_check(&spec, &words) == GK_E_CONFIG && strstr(words.text, "too large"));
}

/* One shard holds less than 2^32 elements. */
Test(proto_spec, large_shards)
{
    struct gk_tensor tensors[SAMPLE_TENSORS];
    struct gk_spec spec = sample_spec(tensors);
    struct gk_words words;

    tensors[0].dims[0] = UINT32_C(1) << 31;
    tensors[0].dims[1] = 4;
    tensors[0].count = UINT64_C(1) << 33;
    tensors[1].offset = tensors[0].count;
    spec.params_count = tensors[0].count + 10;
    cr_expect(gk_spec_check(&spec, &words) == GK_E_CONFIG && strstr(words.text, "more servers"),
              "%s", words.text);
    spec.servers = 3;
    cr_expect(gk_spec_check(&spec, &words) == GK_OK, "%s", words.text);
}

Test(proto_spec, table_too_large)
{
    static struct gk_tensor tensors[GK_TENSORS_MAX];
    struct gk_tensor two[SAMPLE_TENSORS];
    struct gk_spec spec = sample_spec(two), back;
    struct gk_words words;
    size_t count = 0;

    spec.tensors = tensors;
    spec.tensors_count = GK_TENSORS_MAX;
    spec.params_count = GK_TENSORS_MAX;
    for (uint32_t i = 0; i < GK_TENSORS_MAX; i++) {
        tensors[i] = (struct gk_tensor){.offset = i, .count = 1, .dims = {1}, .dims_count = 1};
        snprintf(tensors[i].name, sizeof(tensors[i].name), "%063u", i);
    }
    cr_expect(gk_spec_encode(&spec, bytes, &count, &words) == GK_E_LIMIT);
    /* 112 + 16 + 8 bytes and 1024 times 12 + 64. */
    cr_expect(strstr(words.text, "77960 bytes, 12424 more"), "%s", words.text);
    for (uint32_t i = 0; i < GK_TENSORS_MAX; i++) {
        snprintf(tensors[i].name, sizeof(tensors[i].name), "%040u", i);
    }
    cr_assert(gk_spec_encode(&spec, bytes, &count, &words) == GK_OK, "%s", words.text);
    cr_assert(gk_spec_decode(bytes, count, &back, &words) == GK_OK, "%s", words.text);
    cr_expect(back.tensors_count == GK_TENSORS_MAX && back.tensors[1023].offset == 1023);
    gk_spec_clear(&back);
}

static size_t sample_bytes(void)
{
    struct gk_tensor tensors[SAMPLE_TENSORS];
    struct gk_spec spec = sample_spec(tensors);
    size_t count = 0;

    cr_assert(gk_spec_encode(&spec, bytes, &count, NULL) == GK_OK);
    return count;
}

static void expect_undecoded(size_t count, enum gk_err err, const char *said)
{
    struct gk_spec untouched, spec;
    struct gk_words words = {""};
    enum gk_err got;

    memset(&untouched, 0xa5, sizeof(untouched));
    memcpy(&spec, &untouched, sizeof(spec));
    got = gk_spec_decode(bytes, count, &spec, &words);
    cr_expect(got == err && strstr(words.text, said), "%s: %s: %s", said, gk_err_name(got),
              words.text);
    cr_expect(memcmp(&spec, &untouched, sizeof(spec)) == 0, "touched on failure");
}

Test(proto_spec, bad_bytes)
{
    size_t count = sample_bytes();

    for (size_t cut = 0; cut < count; cut++) {
        expect_undecoded(cut, GK_E_CORRUPT, "spec: ");
    }
    bytes[count] = 0;
    expect_undecoded(count + 1, GK_E_CORRUPT, "behind its end");
    expect_undecoded(GK_SPEC_BYTES_MAX + 1, GK_E_CORRUPT, "64 KiB");
    bytes[0] = 'g';
    expect_undecoded(count, GK_E_CORRUPT, "format 2");
    (void)sample_bytes();
    bytes[4] = 1;
    expect_undecoded(count, GK_E_CORRUPT, "format 2");
    (void)sample_bytes();
    gk_put_u32(bytes + 8, 0);
    expect_undecoded(count, GK_E_CONFIG, "workers");
    (void)sample_bytes();
    gk_put_u32(bytes + 104, GK_MILESTONES_MAX + 1);
    expect_undecoded(count, GK_E_CORRUPT, "milestones");
    (void)sample_bytes();
    gk_put_u32(bytes + 108, UINT32_MAX);
    expect_undecoded(count, GK_E_CORRUPT, "tensors");
    (void)sample_bytes();
    gk_put_u32(bytes + 88, FLOAT_MINUS); /* lr_min = -0 */
    expect_undecoded(count, GK_E_CONFIG, "lr_min");
    (void)sample_bytes();
    bytes[130] = 0; /* a NUL inside the model's name */
    expect_undecoded(count, GK_E_CORRUPT, "one form");
    (void)sample_bytes();
    bytes[128] = GK_TENSOR_NAME_BYTES;
    expect_undecoded(count, GK_E_CORRUPT, "too long");
    (void)sample_bytes();
    gk_put_u32(bytes + 140, GK_TENSOR_DIMS_MAX + 1);
    expect_undecoded(count, GK_E_CORRUPT, "too long");
    (void)sample_bytes();
    /* Sizes whose product leaves 64 bits, or whose sum does. */
    gk_put_u32(bytes + 144, UINT32_MAX);
    gk_put_u32(bytes + 148, UINT32_MAX);
    expect_undecoded(count, GK_E_CONFIG, "tensor 0");
}

/* Any single byte changed gives another spec or none, never the same one. */
Test(proto_spec, changed_bytes)
{
    size_t count = sample_bytes();
    uint64_t hash = gk_spec_hash(bytes, count);
    uint32_t accepted = 0;

    for (size_t at = 0; at < count; at++) {
        for (uint32_t x = 1; x < 256; x++) {
            struct gk_spec spec;
            size_t again_count = 0;

            bytes[at] ^= (uint8_t)x;
            if (gk_spec_decode(bytes, count, &spec, NULL) == GK_OK) {
                cr_assert(gk_spec_encode(&spec, again, &again_count, NULL) == GK_OK);
                cr_assert(again_count == count && memcmp(again, bytes, count) == 0);
                cr_assert(gk_spec_hash(again, again_count) != hash);
                gk_spec_clear(&spec);
                accepted++;
            }
            bytes[at] ^= (uint8_t)x;
        }
    }
    cr_expect(accepted > 1000, "%u", accepted); /* seeds, names */
}

Test(proto_spec, random_bytes)
{
    struct draw draw = {.rng = {.seed = 12, .purpose = GK_RNG_IDENTITY}};
    size_t count = sample_bytes();

    for (uint32_t round = 0; round < 50000; round++) {
        struct gk_spec spec;

        (void)sample_bytes();
        for (uint32_t i = 1 + below(&draw, 6); i > 0; i--) {
            bytes[8 + below(&draw, (uint32_t)count - 8)] = (uint8_t)below(&draw, 256);
        }
        if (gk_spec_decode(bytes, below(&draw, 4) ? count : below(&draw, 400), &spec, NULL) ==
            GK_OK) {
            gk_spec_clear(&spec);
        }
    }
}

Test(proto_spec, signature)
{
    struct gk_tensor tensors[SAMPLE_TENSORS];
    struct gk_spec spec = sample_spec(tensors);
    uint64_t signature = gk_spec_model_signature(&spec);

    spec.lr = 0.5f;
    spec.workers = 9;
    cr_expect(gk_spec_model_signature(&spec) == signature, "the model alone");
    tensors[1].flags = 0;
    cr_expect(gk_spec_model_signature(&spec) != signature);
    spec = sample_spec(tensors);
    tensors[0].name[0] = 'W';
    cr_expect(gk_spec_model_signature(&spec) != signature);
    spec = sample_spec(tensors);
    tensors[0].dims[0] = 10;
    tensors[0].dims[1] = 64;
    cr_expect(gk_spec_model_signature(&spec) != signature);
}

/* floor(d s / S / 16) * 16 by long division of the product in two halves. */
static uint64_t partition_slow(uint64_t d, uint32_t servers, uint32_t shard)
{
    uint64_t high = (d >> 32) * shard, low = (d & UINT32_MAX) * shard;
    uint64_t q_high = high / servers, rest = high % servers;

    return (((q_high << 32) + ((rest << 32) + low) / servers) / 16) * 16;
}

Test(proto_spec, partition)
{
    struct draw draw = {.rng = {.seed = 13, .purpose = GK_RNG_IDENTITY}};

    cr_expect(gk_partition_lo(650, 2, 0) == 0);
    cr_expect(gk_partition_lo(650, 2, 1) == 320);
    cr_expect(gk_partition_lo(650, 2, 2) == 650);
    cr_expect(gk_partition_lo(199210, 3, 1) == 66400);
    cr_expect(gk_partition_lo(UINT64_MAX, 1, 0) == 0);
    cr_expect(gk_partition_lo(UINT64_MAX, 1, 1) == UINT64_MAX);
    cr_expect(gk_partition_lo(UINT64_MAX, 2, 1) == UINT64_C(0x7ffffffffffffff0));
    for (uint32_t round = 0; round < 20000; round++) {
        uint32_t servers = 1 + below(&draw, GK_SERVERS_MAX);
        uint64_t d = 16 * servers + any(&draw, UINT64_MAX - 16 * GK_SERVERS_MAX);
        uint32_t shard = below(&draw, servers);

        cr_assert(gk_partition_lo(d, servers, shard) == partition_slow(d, servers, shard),
                  "%llu / %u, %u", (unsigned long long)d, servers, shard);
        cr_assert(gk_partition_lo(d, servers, shard) < gk_partition_lo(d, servers, shard + 1),
                  "empty shard");
    }
}

Test(proto_spec, learning_rate_steps)
{
    struct gk_tensor tensors[SAMPLE_TENSORS];
    struct gk_spec spec = sample_spec(tensors);

    /* Milestones 500 and 750, factor 1/2, warm-up 10. */
    cr_expect(gk_spec_lr(&spec, 0) == (float)((double)0.1f / 10.0));
    cr_expect(gk_spec_lr(&spec, 4) == (float)((double)0.1f * 5.0 / 10.0));
    cr_expect(gk_spec_lr(&spec, 9) == 0.1f);
    cr_expect(gk_spec_lr(&spec, 10) == 0.1f);
    cr_expect(gk_spec_lr(&spec, 499) == 0.1f);
    cr_expect(gk_spec_lr(&spec, 500) == 0.05f);
    cr_expect(gk_spec_lr(&spec, 749) == 0.05f);
    cr_expect(gk_spec_lr(&spec, 750) == 0.025f);
    cr_expect(gk_spec_lr(&spec, UINT64_MAX) == 0.025f);
    spec.schedule = GK_SCHEDULE_CONSTANT;
    spec.milestones_count = 0;
    spec.lr_gamma = 0.0f;
    spec.warmup_steps = 0;
    cr_expect(gk_spec_lr(&spec, 0) == 0.1f && gk_spec_lr(&spec, 999) == 0.1f);
}

Test(proto_spec, learning_rate_cosine)
{
    static const uint64_t STEPS[] = {1, 2, 3, 1000, 4294967295};
    struct gk_tensor tensors[SAMPLE_TENSORS];
    struct gk_spec spec = sample_spec(tensors);

    spec.schedule = GK_SCHEDULE_COSINE;
    spec.milestones_count = 0;
    spec.warmup_steps = 0;
    spec.lr = 1.0f;
    spec.lr_min = 0.25f;
    for (uint32_t s = 0; s < 5; s++) {
        float before = 2.0f;

        spec.steps = STEPS[s];
        cr_expect(gk_spec_lr(&spec, 0) == 1.0f);
        cr_expect(gk_spec_lr(&spec, spec.steps) == 0.25f);
        cr_expect(gk_spec_lr(&spec, UINT64_MAX) == 0.25f);
        for (uint64_t i = 0; i <= 1000; i++) {
            uint64_t t = spec.steps < 1000 ? gk_min_u64(i, spec.steps) : i * (spec.steps / 1000);
            double exact =
                0.25 +
                0.75 * (1.0 + cos(3.14159265358979323846 * (double)t / (double)spec.steps)) / 2.0;
            float lr = gk_spec_lr(&spec, t);

            cr_assert(fabs((double)lr - exact) <= 6.1e-8, "%llu of %llu: %a, not %a",
                      (unsigned long long)t, (unsigned long long)spec.steps, (double)lr, exact);
            cr_assert(lr <= before);
            before = lr;
        }
    }
    /* Bits that every machine must give, worked out with fifty digits. */
    spec.steps = 7;
    spec.lr = 0.3f;
    spec.lr_min = 0.0f;
    cr_expect(gk_float_bits(gk_spec_lr(&spec, 1)) == 0x3e91fe92, "%08x",
              gk_float_bits(gk_spec_lr(&spec, 1)));
    cr_expect(gk_float_bits(gk_spec_lr(&spec, 3)) == 0x3e3bc77b, "%08x",
              gk_float_bits(gk_spec_lr(&spec, 3)));
    cr_expect(gk_float_bits(gk_spec_lr(&spec, 6)) == 0x3c736101, "%08x",
              gk_float_bits(gk_spec_lr(&spec, 6)));
}

Test(proto_spec, decay_ranges)
{
    struct gk_tensor tensors[] = {
        {.name = "a", .offset = 0, .count = 100},
        {.name = "b", .offset = 100, .count = 10, .flags = GK_TENSOR_NO_DECAY},
        {.name = "c", .offset = 110, .count = 50},
        {.name = "d", .offset = 160, .count = 40},
        {.name = "e", .offset = 200, .count = 5, .flags = GK_TENSOR_FROZEN | GK_TENSOR_DENSE},
    };
    struct gk_spec spec = {.params_count = 205, .tensors = tensors, .tensors_count = 5};
    struct gk_range ranges[5];

    cr_expect(gk_spec_decay_ranges(&spec, 0, 205, ranges) == 2);
    cr_expect(ranges[0].lo == 0 && ranges[0].hi == 100);
    cr_expect(ranges[1].lo == 110 && ranges[1].hi == 200, "c and d are one");
    cr_expect(gk_spec_decay_ranges(&spec, 96, 176, ranges) == 2);
    cr_expect(ranges[0].lo == 0 && ranges[0].hi == 4);
    cr_expect(ranges[1].lo == 14 && ranges[1].hi == 80);
    cr_expect(gk_spec_decay_ranges(&spec, 100, 110, ranges) == 0);
    cr_expect(gk_spec_decay_ranges(&spec, 200, 205, ranges) == 0);
    cr_expect(gk_spec_decay_ranges(&spec, 120, 130, ranges) == 1);
    cr_expect(ranges[0].lo == 0 && ranges[0].hi == 10);
    cr_expect(gk_spec_decay_ranges(&spec, 50, 50, ranges) == 0);
}
