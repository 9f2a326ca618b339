/* The two IDX files of the built-in data set, as they lie in this folder (written by embed.cmake at
 * build time). */
#ifndef GK_WORKER_DATA_DIGITS_H
#define GK_WORKER_DATA_DIGITS_H

#include <stddef.h>
#include <stdint.h>

extern const uint8_t gk_digits_images[];
extern const size_t gk_digits_images_count;
extern const uint8_t gk_digits_labels[];
extern const size_t gk_digits_labels_count;

#endif
