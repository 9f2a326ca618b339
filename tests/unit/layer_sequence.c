/* Goal: embeddings of the CUDA layer table are the CPU's, and LSTM steps too as far as exp and tanh
 * are the same.  Method: random arrays of odd sides, with NaN, infinities and values of all
 * exponents; tokens that all rows have, that none has, and more rows than are looked at in one go.
 * On a device the steps may differ by a few roundings of exp and tanh, where inputs are of ordinary
 * size: beside large ones these count for more than any bound. */
#include "tests/unit/layer_rig.h"

static const enum content contents[] = {SMOOTH, WIDE, ROUGH};

static struct twin random_tokens(uint64_t rows, uint64_t table)
{
    struct twin twin = twin_zeros(rows);
    const bool same = below(4) == 0;
    const uint32_t first = (uint32_t)below(table);

    for (uint64_t r = 0; r < rows; r++) {
        const uint32_t token = same || below(3) == 0 ? first : (uint32_t)below(table);

        memcpy(&twin.here[r], &token, sizeof(token));
    }
    twin_send(&twin);
    return twin;
}

static const uint32_t *tokens_of(const float *memory)
{
    return (const uint32_t *)(const void *)memory;
}

static void check_embedding(const uint64_t sides[3], enum content content, uint64_t number)
{
    struct twin tokens = random_tokens(sides[0], sides[2]);
    struct twin table = twin_random(sides[2] * sides[1], content);
    struct twin y = twin_random(sides[0] * sides[1], SMOOTH);
    struct twin dy = twin_random(sides[0] * sides[1], content);
    struct twin dtable = twin_random(sides[2] * sides[1], SMOOTH);

    cpu->embedding_forward(NULL, table.here, tokens_of(tokens.here), sides, y.here);
    cuda->embedding_forward(queues[0], table.there, tokens_of(tokens.there), sides, y.there);
    cpu->embedding_backward(NULL, dy.here, tokens_of(tokens.here), sides, dtable.here);
    cuda->embedding_backward(queues[0], dy.there, tokens_of(tokens.there), sides, dtable.there);
    twin_expect(&y, "embedding", number);
    twin_expect(&dtable, "embedding backward", number);
    twin_expect(&tokens, "tokens", number);
    twin_expect(&table, "table", number);
    twin_expect(&dy, "dy", number);
    twin_free(&tokens);
    twin_free(&table);
    twin_free(&y);
    twin_free(&dy);
    twin_free(&dtable);
}

/* sides: rows, width, tokens in the table. */
Test(layer_sequence, embedding)
{
    static const uint64_t sides[][3] = {{1, 1, 1},     {1, 5, 3},     {7, 3, 300},  {256, 2, 4},
                                        {257, 64, 20}, {300, 65, 37}, {2500, 3, 9}, {90, 300, 2}};

    open_layers();
    random_state = 31;
    for (uint64_t i = 0; i < 3 * sizeof(sides) / sizeof(sides[0]); i++)
        check_embedding(sides[i / 3], contents[i % 3], i);
    close_layers();
}

enum { GATES, BIAS_X, BIAS_H, C_BEFORE, C, H, STEP_TWINS };

static void check_step(uint64_t rows, uint64_t width, enum content content, uint64_t number)
{
    struct twin twins[STEP_TWINS];

    for (int i = 0; i < STEP_TWINS; i++)
        twins[i] = twin_random(i == GATES    ? 4 * rows * width
                               : i <= BIAS_H ? 4 * width
                                             : rows * width,
                               i == GATES || i == C_BEFORE ? content : SMOOTH);
    for (int side = 0; side < 2; side++) {
        float *a[STEP_TWINS];
        struct gk_lstm_args args;

        for (int i = 0; i < STEP_TWINS; i++)
            a[i] = side == 0 ? twins[i].here : twins[i].there;
        args = (struct gk_lstm_args){.gates = a[GATES],
                                     .bias_x = a[BIAS_X],
                                     .bias_h = a[BIAS_H],
                                     .c_before = a[C_BEFORE],
                                     .c = a[C],
                                     .h = a[H],
                                     .rows = rows,
                                     .width = width};
        (side == 0 ? cpu : cuda)->lstm_forward(side == 0 ? NULL : queues[0], &args);
    }
    for (int i = 0; i < STEP_TWINS; i++) {
        twin_expect_near(&twins[i], 1e-5, 1e-5, "lstm", number);
        twin_free(&twins[i]);
    }
}

enum { DH = 5, DC, GRADIENT_TWINS };

/* Gates that an earlier step left are between -1 and 1. */
static void check_gradient(uint64_t rows, uint64_t width, enum content content, uint64_t number)
{
    struct twin twins[GRADIENT_TWINS];

    for (int i = 0; i < GRADIENT_TWINS; i++) {
        if (i == BIAS_X || i == BIAS_H)
            continue;
        twins[i] = twin_random(i == GATES ? 4 * rows * width : rows * width, content);
        for (uint64_t j = 0; i == GATES && content == SMOOTH && j < twins[i].count; j++)
            twins[i].here[j] = uniform();
        twin_send(&twins[i]);
    }
    for (int side = 0; side < 2; side++) {
        float *a[GRADIENT_TWINS] = {NULL};
        struct gk_lstm_gradient_args args;

        for (int i = 0; i < GRADIENT_TWINS; i++)
            if (i != BIAS_X && i != BIAS_H)
                a[i] = side == 0 ? twins[i].here : twins[i].there;
        args = (struct gk_lstm_gradient_args){.gates = a[GATES],
                                              .c_before = a[C_BEFORE],
                                              .c = a[C],
                                              .dh = a[DH],
                                              .dc = a[DC],
                                              .rows = rows,
                                              .width = width};
        (side == 0 ? cpu : cuda)->lstm_backward(side == 0 ? NULL : queues[0], &args);
    }
    for (int i = 0; i < GRADIENT_TWINS; i++)
        if (i != BIAS_X && i != BIAS_H) {
            twin_expect_near(&twins[i], 1e-4, 1e-4, "lstm backward", number);
            twin_free(&twins[i]);
        }
}

Test(layer_sequence, lstm)
{
    static const uint64_t sides[][2] = {{1, 1}, {1, 65}, {3, 5}, {17, 64}, {65, 33}};

    open_layers();
    random_state = 32;
    for (uint64_t i = 0; i < 3 * sizeof(sides) / sizeof(sides[0]); i++) {
        const enum content content = rig_emulated ? contents[i % 3] : SMOOTH;

        check_step(sides[i / 3][0], sides[i / 3][1], content, i);
        check_gradient(sides[i / 3][0], sides[i / 3][1], content, i);
    }
    close_layers();
}
