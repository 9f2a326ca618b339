/* Goal: a text of somebody else's stays short, on one line and harmless to a terminal. Method:
 * texts at the edges of each rule. */
#include "common/shown.h"

#include <criterion/criterion.h>

#include <string.h>

Test(shown, cases)
{
    char x60[61], x61[62];
    static const struct {
        const char *text, *shown;
    } cases[] = {
        {"", ""},
        {"plain", "plain"},
        {"a\nb\x1b[31m\x7f", "a?b?[31m?"},
        {"\xc2\x9b", "??"},
        {"caf\xc3\xa9", "caf\xc3\xa9"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        cr_assert_str_eq(gk_shown(cases[i].text).text, cases[i].shown);
    }
    memset(x60, 'x', sizeof(x60));
    memset(x61, 'x', sizeof(x61));
    x60[60] = x61[61] = '\0';
    cr_assert_str_eq(gk_shown(x60).text, x60);
    cr_assert_eq(strlen(gk_shown(x61).text), GK_SHOWN_BYTES + 3);
    cr_assert_str_eq(gk_shown(x61).text + GK_SHOWN_BYTES, "\xe2\x80\xa6");
    memcpy(x61 + 58, "\xe2\x82\xac", 4); /* the cut would split it */
    cr_assert_str_eq(gk_shown_part(x61, 61).text + 57, "x\xe2\x80\xa6");
    cr_assert_str_eq(gk_shown_part("abc=d", 3).text, "abc");
    memset(x61, '\xbf', 61); /* no beginning of a character anywhere */
    cr_assert_leq(strlen(gk_shown(x61).text), GK_SHOWN_BYTES + 3);
}
