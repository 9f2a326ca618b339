/* Goal: quantities, tables and JSON are shown to people as meant, and JSON of others is read
 * without trust. Method: examples at the edges of each rule. */
#include "tool/json.h"
#include "tool/table.h"
#include "tool/units.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SAME(unit, wanted)                                                                         \
    do {                                                                                           \
        struct gk_unit got_ = (unit);                                                              \
        cr_assert_str_eq(got_.text, wanted, "%s instead of %s", got_.text, wanted);                \
    } while (0)

Test(units, bytes)
{
    SAME(gk_unit_bytes(0), "0 B");
    SAME(gk_unit_bytes(1023), "1023 B");
    SAME(gk_unit_bytes(1024), "1.0 KiB");
    SAME(gk_unit_bytes(1536), "1.5 KiB");
    SAME(gk_unit_bytes(1024 * 1024 - 1), "1.0 MiB"); /* never "1024.0 KiB" */
    SAME(gk_unit_bytes(UINT64_MAX), "16.0 EiB");
}

Test(units, seconds)
{
    SAME(gk_unit_seconds(0.0), "0 us");
    SAME(gk_unit_seconds(0.00085), "850 us");
    SAME(gk_unit_seconds(0.0009999), "1 ms");
    SAME(gk_unit_seconds(0.0123), "12.3 ms");
    SAME(gk_unit_seconds(0.9999), "1.0 s");
    SAME(gk_unit_seconds(59.97), "1 min 00 s");
    SAME(gk_unit_seconds(125.4), "2 min 05 s");
    SAME(gk_unit_seconds(3600.0 * 3 + 125), "3 h 02 min");
    SAME(gk_unit_seconds(NAN), "-");
    SAME(gk_unit_seconds(INFINITY), "-");
    SAME(gk_unit_seconds(-1.0), "-");
    SAME(gk_unit_seconds(1e300), "-");
}

Test(units, numbers)
{
    SAME(gk_unit_count(0), "0");
    SAME(gk_unit_count(999), "999");
    SAME(gk_unit_count(1000), "1 000");
    SAME(gk_unit_count(199210), "199 210");
    SAME(gk_unit_count(UINT64_MAX), "18 446 744 073 709 551 615");
    SAME(gk_unit_rate(0.0), "0");
    SAME(gk_unit_rate(1.2345), "1.23");
    SAME(gk_unit_rate(999.4), "999");
    SAME(gk_unit_rate(999.6), "1 000");
    SAME(gk_unit_rate(26666.7), "26 667");
    SAME(gk_unit_rate(NAN), "-");
    SAME(gk_unit_rate(1e300), "-");
    SAME(gk_unit_number(2.302585), "2.303");
    SAME(gk_unit_number(1.2e-9), "1.2e-09");
    SAME(gk_unit_number(NAN), "-");
    SAME(gk_unit_percent(0.96944), "96.94 %");
    SAME(gk_unit_percent(1.0), "100.00 %");
    SAME(gk_unit_percent(NAN), "-");
}

static char *print(const struct gk_table *table, const char *margin)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    gk_table_print(table, margin, out);
    fclose(out);
    return text;
}

Test(table, aligns_and_never_ends_in_blanks)
{
    struct gk_table table;
    char *text;

    gk_table_init(&table, "lrl");
    gk_table_cell(&table, "name");
    gk_table_cell(&table, "n");
    gk_table_cell(&table, "words");
    gk_table_cell(&table, "a");
    gk_table_cell(&table, "%d", 1234);
    gk_table_cell(&table, "%s", "");
    gk_table_cell(&table, "longer");
    gk_table_cell(&table, "5");
    gk_table_cell(&table, "x y"); /* the table may end within a row */
    gk_table_cell(&table, "last");
    text = print(&table, "> ");
    cr_assert_str_eq(text, "> name       n  words\n"
                           "> a       1234\n"
                           "> longer     5  x y\n"
                           "> last\n");
    free(text);
    gk_table_fini(&table);
    gk_table_fini(&table);
    gk_table_init(&table, "l");
    text = print(&table, "");
    cr_assert_str_eq(text, "");
    free(text);
    gk_table_fini(&table);
}

Test(table, many_rows)
{
    struct gk_table table;
    char *text;

    gk_table_init(&table, "r");
    for (int i = 0; i < 1000; i++) {
        gk_table_cell(&table, "%d", i);
    }
    text = print(&table, "");
    cr_assert_eq(strlen(text), 4000);
    cr_assert_str_eq(text + 3996, "999\n");
    free(text);
    gk_table_fini(&table);
}

Test(json, getters_are_lenient)
{
    json_t *object =
        json_loads("{\"n\":7,\"neg\":-1,\"r\":1.5,\"t\":\"a\\u0007\\nb\\u007f\",\"b\":true,"
                   "\"h\":\"00ff\",\"H\":\"FFFFFFFFFFFFFFFF\",\"long\":\"00000000000000000\","
                   "\"bad\":\"0x12\",\"empty\":\"\",\"null\":null,\"o\":{},\"a\":[1]}",
                   0, NULL);
    const char *const odd[] = {"neg", "r", "t", "b", "null", "o", "a", "missing"};
    uint64_t hash = 42;
    char text[8];

    cr_assert_eq(gk_json_u64(object, "n", 9), 7);
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
        cr_assert_eq(gk_json_u64(object, odd[i], 9), 9, "%s", odd[i]);
    }
    cr_assert_float_eq(gk_json_double(object, "r"), 1.5, 0.0);
    cr_assert_float_eq(gk_json_double(object, "n"), 7.0, 0.0);
    cr_assert(isnan(gk_json_double(object, "t")) && isnan(gk_json_double(NULL, "t")));
    cr_assert(isnan(gk_json_double(json_object_get(object, "a"), "t")));
    cr_assert(gk_json_bool(object, "b") && !gk_json_bool(object, "n") && !gk_json_bool(NULL, "b"));
    gk_json_text(object, "t", text, sizeof(text));
    cr_assert_str_eq(text, "a??b?");
    gk_json_text(object, "t", text, 3);
    cr_assert_str_eq(text, "a?");
    gk_json_text(object, "n", text, sizeof(text));
    cr_assert_str_eq(text, "");
    gk_json_text(NULL, "n", text, 0);
    cr_assert(!gk_json_hex64(object, "long", &hash) && !gk_json_hex64(object, "bad", &hash));
    cr_assert(!gk_json_hex64(object, "empty", &hash) && !gk_json_hex64(object, "n", &hash));
    cr_assert_eq(hash, 42);
    cr_assert(gk_json_hex64(object, "h", &hash) && hash == 255);
    cr_assert(gk_json_hex64(object, "H", &hash) && hash == UINT64_MAX);
    json_decref(object);
}

Test(json, makers_always_give_valid_json)
{
    json_t *list = json_array();
    char *text;

    json_array_append_new(list, gk_json_real(NAN));
    json_array_append_new(list, gk_json_real(-INFINITY));
    json_array_append_new(list, gk_json_real(0.1));
    json_array_append_new(list, gk_json_integer(UINT64_MAX));
    json_array_append_new(list, gk_json_hash(0xab));
    json_array_append_new(list, gk_json_string("a\xff\"b"));
    text = gk_json_dump(list, false);
    cr_assert_str_eq(text,
                     "[null,null,0.1,9223372036854775807,\"00000000000000ab\",\"a?\\\"b\"]\n");
    free(text);
    json_decref(list);
    cr_assert_null(gk_json_dump(NULL, true));
}
