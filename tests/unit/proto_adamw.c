/* Goal: what AdamW adds to a job spec is within its ranges and there for AdamW alone, and its bias
 * corrections are those of the definition. Method: a spec with AdamW is broken one rule at a time;
 * the corrections are compared with powers made one factor at a time in a wider type. */
#include "tests/unit/proto_sample.h"

#include <criterion/criterion.h>
#include <math.h>

static struct gk_spec adamw_spec(struct gk_tensor *tensors)
{
    struct gk_spec spec = sample_spec(tensors);

    spec.optimizer = GK_OPTIMIZER_ADAMW;
    spec.beta2 = 0.999f;
    spec.epsilon = 1e-8f;
    return spec;
}

Test(proto_adamw, ranges)
{
    static const struct {
        float momentum, beta2, epsilon;
        const char *said; /* NULL: legal */
    } cases[] = {
        {0.9f, 0.999f, 1e-8f, NULL},       {0.0f, 0.0f, 1e-30f, NULL},
        {0.99f, 0.99f, 1.0f, NULL},        {1.0f, 0.999f, 1e-8f, "momentum"},
        {0.9f, 1.0f, 1e-8f, "beta2"},      {0.9f, NAN, 1e-8f, "beta2"},
        {0.9f, -0.0f, 1e-8f, "beta2"},     {0.9f, -0.5f, 1e-8f, "beta2"},
        {0.9f, 0.999f, 0.0f, "epsilon"},   {0.9f, 0.999f, 0.99e-30f, "epsilon"},
        {0.9f, 0.999f, 1.001f, "epsilon"}, {0.9f, 0.999f, NAN, "epsilon"},
        {0.9f, 0.999f, -1.0f, "epsilon"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct gk_tensor tensors[SAMPLE_TENSORS];
        struct gk_spec spec = adamw_spec(tensors);
        struct gk_words words = {""};
        enum gk_err err;

        spec.momentum = cases[i].momentum;
        spec.beta2 = cases[i].beta2;
        spec.epsilon = cases[i].epsilon;
        err = gk_spec_check(&spec, &words);
        cr_expect(cases[i].said ? err == GK_E_CONFIG && strstr(words.text, cases[i].said)
                                : err == GK_OK,
                  "%zu: %s", i, words.text);
    }
}

Test(proto_adamw, nobody_else_has_its_numbers)
{
    for (uint32_t optimizer = GK_OPTIMIZER_NONE; optimizer <= GK_OPTIMIZER_NESTEROV; optimizer++) {
        struct gk_tensor tensors[SAMPLE_TENSORS];
        struct gk_spec spec = adamw_spec(tensors);
        struct gk_words words = {""};

        spec.optimizer = optimizer;
        spec.momentum = optimizer >= GK_OPTIMIZER_MOMENTUM ? 0.9f : 0.0f;
        cr_expect(gk_spec_check(&spec, &words) == GK_E_CONFIG && strstr(words.text, "beta2"));
        spec.beta2 = 0;
        cr_expect(gk_spec_check(&spec, &words) == GK_E_CONFIG && strstr(words.text, "epsilon"));
        spec.epsilon = 0;
        cr_expect(gk_spec_check(&spec, &words) == GK_OK, "%s", words.text);
    }
}

/* Against a power made one factor at a time, in a wider type. */
Test(proto_adamw, bias_corrections)
{
    const float betas[] = {0.0f, 0.5f, 0.9f, 0.999f, 0.99999994f};
    struct gk_tensor tensors[SAMPLE_TENSORS];
    struct gk_spec spec = sample_spec(tensors);
    struct gk_hyper hyper = gk_spec_hyper(&spec, 3);

    cr_expect(hyper.lr == gk_spec_lr(&spec, 3) && hyper.momentum == 0.9f);
    cr_expect(hyper.bias1 == 0.0f && hyper.bias2 == 0.0f && hyper.epsilon == 0.0f);
    spec.optimizer = GK_OPTIMIZER_ADAMW;
    spec.epsilon = 1e-8f;
    for (size_t b = 0; b < sizeof(betas) / sizeof(betas[0]); b++) {
        long double power = 1;

        spec.momentum = betas[b];
        spec.beta2 = betas[4 - b];
        for (uint64_t t = 0; t < 2000; t++) {
            power *= (long double)betas[b];
            hyper = gk_spec_hyper(&spec, t);
            cr_assert(fabsf(hyper.bias1 - (float)(1 - power)) <= 0x1p-23f * (float)(1 - power),
                      "%g, %u: %a, want %a", (double)betas[b], (uint32_t)t, (double)hyper.bias1,
                      (double)(float)(1 - power));
            cr_assert(hyper.bias1 > 0 && hyper.bias2 > 0 && hyper.bias1 <= 1);
        }
        cr_expect(gk_spec_hyper(&spec, UINT64_C(1) << 40).bias1 == 1.0f);
        cr_expect(hyper.epsilon == 1e-8f && hyper.beta2 == betas[4 - b]);
    }
}
