/* Where vectors are computed, as people write it: "auto", "cpu", "cuda", "cuda:1". */
#ifndef GK_COMMON_DEVICE_H
#define GK_COMMON_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#define GK_DEVICE_CHOICES "auto, cpu, cuda or cuda:N"

enum gk_device_kind { GK_DEVICE_AUTO, GK_DEVICE_CPU, GK_DEVICE_CUDA };

struct gk_device {
    enum gk_device_kind kind;
    bool numbered; /* "cuda:N" */
    uint32_t number;
};

/* False: it is none of them.  Any thread. */
bool gk_device_parse(const char *text, struct gk_device *ret_device);

#endif
