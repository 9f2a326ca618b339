#include "common/presets.h"

#include <stddef.h>
#include <string.h>

struct preset {
    const char *model, *option, *text;
};

static const struct preset presets[] = {
    {"charlstm", "optimizer", "adamw"}, {"charlstm", "lr", "0.01"},
    {"charlstm", "schedule", "cosine"}, {"charlstm", "clip", "1"},
    {"lenet5", "lr", "0.05"},           {"resnet20", "weight-decay", "0.0001"},
    {"vgg16", "batch", "128"},          {"vgg16", "weight-decay", "0.0001"},
};

const char *gk_model_preset(const char *model, const char *option)
{
    for (size_t i = 0; i < sizeof(presets) / sizeof(presets[0]); i++) {
        if (strcmp(presets[i].model, model) == 0 && strcmp(presets[i].option, option) == 0) {
            return presets[i].text;
        }
    }
    return NULL;
}
