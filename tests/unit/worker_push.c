/* Goal: an encoded push is the selection, bit for bit, in chunks that tile each shard; and its id
 * names its content.
 * Method: random selections of every density over several sizes, numbers of shards and sizes of
 * chunks; each chunk goes to the wire and back as the core sends it, and what a server would read
 * is compared with the source. */
#include "worker/core/push.h"

#include "common/bits.h"
#include "common/limits.h"
#include "common/rng.h"
#include "proto/msg.h"
#include "proto/spec.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { PARAMS_MAX = 4096 };

struct source {
    struct gk_push_source args;
    uint32_t idx[PARAMS_MAX];
    float val[PARAMS_MAX];
    uint32_t want[PARAMS_MAX]; /* bits of the vector that the push stands for */
};

static struct gk_rng rng = {.seed = 11, .purpose = GK_RNG_RANDK};
static uint64_t draws;

static uint32_t below(uint32_t bound)
{
    return (uint32_t)gk_rng_below(&rng, draws++, bound);
}

/* Finite bits, small and large, both zeros among them. */
static float any_value(void)
{
    uint32_t bits = gk_rng_u32(&rng, draws++) & ~UINT32_C(0x00800000);

    return gk_bits_float(below(16) == 0 ? bits & UINT32_C(0x80000000) : bits);
}

/* `percent` of the parameters; above 100: a dense source. */
static struct source *make(uint64_t params, uint32_t servers, uint32_t chunk_floats,
                           uint32_t percent)
{
    struct source *source = calloc(1, sizeof(*source));

    cr_assert(source && params <= PARAMS_MAX);
    source->args = (struct gk_push_source){.step = 41,
                                           .samples = 32,
                                           .rank = 3,
                                           .servers = servers,
                                           .params_count = params,
                                           .val = source->val,
                                           .chunk_floats = chunk_floats};
    for (uint64_t i = 0; i < params; i++) {
        if (percent > 100) {
            source->val[i] = any_value();
            source->want[i] = gk_float_bits(source->val[i]);
        } else if (below(100) < percent) {
            source->idx[source->args.n] = (uint32_t)i;
            source->val[source->args.n] = any_value();
            source->want[i] = gk_float_bits(source->val[source->args.n++]);
        }
    }
    source->args.idx = percent > 100 ? NULL : source->idx;
    source->args.n = percent > 100 ? params : source->args.n;
    return source;
}

static struct gk_push *encode(const struct source *source)
{
    struct gk_push *push = NULL;
    struct gk_words words;

    cr_assert_eq(gk_push_encode(&source->args, &push, &words), GK_OK);
    cr_assert(push->step == source->args.step && push->samples == source->args.samples &&
              push->slices_count == source->args.servers);
    return push;
}

/* The chunk as exchange.c sends it, as a server reads it. */
static void over_wire(const struct gk_push_slice *slice, uint32_t s, uint32_t c,
                      struct gk_msg *ret_msg)
{
    const struct gk_push_chunk *chunk = &slice->chunks[c];
    struct gk_buf *parts[GK_PARTS_MAX];
    struct gk_words words;
    uint32_t count;
    struct gk_msg msg = {.h = {.kind = GK_KIND_PUSH,
                               .session = 1,
                               .shard = s,
                               .step = 41,
                               .base_version = 41,
                               .samples = 32,
                               .push_id = slice->id,
                               .push_bytes = slice->bytes,
                               .chunk = c,
                               .chunks = slice->chunks_count,
                               .lo = chunk->lo,
                               .hi = chunk->hi,
                               .count = chunk->count,
                               .index_encoding = chunk->index_encoding,
                               .value_encoding = chunk->frames_count ? GK_VALUE_F32 : 0},
                         .frame = {chunk->frame[0], chunk->frame[1]},
                         .frames_count = chunk->frames_count};

    cr_assert_eq(gk_msg_to_wire(&msg, parts, &count), GK_OK);
    cr_assert_eq(gk_msg_from_wire(parts, count, ret_msg, &words), GK_OK, "%s", words.text);
    for (uint32_t i = 0; i < count; i++) {
        gk_buf_unref(parts[i]);
    }
}

static void decode(const struct gk_msg *msg, uint32_t *got)
{
    bool sparse = msg->h.index_encoding == GK_INDEX_RAW32;

    for (uint64_t i = 0; i < msg->h.count; i++) {
        uint64_t at = sparse ? gk_get_u32(msg->frame[0]->data + 4 * i) : i;

        got[msg->h.lo + at] = gk_get_u32(msg->frame[sparse ? 1 : 0]->data + 4 * i);
    }
}

/* Tiles [lo, hi), within the limits of a chunk, and decodes to what was selected there. */
static void check_slice(const struct source *source, const struct gk_push *push, uint32_t s)
{
    const struct gk_push_slice *slice = &push->slices[s];
    uint64_t lo = gk_partition_lo(source->args.params_count, source->args.servers, s);
    uint64_t hi = gk_partition_lo(source->args.params_count, source->args.servers, s + 1);
    uint32_t got[PARAMS_MAX] = {0};
    uint64_t at = lo, bytes = 0, n = 0;
    bool dense;

    for (uint64_t i = 0; source->args.idx && i < source->args.n; i++) {
        n += source->args.idx[i] >= lo && source->args.idx[i] < hi;
    }
    dense = !source->args.idx || 8 * n >= 4 * (hi - lo);
    cr_assert(slice->chunks_count > 0 && slice->id != 0);
    for (uint32_t c = 0; c < slice->chunks_count; c++) {
        struct gk_msg msg;

        over_wire(slice, s, c, &msg);
        cr_assert_eq(msg.h.lo, at, "chunks follow each other");
        cr_assert(msg.h.hi > msg.h.lo && msg.h.count <= source->args.chunk_floats);
        cr_assert_eq(msg.h.index_encoding, dense    ? GK_INDEX_DENSE
                                           : n == 0 ? GK_INDEX_NONE
                                                    : GK_INDEX_RAW32);
        at = msg.h.hi;
        for (uint32_t f = 0; f < msg.frames_count; f++) {
            bytes += msg.frame[f]->size;
        }
        decode(&msg, got);
        gk_msg_clear(&msg);
    }
    cr_assert(at == hi && bytes == slice->bytes);
    cr_assert(dense || n == 0 || bytes == 8 * n);
    cr_assert(n > 0 || dense || slice->chunks_count == 1, "an empty slice is one chunk");
    cr_assert(memcmp(got + lo, source->want + lo, (hi - lo) * sizeof(*got)) == 0);
}

Test(push, decodes_to_the_selection)
{
    static const uint64_t sizes[] = {128, 130, 1000, 4096};
    static const uint32_t servers[] = {1, 2, 3, 8};
    static const uint32_t chunks[] = {1, 3, 16, 100, GK_CHUNK_FLOATS};
    static const uint32_t percents[] = {0, 1, 10, 45, 50, 55, 100, 101};

    for (uint32_t i = 0; i < 4 * 4 * 5 * 8; i++) {
        struct source *source =
            make(sizes[i % 4], servers[i / 4 % 4], chunks[i / 16 % 5], percents[i / 80]);
        struct gk_push *push = encode(source);

        for (uint32_t s = 0; s < source->args.servers; s++) {
            check_slice(source, push, s);
        }
        gk_push_free(push);
        free(source);
    }
}

/* Dense from the entry on at which indices would cost as much as they save. */
Test(push, switches_to_dense_at_half)
{
    for (uint64_t n = 0; n <= 64; n++) {
        struct source *source = make(64, 1, 1000, 0);
        struct gk_push *push;

        for (uint64_t i = 0; i < n; i++) {
            source->idx[i] = (uint32_t)(64 - n + i);
            source->val[i] = 1.0f + (float)i;
            source->want[64 - n + i] = gk_float_bits(source->val[i]);
        }
        source->args.n = n;
        push = encode(source);
        check_slice(source, push, 0);
        cr_assert_eq(push->slices[0].chunks[0].index_encoding == GK_INDEX_DENSE, n >= 32);
        cr_assert_eq(push->slices[0].bytes, n >= 32 ? 256 : 8 * n);
        gk_push_free(push);
        free(source);
    }
}

/* All in one shard: the others get one empty chunk each, with an id of its own step and rank. */
Test(push, empty_slices)
{
    struct source *source = make(400, 4, 7, 0);
    struct gk_push *push;

    source->args.n = 20;
    for (uint32_t i = 0; i < 20; i++) {
        source->idx[i] = 220 + i;
        source->val[i] = -(float)i;
        source->want[220 + i] = gk_float_bits(source->val[i]);
    }
    push = encode(source);
    for (uint32_t s = 0; s < 4; s++) {
        check_slice(source, push, s);
        cr_assert_eq(push->slices[s].bytes, s == 2 ? 160 : 0);
        cr_assert_eq(push->slices[s].chunks_count, s == 2 ? 3 : 1);
        cr_assert(push->slices[s].id != push->slices[(s + 1) % 4].id, "ranges differ");
    }
    gk_push_free(push);
    free(source);
}

static uint64_t id_of(const struct source *source)
{
    struct gk_push *push = encode(source);
    uint64_t id = push->slices[0].id;

    gk_push_free(push);
    return id;
}

Test(push, id_names_the_content)
{
    static const uint32_t percents[] = {10, 80, 101};

    for (uint32_t p = 0; p < 3; p++) {
        struct source *source = make(256, 1, 5, percents[p]);
        uint64_t id = id_of(source);

        for (uint32_t i = 0; i < 10; i++) {
            uint64_t at = below((uint32_t)source->args.n);
            float kept = source->val[at];

            cr_assert_eq(id_of(source), id, "stable");
            source->val[at] = gk_bits_float(gk_float_bits(kept) ^ 1);
            cr_assert(id_of(source) != id, "one bit of one value");
            source->val[at] = kept;
        }
        source->args.rank++;
        cr_assert(id_of(source) != id);
        source->args.rank--;
        source->args.samples++;
        source->args.chunk_floats++;
        cr_assert(id_of(source) != id);
        source->args.samples--;
        cr_assert(id_of(source) != id, "another cut is another push");
        source->args.chunk_floats--;
        cr_assert_eq(id_of(source), id);
        free(source);
    }
}

Test(push, id_changes_with_an_index_and_the_step)
{
    struct source *source = make(256, 1, 5, 0);
    struct gk_push *push;
    struct gk_words words;
    uint64_t id;

    source->args.n = 2;
    source->idx[0] = 4;
    source->idx[1] = 9;
    source->val[0] = source->val[1] = 1.0f;
    id = id_of(source);
    source->idx[1] = 10;
    cr_assert(id_of(source) != id);
    source->idx[1] = 9;
    cr_assert_eq(id_of(source), id);
    source->args.n = 1;
    cr_assert(id_of(source) != id);
    source->args.n = 2;
    source->args.step++;
    cr_assert_eq(gk_push_encode(&source->args, &push, &words), GK_OK);
    cr_assert(push->slices[0].id != id);
    gk_push_free(push);
    free(source);
}

/* Frames may outlive the push: a message in flight holds them. */
Test(push, frames_are_counted)
{
    struct source *source = make(256, 2, 5, 20);
    struct gk_push *push = encode(source);
    struct gk_buf *kept = gk_buf_ref(push->slices[1].chunks[0].frame[1]);
    uint32_t bits = gk_get_u32(kept->data);

    cr_assert(push->slices[1].chunks[0].index_encoding == GK_INDEX_RAW32);
    gk_push_free(push);
    cr_assert_eq(gk_get_u32(kept->data), bits);
    gk_buf_unref(kept);
    gk_push_free(NULL);
    free(source);
}

#if defined(__SANITIZE_ADDRESS__)
#define HAS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAS_ASAN 1
#endif
#endif

#ifndef HAS_ASAN /* a sanitizer needs all of the address space */
/* Memory runs out in the middle of the chunks: an error with words, and nothing is kept. */
Test(push, no_memory)
{
    const uint64_t params = UINT64_C(64) * GK_CHUNK_FLOATS;
    float *values = calloc(params, sizeof(*values));
    struct gk_push_source args = {.step = 41,
                                  .servers = 1,
                                  .params_count = params,
                                  .val = values,
                                  .chunk_floats = GK_CHUNK_FLOATS};
    struct gk_push *push = NULL;
    struct gk_words words;
    struct rlimit limit;
    unsigned long pages;
    FILE *statm = fopen("/proc/self/statm", "r");

    cr_assert(values && statm && fscanf(statm, "%lu", &pages) == 1);
    (void)fclose(statm);
    cr_assert(getrlimit(RLIMIT_AS, &limit) == 0);
    limit.rlim_cur = pages * (rlim_t)sysconf(_SC_PAGESIZE) + 20 * GK_CHUNK_BYTES;
    cr_assert(setrlimit(RLIMIT_AS, &limit) == 0);
    for (uint32_t i = 0; i < 100; i++) { /* what the first try leaked, the last would lack */
        cr_assert_eq(gk_push_encode(&args, &push, &words), GK_E_NOMEM);
        cr_assert(push == NULL);
        cr_assert_str_eq(words.text, "no memory for the push of step 41");
    }
    args.params_count = 10 * GK_CHUNK_FLOATS;
    cr_assert_eq(gk_push_encode(&args, &push, &words), GK_OK);
    gk_push_free(push);
    free(values);
}
#endif

Test(push, no_chunk_size, .signal = SIGABRT)
{
    struct source *source = make(256, 2, 0, 20);

    (void)encode(source);
}
