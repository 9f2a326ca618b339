/* What the tests that compare two layer tables share: the CPU's, and the CUDA one over a queue of
 * the vector table.  They are compiled where there are both: for the emulation (tests/simt,
 * RIG_EMULATED), where every bit must be the same, and for a device (tests/gpu), where gemm is
 * another library's, on both sides (tests/gpu/shim has plain loops in OpenBLAS's place), and exp,
 * log and tanh are the device's: the tests then state a bound.
 *
 * A twin is one array, here for the one table and there for the other. */
#ifndef GK_TESTS_UNIT_LAYER_RIG_H
#define GK_TESTS_UNIT_LAYER_RIG_H

#include "tests/unit/cpu_rig.h"
#include "worker/model/model.h"

#include <math.h>
#include <stdlib.h>

enum { TWIN_PAD = 8 }; /* elements behind each array, which nobody may write */

#ifdef RIG_EMULATED
static const bool rig_emulated = true;
#else
static const bool rig_emulated = false;
#endif

static const struct gk_layer_ops *cpu;  /* its queue is NULL */
static const struct gk_layer_ops *cuda; /* over queues[0] of tables[0] */

static inline void open_layers(void)
{
    static struct gk_words words;

    open_tables();
    cpu = gk_layers_cpu();
    cuda = gk_layers_cuda(&words);
    cr_assert_not_null(cuda, "%s", words.text);
}

static inline void close_layers(void)
{
    close_tables();
}

/* What a random array consists of. */
enum content {
    SMOOTH, /* around zero */
    WIDE,   /* all exponents, zeros of both signs, denormals */
    TIES,   /* few values, of which many are equal */
    ROUGH,  /* WIDE, with infinities and NaNs */
};

static inline float random_value(enum content content)
{
    switch (content) {
    case SMOOTH:
        return normalish();
    case TIES:
        return below(8) ? (float)below(3) - 1.0f : -0.0f;
    case ROUGH:
        if (below(12) == 0)
            return (float[]){NAN, -NAN, INFINITY, -INFINITY}[below(4)];
        break;
    case WIDE:
        break;
    }
    return below(3) ? normalish() : wide();
}

struct twin {
    float *here, *there;
    uint64_t count;
};

/* What is here goes there. */
static inline void twin_send(const struct twin *twin)
{
    const uint64_t bytes = (twin->count + TWIN_PAD) * sizeof(float);
    struct gk_ticket ticket = tables[0]->copy(queues[0], twin->there, twin->here, bytes);

    cr_assert_eq(tables[0]->wait(queues[0], ticket), GK_OK);
}

/* Zeros, for the caller to fill and send. */
static inline struct twin twin_zeros(uint64_t count)
{
    const uint64_t bytes = (count + TWIN_PAD) * sizeof(float);
    struct twin twin = {.here = malloc(bytes), .count = count};

    twin.there = tables[0]->alloc(queues[0], GK_MEMORY_DEVICE, bytes);
    cr_assert(twin.here && twin.there);
    memset(twin.here, 0, bytes);
    return twin;
}

static inline struct twin twin_random(uint64_t count, enum content content)
{
    struct twin twin = twin_zeros(count);

    for (uint64_t i = 0; i < count + TWIN_PAD; i++)
        twin.here[i] = random_value(content);
    twin_send(&twin);
    return twin;
}

static inline void twin_free(struct twin *twin)
{
    free(twin->here);
    tables[0]->free(queues[0], GK_MEMORY_DEVICE, twin->there);
}

/* What is there, its pad included, once all that was started is done; freed by the caller. */
static inline float *twin_fetch(const struct twin *twin)
{
    const uint64_t bytes = (twin->count + TWIN_PAD) * sizeof(float);
    float *back = malloc(bytes);

    cr_assert_not_null(back);
    next_schedule();
    cr_assert_eq(tables[0]->wait(queues[0], tables[0]->copy(queues[0], back, twin->there, bytes)),
                 GK_OK);
    return back;
}

/* The same bits here and there, NaNs being one. */
static inline void twin_expect(const struct twin *twin, const char *what, uint64_t number)
{
    float *back = twin_fetch(twin);
    uint64_t i = 0;

    if (!same_bits(back, twin->here, twin->count + TWIN_PAD))
        while (same_bits(back + i, twin->here + i, 1))
            i++;
    else
        i = twin->count + TWIN_PAD;
    cr_assert(i == twin->count + TWIN_PAD, "%s, case %llu: element %llu of %llu is %a, expected %a",
              what, (unsigned long long)number, (unsigned long long)i,
              (unsigned long long)twin->count, (double)back[i], (double)twin->here[i]);
    free(back);
}

/* The same bits in the emulation; on a device each within `absolute` + `relative` of its size. */
static inline void twin_expect_near(const struct twin *twin, double relative, double absolute,
                                    const char *what, uint64_t number)
{
    float *back;

    if (rig_emulated) {
        twin_expect(twin, what, number);
        return;
    }
    back = twin_fetch(twin);
    for (uint64_t i = 0; i < twin->count + TWIN_PAD; i++) {
        const double want = (double)twin->here[i];

        cr_assert(same_bits(back + i, twin->here + i, 1) ||
                      fabs((double)back[i] - want) <= absolute + relative * fabs(want),
                  "%s, case %llu: element %llu of %llu is %a, expected %a", what,
                  (unsigned long long)number, (unsigned long long)i,
                  (unsigned long long)twin->count, (double)back[i], want);
    }
    free(back);
}

#endif
