/* Files of named tensors of floats: safetensors, and npz (a zip of npy files, as numpy's savez and
 * savez_compressed write it), in and out.
 *
 * What is read may come from anywhere: nothing of it is used before it was checked, and what is
 * wrong is one line that says what and where.  Single precision, little-endian, row-major only. */
#ifndef GK_COMMON_TENSORS_H
#define GK_COMMON_TENSORS_H

#include "common/err.h"
#include "common/limits.h"
#include "common/words.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { GK_TENSORS_DIMS_MAX = 4 };

enum gk_tensors_format { GK_TENSORS_SAFETENSORS, GK_TENSORS_NPZ };

struct gk_tensors_entry {
    char name[GK_TENSOR_NAME_BYTES]; /* terminated, unique */
    uint32_t dims[GK_TENSORS_DIMS_MAX];
    uint32_t dims_count;
    uint64_t count; /* product of dims */
    const float *values;
};

struct gk_tensors {
    uint32_t count;
    struct gk_tensors_entry list[GK_TENSORS_MAX];
    void *memory[GK_TENSORS_MAX]; /* of gk_tensors_read(); others leave it NULL */
};

struct gk_tensors_note { /* words about the whole file; safetensors only */
    const char *key, *value;
};

struct gk_tensors_notes {
    const struct gk_tensors_note *list;
    size_t count;
};

/* Writes the entries in their order.  GK_E_IO: errno says why; GK_E_LIMIT: an npz beyond 4 GiB;
 * GK_E_NOMEM. */
enum gk_err gk_tensors_write(FILE *out, enum gk_tensors_format format,
                             const struct gk_tensors *tensors, const struct gk_tensors_notes *notes,
                             struct gk_words *words);

/* The whole file, whichever of the two it is.  The tensors own their values.  GK_E_NOTFOUND,
 * GK_E_IO, GK_E_CORRUPT (damaged, or no such file), GK_E_UNSUPPORTED (another type of numbers),
 * GK_E_LIMIT, GK_E_NOMEM. */
enum gk_err gk_tensors_read(const char *path, struct gk_tensors **ret_tensors,
                            struct gk_words *words);
void gk_tensors_free(struct gk_tensors *tensors); /* of gk_tensors_read(); accepts NULL */

/* NULL: there is none of this name. */
const struct gk_tensors_entry *gk_tensors_find(const struct gk_tensors *tensors, const char *name);

#endif
