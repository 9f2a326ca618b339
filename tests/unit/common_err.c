/* Goal: every error has a name and a text, and numbers that are none have both as well.  Method:
 * the list itself, expanded once more, and numbers around it. */
#include "common/err.h"

#include <criterion/criterion.h>

#include <ctype.h>

Test(err, every_error_has_name_and_text)
{
    static const struct {
        enum gk_err err;
        int number;
        const char *name, *text;
    } list[] = {{GK_OK, 0, "OK", "success"},
#define ROW(name, value, text) {GK_E_##name, value, #name, text},
                GK_ERR_MAP(ROW)
#undef ROW
    };
    const size_t count = sizeof(list) / sizeof(list[0]);

    for (size_t i = 0; i < count; i++) {
        cr_assert_eq((int)list[i].err, list[i].number);
        cr_assert_eq(list[i].number, -(int)i, "%s: numbers follow each other", list[i].name);
        cr_assert_str_eq(gk_err_name(list[i].err), list[i].name);
        cr_assert_str_eq(gk_err_text(list[i].err), list[i].text);
        cr_assert(islower((unsigned char)list[i].text[0]), "%s: goes behind a colon", list[i].text);
    }
    for (int number = -1000; number <= 1000; number++) {
        if (number <= -(int)count || number > 0) {
            cr_assert_str_eq(gk_err_name((enum gk_err)number), "UNKNOWN");
            cr_assert_str_eq(gk_err_text((enum gk_err)number), "unknown error");
        }
    }
}
