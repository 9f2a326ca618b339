/* Goal: products of the CUDA table are those of the CPU's, for all transpositions and beta, c is
 * not read where beta is 0, and what fails is an error of the queue and no more.  Method: random
 * matrices of odd sides; in the emulation the same bits, on a device within the bound that holds
 * for every order of the sums (k roundings of the sum of magnitudes); every call of cuBLAS and
 * every allocation fails once. */
#include "tests/unit/layer_rig.h"

struct product {
    struct gk_gemm_args args; /* of the CPU */
    struct twin a, b, c;
};

static struct product random_product(const uint64_t sides[3], unsigned form)
{
    struct product p = {.a = twin_random(sides[0] * sides[2], SMOOTH),
                        .b = twin_random(sides[2] * sides[1], SMOOTH),
                        .c = twin_random(sides[0] * sides[1], form & 4 ? SMOOTH : ROUGH)};

    p.args = (struct gk_gemm_args){.transpose_a = form & 1,
                                   .transpose_b = form & 2,
                                   .m = sides[0],
                                   .n = sides[1],
                                   .k = sides[2],
                                   .a = p.a.here,
                                   .b = p.b.here,
                                   .c = p.c.here,
                                   .beta = form & 4 ? (form & 8 ? 1.0f : 0.5f) : 0.0f};
    return p;
}

static void start(const struct product *p)
{
    struct gk_gemm_args args = p->args;

    args.a = p->a.there;
    args.b = p->b.there;
    args.c = p->c.there;
    cuda->gemm(queues[0], &args);
}

static void free_product(struct product *p)
{
    twin_free(&p->a);
    twin_free(&p->b);
    twin_free(&p->c);
}

/* Of one element: its exact value, and how far an fp32 sum may be from it. */
static double exact(const struct product *p, const float *before, uint64_t at, double *ret_bound)
{
    const struct gk_gemm_args *g = &p->args;
    const uint64_t row = at / g->n, column = at % g->n;
    double sum = g->beta == 0.0f ? 0.0 : (double)g->beta * (double)before[at];
    double size = fabs(sum);

    for (uint64_t i = 0; i < g->k; i++) {
        double a = (double)(g->transpose_a ? g->a[i * g->m + row] : g->a[row * g->k + i]);
        double b = (double)(g->transpose_b ? g->b[column * g->k + i] : g->b[i * g->n + column]);

        sum += a * b;
        size += fabs(a * b);
    }
    *ret_bound = (double)(g->k + 2) * 0x1p-24 * size;
    return sum;
}

static void check_bounds(const struct product *p, const float *before, uint64_t number)
{
    float *back = twin_fetch(&p->c);

    for (uint64_t i = 0; i < p->c.count; i++) {
        double bound;
        const double want = exact(p, before, i, &bound);

        cr_assert(fabs((double)back[i] - want) <= bound,
                  "case %llu: element %llu is %g, expected %g", (unsigned long long)number,
                  (unsigned long long)i, (double)back[i], want);
    }
    cr_assert(same_bits(back + p->c.count, before + p->c.count, TWIN_PAD));
    free(back);
}

Test(layer_gemm, products)
{
    static const uint64_t sides[][3] = {{1, 1, 1},   {2, 3, 4},    {7, 1, 5},    {1, 33, 64},
                                        {64, 70, 3}, {17, 19, 70}, {130, 9, 200}};

    open_layers();
    random_state = 1;
    for (unsigned i = 0; i < 16 * sizeof(sides) / sizeof(sides[0]); i++) {
        struct product p = random_product(sides[i / 16], i % 16);
        const uint64_t bytes = (p.c.count + TWIN_PAD) * sizeof(float);
        float *before = malloc(bytes);

        cr_assert_not_null(before);
        memcpy(before, p.c.here, bytes);
        start(&p);
        check_bounds(&p, before, i);
        cpu->gemm(NULL, &p.args);
        if (rig_emulated)
            twin_expect(&p.c, "gemm", i);
        free(before);
        free_product(&p);
    }
    close_layers();
}

/* Each sees what the one before has written; nothing is waited for between. */
Test(layer_gemm, in_order_with_other_slots)
{
    const uint64_t sides[3] = {5, 6, 7};

    open_layers();
    random_state = 2;
    for (unsigned turn = 0; turn < 5; turn++) {
        struct product p = random_product(sides, 12); /* c += a b */
        const struct gk_bias_args bias = {p.c.here, p.b.here, 5, 6, GK_ACTIVATION_RELU};
        struct gk_bias_args bias_there = bias;

        bias_there.x = p.c.there;
        bias_there.bias = p.b.there;
        start(&p);
        cuda->bias_forward(queues[0], &bias_there);
        start(&p);
        for (int i = 0; i < 2; i++) {
            cpu->gemm(NULL, &p.args);
            if (i == 0)
                cpu->bias_forward(NULL, &bias);
        }
        twin_expect_near(&p.c, 1e-5, 1e-5, "in order", turn);
        free_product(&p);
    }
    close_layers();
}

Test(layer_gemm, fingerprint)
{
    open_layers();
    cr_assert_not_null(strstr(cuda->fingerprint(), "cuBLAS"), "%s", cuda->fingerprint());
    cr_assert_not_null(strstr(cuda->fingerprint(), ", pedantic, "), "%s", cuda->fingerprint());
    cr_assert(!cuda->on_host);
    close_layers();
}

#ifdef RIG_EMULATED
/* A fresh queue, whose first product makes the handle. */
static void fail(bool allocation, int64_t after)
{
    const uint64_t sides[3] = {3, 4, 5};
    struct gk_queue *before = queues[0];
    struct product p = random_product(sides, 0);
    enum gk_err err;

    cr_assert_eq(tables[0]->open(&queues[0], NULL), GK_OK);
    if (allocation)
        gk_simt_fail_allocation(after);
    else
        gk_simt_fail_blas(after);
    start(&p);
    err = tables[0]->wait(queues[0], (struct gk_ticket){0});
    gk_simt_fail_allocation(-1);
    gk_simt_fail_blas(-1);
    if (after < (allocation ? 1 : 2))
        cr_assert_eq(err, allocation || after == 0 ? GK_E_NOMEM : GK_E_IO);
    else
        cr_assert_eq(err, GK_OK);
    start(&p); /* the next call works */
    cpu->gemm(NULL, &p.args);
    twin_expect(&p.c, "after a failure", (uint64_t)after);
    tables[0]->close(queues[0]);
    queues[0] = before;
    free_product(&p);
}

Test(layer_gemm, every_failure_is_an_error)
{
    open_layers();
    random_state = 3;
    for (int64_t after = 0; after < 4; after++) {
        fail(true, after);
        fail(false, after);
    }
    close_layers();
}
#endif
