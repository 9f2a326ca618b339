#include "worker/model/layers_cpu.h"

#include "common/assert.h"

#include <math.h>
#include <string.h>

void gk_cpu_embedding_forward(struct gk_queue *queue, const float *table, const uint32_t *tokens,
                              const uint64_t sides[2], float *y)
{
    const uint64_t width = sides[1];

    (void)queue;
    for (uint64_t r = 0; r < sides[0]; r++) {
        /* Tokens are below the size of the table: the data set saw to that. */
        memcpy(y + r * width, table + tokens[r] * width, width * sizeof(*y));
    }
}

void gk_cpu_embedding_backward(struct gk_queue *queue, const float *dy, const uint32_t *tokens,
                               const uint64_t sides[3], float *dtable)
{
    const uint64_t width = sides[1];

    (void)queue;
    memset(dtable, 0, sides[2] * width * sizeof(*dtable));
    for (uint64_t r = 0; r < sides[0]; r++) {
        float *row = dtable + tokens[r] * width;

        GK_ASSERT(tokens[r] < sides[2]);
        for (uint64_t c = 0; c < width; c++) {
            row[c] += dy[r * width + c];
        }
    }
}

static float sigmoid(float a)
{
    return 1.0f / (1.0f + expf(-a));
}

void gk_cpu_lstm_forward(struct gk_queue *queue, const struct gk_lstm_args *args)
{
    const uint64_t width = args->width;

    (void)queue;
    for (uint64_t r = 0; r < args->rows; r++) {
        float *gates = args->gates + r * 4 * width;

        for (uint64_t c = 0; c < 4 * width; c++) {
            float a = gates[c] + args->bias_x[c] + args->bias_h[c];

            gates[c] = c / width == 2 ? tanhf(a) : sigmoid(a);
        }
        for (uint64_t c = 0; c < width; c++) {
            uint64_t at = r * width + c;

            args->c[at] = gates[width + c] * args->c_before[at] + gates[c] * gates[2 * width + c];
            args->h[at] = gates[3 * width + c] * tanhf(args->c[at]);
        }
    }
}

void gk_cpu_lstm_backward(struct gk_queue *queue, const struct gk_lstm_gradient_args *args)
{
    const uint64_t width = args->width;

    (void)queue;
    for (uint64_t r = 0; r < args->rows; r++) {
        float *gates = args->gates + r * 4 * width;

        for (uint64_t j = 0; j < width; j++) {
            uint64_t at = r * width + j;
            float i = gates[j], f = gates[width + j], g = gates[2 * width + j];
            float o = gates[3 * width + j];
            float bent = tanhf(args->c[at]);
            float dh = args->dh[at];
            float dc = args->dc[at] + dh * o * (1.0f - bent * bent);

            gates[j] = dc * g * i * (1.0f - i);
            gates[width + j] = dc * args->c_before[at] * f * (1.0f - f);
            gates[2 * width + j] = dc * i * (1.0f - g * g);
            gates[3 * width + j] = dh * bent * o * (1.0f - o);
            args->dc[at] = dc * f;
        }
    }
}
