/* The initial parameters from a file instead of the seed: --init FILE. */
#ifndef GK_WORKER_START_H
#define GK_WORKER_START_H

#include "common/tensors.h"
#include "proto/spec.h"

/* Read the file and compare it with the model: the same tensors, by name and shape, all finite.
 * The errors of gk_tensors_read(), and GK_E_CORRUPT for another model's; words are one line. */
enum gk_err gk_start_read(const char *path, const struct gk_spec *spec,
                          struct gk_tensors **ret_tensors, struct gk_words *words);

/* What was read, into d floats. */
void gk_start_put(const struct gk_tensors *tensors, const struct gk_spec *spec, float *params);

#endif
