/* What the tests of the CPU tables share: the tables that this machine can run, and random floats.
 */
#ifndef GK_TESTS_UNIT_CPU_RIG_H
#define GK_TESTS_UNIT_CPU_RIG_H

#include "common/backend.h"
#include "common/bits.h"

#include <criterion/criterion.h>

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { RIG_TABLES_MAX = 2 };

static const struct gk_vector_ops *tables[RIG_TABLES_MAX];
static struct gk_queue *queues[RIG_TABLES_MAX];
static unsigned tables_count;

static inline void open_tables(void)
{
    const struct gk_vector_ops *all[RIG_TABLES_MAX] = {gk_vector_reference(), gk_vector_avx2()};

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

/* Ends a slot call: the ticket is done, and nothing stuck. */
static inline void finish_call(unsigned table, struct gk_ticket ticket)
{
    cr_assert(tables[table]->poll(queues[table], ticket));
    cr_assert_eq(tables[table]->wait(queues[table], ticket), GK_OK);
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

static inline bool same_bits(const void *a, const void *b, uint64_t count)
{
    return count == 0 || memcmp(a, b, count * sizeof(float)) == 0;
}

#endif
