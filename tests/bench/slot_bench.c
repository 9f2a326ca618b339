/* What a worker's state directory costs: the pass over the residual in ordinary memory and in the
 * slot, the push into the ring, the flip with its checksum; the median of some steps.
 *
 * usage: gk_bench_slot DIR PARAMETERS [sync] */
#include "common/assert.h"
#include "worker/state/slot.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STEPS = 15, PUSHED_OF = 100 };

struct times { /* milliseconds */
    double memory[STEPS], slot[STEPS], push[STEPS], persist[STEPS];
};

static double now_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *values)
{
    qsort(values, STEPS, sizeof(*values), by_value);
    return values[STEPS / 2];
}

static void pass(float *target, const float *residual, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        target[i] = residual[i] + 1.0f;
    }
}

static struct gk_push *make_push(const struct gk_slot_setup *setup, uint64_t step)
{
    struct gk_push_source source = {.step = step,
                                    .samples = 32,
                                    .servers = setup->servers,
                                    .params_count = setup->params_count,
                                    .n = setup->push_max,
                                    .chunk_floats = setup->chunk_floats};
    uint32_t *idx = calloc(source.n, sizeof(*idx));
    float *val = calloc(source.n, sizeof(*val));
    struct gk_push *push = NULL;
    struct gk_words words;

    GK_ASSERT(idx && val);
    for (uint64_t i = 0; i < source.n; i++) {
        idx[i] = (uint32_t)(i * PUSHED_OF);
    }
    source.idx = idx;
    source.val = val;
    GK_ASSERT(gk_push_encode(&source, &push, &words) == GK_OK);
    free(idx);
    free(val);
    return push;
}

static bool measure(const struct gk_slot_setup *setup, struct gk_slot *slot, struct times *ret)
{
    uint64_t count = setup->params_count;
    float *buffers[2] = {calloc(count, sizeof(float)), calloc(count, sizeof(float))};
    struct gk_words words;
    bool ok = buffers[0] && buffers[1];

    for (uint32_t t = 0; ok && t < STEPS; t++) {
        struct gk_worker_memory memory = {.step = t, .incarnation = 1};
        struct gk_push *push = make_push(setup, t);
        double start = now_ms(), passed, begun, put;

        pass(buffers[t % 2], buffers[1 - t % 2], count);
        passed = now_ms();
        gk_slot_begin(slot, t);
        pass(gk_slot_target(slot), gk_slot_residual(slot), count);
        begun = now_ms();
        ok = gk_slot_put(slot, push, &words) == GK_OK;
        put = now_ms();
        ok = ok && gk_slot_persist(slot, &memory, &words) == GK_OK;
        ret->memory[t] = passed - start;
        ret->slot[t] = begun - passed;
        ret->push[t] = put - begun;
        ret->persist[t] = now_ms() - put;
        gk_push_free(push);
    }
    free(buffers[0]);
    free(buffers[1]);
    return ok;
}

int main(int argc, char **argv)
{
    struct gk_slot_setup setup = {.servers = 2,
                                  .workers = 1,
                                  .job = "bench",
                                  .chunk_floats = GK_CHUNK_FLOATS,
                                  .sync = argc == 4 && strcmp(argv[3], "sync") == 0};
    struct times *times = calloc(1, sizeof(*times));
    struct gk_slot *slot = NULL;
    struct gk_slot_found found;
    struct gk_words words;
    bool ok;

    if (argc < 3 || argc > 4 || !times) {
        (void)fprintf(stderr, "usage: gk_bench_slot DIR PARAMETERS [sync]\n");
        free(times);
        return 64;
    }
    setup.directory = argv[1];
    setup.params_count = strtoull(argv[2], NULL, 10);
    setup.push_max = setup.params_count / PUSHED_OF;
    if (setup.push_max == 0 || gk_slot_open(&setup, &slot, &found, &words)) {
        (void)fprintf(stderr, "gk_bench_slot: %s\n", setup.push_max ? words.text : "too few");
        free(times);
        return 78;
    }
    ok = measure(&setup, slot, times);
    (void)printf("%" PRIu64 " parameters, %.1f MiB: pass in memory %.2f ms, in the slot %.2f ms; "
                 "push %.2f ms, persist %.2f ms\n",
                 setup.params_count, (double)gk_slot_bytes(&setup) / (1 << 20),
                 median(times->memory), median(times->slot), median(times->push),
                 median(times->persist));
    gk_slot_close(slot);
    free(times);
    return ok ? 0 : 1;
}
