/* The job spec with its model table: what decodes obeys every rule, is written again as the same
 * bytes, and all that is computed from it stays within its bounds. */
#include "proto/spec.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <string.h>

static void check_tensors(const struct gk_spec *spec)
{
    uint64_t offset = 0;

    for (uint32_t i = 0; i < spec->tensors_count; i++) {
        const struct gk_tensor *tensor = &spec->tensors[i];
        uint64_t count = 1;

        FUZZ_CHECK(tensor->offset == offset && tensor->count > 0);
        FUZZ_CHECK(tensor->dims_count > 0 && tensor->dims_count <= GK_TENSOR_DIMS_MAX);
        for (uint32_t d = 0; d < tensor->dims_count; d++) {
            count *= tensor->dims[d];
        }
        FUZZ_CHECK(count == tensor->count);
        FUZZ_CHECK(memchr(tensor->name, '\0', sizeof(tensor->name)));
        offset += tensor->count;
    }
    FUZZ_CHECK(offset == spec->params_count);
}

static void check_shard(const struct gk_spec *spec, uint32_t shard)
{
    static struct gk_range ranges[GK_TENSORS_MAX];
    uint64_t lo = gk_partition_lo(spec->params_count, spec->servers, shard);
    uint64_t hi = gk_partition_lo(spec->params_count, spec->servers, shard + 1);
    uint32_t count;

    FUZZ_CHECK(lo < hi && hi <= spec->params_count && hi - lo < UINT64_C(1) << 32);
    FUZZ_CHECK(shard > 0 || lo == 0);
    FUZZ_CHECK(shard + 1 < spec->servers || hi == spec->params_count);
    count = gk_spec_decay_ranges(spec, lo, hi, ranges);
    FUZZ_CHECK(count <= spec->tensors_count);
    for (uint32_t i = 0; i < count; i++) {
        FUZZ_CHECK(ranges[i].lo < ranges[i].hi && ranges[i].hi <= hi - lo);
        FUZZ_CHECK(i == 0 || ranges[i - 1].hi < ranges[i].lo); /* merged */
    }
}

static void check_rates(const struct gk_spec *spec)
{
    const uint64_t times[] = {0,
                              1,
                              spec->warmup_steps,
                              spec->steps / 2,
                              spec->steps,
                              spec->milestones[0],
                              UINT64_C(1) << 62};

    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
        float lr = gk_spec_lr(spec, times[i]);

        FUZZ_CHECK(!isnan(lr) && lr >= 0);
    }
}

static void check_again(const struct gk_spec *spec, const uint8_t *data, size_t size)
{
    static uint8_t bytes[GK_SPEC_BYTES_MAX];
    struct gk_words words;
    size_t count = 0;

    FUZZ_CHECK(gk_spec_check(spec, &words) == GK_OK);
    FUZZ_CHECK(gk_spec_encode(spec, bytes, &count, &words) == GK_OK);
    FUZZ_CHECK(count == size && memcmp(bytes, data, size) == 0);
    FUZZ_CHECK(gk_spec_hash(bytes, count) == gk_spec_hash(data, size));
    (void)gk_spec_model_signature(spec);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct gk_spec spec;
    struct gk_words words = {.text = ""};
    enum gk_err err = gk_spec_decode(data, size, &spec, &words);

    if (err) {
        FUZZ_CHECK(err == GK_E_CORRUPT || err == GK_E_CONFIG || err == GK_E_LIMIT);
        fuzz_check_words(words.text);
        return 0;
    }
    check_tensors(&spec);
    check_again(&spec, data, size);
    check_rates(&spec);
    for (uint32_t shard = 0; shard < spec.servers; shard++) {
        check_shard(&spec, shard);
    }
    gk_spec_clear(&spec);
    return 0;
}
