#include "common/device.h"

#include <stdlib.h>
#include <string.h>

bool gk_device_parse(const char *text, struct gk_device *ret_device)
{
    static const char *const names[] = {
        [GK_DEVICE_AUTO] = "auto", [GK_DEVICE_CPU] = "cpu", [GK_DEVICE_CUDA] = "cuda"};
    static const char numbered[] = "cuda:";
    const size_t bytes = sizeof(numbered) - 1;
    unsigned long long number;
    char *end;

    for (unsigned kind = 0; kind < sizeof(names) / sizeof(names[0]); kind++) {
        if (strcmp(text, names[kind]) == 0) {
            *ret_device = (struct gk_device){.kind = (enum gk_device_kind)kind};
            return true;
        }
    }
    if (strncmp(text, numbered, bytes) != 0 || text[bytes] < '0' || text[bytes] > '9') {
        return false;
    }
    number = strtoull(text + bytes, &end, 10);
    if (*end) {
        return false;
    }
    *ret_device = (struct gk_device){.kind = GK_DEVICE_CUDA,
                                     .numbered = true,
                                     .number = number < UINT32_MAX ? (uint32_t)number : UINT32_MAX};
    return true;
}
