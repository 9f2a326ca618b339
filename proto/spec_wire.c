/* The bytes of a job spec.  There is one byte string for each spec: offsets and counts of tensors
 * follow from their shapes and are not written, and what is read must come out the same when it is
 * written again. */
#include "proto/spec.h"

#include "common/assert.h"
#include "common/bits.h"
#include "common/hash.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const uint8_t magic[4] = {'G', 'K', 'S', 'P'};

enum { FORMAT = 2, TENSOR_BYTES_MAX = 8 + 4 * GK_TENSOR_DIMS_MAX + GK_TENSOR_NAME_BYTES };

/* Goes on counting behind the end, so that the words can say how large the spec would have been. */
struct writer {
    uint8_t *at;
    size_t used, room;
};

static void put(struct writer *out, const void *bytes, size_t count)
{
    if (out->used <= out->room && count <= out->room - out->used) {
        memcpy(out->at + out->used, bytes, count);
    }
    out->used += count;
}

static void put_u8(struct writer *out, size_t x)
{
    uint8_t byte = (uint8_t)x;

    put(out, &byte, sizeof(byte));
}

static void put_u32(struct writer *out, uint32_t x)
{
    put(out, &x, sizeof(x));
}

static void put_u64(struct writer *out, uint64_t x)
{
    put(out, &x, sizeof(x));
}

static void put_float(struct writer *out, float x)
{
    put_u32(out, gk_float_bits(x));
}

static void put_name(struct writer *out, const char *name)
{
    size_t length = strlen(name);

    put_u8(out, length);
    put(out, name, length);
}

static void put_tensor(struct writer *out, const struct gk_tensor *tensor)
{
    put_u32(out, tensor->flags);
    put_u32(out, tensor->dims_count);
    for (uint32_t i = 0; i < tensor->dims_count; i++) {
        put_u32(out, tensor->dims[i]);
    }
    put_name(out, tensor->name);
}

enum gk_err gk_spec_encode(const struct gk_spec *spec, uint8_t *ret, size_t *ret_bytes,
                           struct gk_words *words)
{
    struct writer out = {.at = ret, .room = GK_SPEC_BYTES_MAX};
    enum gk_err err = gk_spec_check(spec, words);

    if (err) {
        return err;
    }
    put(&out, magic, sizeof(magic));
    put_u32(&out, FORMAT);
    put_u32(&out, spec->workers);
    put_u32(&out, spec->servers);
    put_u32(&out, spec->mode);
    put_u32(&out, spec->lost_policy);
    put_u32(&out, spec->nonfinite_policy);
    put_u32(&out, spec->optimizer);
    put_u64(&out, spec->seed);
    put_u64(&out, spec->steps);
    put_u64(&out, spec->push_max);
    put_u64(&out, spec->warmup_steps);
    put_u64(&out, spec->params_count);
    put_float(&out, spec->lr);
    put_float(&out, spec->momentum);
    put_float(&out, spec->weight_decay);
    put_float(&out, spec->lr_gamma);
    put_float(&out, spec->lr_min);
    put_float(&out, spec->beta2);
    put_float(&out, spec->epsilon);
    put_u32(&out, spec->schedule);
    put_u32(&out, spec->milestones_count);
    put_u32(&out, spec->tensors_count);
    for (uint32_t i = 0; i < spec->milestones_count; i++) {
        put_u64(&out, spec->milestones[i]);
    }
    put_name(&out, spec->model);
    for (uint32_t i = 0; i < spec->tensors_count; i++) {
        put_tensor(&out, &spec->tensors[i]);
    }
    if (out.used > out.room) {
        gk_words_set(words,
                     "spec: the model table makes it %zu bytes, %zu more than the limit of %d",
                     out.used, out.used - out.room, GK_SPEC_BYTES_MAX);
        return GK_E_LIMIT;
    }
    *ret_bytes = out.used;
    return GK_OK;
}

/* Reads zeros once the bytes have run out; `short_by` is then set and judged at the end. */
struct reader {
    const uint8_t *at;
    size_t left;
    bool ended;
};

static void get(struct reader *in, void *ret, size_t count)
{
    if (in->ended || count > in->left) {
        in->ended = true;
        memset(ret, 0, count);
        return;
    }
    memcpy(ret, in->at, count);
    in->at += count;
    in->left -= count;
}

static uint32_t get_u32(struct reader *in)
{
    uint32_t x;

    get(in, &x, sizeof(x));
    return x;
}

static uint64_t get_u64(struct reader *in)
{
    uint64_t x;

    get(in, &x, sizeof(x));
    return x;
}

static float get_float(struct reader *in)
{
    return gk_bits_float(get_u32(in));
}

/* GK_TENSOR_NAME_BYTES into `ret`.  A longer one, or one with a NUL, does not come out the same and
 * is refused there. */
static void get_name(struct reader *in, char *ret)
{
    uint8_t length;

    get(in, &length, sizeof(length));
    if (length >= GK_TENSOR_NAME_BYTES) {
        in->ended = true;
        return;
    }
    get(in, ret, length);
}

static void get_tensor(struct reader *in, struct gk_tensor *ret, uint64_t offset)
{
    ret->flags = get_u32(in);
    ret->dims_count = get_u32(in);
    ret->offset = offset;
    ret->count = 1;
    if (ret->dims_count > GK_TENSOR_DIMS_MAX) {
        in->ended = true;
        return;
    }
    for (uint32_t i = 0; i < ret->dims_count; i++) {
        ret->dims[i] = get_u32(in);
        /* Saturates; gk_spec_check() refuses what is above 2^40. */
        ret->count = ret->dims[i] > 0 && ret->count > UINT64_MAX / ret->dims[i]
                         ? UINT64_MAX
                         : ret->count * ret->dims[i];
    }
    get_name(in, ret->name);
}

static enum gk_err corrupt(struct gk_words *words, const char *what)
{
    gk_words_set(words, "spec: %s", what);
    return GK_E_CORRUPT;
}

static enum gk_err get_fixed(struct reader *in, struct gk_spec *spec, struct gk_words *words)
{
    uint8_t found[sizeof(magic)];

    get(in, found, sizeof(found));
    if (memcmp(found, magic, sizeof(found)) != 0 || get_u32(in) != FORMAT) {
        return corrupt(words, "not a job spec of format 2");
    }
    spec->workers = get_u32(in);
    spec->servers = get_u32(in);
    spec->mode = get_u32(in);
    spec->lost_policy = get_u32(in);
    spec->nonfinite_policy = get_u32(in);
    spec->optimizer = get_u32(in);
    spec->seed = get_u64(in);
    spec->steps = get_u64(in);
    spec->push_max = get_u64(in);
    spec->warmup_steps = get_u64(in);
    spec->params_count = get_u64(in);
    spec->lr = get_float(in);
    spec->momentum = get_float(in);
    spec->weight_decay = get_float(in);
    spec->lr_gamma = get_float(in);
    spec->lr_min = get_float(in);
    spec->beta2 = get_float(in);
    spec->epsilon = get_float(in);
    spec->schedule = get_u32(in);
    spec->milestones_count = get_u32(in);
    spec->tensors_count = get_u32(in);
    if (in->ended) {
        return corrupt(words, "cut short");
    }
    if (spec->milestones_count > GK_MILESTONES_MAX) {
        return corrupt(words, "too many milestones");
    }
    if (spec->tensors_count < 1 || spec->tensors_count > GK_TENSORS_MAX) {
        return corrupt(words, "no tensors, or too many");
    }
    return GK_OK;
}

static enum gk_err get_rest(struct reader *in, struct gk_spec *spec, struct gk_tensor *tensors,
                            struct gk_words *words)
{
    uint64_t offset = 0;

    for (uint32_t i = 0; i < spec->milestones_count; i++) {
        spec->milestones[i] = get_u64(in);
    }
    get_name(in, spec->model);
    for (uint32_t i = 0; i < spec->tensors_count && !in->ended; i++) {
        get_tensor(in, &tensors[i], offset);
        offset = tensors[i].count > UINT64_MAX - offset ? UINT64_MAX : offset + tensors[i].count;
    }
    if (in->ended) {
        return corrupt(words, "cut short, or a name or shape that is too long");
    }
    return in->left > 0 ? corrupt(words, "bytes behind its end") : GK_OK;
}

/* Names that hold a NUL, for instance, pass every other check. */
static enum gk_err check_same(const struct gk_spec *spec, const uint8_t *bytes, size_t bytes_count,
                              struct gk_words *words)
{
    uint8_t *again = malloc(GK_SPEC_BYTES_MAX);
    size_t again_bytes = 0;
    enum gk_err err;

    if (!again) {
        gk_words_set(words, "spec: no memory");
        return GK_E_NOMEM;
    }
    err = gk_spec_encode(spec, again, &again_bytes, words);
    if (!err && (again_bytes != bytes_count || memcmp(again, bytes, bytes_count) != 0)) {
        err = corrupt(words, "not in the one form of its bytes");
    }
    free(again);
    return err;
}

enum gk_err gk_spec_decode(const uint8_t *bytes, size_t bytes_count, struct gk_spec *ret_spec,
                           struct gk_words *words)
{
    struct reader in = {.at = bytes, .left = bytes_count};
    struct gk_spec spec = {0};
    struct gk_tensor *tensors;
    enum gk_err err;

    if (bytes_count > GK_SPEC_BYTES_MAX) {
        return corrupt(words, "more than 64 KiB");
    }
    err = get_fixed(&in, &spec, words);
    if (err) {
        return err;
    }
    tensors = calloc(spec.tensors_count, sizeof(*tensors));
    spec.tensors = tensors;
    if (!tensors) {
        gk_words_set(words, "spec: no memory");
        return GK_E_NOMEM;
    }
    err = get_rest(&in, &spec, tensors, words);
    err = err ? err : check_same(&spec, bytes, bytes_count, words);
    if (err) {
        gk_spec_clear(&spec);
        return err;
    }
    *ret_spec = spec;
    return GK_OK;
}

void gk_spec_clear(struct gk_spec *spec)
{
    free((void *)spec->tensors); /* const for those who look */
    memset(spec, 0, sizeof(*spec));
}

uint64_t gk_spec_hash(const uint8_t *bytes, size_t bytes_count)
{
    return gk_hash64(bytes, bytes_count);
}

uint64_t gk_spec_model_signature(const struct gk_spec *spec)
{
    uint64_t hash = gk_hash64_more(0, &spec->params_count, sizeof(spec->params_count));

    for (uint32_t i = 0; i < spec->tensors_count; i++) {
        uint8_t entry[TENSOR_BYTES_MAX];
        struct writer out = {.at = entry, .room = sizeof(entry)};

        put_tensor(&out, &spec->tensors[i]);
        GK_ASSERT(out.used <= out.room);
        hash = gk_hash64_more(hash, entry, out.used);
    }
    return hash;
}
