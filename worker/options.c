#include "worker/options.h"

#include "common/limits.h"
#include "common/option_rows.h"
#include "common/presets.h"

#include <string.h>

#define AT(field)                                                                                  \
    (offsetof(struct gk_worker_options, settings) + offsetof(struct gk_settings, field))
#define OWN(field) offsetof(struct gk_worker_options, field)
#define STEPS_DEFAULT "1000"

/* clang-format off: the rows of the list keep their own lines. */
static const struct gk_option options[] = {
    {"model", GK_OPTION_STRING, OWN(model), "fnn3", NULL, 0, 0, "NAME",
     "Model: charlstm, fnn3, lenet5, resnet20, softmax or vgg16; it has defaults of its own for "
     "some of the options below (docs/models.md).",
     NULL, "Training"},
    {"data", GK_OPTION_STRING, OWN(data), "digits", NULL, 0, 0, "NAME",
     "Data set: digits (built in), mnist:DIR (IDX files), cifar10:DIR (binary version) or "
     "text:FILE.",
     NULL, "Training"},
    {"batch", GK_OPTION_UINT, OWN(batch), "32", NULL, 1, 1048576, "B",
     "Samples per worker and step.", NULL, "Training"},
    {"init", GK_OPTION_STRING, OWN(init), NULL, NULL, 0, 0, "FILE",
     "Rank 0 begins a new job with the parameters in this safetensors or npz file, not with those "
     "of the seed.",
     NULL, "Training"},
    {"eval-every", GK_OPTION_UINT, OWN(eval_every), "0", NULL, 0, 0, "STEPS",
     "Rank 0 evaluates on the test data every so many steps; 0: at the end only.", NULL,
     "Training"},
#include "worker/lib/settings_rows.inc"
};
/* clang-format on */

bool gk_worker_is_setting(const char *name)
{
    static const char *const own[] = {"data", "batch", "init", "eval-every"};

    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++) {
        if (strcmp(own[i], name) == 0) {
            return false;
        }
    }
    return true; /* `model` too, as a name */
}

const struct gk_program *gk_worker_program(void)
{
    static const struct gk_program program = {
        .name = "gkps-worker",
        .summary = "Train as one worker of a job: gradients, selection, sparse push, dense pull. "
                   "All workers "
                   "of a job need the same options: model, steps, seed, density and optimizer are "
                   "compared "
                   "and refused when they differ; batch, data and operator are not compared.",
        .usage = "[options]",
        .notes = "Exit codes: 0 done, 64 wrong flags, 65 data, 69 a peer is missing or lost, 70 "
                 "internal or no\n"
                 "memory, 75 try again, 76 fenced by a newer life of this rank, 77 refused, 78 "
                 "configuration\n"
                 "or state, 130 and 143 stopped by a signal.",
        .list_heading = "Selection operators",
        .list_entry = gk_settings_list_operator,
        .options = options,
        .options_count = sizeof(options) / sizeof(options[0]),
        .positional_max = 0,
        .preset_by = "model",
        .preset = gk_model_preset,
    };

    return &program;
}
