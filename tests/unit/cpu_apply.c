/* Goal: an optimizer step is the written formula on every element, whatever the form of the update,
 * the tile, the decay ranges and the number of updates at once.  Method: every table against the
 * formula applied element by element; sparse updates against their dense form, many updates against
 * one at a time, a range against its parts. */
#include "tests/unit/cpu_rig.h"

#include <math.h>

enum { LEN_MAX = 40000, UPDATES_MAX = 5, DECAY_MAX = 6 };

static float p0[LEN_MAX], m0[LEN_MAX], v0[LEN_MAX];
static float p[LEN_MAX + 1], m[LEN_MAX + 1], v[LEN_MAX + 1];
static float want_p[LEN_MAX], want_m[LEN_MAX], want_v[LEN_MAX];
static float sums[UPDATES_MAX][LEN_MAX];
static uint32_t sparse_idx[UPDATES_MAX][LEN_MAX];
static float sparse_val[UPDATES_MAX][LEN_MAX];
static uint8_t decays[LEN_MAX];

static void formula_adamw(const struct gk_hyper *h, uint64_t i, float g)
{
    float decay = h->lr * h->weight_decay, rate = h->lr / h->bias1;
    float square = (1.0f - h->beta2) * g, root;

    square = square * g;
    want_m[i] = fmaf(h->momentum, want_m[i], (1.0f - h->momentum) * g);
    if (fabsf(want_m[i]) < ldexpf(1.0f, -100))
        want_m[i] = 0.0f;
    want_v[i] = fmaf(h->beta2, want_v[i], square);
    if (want_v[i] < ldexpf(1.0f, -126))
        want_v[i] = 0.0f;
    root = sqrtf(want_v[i] / h->bias2) + h->epsilon;
    if (decays[i])
        want_p[i] = fmaf(-decay, want_p[i], want_p[i]);
    want_p[i] = fmaf(-rate, want_m[i] / root, want_p[i]);
}

/* The formula, for one element and one update. */
static void formula(enum gk_optimizer optimizer, const struct gk_update *update, uint64_t i,
                    float sum)
{
    const struct gk_hyper *h = &update->hyper;
    float g;

    if (update->samples == 0)
        return;
    g = sum / (float)update->samples;
    if (optimizer == GK_OPTIMIZER_ADAMW) {
        formula_adamw(h, i, g);
        return;
    }
    if (decays[i])
        g = fmaf(h->weight_decay, want_p[i], g);
    if (optimizer == GK_OPTIMIZER_SGD) {
        want_p[i] = fmaf(-h->lr, g, want_p[i]);
        return;
    }
    want_m[i] = fmaf(h->momentum, want_m[i], g);
    if (fabsf(want_m[i]) < ldexpf(1.0f, -100))
        want_m[i] = 0.0f;
    g = optimizer == GK_OPTIMIZER_NESTEROV ? fmaf(h->momentum, want_m[i], g) : want_m[i];
    want_p[i] = fmaf(-h->lr, g, want_p[i]);
}

static void oracle(const struct gk_apply_args *args)
{
    memcpy(want_p, p0, sizeof(p0));
    memcpy(want_m, m0, sizeof(m0));
    memcpy(want_v, v0, sizeof(v0));
    memset(decays, 0, sizeof(decays));
    for (uint32_t d = 0; d < args->decay_count; d++)
        memset(decays + args->decay[d].lo, 1, args->decay[d].hi - args->decay[d].lo);
    if (args->optimizer == GK_OPTIMIZER_NONE) {
        for (uint64_t i = 0; args->updates_count > 0 && i < args->len; i++) {
            uint64_t samples = args->updates[args->updates_count - 1].samples;

            want_m[i] = samples > 0 ? sums[args->updates_count - 1][i] / (float)samples : 0.0f;
        }
        return;
    }
    for (uint32_t u = 0; u < args->updates_count; u++)
        for (uint64_t i = 0; i < args->len; i++)
            formula(args->optimizer, &args->updates[u], i, sums[u][i]);
}

static void run(unsigned table, struct gk_apply_args args, uint64_t shift)
{
    args.p = p + shift;
    args.m = m + shift;
    args.v = v + shift;
    memcpy(args.p, p0, args.len * sizeof(float));
    memcpy(args.m, m0, args.len * sizeof(float));
    memcpy(args.v, v0, args.len * sizeof(float));
    finish_call(table, tables[table]->apply(queues[table], &args));
    for (uint64_t i = 0; i < args.len; i++)
        cr_assert(same_bits(&args.p[i], &want_p[i], 1) && same_bits(&args.m[i], &want_m[i], 1) &&
                      same_bits(&args.v[i], &want_v[i], 1),
                  "%s: optimizer %d at %llu of %llu: p %a want %a, m %a want %a, v %a want %a",
                  table_name(table), args.optimizer, (unsigned long long)i,
                  (unsigned long long)args.len, (double)args.p[i], (double)want_p[i],
                  (double)args.m[i], (double)want_m[i], (double)args.v[i], (double)want_v[i]);
}

/* sums[u], and its non-zero form in sparse_idx and sparse_val; `gap` 0: nothing. */
static struct gk_update random_update(unsigned u, uint64_t len, uint64_t gap, bool sparse)
{
    struct gk_update update = {.val = sums[u], .n = len, .samples = below(8) ? 1 + below(300) : 0};
    uint64_t n = 0;

    memset(sums[u], 0, len * sizeof(float));
    for (uint64_t i = gap ? below(gap) : len; i < len; i += 1 + below(2 * gap - 1)) {
        sums[u][i] = below(5) ? normalish() : wide();
        sparse_idx[u][n] = (uint32_t)i;
        sparse_val[u][n++] = sums[u][i];
    }
    if (sparse) {
        update.idx = sparse_idx[u];
        update.val = sparse_val[u];
        update.n = n;
    }
    update.hyper =
        (struct gk_hyper){.lr = below(6) ? 0.1f : (float[]){0.0f, -0.0f, -0.5f, 1e-30f}[below(4)],
                          .momentum = below(3) ? 0.9f : 0.0f,
                          .beta2 = below(4) ? 0.999f : 0.0f,
                          .epsilon = below(2) ? 1e-8f : 1e-30f,
                          .bias1 = below(2) ? 0.1f : 1.0f,
                          .bias2 = below(2) ? 1e-3f : 1.0f,
                          .weight_decay = below(2) ? 5e-4f : 0.0f};
    return update;
}

static uint32_t random_decay(struct gk_range *ranges, uint64_t len)
{
    uint32_t count = (uint32_t)below(DECAY_MAX + 1);
    uint64_t at = 0;

    for (uint32_t d = 0; d < count; d++) {
        uint64_t lo = at + below((len - at) / 2 + 1);

        ranges[d] = (struct gk_range){lo, lo + below(len - lo + 1)};
        at = ranges[d].hi;
    }
    return count;
}

static void random_planes(void)
{
    for (uint64_t i = 0; i < LEN_MAX; i++) {
        p0[i] = below(4) ? normalish() : wide();
        m0[i] = below(4) ? normalish() * 0.1f : below(2) ? wide() : normalish() * 0x1p-100f;
        v0[i] = below(4) ? fabsf(normalish()) * 0.01f : fabsf(normalish()) * 0x1p-126f;
    }
}

Test(cpu_apply, random_updates)
{
    static const uint64_t gaps[] = {0, 1, 2, 20, 500};

    open_tables();
    random_state = 1;
    random_planes();
    for (unsigned round = 0; round < ROUNDS(300); round++) {
        struct gk_update updates[UPDATES_MAX];
        struct gk_range decay[DECAY_MAX];
        struct gk_apply_args args = {.optimizer = (enum gk_optimizer)(1 + round % 5),
                                     .len = below(5) ? below(300) : below(LEN_MAX),
                                     .decay = decay,
                                     .updates = updates,
                                     .updates_count = (uint32_t)below(UPDATES_MAX + 1)};

        if (below(3))
            args.decay_count = random_decay(decay, args.len);
        for (unsigned u = 0; u < args.updates_count; u++)
            updates[u] = random_update(u, args.len, gaps[below(5)], below(3) != 0);
        oracle(&args);
        for (unsigned table = 0; table < tables_count; table++)
            run(table, args, below(2));
    }
    close_tables();
}

/* One call over a range, against calls over its parts with indices relative to them. */
Test(cpu_apply, a_range_is_its_parts)
{
    const uint64_t cuts[] = {0, 1, 777, 16384, 33000, LEN_MAX};

    open_tables();
    random_state = 2;
    random_planes();
    for (unsigned round = 0; round < 2 * tables_count; round++) {
        unsigned table = round / 2;
        struct gk_update whole = random_update(0, LEN_MAX, 9, true);
        struct gk_apply_args args = {.optimizer =
                                         round % 2 ? GK_OPTIMIZER_NESTEROV : GK_OPTIMIZER_ADAMW,
                                     .len = LEN_MAX,
                                     .updates = &whole,
                                     .updates_count = 1};
        uint64_t first = 0;

        whole.samples = 3;
        oracle(&args);
        memcpy(p, p0, sizeof(p0));
        memcpy(m, m0, sizeof(m0));
        memcpy(v, v0, sizeof(v0));
        for (unsigned c = 0; c + 1 < sizeof(cuts) / sizeof(cuts[0]); c++) {
            struct gk_update part = whole;

            part.idx = sparse_idx[1];
            part.val = whole.val + first;
            part.n = 0;
            for (; first < whole.n && whole.idx[first] < cuts[c + 1]; first++)
                sparse_idx[1][part.n++] = (uint32_t)(whole.idx[first] - cuts[c]);
            args.p = p + cuts[c];
            args.m = m + cuts[c];
            args.v = v + cuts[c];
            args.len = cuts[c + 1] - cuts[c];
            args.updates = &part;
            finish_call(table, tables[table]->apply(queues[table], &args));
        }
        cr_assert(same_bits(p, want_p, LEN_MAX) && same_bits(m, want_m, LEN_MAX) &&
                      same_bits(v, want_v, LEN_MAX),
                  "%s", table_name(table));
    }
    close_tables();
}

/* Figures that a pencil gives. */
Test(cpu_apply, known_steps)
{
    static const float after[5] = {[GK_OPTIMIZER_NONE] = 1.0f,
                                   [GK_OPTIMIZER_SGD] = 0.75f,        /* g 0.5 */
                                   [GK_OPTIMIZER_MOMENTUM] = 0.25f,   /* m 0.5 * 2 + 0.5 = 1.5 */
                                   [GK_OPTIMIZER_NESTEROV] = 0.375f}; /* 0.5 * 1.5 + 0.5 = 1.25 */
    const float sum = 1.0f;
    const struct gk_range decay = {0, 1};
    const struct gk_update update = {
        .val = &sum,
        .n = 1,
        .samples = 4,
        .hyper = {.lr = 0.5f, .momentum = 0.5f, .weight_decay = 0.25f}};

    open_tables();
    for (unsigned table = 0; table < tables_count; table++) {
        for (int optimizer = GK_OPTIMIZER_NONE; optimizer <= GK_OPTIMIZER_NESTEROV; optimizer++) {
            float x = 1.0f;
            float moment = 2.0f;
            struct gk_apply_args args = {.optimizer = (enum gk_optimizer)optimizer,
                                         .p = &x,
                                         .m = &moment,
                                         .len = 1,
                                         .decay = &decay,
                                         .decay_count = 1,
                                         .updates = &update,
                                         .updates_count = 1};

            finish_call(table, tables[table]->apply(queues[table], &args));
            cr_assert_eq(x, after[optimizer], "%s: optimizer %d: %g", table_name(table), optimizer,
                         (double)x);
            cr_assert_eq(moment, optimizer >= GK_OPTIMIZER_MOMENTUM ? 1.5f
                                 : optimizer == GK_OPTIMIZER_NONE   ? 0.25f
                                                                    : 2.0f);
        }
    }
    close_tables();
}

/* Nothing pushed for long: a moment reaches +0 instead of a denormal, from either sign. */
Test(cpu_apply, a_coasting_moment_ends)
{
    open_tables();
    for (unsigned table = 0; table < tables_count; table++) {
        float x[20], moment[20];
        const uint32_t none = 0;
        const struct gk_update update = {.idx = &none,
                                         .val = sums[0],
                                         .n = 0,
                                         .samples = 1,
                                         .hyper = {.lr = 0.1f, .momentum = 0.5f}};
        struct gk_apply_args args = {.optimizer = GK_OPTIMIZER_MOMENTUM,
                                     .p = x,
                                     .m = moment,
                                     .len = 20,
                                     .updates = &update,
                                     .updates_count = 1};

        for (unsigned i = 0; i < 20; i++) {
            x[i] = 1.0f;
            moment[i] = i % 2 ? 0x1p-98f : -0x1p-98f;
        }
        for (unsigned step = 1; step <= 3; step++) {
            finish_call(table, tables[table]->apply(queues[table], &args));
            for (unsigned i = 0; i < 20; i++) {
                float left = step < 3 ? ldexpf(i % 2 ? 1.0f : -1.0f, -98 - (int)step) : 0.0f;

                cr_assert(same_bits(&moment[i], &left, 1), "step %u: %a", step, (double)moment[i]);
            }
        }
    }
    close_tables();
}

/* AdamW as it is written on paper, in double precision and by a true pow(), over many steps: with a
 * gradient that changes its sign, and one that comes once. */
Test(cpu_apply, adamw_is_the_published_rule)
{
    enum { STEPS = 300, LEN = 19 };
    const double beta1 = (double)0.9f, beta2 = (double)0.999f, lr = 0.01, wd = (double)0.1f;
    const struct gk_range decay = {0, 10};

    open_tables();
    for (unsigned table = 0; table < tables_count; table++) {
        double x[LEN], first[LEN] = {0}, second[LEN] = {0};
        float sum[LEN];
        struct gk_update update = {.val = sum, .n = LEN, .samples = 3};
        struct gk_apply_args args = {.optimizer = GK_OPTIMIZER_ADAMW,
                                     .p = p,
                                     .m = m,
                                     .v = v,
                                     .len = LEN,
                                     .decay = &decay,
                                     .decay_count = 1,
                                     .updates = &update,
                                     .updates_count = 1};

        random_state = 3;
        memset(m, 0, sizeof(m));
        memset(v, 0, sizeof(v));
        for (unsigned i = 0; i < LEN; i++) {
            p[i] = normalish();
            x[i] = (double)p[i];
        }
        for (int t = 1; t <= STEPS; t++) {
            update.hyper = (struct gk_hyper){.lr = (float)lr,
                                             .momentum = 0.9f,
                                             .beta2 = 0.999f,
                                             .epsilon = 1e-8f,
                                             .bias1 = (float)(1 - pow(beta1, t)),
                                             .bias2 = (float)(1 - pow(beta2, t)),
                                             .weight_decay = (float)wd};
            for (unsigned i = 0; i < LEN; i++) {
                double g;

                sum[i] = i < 3 && t > 1 ? 0.0f : normalish() * (i % 2 ? 100.0f : 1e-4f);
                g = (double)sum[i] / 3;
                first[i] = beta1 * first[i] + (1 - beta1) * g;
                second[i] = beta2 * second[i] + (1 - beta2) * g * g;
                x[i] -= i < 10 ? lr * wd * x[i] : 0;
                x[i] -= lr * (first[i] / (1 - pow(beta1, t))) /
                        (sqrt(second[i] / (1 - pow(beta2, t))) + 1e-8);
            }
            finish_call(table, tables[table]->apply(queues[table], &args));
        }
        for (unsigned i = 0; i < LEN; i++)
            cr_assert(fabs((double)p[i] - x[i]) < 1e-5, "%s: %u: %.9g, in double %.9g",
                      table_name(table), i, (double)p[i], x[i]);
    }
    close_tables();
}

/* Nothing pushed for long: both moments reach +0, and what they moved stands still. */
Test(cpu_apply, coasting_adamw_ends)
{
    open_tables();
    for (unsigned table = 0; table < tables_count; table++) {
        float x[9], moment[9], square[9];
        const uint32_t none = 0;
        const struct gk_update update = {.idx = &none,
                                         .val = sums[0],
                                         .samples = 1,
                                         .hyper = {.lr = 0.5f,
                                                   .momentum = 0.5f,
                                                   .beta2 = 0.5f,
                                                   .epsilon = 1.0f,
                                                   .bias1 = 1.0f,
                                                   .bias2 = 1.0f}};
        struct gk_apply_args args = {.optimizer = GK_OPTIMIZER_ADAMW,
                                     .p = x,
                                     .m = moment,
                                     .v = square,
                                     .len = 9,
                                     .updates = &update,
                                     .updates_count = 1};

        for (unsigned i = 0; i < 9; i++) {
            x[i] = 1.0f;
            moment[i] = -0x1p-99f;
            square[i] = 0x1p-125f;
        }
        for (unsigned step = 1; step <= 2; step++) {
            float left = step == 1 ? -0x1p-100f : 0.0f, left2 = step == 1 ? 0x1p-126f : 0.0f;

            finish_call(table, tables[table]->apply(queues[table], &args));
            for (unsigned i = 0; i < 9; i++)
                cr_assert(same_bits(&moment[i], &left, 1) && same_bits(&square[i], &left2, 1) &&
                              x[i] == 1.0f,
                          "step %u: %a, %a", step, (double)moment[i], (double)square[i]);
        }
    }
    close_tables();
}

/* An optimizer that does not exist: nothing is done any more until somebody has heard of it. */
Test(cpu_apply, an_error_sticks)
{
    open_tables();
    for (unsigned table = 0; table < tables_count; table++) {
        float x = 1.0f;
        const float sum = 1.0f;
        const struct gk_update update = {.val = &sum, .n = 1, .samples = 1, .hyper = {.lr = 1.0f}};
        struct gk_apply_args args = {.optimizer = (enum gk_optimizer)6,
                                     .p = &x,
                                     .len = 1,
                                     .updates = &update,
                                     .updates_count = 1};

        tables[table]->apply(queues[table], &args);
        args.optimizer = GK_OPTIMIZER_SGD;
        tables[table]->apply(queues[table], &args);
        cr_assert_eq(x, 1.0f);
        cr_assert_eq(tables[table]->wait(queues[table], (struct gk_ticket){0}), GK_E_UNSUPPORTED);
        finish_call(table, tables[table]->apply(queues[table], &args));
        cr_assert_eq(x, 0.0f);
    }
    close_tables();
}
