/* k random entries per worker, with error feedback.
 *
 * Floyd's method (Bentley and Floyd 1987) draws a uniform k-subset of n with exactly k draws: for
 * j = n-k to n-1 draw r from 0..j and add r, or j where r is in already.  The set is a bitmap,
 * which is also the sort: reading it in word order gives rising indices.  Cost O(k + n / 64), and
 * the draws are numbered, so the subset is a function of (seed, step, rank) alone. */
#include "common/rng.h"
#include "worker/select/operators.h"

static size_t randk_state_bytes(const struct gk_select_setup *setup)
{
    return (setup->params_count / 64 + 1) * sizeof(uint64_t);
}

static bool has_bit(const uint64_t *bitmap, uint64_t i)
{
    return (bitmap[i / 64] >> (i % 64) & 1) != 0;
}

static void set_bit(uint64_t *bitmap, uint64_t i)
{
    bitmap[i / 64] |= UINT64_C(1) << (i % 64);
}

/* Marks k of the n bits at `lo`; draws are numbered from `draw`. */
static void draw_subset(const struct gk_rng *rng, uint64_t draw, uint64_t *bitmap,
                        struct gk_range segment, uint64_t k)
{
    const uint64_t n = segment.hi - segment.lo;

    for (uint64_t j = n - k; j < n; j++) {
        const uint64_t r = gk_rng_below(rng, draw++, j + 1);

        set_bit(bitmap, segment.lo + (has_bit(bitmap, segment.lo + r) ? j : r));
    }
}

/* Reads and clears the bitmap. */
static uint64_t list_bits(uint64_t *bitmap, uint64_t words_count, uint32_t *idx)
{
    uint64_t n = 0;

    for (uint64_t w = 0; w < words_count; w++) {
        for (uint64_t word = bitmap[w]; word != 0; word &= word - 1) {
            idx[n++] = (uint32_t)(w * 64 + (uint64_t)__builtin_ctzll(word));
        }
        bitmap[w] = 0;
    }
    return n;
}

static enum gk_err randk_step(struct gk_selector *selector, const struct gk_select_step *step,
                              struct gk_selected *ret, struct gk_words *words)
{
    const struct gk_select_setup *setup = &selector->setup;
    const struct gk_rng rng = {
        .seed = setup->seed, .purpose = GK_RNG_RANDK, .a = step->step, .b = setup->rank};
    uint64_t draws = 0;
    uint64_t n;
    bool go = false;
    enum gk_err err = gk_operator_add(selector, step, ret, words);

    if (!err) {
        err = gk_operator_screen(selector, step, ret, &go, words);
    }
    if (err || !go) {
        return err;
    }
    for (uint32_t s = 0; s < setup->segments_count; s++) {
        draw_subset(&rng, draws, selector->state, selector->segments[s], selector->k[s]);
        draws += selector->k[s];
    }
    n = list_bits(selector->state, setup->params_count / 64 + 1, selector->idx);
    return gk_operator_take(selector, step, n, ret, words);
}

const struct gk_operator gk_op_randk = {
    .name = "randk",
    .summary = "k random entries, different per worker, with residual",
    .state_bytes = randk_state_bytes,
    .step = randk_step,
};
