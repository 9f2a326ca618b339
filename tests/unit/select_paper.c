/* Goal: `gaussk-paper` is the published rule, with its known misses.
 * Method: (1) the rule alone, run on exact moments and survival functions, gives the table of
 * closed forms in docs/selection.md to its last printed digit; (2) the rule alone on sampled data,
 * with moments and counts by plain loops, must agree with the operator on every table, with the
 * closed forms within sampling error, and with an independent simulation made elsewhere;
 * (3) degenerate vectors.  GKPS_PRINT_TABLE=1 prints what the sampled runs gave. */
#include "common/bits.h"
#include "tests/unit/select_laws.h"
#include "tests/unit/select_rig.h"
#include "worker/select/paper_rule.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>

enum { DENSITIES = 4, N = RIG_SANITIZED ? 100000 : 1000000 };

static const double densities[DENSITIES] = {0.1, 0.01, 0.001, 0.0001};

/* Selected / k at each evaluation, as printed in the table of closed forms. */
static const char *const closed[LAWS_CLOSED][DENSITIES] = {
    {"1", "1", "1", "1"},
    {"0.98", "2.62 0.42 6.51", "9.53 0.93", "40.8 2.60 0.042"},
    {"0.65 2.50 1.22", "2.10 0.68", "10.7 3.36 1.02", "66.7 20.6 6.23"},
    {"0.75", "3.11 1.12", "17.3 5.35 1.23", "110 30.3 6.03"},
    {"0.67", "2.58 0.93", "14.2 4.71 1.34", "91.7 28.5 7.64"},
    {"0.12 0.29 0.60", "0.67", "4.72 2.57 1.35", "36.9 19.8 10.2"},
    {"0.035 0.077 0.16", "0.20 0.46 1.01", "1.46 0.85", "11.7 6.74 3.79"},
    {"0.28 2.53 0.90", "0.74", "6.43 4.86 2.96", "58.3 41.0 21.7"},
    {"0.59 0.85", "3.95 2.02 0.56", "27.7 10.3 1.45", "199 54 3.85"},
    {"0.50 5.25 2.88", "0 25.6 0", "0 50.1 0", "0 0 4380"},
};

struct trace {
    unsigned count;
    uint64_t selected[GK_PAPER_EVALUATIONS_MAX];
    double threshold; /* of the last evaluation */
};

/* Half a unit of the last digit that is printed: decimals, but no more than three figures. */
static double printed_tolerance(const char *text, double value)
{
    const char *point = strchr(text, '.');
    const double decimals = point != NULL ? (double)strspn(point + 1, "0123456789") : 0;
    const double unit = pow(10, -decimals);
    const double third = value > 0 ? pow(10, floor(log10(value)) - 2) : 0;
    return 0.5 * (unit > third ? unit : third) * (1 + 1e-9);
}

static struct trace run_on_law(const struct law *law, double density, double d)
{
    struct trace trace = {0};
    struct gk_paper_rule rule;

    gk_paper_begin(&rule, 0, sqrt(law->variance), density, (uint64_t)(density * d));
    while (!rule.done) {
        trace.threshold = rule.threshold;
        trace.selected[trace.count] = (uint64_t)(law->tail(rule.threshold) * d);
        gk_paper_judge(&rule, trace.selected[trace.count++]);
    }
    return trace;
}

Test(select_paper, closed_form_columns)
{
    const double d = 1e13; /* so large that the whole numbers of entries do not round */

    for (unsigned law = 0; law < LAWS_CLOSED; law++) {
        for (unsigned i = 0; i < DENSITIES; i++) {
            const struct trace trace = run_on_law(&laws[law], densities[i], d);
            const char *text = closed[law][i];
            unsigned count = 0;
            for (; *text != '\0'; count++) {
                char *end;
                const double expected = strtod(text, &end);
                const double ratio = (double)trace.selected[count] / (densities[i] * d);
                cr_assert(count < trace.count, "%s at %g ends early", laws[law].name, densities[i]);
                cr_assert(fabs(ratio - expected) <= printed_tolerance(text, expected),
                          "%s at %g, evaluation %u: %g instead of %g", laws[law].name, densities[i],
                          count, ratio, expected);
                text = end + strspn(end, " ");
            }
            cr_assert_eq(trace.count, count, "%s at %g: %u evaluations instead of %u",
                         laws[law].name, densities[i], trace.count, count);
        }
    }
}

/* Unbiased deviation by two passes in long double: nothing in common with the stats slot. */
static void moments(const float *x, uint64_t n, double *ret_mu, double *ret_sigma)
{
    long double sum = 0, squares = 0;

    for (uint64_t i = 0; i < n; i++)
        sum += x[i];
    const long double mu = sum / (long double)n;
    for (uint64_t i = 0; i < n; i++)
        squares += (x[i] - mu) * (x[i] - mu);
    *ret_mu = (double)mu;
    *ret_sigma = n > 1 ? (double)sqrtl(squares / (long double)(n - 1)) : (double)NAN;
}

static uint64_t count_above(const float *x, uint64_t n, double threshold)
{
    uint64_t count = 0;
    for (uint64_t i = 0; i < n; i++)
        count += fabs((double)x[i]) > threshold;
    return count;
}

static struct trace run_on_sample(const float *x, uint64_t n, double density)
{
    struct trace trace = {0};
    struct gk_paper_rule rule;
    double mu, sigma;

    moments(x, n, &mu, &sigma);
    gk_paper_begin(&rule, mu, sigma, density, gk_select_k(density, n));
    while (!rule.done) {
        trace.threshold = rule.threshold;
        trace.selected[trace.count] = count_above(x, n, rule.threshold);
        gk_paper_judge(&rule, trace.selected[trace.count++]);
    }
    return trace;
}

/* The operator must select the mask of the last evaluation, zeros apart, and leave the rest. */
static void check_operator(const float *x, uint64_t n, double density, const struct trace *trace,
                           const char *name)
{
    const struct gk_vector_ops *tables[RIG_TABLES_MAX];
    const unsigned tables_count = rig_tables(tables);

    for (unsigned t = 0; t < tables_count; t++) {
        const struct rig_options options = {.name = "gaussk-paper", .ops = tables[t], .n = n};
        struct rig rig;
        uint64_t at = 0, wrong = 0;
        rig_open(&rig, &options);
        cr_assert_eq(rig_step(&rig, 1, density, x), GK_OK, "%s: %s", name, rig.words.text);
        for (uint64_t i = 0; i < n; i++) {
            const bool in = fabs((double)x[i]) > trace->threshold && x[i] != 0;
            if (in) {
                wrong += at >= rig.selected.n || rig.selected.idx[at] != i ||
                         rig.selected.val[at] != x[i] || rig.e[i] != 0;
                at++;
            } else {
                wrong += rig.e[i] != x[i];
            }
        }
        cr_assert_eq(at, rig.selected.n,
                     "%s at %g, table %u: %" PRIu64 " selected, %" PRIu64 " expected", name,
                     density, t, rig.selected.n, at);
        cr_assert_eq(wrong, 0, "%s at %g, table %u: %" PRIu64 " differ", name, density, t, wrong);
        cr_assert_eq(rig.selected.k, gk_select_k(density, n));
        cr_assert_eq(rig.selected.passes, 2 + trace->count);
        rig_close(&rig);
    }
}

/* Five standard errors of the count, and 3 % for the sampled deviation. */
static void check_near_closed(unsigned law, double density, const struct trace *trace)
{
    const struct trace exact = run_on_law(&laws[law], density, N);

    cr_assert_eq(trace->count, exact.count, "%s at %g: %u evaluations", laws[law].name, density,
                 trace->count);
    for (unsigned i = 0; i < exact.count; i++) {
        const double expected = (double)exact.selected[i];
        const double tolerance = 5 * sqrt(expected) + 0.03 * expected + 1;
        cr_assert(fabs((double)trace->selected[i] - expected) <= tolerance,
                  "%s at %g, evaluation %u: %" PRIu64 " instead of %g", laws[law].name, density, i,
                  trace->selected[i], expected);
    }
}

/* Laws whose sampled deviation is close to the exact one. */
static bool is_tame(unsigned law)
{
    return law == LAW_GAUSSIAN || law == LAW_LAPLACE || (law >= 7 && law < LAWS_CLOSED);
}

static void print_row(unsigned law, const struct trace *traces)
{
    if (law == 0)
        printf("| law | 0.1 | 0.01 | 0.001 | 0.0001 |\n|---|---|---|---|---|\n");
    printf("| %s |", laws[law].name);
    for (unsigned i = 0; i < DENSITIES; i++) {
        for (unsigned j = 0; j < traces[i].count; j++)
            printf("%s %.4g", j > 0 ? "," : "",
                   (double)traces[i].selected[j] / (double)gk_select_k(densities[i], N));
        printf(" |");
    }
    printf("\n");
}

Test(select_paper, sampled_columns)
{
    float *x = rig_floats(N);

    for (unsigned law = 0; law < LAWS_COUNT; law++) {
        struct trace traces[DENSITIES];
        law_fill(law, 2, x, N);
        for (unsigned i = 0; i < DENSITIES; i++) {
            traces[i] = run_on_sample(x, N, densities[i]);
            check_operator(x, N, densities[i], &traces[i], laws[law].name);
            if (is_tame(law) && (N >= 1000000 || i < 2))
                check_near_closed(law, densities[i], &traces[i]);
        }
        if (getenv("GKPS_PRINT_TABLE") != NULL)
            print_row(law, traces);
    }
    free(x);
}

#if !RIG_SANITIZED /* its rows are for a million elements */
static double last_ratio(const struct trace *trace, double density, uint64_t n)
{
    return (double)trace->selected[trace->count - 1] / (double)gk_select_k(density, n);
}

static double first_ratio(const struct trace *trace, double density, uint64_t n)
{
    return (double)trace->selected[0] / (double)gk_select_k(density, n);
}

/* Rows of another simulation at 1 M elements whose values do not hang on single outliers:
 * first and final. */
static const struct {
    unsigned law;
    double density, first, final;
} simulated[] = {
    {LAW_GAUSSIAN, 0.01, 1.01, 1.01},    {LAW_GAUSSIAN, 0.001, 1.00, 1.00},
    {LAW_SHIFTED, 0.01, 0.52, 3.79},     {LAW_SHIFTED, 0.001, 0.50, 10.1},
    {LAW_LAPLACE, 0.01, 2.61, 6.51},     {LAW_LAPLACE, 0.001, 9.63, 0.99},
    {LAW_SPARSE, 0.01, 0.80, 0.80},      {LAW_SPARSE, 0.001, 7.40, 4.54},
    {LAW_WIDE, 0.01, 4.17, 0.67},        {LAW_WIDE, 0.001, 29.8, 1.88},
    {LAW_TWO_VALUED, 0.01, 0, 100},      {LAW_TWO_VALUED, 0.001, 0, 1000},
    {LAW_CONSTANT, 0.01, 0, 100},        {LAW_CONSTANT, 0.001, 0, 1000},
    {LAW_OUTLIER, 0.01, 0.0001, 0.0001}, {LAW_OUTLIER, 0.001, 0.001, 0.001},
    {LAW_HUGE, 0.01, 0.01, 0.01},        {LAW_HUGE, 0.001, 0.09, 0.10},
};

Test(select_paper, another_simulation)
{
    float *x = rig_floats(N);

    for (unsigned i = 0; i < sizeof(simulated) / sizeof(simulated[0]); i++) {
        const double density = simulated[i].density;
        law_fill(simulated[i].law, 3, x, N);
        const struct trace trace = run_on_sample(x, N, density);
        const double first = first_ratio(&trace, density, N);
        const double final = last_ratio(&trace, density, N);
        cr_assert(fabs(first - simulated[i].first) <= 0.1 * simulated[i].first + 1e-3,
                  "%s at %g: first %g", laws[simulated[i].law].name, density, first);
        cr_assert(fabs(final - simulated[i].final) <= 0.1 * simulated[i].final + 1e-3,
                  "%s at %g: final %g", laws[simulated[i].law].name, density, final);
    }

    /* Heavy tails: the deviation is that of the few largest entries, so only the direction is the
     * law's. */
    law_fill(LAW_CAUCHY, 3, x, N);
    const struct trace cauchy = run_on_sample(x, N, 0.01);
    cr_assert(last_ratio(&cauchy, 0.01, N) < 0.5, "Cauchy: %g", last_ratio(&cauchy, 0.01, N));
    law_fill(LAW_LOGNORMAL3, 3, x, N);
    const struct trace lognormal = run_on_sample(x, N, 0.01);
    cr_assert(first_ratio(&lognormal, 0.01, N) < 0.5, "log-normal: %g",
              first_ratio(&lognormal, 0.01, N));
    free(x);
}
#endif

Test(select_paper, rule_steps)
{
    struct gk_paper_rule rule;

    /* The band is closed: exactly 2k/3 and exactly 4k/3 end the search. */
    gk_paper_begin(&rule, 1, 2, 1, 300);
    cr_assert_eq(rule.threshold, 1, "at density 1 the quantile is 0");
    gk_paper_judge(&rule, 200);
    cr_assert(rule.done && rule.evaluations == 1);
    gk_paper_begin(&rule, 1, 2, 1, 300);
    gk_paper_judge(&rule, 400);
    cr_assert(rule.done && rule.threshold == 1);

    /* The third evaluation is the answer: its miss moves nothing. */
    gk_paper_begin(&rule, 1, 2, 1, 300);
    gk_paper_judge(&rule, 199);
    cr_assert(!rule.done && rule.threshold == 0.5);
    gk_paper_judge(&rule, 401);
    cr_assert(!rule.done && rule.threshold == 0.75);
    gk_paper_judge(&rule, 401);
    cr_assert(rule.done && rule.threshold == 0.75 && rule.evaluations == 3);

    gk_paper_begin(&rule, 0, 1, 0.001, 1);
    cr_assert(fabs(rule.threshold - 3.290526731491894) < 1e-12, "the quantile is two-sided");
}

/* |x| > threshold for doubles is |x| >= at_least for floats. */
Test(select_paper, threshold_is_strict)
{
    static const double thresholds[] = {0,      1,    1 + 1e-12,  1 - 1e-12, 0.1,   1e-50,
                                        -1e-50, -2.5, 1e38 * 3.4, 1e39,      -1e39, 0x1p-149};

    for (unsigned i = 0; i < sizeof(thresholds) / sizeof(thresholds[0]); i++) {
        const struct gk_paper_rule rule = {.threshold = thresholds[i]};
        const float least = gk_paper_at_least(&rule);
        const float below = nextafterf(least, -INFINITY);
        cr_assert((double)least > thresholds[i] || thresholds[i] < -1e38, "%g: %g", thresholds[i],
                  least);
        cr_assert(!((double)below > thresholds[i]) || isinf(least), "%g: %g", thresholds[i], below);
    }
    const struct gk_paper_rule rule = {.threshold = (double)NAN};
    cr_assert(isinf(gk_paper_at_least(&rule)));
}

static void check_degenerate(const float *x, uint64_t n, double density, uint64_t expected,
                             const char *name)
{
    const struct trace trace = run_on_sample(x, n, density);
    check_operator(x, n, density, &trace, name);

    const struct rig_options options = {
        .name = "gaussk-paper", .ops = gk_vector_reference(), .n = n};
    struct rig rig;
    rig_open(&rig, &options);
    cr_assert_eq(rig_step(&rig, 1, density, x), GK_OK);
    cr_assert_eq(rig.selected.n, expected, "%s: %" PRIu64, name, rig.selected.n);
    rig_close(&rig);
}

Test(select_paper, degenerate_vectors)
{
    enum { SIZE = 1000 };
    float x[SIZE];

    /* The deviation of one element is 0/0: nothing is above it, so nothing is ever sent. */
    x[0] = 3;
    check_degenerate(x, 1, 0.001, 0, "single element");
    for (unsigned i = 0; i < SIZE; i++)
        x[i] = 0;
    check_degenerate(x, SIZE, 0.01, 0, "all zeros");
    /* Whatever the rounding of the sums does to the deviation of a constant, which is 0. */
    for (unsigned c = 1; c <= 60; c++) {
        for (unsigned i = 0; i < SIZE; i++)
            x[i] = 0.1f * (float)c;
        check_degenerate(x, SIZE - c, 0.01, SIZE - c, "constant");
    }
    /* A negative threshold is below every magnitude, also of zeros: they count in the band, but are
     * not sent. */
    for (unsigned i = 0; i < SIZE; i++)
        x[i] = i % 2 == 0 ? 0 : -0.1f - (float)i * 1e-9f;
    check_degenerate(x, SIZE, 0.9, SIZE / 2, "negative mean");
    law_fill(LAW_OUTLIER, 1, x, SIZE);
    check_degenerate(x, SIZE, 0.01, 1, "one outlier");
    law_fill(LAW_TWO_VALUED, 1, x, SIZE);
    check_degenerate(x, SIZE, 0.01, SIZE, "+-1");
}
