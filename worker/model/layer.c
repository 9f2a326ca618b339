#include "worker/model/layer.h"

#include "common/assert.h"

#include <math.h>
#include <stdio.h>

uint64_t gk_shape_size(const struct gk_shape *shape)
{
    return (uint64_t)shape->rows * shape->columns * shape->channels;
}

uint64_t gk_shape_rows(const struct gk_shape *shape, uint32_t count)
{
    return (uint64_t)shape->rows * shape->columns * count;
}

void gk_layer_add_tensor(struct gk_layer *layer, const char *name, const uint32_t sides[4])
{
    struct gk_tensor *tensor = &layer->tensors[layer->tensors_count++];

    GK_ASSERT(layer->tensors_count <= GK_LAYER_TENSORS_MAX && sides[0] > 0);
    (void)snprintf(tensor->name, sizeof(tensor->name), "%s.%s", layer->plan->name, name);
    tensor->count = 1;
    for (uint32_t i = 0; i < GK_TENSOR_DIMS_MAX && sides[i] > 0; i++) {
        tensor->dims[i] = sides[i];
        tensor->dims_count = i + 1;
        tensor->count *= sides[i];
    }
    tensor->flags = tensor->dims_count == 1 ? GK_TENSOR_NO_DECAY : 0;
}

void gk_layer_init_weights(struct gk_layer *layer, uint64_t fan_in)
{
    const struct gk_layer_plan *plan = layer->plan;
    float root = sqrtf((float)fan_in);

    layer->inits[0].bound = plan->init > 0.0f ? plan->init / root : GK_INIT_SEQUENCE;
    layer->inits[1].bound = plan->init > 0.0f ? 1.0f / root : GK_INIT_SEQUENCE;
    if (plan->zero_biases) {
        layer->inits[1].bound = 0.0f;
    }
}

const float *gk_layer_params(const struct gk_layer *layer, const struct gk_pass *pass,
                             uint32_t tensor)
{
    return pass->params + layer->tensors[tensor].offset;
}

float *gk_layer_grad(const struct gk_layer *layer, const struct gk_pass *pass, uint32_t tensor)
{
    return pass->grad + layer->tensors[tensor].offset;
}
