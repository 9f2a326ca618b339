/* What each built-in model is trained with when nobody says otherwise (docs/models.md): defaults
 * that go with --model, the same for `gkps run` and gkps-worker. */
#ifndef GK_COMMON_PRESETS_H
#define GK_COMMON_PRESETS_H

/* The names of the built-in models, as a choice. */
#define GK_MODEL_CHOICES "charlstm|fnn3|lenet5|resnet20|softmax|vgg16"

/* NULL: the default of the option's table.  For gk_program.preset.  Any thread. */
const char *gk_model_preset(const char *model, const char *option);

#endif
