/* Goal: what people write for a device is understood or refused.  Method: a table of both. */
#include "common/device.h"

#include <criterion/criterion.h>

Test(common_device, what_people_write)
{
    static const struct {
        const char *text;
        struct gk_device device;
    } right[] = {
        {"auto", {GK_DEVICE_AUTO, false, 0}},
        {"cpu", {GK_DEVICE_CPU, false, 0}},
        {"cuda", {GK_DEVICE_CUDA, false, 0}},
        {"cuda:0", {GK_DEVICE_CUDA, true, 0}},
        {"cuda:15", {GK_DEVICE_CUDA, true, 15}},
        {"cuda:4294967297", {GK_DEVICE_CUDA, true, UINT32_MAX}},
        {"cuda:99999999999999999999999", {GK_DEVICE_CUDA, true, UINT32_MAX}},
    };
    static const char *const wrong[] = {"",        "gpu",     "CUDA",    "cuda:", "cuda:x",
                                        "cuda:-1", "cuda:1x", "cuda: 1", "cpu:0", "cuda:+1"};

    for (unsigned i = 0; i < sizeof(right) / sizeof(right[0]); i++) {
        struct gk_device device = {0};

        cr_assert(gk_device_parse(right[i].text, &device), "%s", right[i].text);
        cr_assert(device.kind == right[i].device.kind &&
                      device.numbered == right[i].device.numbered &&
                      device.number == right[i].device.number,
                  "%s", right[i].text);
    }
    for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct gk_device device;

        cr_assert(!gk_device_parse(wrong[i], &device), "'%s'", wrong[i]);
    }
}
