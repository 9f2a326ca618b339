/* What the tests of the vector tables share: the tables that this machine can run, and random
 * floats.
 *
 * The same files are compiled once more for the CUDA table (tests/simt): then RIG_CUDA is defined,
 * and of the many random calls there is a share of 1 in RIG_SHARE, because an emulated thread is
 * slow. */
#ifndef GK_TESTS_UNIT_CPU_RIG_H
#define GK_TESTS_UNIT_CPU_RIG_H

#include "common/backend.h"
#include "common/bits.h"

#ifdef RIG_CUDA
#include "cuda/backend.h"
#ifdef RIG_EMULATED
#include "tests/simt/simt.h"
#endif
#endif

#include <criterion/criterion.h>

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { RIG_TABLES_MAX = 2 };

#ifndef RIG_SHARE
#define RIG_SHARE 1
#endif
#define ROUNDS(count) (((count) + RIG_SHARE - 1) / RIG_SHARE)

static const struct gk_vector_ops *tables[RIG_TABLES_MAX];
static struct gk_queue *queues[RIG_TABLES_MAX];
static unsigned tables_count;

#ifdef RIG_CUDA
/* How the CPU tables go about it (passes, prunes, zeroed host memory) is not what other tables do.
 */
static const bool rig_cuda = true;

static inline void list_tables(const struct gk_vector_ops **ret_all)
{
    static struct gk_words words;

    ret_all[0] = gk_vector_cuda(&words);
    ret_all[1] = NULL;
    cr_assert_not_null(ret_all[0], "%s", words.text);
}
#else
static const bool rig_cuda = false;

static inline void list_tables(const struct gk_vector_ops **ret_all)
{
    ret_all[0] = gk_vector_reference();
    ret_all[1] = gk_vector_avx2();
}
#endif

static inline void open_tables(void)
{
    const struct gk_vector_ops *all[RIG_TABLES_MAX];

    list_tables(all);
    tables_count = 0;
    for (unsigned i = 0; i < RIG_TABLES_MAX; i++) {
        if (!all[i])
            continue;
        tables[tables_count] = all[i];
        cr_assert_eq(all[i]->open(&queues[tables_count], NULL), GK_OK);
        tables_count++;
    }
}

static inline void close_tables(void)
{
    for (unsigned i = 0; i < tables_count; i++)
        tables[i]->close(queues[i]);
}

static inline const char *table_name(unsigned table)
{
    return tables[table]->caps(queues[table])->name;
}

/* Emulated kernels run in another order in each call: by number, from the end, at random. */
static inline void next_schedule(void)
{
#ifdef RIG_EMULATED
    static const enum gk_simt_order orders[] = {GK_SIMT_RANDOM, GK_SIMT_ASCENDING, GK_SIMT_RANDOM,
                                                GK_SIMT_RANDOM, GK_SIMT_DESCENDING};
    static unsigned call;

    call++;
    gk_simt_schedule(orders[call % 5], call);
#endif
}

/* Ends a slot call: the ticket is done, and nothing stuck. */
static inline void finish_call(unsigned table, struct gk_ticket ticket)
{
    next_schedule();
    cr_assert(rig_cuda || tables[table]->poll(queues[table], ticket));
    cr_assert_eq(tables[table]->wait(queues[table], ticket), GK_OK);
    cr_assert(tables[table]->poll(queues[table], ticket));
}

static uint64_t random_state;

static inline uint64_t draw(void)
{
    return gk_mix64(++random_state);
}

static inline uint64_t below(uint64_t n)
{
    return draw() % n;
}

static inline float uniform(void)
{
    return (float)(int32_t)(draw() >> 32) * 0x1p-31f;
}

static inline float normalish(void)
{
    return uniform() + uniform() + uniform() + uniform();
}

/* All signs and exponents, zeros and denormals included; finite. */
static inline float wide(void)
{
    switch (below(8)) {
    case 0:
        return below(2) ? 0.0f : -0.0f;
    case 1:
        return gk_bits_float((uint32_t)(below(2) << 31 | below(100)));
    case 2:
        return gk_bits_float((uint32_t)draw() & 0xfeffffff);
    default:
        return normalish();
    }
}

/* Which of the many that are not a number an operation gives is the processor's choice. */
static inline bool same_value(const void *a, const void *b)
{
    uint32_t x, y;

    memcpy(&x, a, sizeof(x));
    memcpy(&y, b, sizeof(y));
    return x == y || (rig_cuda && (x & GK_KEY_MASK) > GK_KEY_NONFINITE &&
                      (y & GK_KEY_MASK) > GK_KEY_NONFINITE);
}

static inline bool same_bits(const void *a, const void *b, uint64_t count)
{
    if (count == 0 || memcmp(a, b, count * sizeof(float)) == 0)
        return true;
    for (uint64_t i = 0; i < count; i++)
        if (!same_value((const float *)a + i, (const float *)b + i))
            return false;
    return true;
}

#endif
