/* The CPU tables, and which of them runs here. */
#include "common/cpu/queue.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#define SHARED_SLOTS                                                                               \
    .close = gk_cpu_close, .caps = gk_cpu_caps, .alloc = gk_cpu_alloc, .free = gk_cpu_free,        \
    .copy = gk_cpu_copy, .settle = gk_cpu_settle, .wait = gk_cpu_wait, .poll = gk_cpu_poll,        \
    .accumulate = gk_cpu_accumulate, .select = gk_cpu_select, .select_ge = gk_cpu_select_ge,       \
    .stats = gk_cpu_stats, .sample = gk_cpu_sample, .take = gk_cpu_take, .give = gk_cpu_give,      \
    .sum = gk_cpu_sum, .apply = gk_cpu_apply, .hash = gk_cpu_hash

static enum gk_err open_reference(struct gk_queue **ret_queue, struct gk_words *words)
{
    return gk_cpu_queue_open(&gk_cpu_loops_reference, ret_queue, words);
}

static const struct gk_vector_ops reference = {.open = open_reference, SHARED_SLOTS};

const struct gk_vector_ops *gk_vector_reference(void)
{
    return &reference;
}

#if defined(__x86_64__)

static enum gk_err open_avx2(struct gk_queue **ret_queue, struct gk_words *words)
{
    return gk_cpu_queue_open(&gk_cpu_loops_avx2, ret_queue, words);
}

static const struct gk_vector_ops avx2 = {.open = open_avx2, SHARED_SLOTS};

/* Not every compiler knows F16C by name; whether the system saves the wide registers is part of the
 * AVX2 check. */
static bool has_f16c(void)
{
    unsigned eax, ebx, ecx, edx;

    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

const struct gk_vector_ops *gk_vector_avx2(void)
{
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c())
        return &avx2;
    return NULL;
}

#else

const struct gk_vector_ops *gk_vector_avx2(void)
{
    return NULL;
}

#endif

enum gk_err gk_vector_cpu(enum gk_cpu wish, const struct gk_vector_ops **ret_ops,
                          struct gk_words *words)
{
    const struct gk_vector_ops *fast = gk_vector_avx2();

    switch (wish) {
    case GK_CPU_AUTO:
        *ret_ops = fast ? fast : &reference;
        return GK_OK;
    case GK_CPU_REFERENCE:
        *ret_ops = &reference;
        return GK_OK;
    case GK_CPU_AVX2:
        break;
    }
    if (!fast) {
        gk_words_set(words, "this processor lacks AVX2, FMA or F16C; choose 'auto' or 'reference'");
        return GK_E_UNSUPPORTED;
    }
    *ret_ops = fast;
    return GK_OK;
}
