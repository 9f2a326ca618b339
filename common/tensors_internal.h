/* What the two formats of tensor files share, private to common/tensors*.c. */
#ifndef GK_COMMON_TENSORS_INTERNAL_H
#define GK_COMMON_TENSORS_INTERNAL_H

#include "common/tensors.h"

#include <stdbool.h>

struct gk_tensors_bytes { /* a file in memory */
    const uint8_t *at;
    size_t size;
    const char *path; /* for words */
};

/* A tensor more, of `entry`'s name and dims (count is computed), whose values are the `size` bytes
 * at `values`, which are copied.  GK_E_CORRUPT: the size does not fit the shape, or the name is
 * there twice; GK_E_LIMIT, GK_E_NOMEM. */
enum gk_err gk_tensors_add(struct gk_tensors *tensors, const struct gk_tensors_entry *entry,
                           const uint8_t *values, size_t size, struct gk_words *words);

enum gk_err gk_tensors_read_safe(const struct gk_tensors_bytes *file, struct gk_tensors *ret,
                                 struct gk_words *words);
enum gk_err gk_tensors_read_npz(const struct gk_tensors_bytes *file, struct gk_tensors *ret,
                                struct gk_words *words);

enum gk_err gk_tensors_write_safe(FILE *out, const struct gk_tensors *tensors,
                                  const struct gk_tensors_notes *notes, struct gk_words *words);
enum gk_err gk_tensors_write_npz(FILE *out, const struct gk_tensors *tensors,
                                 struct gk_words *words);

#endif
