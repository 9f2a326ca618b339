/* The job spec that the tests of proto/ and the golden bytes of its README use: softmax on 8x8
 * digits, 4 workers, 2 servers. */
#ifndef GK_TESTS_UNIT_PROTO_SAMPLE_H
#define GK_TESTS_UNIT_PROTO_SAMPLE_H

#include "proto/spec.h"

#include <string.h>

enum { SAMPLE_TENSORS = 2 };

/* `tensors` has room for SAMPLE_TENSORS and stays the caller's. */
static inline struct gk_spec sample_spec(struct gk_tensor *tensors)
{
    struct gk_spec spec = {
        .workers = 4,
        .servers = 2,
        .mode = GK_MODE_BSP,
        .lost_policy = GK_LOST_WAIT,
        .nonfinite_policy = GK_NONFINITE_ABORT,
        .seed = 42,
        .steps = 1000,
        .push_max = 65,
        .optimizer = GK_OPTIMIZER_MOMENTUM,
        .lr = 0.1f,
        .momentum = 0.9f,
        .weight_decay = 0.0f,
        .schedule = GK_SCHEDULE_MILESTONES,
        .warmup_steps = 10,
        .lr_gamma = 0.5f,
        .milestones = {500, 750},
        .milestones_count = 2,
        .model = "softmax",
        .params_count = 650,
        .tensors = tensors,
        .tensors_count = SAMPLE_TENSORS,
    };

    memset(tensors, 0, SAMPLE_TENSORS * sizeof(*tensors));
    tensors[0] =
        (struct gk_tensor){.name = "weight", .count = 640, .dims = {64, 10}, .dims_count = 2};
    tensors[1] = (struct gk_tensor){.name = "bias",
                                    .offset = 640,
                                    .count = 10,
                                    .dims = {10},
                                    .dims_count = 1,
                                    .flags = GK_TENSOR_NO_DECAY};
    return spec;
}

#endif
