#include "common/err.h"

const char *gk_err_name(enum gk_err err)
{
    switch (err) {
    case GK_OK:
        return "OK";
#define GK_ERR_CASE(name, value, text)                                                             \
    case GK_E_##name:                                                                              \
        return #name;
        GK_ERR_MAP(GK_ERR_CASE)
#undef GK_ERR_CASE
    }
    return "UNKNOWN";
}

const char *gk_err_text(enum gk_err err)
{
    switch (err) {
    case GK_OK:
        return "success";
#define GK_ERR_CASE(name, value, text)                                                             \
    case GK_E_##name:                                                                              \
        return text;
        GK_ERR_MAP(GK_ERR_CASE)
#undef GK_ERR_CASE
    }
    return "unknown error";
}
