/* Goal: a summary file is there whole or not at all, a path that cannot be written is found out
 * early and leaves nothing behind, and log lines of children are never torn. Method: a directory of
 * its own; the directory is listed after each call. */
#include "tool/console.h"
#include "tool/lines.h"
#include "tool/output.h"

#include <criterion/criterion.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/gkps-output-XXXXXX";
static char path[256];
static struct gk_words words;

static void setup(void)
{
    cr_assert_not_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/s.json", folder);
}

/* Removes the folder; the number of files that were in it. */
static int empty(void)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;
    char name[512];
    int count = 0;

    while ((entry = readdir(dir))) {
        if (entry->d_name[0] != '.') {
            snprintf(name, sizeof(name), "%s/%s", folder, entry->d_name);
            cr_assert(unlink(name) == 0 || rmdir(name) == 0);
            count++;
        }
    }
    closedir(dir);
    return count;
}

static void teardown(void)
{
    empty();
    rmdir(folder);
}

static const char *content(const char *name)
{
    static char text[256];
    FILE *file = fopen(name, "r");
    size_t n;

    cr_assert_not_null(file, "%s", name);
    n = fread(text, 1, sizeof(text) - 1, file);
    text[n] = '\0';
    fclose(file);
    return text;
}

TestSuite(output, .init = setup, .fini = teardown);

Test(output, probe_leaves_nothing)
{
    cr_assert_eq(gk_output_probe(path, &words), GK_OK);
    cr_assert_eq(empty(), 0);
    cr_assert_eq(gk_output_probe("-", &words), GK_OK);
}

Test(output, probe_finds_what_cannot_be_written)
{
    char name[300];

    snprintf(name, sizeof(name), "%s/missing/s.json", folder);
    cr_assert_eq(gk_output_probe(name, &words), GK_E_IO);
    cr_assert_not_null(strstr(words.text, name), "%s", words.text);
    cr_assert_eq(gk_output_probe(folder, &words), GK_E_IO);
    cr_assert_not_null(strstr(words.text, "directory"), "%s", words.text);
}

Test(output, write_replaces_whole)
{
    cr_assert_eq(gk_output_write(path, "first\n", &words), GK_OK);
    cr_assert_str_eq(content(path), "first\n");
    cr_assert_eq(gk_output_write(path, "2\n", &words), GK_OK);
    cr_assert_str_eq(content(path), "2\n");
    cr_assert_eq(empty(), 1);
}

Test(output, write_follows_links_and_respects_umask)
{
    char link_path[256];
    struct stat st;

    umask(027);
    cr_assert_eq(gk_output_write(path, "old\n", &words), GK_OK);
    cr_assert(stat(path, &st) == 0 && (st.st_mode & 0777) == 0640);
    snprintf(link_path, sizeof(link_path), "%s/link", folder);
    cr_assert_eq(symlink(path, link_path), 0);
    cr_assert_eq(gk_output_write(link_path, "new\n", &words), GK_OK);
    cr_assert(lstat(link_path, &st) == 0 && S_ISLNK(st.st_mode));
    cr_assert_str_eq(content(path), "new\n");
    cr_assert_eq(empty(), 2);
}

Test(output, what_is_no_regular_file_is_refused)
{
    char link_path[256];

    cr_assert_eq(mkfifo(path, 0600), 0);
    snprintf(link_path, sizeof(link_path), "%s/link", folder);
    cr_assert_eq(symlink(path, link_path), 0);
    const char *const wrong[] = {path, link_path, "/dev/null", folder};

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) { /* none of them blocks */
        cr_assert_eq(gk_output_probe(wrong[i], &words), GK_E_IO, "%s", wrong[i]);
        cr_assert_not_null(strstr(words.text, i < 3 ? "no regular file" : "directory"));
        cr_assert_eq(gk_output_write(wrong[i], "x", &words), GK_E_IO, "%s", wrong[i]);
    }
    cr_assert_eq(empty(), 2);
}

Test(output, the_state_of_a_job_is_not_written_over)
{
    /* What makes a folder one with state, and which names are refused there. */
    static const struct {
        const char *there, *name;
        bool refused;
    } cases[] = {
        {"JOB", "s.json", true},         {"snap-0-50", "snap-0-50", true},
        {"wal-0-0.log", "x", true},      {"slot", "model.npz", true},
        {"LOCK", "job.json", true},      {"LOCK", "LOCK", true},
        {"server-0", "job.json", true},  {"worker-7", "LOCK", true},
        {"server-0", "s.json", false},   {"job.json", "job.json", false},
        {"LOCK", "s.json", false},       {"other", "job.json", false},
        {"server-x", "job.json", false},
    };
    char other[300], link_path[256];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        snprintf(other, sizeof(other), "%s/%s", folder, cases[i].there);
        snprintf(path, sizeof(path), "%s/%s", folder, cases[i].name);
        cr_assert_eq(close(open(other, O_CREAT | O_WRONLY, 0600)), 0);
        cr_expect_eq(gk_output_probe(path, &words), cases[i].refused ? GK_E_REFUSED : GK_OK,
                     "%s beside %s", cases[i].name, cases[i].there);
        snprintf(link_path, sizeof(link_path), "%s/a-link", folder);
        cr_assert_eq(symlink(path, link_path), 0);
        cr_expect_eq(gk_output_probe(link_path, &words), cases[i].refused ? GK_E_REFUSED : GK_OK,
                     "a link to %s beside %s", cases[i].name, cases[i].there);
        empty();
    }
}

Test(output, links_are_followed_also_to_nothing_yet)
{
    char link_path[256], second[256];
    struct stat st;

    snprintf(link_path, sizeof(link_path), "%s/link", folder);
    snprintf(second, sizeof(second), "%s/second", folder);
    cr_assert(symlink("s.json", link_path) == 0 && symlink(link_path, second) == 0);
    cr_assert_eq(gk_output_probe(second, &words), GK_OK, "%s", words.text);
    cr_assert_eq(gk_output_write(second, "x\n", &words), GK_OK, "%s", words.text);
    cr_assert(lstat(link_path, &st) == 0 && S_ISLNK(st.st_mode));
    cr_assert_str_eq(content(path), "x\n");
    cr_assert_eq(empty(), 3);
    cr_assert(symlink("second", link_path) == 0 && symlink("link", second) == 0); /* a circle */
    cr_assert_eq(gk_output_probe(link_path, &words), GK_E_IO);
    cr_assert_eq(empty(), 2);
    cr_assert_eq(symlink("/nonexistent/x", link_path), 0);
    cr_assert_eq(gk_output_probe(link_path, &words), GK_E_IO);
    cr_assert_eq(empty(), 1);
}

Test(lines, only_whole_lines_are_written)
{
    struct gk_lines lines = {0};
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    cr_assert(!gk_lines_feed(&lines, "ab", 2, out));
    cr_assert_eq(size, 0);
    cr_assert(gk_lines_feed(&lines, "c\nd\ne", 5, out));
    cr_assert_str_eq(text, "abc\nd\n");
    cr_assert(gk_lines_feed(&lines, "\n", 1, out));
    cr_assert_str_eq(text, "abc\nd\ne\n");
    gk_lines_feed(&lines, "rest", 4, out);
    gk_lines_fini(&lines, out);
    cr_assert_str_eq(text, "abc\nd\ne\nrest\n");
    gk_lines_fini(&lines, out);
    fclose(out);
    free(text);
}

Test(lines, a_line_without_end_is_bounded)
{
    struct gk_lines lines = {0};
    char *big = malloc(3 * GK_LINES_BYTES_MAX);
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    memset(big, 'x', 3 * GK_LINES_BYTES_MAX);
    cr_assert(gk_lines_feed(&lines, big, 3 * GK_LINES_BYTES_MAX - 5, out));
    cr_assert_eq(size, 2 * GK_LINES_BYTES_MAX);
    gk_lines_fini(&lines, out);
    cr_assert_eq(size, 3 * GK_LINES_BYTES_MAX - 4); /* all of it and a newline */
    fclose(out);
    free(text);
    free(big);
}

/* What a program wrote, in pieces of `piece` bytes, as it is shown. */
static char *shown(const char *data, size_t bytes, size_t piece)
{
    struct gk_lines lines = {.prefix = "[3] "};
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    for (size_t at = 0; at < bytes; at += piece) {
        gk_lines_feed(&lines, data + at, bytes - at < piece ? bytes - at : piece, out);
    }
    gk_lines_fini(&lines, out);
    fclose(out);
    return text;
}

Test(lines, what_a_program_writes_does_no_harm)
{
    static const struct {
        const char *from, *to;
    } cases[] = {
        {"a\nb", "[3] a\n[3] b\n"},
        {"\n\n", "[3] \n[3] \n"},
        {"tab\t\x1b[31m\a\x7f", "[3] tab\t?[31m??\n"},
        {"\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80", "[3] \xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80\n"},
        {"\xc2\x9b \xff\xc3", "[3] ?? ??\n"}, /* a control character; no text */
        {"\xed\xa0\x80\xc0\xaf\xf4\x90\x80\x80\n",
         "[3] ?????????\n"}, /* surrogate, overlong, too far */
        {" 10 %\r 20 %\r\n", "[3]  20 %\n"},
        {"10 %\r", "[3] 10 %\n"},
        {"", ""},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (size_t piece = 1; piece < 5; piece++) {
            char *text = shown(cases[i].from, strlen(cases[i].from), piece);

            cr_assert_str_eq(text, cases[i].to, "case %zu by %zu: %s", i, piece, text);
            free(text);
        }
    }
}

/* Cut into pieces that are lines as well, none of them within a character. */
Test(lines, a_long_line_of_a_program_is_cut)
{
    enum { ENOUGH = 3 * GK_LINES_BYTES_MAX };
    static char data[ENOUGH], joined[ENOUGH];

    for (size_t shift = 0; shift < 4; shift++) {
        size_t used = shift, back = 0;
        char *text;

        memset(data, 'x', shift);
        for (; used + 3 < ENOUGH; used += 3) {
            memcpy(data + used, "\xe2\x82\xac", 3);
        }
        data[used++] = '\n';
        text = shown(data, used, 1000);
        for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
            cr_assert(strncmp(line, "[3] ", 4) == 0 && strlen(line) <= GK_LINES_BYTES_MAX + 4);
            memcpy(joined + back, line + 4, strlen(line + 4));
            back += strlen(line + 4);
        }
        cr_assert_eq(back, used - 1);
        cr_assert(memcmp(joined, data, back) == 0);
        free(text);
    }
    memset(data, 'x', GK_LINES_BYTES_MAX); /* nothing is left for a second piece */
    data[GK_LINES_BYTES_MAX] = '\n';
    char *text = shown(data, GK_LINES_BYTES_MAX + 1, 777);
    cr_assert_eq(strlen(text), GK_LINES_BYTES_MAX + 5);
    free(text);
}

Test(console, no_bar_without_a_terminal)
{
    struct gk_console console;
    FILE *out = tmpfile();

    setenv("TERM", "xterm", 1);
    gk_console_init(&console, out);
    cr_assert(!console.bar);
    cr_assert_eq(gk_console_columns(&console), 80);
    gk_console_clear(&console);
    cr_assert_eq(ftell(out), 0);
    fclose(out);
}
