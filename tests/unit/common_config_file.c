/* Goal: a configuration file is read strictly, and every mistake in one is told with file, line,
 * key and what is allowed, exit 78.  Method: files and the exact words they must give; the search
 * for lines also alone; and many damaged files, which must be refused in one line or read, never
 * crash. */
#include "common/bits.h"
#include "common/config_internal.h"
#include "config_fixture.h"

#include <criterion/criterion.h>

#include <sys/stat.h>
#include <unistd.h>

static void enter(void)
{
    fixture_clear_environment();
    fixture_enter_folder();
}

TestSuite(config_file, .init = enter, .fini = fixture_leave_folder);

Test(config_file, notations)
{
    static const struct {
        const char *text, *source;
        uint64_t rank;
    } cases[] = {
        {"rank: 3\n", "job.yaml:1", 3},
        {"rank: 3", "job.yaml:1", 3},
        {"rank:    3   # a comment\n", "job.yaml:1", 3},
        {"# rank: 1\n\n  # rank: 2\nrank: 3\n", "job.yaml:4", 3},
        {"---\nrank: 3\n", "job.yaml:2", 3},
        {"%YAML 1.1\n---\njob: x\nrank: 3\n...\n", "job.yaml:4", 3},
        {"  job: x\n  rank: 3\n", "job.yaml:2", 3},
        {"\"rank\": 3\n", "job.yaml:1", 3},
        {"job: x\n'rank' : '3'\n", "job.yaml:2", 3},
        {"job: |\n  rank: 1\n  more\nrank: 3\n", "job.yaml:4", 3},
        {"job: \"a\n  rank: 1\"\nrank: 3\n", "job.yaml:3", 3},
        {"job: a\r\nrank: 3\r\n", "job.yaml:2", 3},
        {"\xef\xbb\xbfrank: 3\n", "job.yaml:1", 3},
        {"{rank: 3}\n", "job.yaml:1", 3},
        {"{job: \"rank: 1, \\\" rank: 2\",\n rank: 3}\n", "job.yaml:2", 3},
        {"{job: 'it''s, rank: 1',  # rank: 2\n\n \"rank\":3}\n", "job.yaml:3", 3},
        {"? rank\n: 3\n", "job.yaml", 3}, /* unusual: the line is not found, and none is claimed */
        {"job: x\n", "default", 0},
        {"", "default", 0},
        {"# nothing\n", "default", 0},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        fixture_load_text(cases[i].text);
        cr_assert_eq(fixture.err, GK_OK, "case %zu: %s", i, fixture.words.text);
        cr_assert_str_eq(gk_config_source(fixture.config, "rank"), cases[i].source, "case %zu", i);
        cr_assert_eq(fixture.values.rank, cases[i].rank, "case %zu", i);
    }
}

Test(config_file, strings)
{
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {"job: a b\n", "a b"},
        {"job: 'a: b'\n", "a: b"},
        {"job: \"a\\tb\"\n", "a\tb"},
        {"job: null\n", "null"},
        {"job: ~\n", "~"},
        {"job: 007\n", "007"},
        {"job: a#b\n", "a#b"},
        {"job: a  # b\n", "a"},
        {"job: \"\"\n", ""},
        {"job:\n", ""},
        {"job: /p/q:r\n", "/p/q:r"},
        {"job: !!int 3\n", "3"},
        {"job: >\n  a\n  b\n", "a b\n"},
        {"job: a\n  b\n", "a b"},
        {"job: \xc3\xa4\n", "\xc3\xa4"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        fixture_load_text(cases[i].text);
        cr_assert_eq(fixture.err, GK_OK, "case %zu: %s", i, fixture.words.text);
        cr_assert_str_eq(fixture.values.job, cases[i].expected, "case %zu", i);
        fixture_expect_source("job", "job.yaml:1");
    }
}

Test(config_file, words_of_mistakes)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"rank: 5\n# c\ndensity: 7\n", "job.yaml:3: density: '7' is not a number from 0 to 1"},
        {"rank: 5\nport:\n",
         "job.yaml:2: port: the value is empty; it must be a whole number from 1 to 65535"},
        {"mode: BSP\n", "job.yaml:1: mode: 'BSP' is not bsp, ssp or asp"},
        {"check: maybe\n",
         "job.yaml:1: check: 'maybe' is not true or false (or yes, no, on, off, 1, 0)"},
        {"? rank\n: x\n", "job.yaml: rank: 'x' is not a whole number from 0 to 1023"},
        {"rank: 5\n\ndesnity: 7\n", "job.yaml:3: unknown key 'desnity'; did you mean 'density'?"},
        {"log_format: json\n", "job.yaml:1: unknown key 'log_format'; did you mean 'log-format'?"},
        {"other: 7\n", "job.yaml:1: unknown key 'other'; --help lists all"},
        {"job: x\n<<: 7\n", "job.yaml:2: unknown key '<<'; --help lists all"},
        {"config: x.yaml\n", "job.yaml:1: unknown key 'config'; --help lists all"},
        {"rank: 1\nport: 2\nrank: 3\n", "job.yaml:3: key 'rank' is given twice"},
        {"{rank: 1, port: 2,\n rank: 3}\n", "job.yaml:2: key 'rank' is given twice"},
        {"job: x\nrank: [1, 2]\n",
         "job.yaml:2: rank: one value is expected, not a list or a mapping"},
        {"job: x\nrank:\n  a: 1\n",
         "job.yaml:2: rank: one value is expected, not a list or a mapping"},
        {"job: x\nrank:\n- 1\n",
         "job.yaml:2: rank: one value is expected, not a list or a mapping"},
        {"- a\n- b\n", "job.yaml: lines of the form 'name: value' are expected"},
        {"[rank, 3]\n", "job.yaml: lines of the form 'name: value' are expected"},
        {"---\n", "job.yaml: lines of the form 'name: value' are expected"},
        {"rank 3\n", "job.yaml: lines of the form 'name: value' are expected"},
        {"job: &x 5\nrank: *x\n", "job.yaml:2: rank: aliases (*name) are not supported here"},
        {"rank: 1\n---\nrank: 2\n", "job.yaml: more than one YAML document"},
        {"job: x\nrank: 'y\nport: 3\n",
         "job.yaml:2: not valid YAML here or below: found unexpected end of stream"},
        {"rank: 1\n port: 2\n", "job.yaml:1: not valid YAML here or below: mapping values are not "
                                "allowed in this context"},
        {"rank: 1\n\tport: 2\nx", "job.yaml:1: not valid YAML here or below: found a tab character "
                                  "that violates indentation"},
        {"\x01\x02\n", "job.yaml: not valid YAML: control characters are not allowed"},
        {"\xff\xfe\xfd", "job.yaml: not valid YAML: incomplete UTF-16 character"},
        {"? [a]\n: 1\n", "job.yaml:1: not understood here or below: Internal error"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        fixture_load_text(cases[i].text);
        fixture_expect_error(78, cases[i].words);
    }
}

Test(config_file, overridden_values_are_checked_too)
{
    fixture_write("rank: x\n", 8);
    fixture_load("--config=job.yaml", "--rank=1");
    fixture_expect_error(78, "job.yaml:1: rank: 'x' is not a whole number from 0 to 1023");
    fixture_write("rank: 2\n", 8);
    fixture_load("--config=job.yaml", "--rank=1");
    fixture_expect_source("rank", "flag");
    fixture_load("--config=job.yaml", "--rank=x");
    fixture_expect_error(64, "--rank: 'x' is not a whole number from 0 to 1023");
}

Test(config_file, flag_names_another_file_than_the_variable)
{
    setenv("GKPS_CONFIG", "missing.yaml", 1);
    fixture_load_text("rank: 3\n");
    fixture_expect_source("rank", "job.yaml:1");
    fixture_expect_source("config", "flag");
    cr_assert_str_eq(gk_config_text(fixture.config, "config"), "job.yaml");
    fixture_load_nothing();
    fixture_expect_error(78, "missing.yaml: cannot be read: No such file or directory");
}

Test(config_file, files_that_cannot_be_read)
{
    fixture_load("--config", "missing.yaml");
    fixture_expect_error(78, "missing.yaml: cannot be read: No such file or directory");
    cr_assert_eq(mkdir("folder", 0700), 0);
    fixture_load("--config", "folder");
    fixture_expect_error(78, "folder: is a folder");
    cr_assert_eq(rmdir("folder"), 0);
    cr_assert_eq(mkfifo("pipe", 0600), 0); /* nobody will ever write to it */
    fixture_load("--config", "pipe");
    fixture_expect_error(78, "pipe: is no regular file");
    cr_assert_eq(unlink("pipe"), 0);
    fixture_load("--config", "job.yaml/x");
    fixture_expect_error(78, "job.yaml/x: cannot be read: No such file or directory");
}

Test(config_file, size_is_capped)
{
    static char text[GK_CONFIG_FILE_BYTES_MAX + 2];

    memset(text, '#', sizeof(text));
    memcpy(text, "rank: 3\n", 8);
    fixture_write(text, GK_CONFIG_FILE_BYTES_MAX);
    fixture_load("--config", "job.yaml");
    fixture_expect_source("rank", "job.yaml:1");
    fixture_write(text, GK_CONFIG_FILE_BYTES_MAX + 1);
    fixture_load("--config", "job.yaml");
    fixture_expect_error(78, "job.yaml: larger than 1048576 bytes: this is no configuration file");
    fixture_load("--config", "/dev/zero");
    fixture_expect_error(78, "/dev/zero: is no regular file");
}

Test(config_file, long_names_and_texts_stay_one_line)
{
    static char text[100000];
    char path[3000];

    memset(text, 'k', sizeof(text) - 1);
    memcpy(text + 60000, ": v\n", 5);
    fixture_load_text(text);
    cr_assert_eq(fixture.err, GK_E_CONFIG);
    cr_assert(strncmp(fixture.words.text, "job.yaml: ", 10) == 0, "%s", fixture.words.text);
    memcpy(text, "rank: ", 6);
    memset(text + 6, '1', 50000);
    text[50006] = '\0';
    fixture_load_text(text);
    cr_assert_eq(fixture.err, GK_E_CONFIG);
    cr_assert_str_eq(fixture.words.text + 77, "11\u2026' is not a whole number from 0 to 1023");
    memset(path, 'p', sizeof(path) - 1);
    path[sizeof(path) - 1] = '\0';
    fixture_load("--config", path);
    cr_assert_eq(fixture.exit, 78);
    cr_assert_str_eq(fixture.words.text + 200, ": cannot be read: File name too long");
}

/* One damaged file: read, or refused in words; nothing else may happen. */
static void load_damaged(const unsigned char *bytes, size_t count, uint64_t seed)
{
    fixture_write(bytes, count);
    fixture_load("--config", "job.yaml");
    if (fixture.err) {
        cr_assert_eq(fixture.err, GK_E_CONFIG, "seed %lu", seed);
        cr_assert_eq(fixture.exit, 78, "seed %lu", seed);
        cr_assert(strncmp(fixture.words.text, "job.yaml:", 9) == 0, "seed %lu: %s", seed,
                  fixture.words.text);
    }
}

Test(config_file, noise_and_damage)
{
    static const char base[] =
        "# comment\njob: \"a b\"\nrank: 3\ndensity: 0.5   # x\n{mode: 'bsp'}\n[a]: &x *x |\n";
    unsigned char bytes[sizeof(base) + 64];
    uint64_t state = 0;

    for (uint64_t seed = 0; seed < 400; seed++) {
        size_t count = sizeof(base) - 1;

        memcpy(bytes, base, count);
        if (seed % 4 == 0) { /* noise alone */
            for (size_t i = 0; i < count; i++) {
                bytes[i] = (unsigned char)gk_mix64(++state);
            }
        } else {
            for (uint64_t i = 0; i < 1 + seed % 8;
                 i++) { /* a few letters changed to others of the text, or cut */
                uint64_t target = gk_mix64(++state) % count;

                bytes[target] = (unsigned char)base[gk_mix64(++state) % count];
            }
            count = seed % 3 ? count : gk_mix64(++state) % count;
        }
        load_damaged(bytes, count, seed);
    }
}

Test(config_lines, search)
{
    static const struct {
        const char *text, *key;
        uint32_t nth, line;
    } cases[] = {
        {"a: 1\nb: 2\na: 3\n", "a", 1, 1},
        {"a: 1\nb: 2\na: 3\n", "a", 2, 3},
        {"a: 1\nb: 2\na: 3\n", "a", 3, 0},
        {"a: 1\nb: 2\na: 3\n", "c", 1, 0},
        {"aa: 1\na: 2\n", "a", 1, 2},
        {"a: 1\naa: 2\n", "aa", 1, 2},
        {"x: a: 1\na: 2\n", "a", 1, 2},
        {"a", "a", 1, 0},
        {"a:", "a", 1, 1},
        {"", "a", 1, 0},
        {"\n\n\n", "a", 1, 0},
        {"{", "a", 1, 0},
        {"{a", "a", 1, 0},
        {"{a:", "a", 1, 1},
        {"{\"", "a", 1, 0},
        {"{\"\\", "a", 1, 0},
        {"{x: \"\\\n a: 1\", a: 2}", "a", 1, 2},
        {"{aa: 1, a: 2}", "a", 1, 1},
        {"{#\n#a: 1\na: 2}", "a", 1, 3},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t count = strlen(cases[i].text);
        char *exact = malloc(count + 1); /* so that a sanitizer sees reads beyond the end */

        exact = realloc(exact, count ? count : 1);
        memcpy(exact, cases[i].text, count);
        cr_assert_eq(gk_config_lines_find(exact, count, cases[i].key, cases[i].nth), cases[i].line,
                     "case %zu", i);
        free(exact);
    }
}
