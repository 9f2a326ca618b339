/* A threshold from a random sample, as in Deep Gradient Compression (Lin, Han, Mao, Wang, Dally,
 * arXiv 1712.01887): sample the magnitudes, take the one that leaves the wanted share of the sample
 * above it, compact, try again where the number is off, and trim what is too much.
 *
 * DGC's: the sample of 0.1 to 1 % of the entries; the quantile, which is that of the sample: of m
 * samples of n entries the (k m / n)-th largest (programs that took the k-th largest of the sample
 * let through n / m times k); no fewer than 0.8 k are accepted; a second, exact selection among
 * what passed.
 *
 * Ours: what is below 0.8 k, or beyond the room for candidates, 4 k, has another rank of the same
 * sample tried, by what the last one gave (DGC multiplies the threshold by 0.8, up to ten times,
 * and has room for everything); what passes is trimmed to exactly k with the lower index at ties
 * (DGC: the first k up to 1.3 k); a segment that no rank of its sample fits, as ties make them, is
 * selected exactly.  So between min(0.8 k, non-zeros) and k entries are pushed, always, and they
 * are the largest.
 *
 * Phase and stride of the sample are drawn for each step, lest a stride that a layer's width is a
 * multiple of sees the same columns for ever; every segment draws the same.  An entry that is not
 * finite passes every threshold, so that one of the slots below reports it. */
#include "common/bits.h"
#include "common/rng.h"
#include "worker/select/operators.h"

#include <math.h>

enum {
    CANDIDATES = 4,  /* room, in units of k */
    RANK_LEAST = 16, /* in the sample: its count is then good to a quarter */
    STRIDE_MOST = 1000,
    SAMPLES_MOST = 65536, /* where that stride leaves fewer */
    ROUNDS_MAX = 4,
};

/* SEARCH: the threshold comes from the sample.  FIXED: it stays.  LOST: it is infinite, the segment
 * is selected exactly. */
enum phase { SEARCH, FIXED, LOST };

struct search {
    struct gk_sample_args sample;
    uint64_t drawn;
    uint64_t rank;
    enum phase phase;
};

/* One step.  Arrays of one element a segment, and the sample; all of it in the selector's state. */
struct dgc {
    struct gk_selector *selector;
    const struct gk_select_step *step;
    struct gk_selected *ret;
    struct gk_words *words;
    struct search *searches;
    struct gk_range *parts; /* what belongs to a segment in a shorter vector */
    uint64_t *counts;
    uint64_t *ranks;
    float *thresholds;
    uint32_t *idx; /* room entries each */
    float *sample;
    float *val;
    uint64_t room;
    bool bad; /* some entry is not finite */
};

/* The largest stride of a segment of n; what is drawn is between three quarters of it and it. */
static uint64_t stride_most(uint64_t n, uint64_t k)
{
    const uint64_t stride = gk_max_u64(k / RANK_LEAST, n / SAMPLES_MOST);

    return gk_max_u64(1, gk_min_u64(stride, STRIDE_MOST));
}

static uint64_t stride_least(uint64_t most)
{
    return most - most / 4;
}

/* Whatever the k of a step is. */
static uint64_t sample_room(struct gk_range segment)
{
    const uint64_t n = segment.hi - segment.lo;

    return n / stride_least(stride_most(n, 0)) + 1;
}

static uint64_t samples_room(const struct gk_select_setup *setup)
{
    uint64_t room = 0;

    for (uint32_t s = 0; s < setup->segments_count; s++) {
        room += sample_room(setup->segments[s]);
    }
    return room;
}

static size_t dgc_state_bytes(const struct gk_select_setup *setup)
{
    return setup->segments_count * (sizeof(struct search) + sizeof(struct gk_range) +
                                    2 * sizeof(uint64_t) + sizeof(float)) +
           samples_room(setup) * (sizeof(uint32_t) + 2 * sizeof(float));
}

static struct dgc dgc_of(struct gk_selector *selector, const struct gk_select_step *step,
                         struct gk_selected *ret, struct gk_words *words)
{
    const uint32_t segments_count = selector->setup.segments_count;
    struct dgc dgc = {.selector = selector, .step = step, .ret = ret, .words = words};

    dgc.room = samples_room(&selector->setup);
    dgc.searches = selector->state;
    dgc.parts = (struct gk_range *)(dgc.searches + segments_count);
    dgc.counts = (uint64_t *)(dgc.parts + segments_count);
    dgc.ranks = dgc.counts + segments_count;
    dgc.thresholds = (float *)(dgc.ranks + segments_count);
    dgc.sample = dgc.thresholds + segments_count;
    dgc.val = dgc.sample + dgc.room;
    dgc.idx = (uint32_t *)(dgc.val + dgc.room);
    return dgc;
}

/* ---- The sample ---- */

/* Where the candidates may hold all of a segment, no threshold is needed. */
static void begin_segment(struct dgc *dgc, uint32_t s, const struct gk_rng *rng, uint64_t at)
{
    const struct gk_range segment = dgc->selector->segments[s];
    const uint64_t n = segment.hi - segment.lo;
    const uint64_t k = dgc->selector->k[s];
    const uint64_t most = stride_most(n, k);
    const uint64_t least = stride_least(most);
    struct search *search = &dgc->searches[s];

    *search = (struct search){.phase = FIXED};
    dgc->thresholds[s] = k > 0 ? 0 : INFINITY;
    if (n <= CANDIDATES * k || k == 0) {
        return;
    }
    search->phase = SEARCH;
    search->sample = (struct gk_sample_args){.g = dgc->step->g + segment.lo,
                                             .n = n,
                                             .keys = dgc->idx + at,
                                             .room = sample_room(segment),
                                             .count = &search->drawn};
    search->sample.stride = least + gk_rng_below(rng, 0, most - least + 1);
    search->sample.phase = gk_rng_below(rng, 1, search->sample.stride);
}

static enum gk_err draw_samples(struct dgc *dgc)
{
    const struct gk_select_setup *setup = &dgc->selector->setup;
    const struct gk_rng rng = {
        .seed = setup->seed, .purpose = GK_RNG_DGC, .a = dgc->step->step, .b = setup->rank};
    struct gk_ticket ticket = {0};
    uint64_t at = 0;
    enum gk_err err;

    for (uint32_t s = 0; s < setup->segments_count; s++) {
        begin_segment(dgc, s, &rng, at);
        dgc->parts[s] = (struct gk_range){at, at};
        at += sample_room(setup->segments[s]);
        if (dgc->searches[s].phase == SEARCH) {
            ticket = setup->ops->sample(setup->queue, &dgc->searches[s].sample);
        }
    }
    err = gk_operator_wait(dgc->selector, dgc->step, "sampling", ticket, dgc->words);
    for (uint32_t s = 0; s < setup->segments_count && !err; s++) {
        struct search *search = &dgc->searches[s];
        const uint64_t n = search->sample.n;

        if (search->phase != SEARCH) {
            continue;
        }
        dgc->parts[s].hi = dgc->parts[s].lo + search->drawn;
        search->rank = gk_max_u64(1, (2 * dgc->selector->k[s] * search->drawn + n) / (2 * n));
        for (uint64_t i = dgc->parts[s].lo; i < dgc->parts[s].hi; i++) {
            dgc->sample[i] = gk_bits_float(dgc->idx[i]);
        }
    }
    return err;
}

/* The magnitude of each segment's rank in its sample; 0 where fewer samples are not zero. */
static enum gk_err find_thresholds(struct dgc *dgc)
{
    const struct gk_select_setup *setup = &dgc->selector->setup;
    struct gk_select_report *report = &dgc->selector->scratch->report;
    const struct gk_select_args args = {.dst = dgc->sample,
                                        .g = dgc->sample,
                                        .segments = dgc->parts,
                                        .k = dgc->ranks,
                                        .segments_count = setup->segments_count,
                                        .policy = GK_NONFINITE_SKIP,
                                        .tune = setup->tune,
                                        .idx = dgc->idx,
                                        .val = dgc->val,
                                        .room = dgc->room,
                                        .report = report};
    uint64_t at = 0;
    enum gk_err err;

    for (uint32_t s = 0; s < setup->segments_count; s++) {
        dgc->ranks[s] = dgc->searches[s].phase == SEARCH ? dgc->searches[s].rank : 0;
    }
    err = gk_operator_wait(dgc->selector, dgc->step, "looking for a threshold",
                           setup->ops->select(setup->queue, &args), dgc->words);
    if (err) {
        return err;
    }
    dgc->bad = report->bad > 0;
    for (uint32_t s = 0; s < setup->segments_count; s++) {
        float least = INFINITY;
        uint64_t n = 0;

        if (dgc->searches[s].phase != SEARCH) {
            continue;
        }
        for (; at < report->n && dgc->idx[at] < dgc->parts[s].hi; at++, n++) {
            least = fminf(least, dgc->val[at]);
        }
        dgc->thresholds[s] = n == dgc->ranks[s] ? least : 0;
    }
    return GK_OK;
}

/* ---- The candidates ---- */

/* They lie behind the room for the k that are chosen. */
static enum gk_err compact(struct dgc *dgc)
{
    const struct gk_select_setup *setup = &dgc->selector->setup;
    const uint64_t k = dgc->ret->k;
    const struct gk_select_ge_args args = {.u = dgc->step->g,
                                           .segments = setup->segments,
                                           .t = dgc->thresholds,
                                           .segments_count = setup->segments_count,
                                           .idx = dgc->selector->idx + k,
                                           .val = dgc->selector->val + k,
                                           .room = dgc->selector->room - k,
                                           .n = dgc->counts};

    dgc->ret->passes++;
    return gk_operator_wait(dgc->selector, dgc->step, "compacting",
                            setup->ops->select_ge(setup->queue, &args), dgc->words);
}

/* Another rank of the sample, by what the last one gave; false when there is none. */
static bool correct(struct search *search, uint64_t count, uint64_t k)
{
    const uint64_t rank = search->rank;

    if (count == 0) {
        search->rank = CANDIDATES * rank;
    } else if (count < k) {
        search->rank = (rank * k + count - 1) / count;
    } else {
        search->rank = gk_max_u64(1, rank * k / count);
    }
    search->rank = gk_min_u64(search->rank, search->drawn);
    return search->rank != rank;
}

/* Whether some segment wants another round. */
static bool judge(struct dgc *dgc, unsigned round)
{
    bool again = false;

    for (uint32_t s = 0; s < dgc->selector->setup.segments_count; s++) {
        const uint64_t count = dgc->counts[s];
        const uint64_t k = dgc->selector->k[s];
        struct search *search = &dgc->searches[s];

        if (isinf(dgc->thresholds[s])) {
            dgc->bad = dgc->bad || count > 0;
        }
        if (search->phase != SEARCH) {
            continue;
        }
        if (count <= CANDIDATES * k && (5 * count >= 4 * k || !(dgc->thresholds[s] > 0))) {
            search->phase = FIXED;
            continue;
        }
        again = true;
        if (round == ROUNDS_MAX || !correct(search, count, k)) {
            search->phase = LOST;
            dgc->thresholds[s] = INFINITY;
        }
    }
    return again;
}

static enum gk_err find_candidates(struct dgc *dgc)
{
    enum gk_err err = draw_samples(dgc);
    bool again = true;

    for (unsigned round = 1; again && !err; round++) {
        err = find_thresholds(dgc);
        if (!err && !dgc->bad) {
            err = compact(dgc);
        }
        if (err || dgc->bad) {
            break;
        }
        again = judge(dgc, round);
    }
    return err;
}

/* ---- The choice ---- */

/* Exact top-k of the candidates, to the front of the buffers; *ret_n of them. */
static enum gk_err trim(struct dgc *dgc, uint64_t *ret_n)
{
    const struct gk_select_setup *setup = &dgc->selector->setup;
    struct gk_select_report *report = &dgc->selector->scratch->report;
    const uint32_t *candidates = dgc->selector->idx + dgc->ret->k;
    float *val = dgc->selector->val + dgc->ret->k;
    const struct gk_select_args args = {.dst = val,
                                        .g = val,
                                        .segments = dgc->parts,
                                        .k = dgc->selector->k,
                                        .segments_count = setup->segments_count,
                                        .policy = GK_NONFINITE_SKIP,
                                        .tune = setup->tune,
                                        .idx = dgc->selector->idx,
                                        .val = dgc->selector->val,
                                        .room = dgc->ret->k,
                                        .report = report};
    uint64_t at = 0;
    enum gk_err err;

    for (uint32_t s = 0; s < setup->segments_count; s++) {
        dgc->parts[s] = (struct gk_range){at, at + dgc->counts[s]};
        at += dgc->counts[s];
    }
    err = gk_operator_wait(dgc->selector, dgc->step, "trimming",
                           setup->ops->select(setup->queue, &args), dgc->words);
    if (err) {
        return err;
    }
    dgc->bad = report->bad > 0;
    *ret_n = report->n;
    for (uint64_t j = 0; j < report->n; j++) {
        dgc->selector->idx[j] = candidates[dgc->selector->idx[j]];
    }
    return GK_OK;
}

/* The lost segments exactly, among the *n indices that are chosen.  All of them are finite: what
 * was not has passed the infinite threshold. */
static enum gk_err select_lost(struct dgc *dgc, uint64_t *n)
{
    const struct gk_select_setup *setup = &dgc->selector->setup;
    struct gk_select_report *report = &dgc->selector->scratch->report;
    const uint64_t k = dgc->ret->k;
    const struct gk_select_args args = {.dst = dgc->step->g,
                                        .g = dgc->step->g,
                                        .segments = setup->segments,
                                        .k = dgc->ranks,
                                        .segments_count = setup->segments_count,
                                        .policy = GK_NONFINITE_SKIP,
                                        .tune = setup->tune,
                                        .idx = dgc->selector->idx + k,
                                        .val = dgc->selector->val + k,
                                        .room = dgc->selector->room - k,
                                        .report = report};
    uint32_t *idx = dgc->selector->idx;
    uint64_t lost = 0;
    enum gk_err err;

    for (uint32_t s = 0; s < setup->segments_count; s++) {
        dgc->ranks[s] = dgc->searches[s].phase == LOST ? dgc->selector->k[s] : 0;
        lost += dgc->ranks[s];
    }
    if (lost == 0) {
        return GK_OK;
    }
    err = gk_operator_wait(dgc->selector, dgc->step, "selecting",
                           setup->ops->select(setup->queue, &args), dgc->words);
    if (err) {
        return err;
    }
    dgc->ret->passes += report->passes;
    lost = report->n;
    /* Merged from the end, so that nothing is overwritten before it was read. */
    for (uint64_t to = *n + lost, chosen = *n; lost > 0;) {
        const bool later = chosen > 0 && idx[chosen - 1] > idx[k + lost - 1];

        idx[--to] = later ? idx[--chosen] : idx[k + --lost];
    }
    *n += report->n;
    return GK_OK;
}

static enum gk_err choose(struct dgc *dgc, uint64_t *ret_n)
{
    enum gk_err err = find_candidates(dgc);

    if (!err && !dgc->bad) {
        err = trim(dgc, ret_n);
    }
    if (!err && !dgc->bad) {
        err = select_lost(dgc, ret_n);
    }
    return err;
}

static enum gk_err dgc_step(struct gk_selector *selector, const struct gk_select_step *step,
                            struct gk_selected *ret, struct gk_words *words)
{
    struct dgc dgc = dgc_of(selector, step, ret, words);
    uint64_t n = 0;
    bool go = false;
    enum gk_err err = gk_operator_add(selector, step, ret, words);

    if (!err) {
        err = choose(&dgc, &n);
    }
    if (!err && dgc.bad) {
        err = gk_operator_screen(selector, step, ret, &go, words);
        if (err || !go) {
            return err;
        }
        dgc.bad = false;
        err = choose(&dgc, &n);
    }
    return err ? err : gk_operator_take(selector, step, n, ret, words);
}

const struct gk_operator gk_op_dgc = {
    .name = "dgc",
    .summary = "a threshold from a random sample (DGC), trimmed to at most k",
    .state_bytes = dgc_state_bytes,
    .candidates = CANDIDATES,
    .step = dgc_step,
};
