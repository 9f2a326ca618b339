/* Goal: words stay one terminated line whatever they quote.  Method: texts at and beyond the size
 * of the buffer, all byte values, and chains of prefixes. */
#include "common/words.h"

#include <criterion/criterion.h>

#include <string.h>

Test(words, set_formats)
{
    struct gk_words words;

    gk_words_set(&words, "%s: %d", "x", 3);
    cr_assert_str_eq(words.text, "x: 3");
    gk_words_set(&words, "%s", "");
    cr_assert_str_eq(words.text, "");
    gk_words_set(NULL, "nobody listens");
    gk_words_prefix(NULL, "nobody listens");
}

Test(words, set_cuts_at_the_end)
{
    char text[2 * GK_WORDS_BYTES];
    struct {
        struct gk_words words;
        char guard;
    } room;

    for (size_t length = GK_WORDS_BYTES - 3; length < GK_WORDS_BYTES + 3; length++) {
        size_t expected = length < GK_WORDS_BYTES ? length : GK_WORDS_BYTES - 1;

        memset(text, 'a', length);
        text[length] = '\0';
        room.guard = 'g';
        gk_words_set(&room.words, "%s", text);
        cr_assert_eq(strlen(room.words.text), expected);
        cr_assert_eq(room.guard, 'g');
    }
}

Test(words, control_characters_become_question_marks)
{
    for (int c = 1; c < 256; c++) {
        char text[] = {'a', (char)c, 'b', '\0'};
        char expected[] = {'a', c < 32 || c == 127 ? '?' : (char)c, 'b', '\0'};
        struct gk_words words;

        gk_words_set(&words, "%s", text);
        cr_assert_str_eq(words.text, expected, "byte %d", c);
        gk_words_set(&words, "end");
        gk_words_prefix(&words, "%s", text);
        cr_assert(strncmp(words.text, expected, 3) == 0, "byte %d in a prefix", c);
    }
}

Test(words, prefix_goes_before)
{
    struct gk_words words;

    gk_words_set(&words, "no such file");
    gk_words_prefix(&words, "%s: ", "x.gz");
    gk_words_prefix(&words, "reading ");
    cr_assert_str_eq(words.text, "reading x.gz: no such file");
}

Test(words, prefix_keeps_the_beginning_when_it_is_too_long)
{
    char text[GK_WORDS_BYTES];
    struct gk_words words;

    memset(text, 'a', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    gk_words_set(&words, "%s", text);
    gk_words_prefix(&words, "here: ");
    cr_assert_eq(strlen(words.text), GK_WORDS_BYTES - 1);
    cr_assert(strncmp(words.text, "here: aaa", 9) == 0);
    gk_words_prefix(&words, "%s", text);
    cr_assert_str_eq(words.text, text);
}
