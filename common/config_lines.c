/* libcyaml tells neither on which line a value stood nor where an unknown key is, so the file is
 * looked through for the key.  Two notations are understood, which are all that configuration files
 * use: a block (one `name: value` a line, all at one indentation; what is indented deeper belongs
 * to a value) and a flow mapping (`{a: 1, b: 2}`). */
#include "common/config_internal.h"

#include <string.h>

struct scan {
    const char *at;
    const char *end;
    const char *key;
    size_t key_length;
    uint32_t line;
    uint32_t missing; /* occurrences still to be found */
};

static void skip_blanks(struct scan *scan)
{
    while (scan->at < scan->end && (*scan->at == ' ' || *scan->at == '\t')) {
        scan->at++;
    }
}

static void skip_line(struct scan *scan)
{
    const char *newline = memchr(scan->at, '\n', (size_t)(scan->end - scan->at));

    scan->at = newline ? newline + 1 : scan->end;
    scan->line++;
}

/* Does the key, plain or quoted, with its colon, stand here?  One less is missing then. */
static bool key_here(struct scan *scan)
{
    const char *at = scan->at;
    char quote = '\0';

    if (at < scan->end && (*at == '"' || *at == '\'')) {
        quote = *at++;
    }
    if ((size_t)(scan->end - at) <= scan->key_length ||
        memcmp(at, scan->key, scan->key_length) != 0) {
        return false;
    }
    at += scan->key_length;
    if (quote && *at++ != quote) {
        return false;
    }
    while (at < scan->end && *at == ' ') {
        at++;
    }
    if (at == scan->end || *at != ':') {
        return false;
    }
    scan->missing--;
    return true;
}

static uint32_t find_in_block(struct scan *scan, size_t indent)
{
    for (; scan->at < scan->end; skip_line(scan)) {
        const char *start = scan->at;

        skip_blanks(scan);
        if ((size_t)(scan->at - start) == indent && key_here(scan) && scan->missing == 0) {
            return scan->line;
        }
    }
    return 0;
}

static uint32_t find_in_flow(struct scan *scan)
{
    char quote = '\0';
    bool may_start = true; /* a key can start here */

    for (; scan->at < scan->end; scan->at++) {
        char c = *scan->at;

        if (!quote && may_start && key_here(scan) && scan->missing == 0) {
            return scan->line;
        }
        scan->line += c == '\n';
        if (quote) {
            if (quote == '"' && c == '\\') {
                scan->at += scan->at + 1 < scan->end && scan->at[1] != '\n';
            } else if (c == quote) {
                quote = '\0';
            }
            may_start = false;
            continue;
        }
        if (c == '"' || c == '\'') {
            quote = c;
        } else if (c == '#' && may_start) {
            while (scan->at + 1 < scan->end && scan->at[1] != '\n') {
                scan->at++;
            }
        }
        may_start = strchr("{, \t\r\n", c) != NULL && c != '\0';
    }
    return 0;
}

uint32_t gk_config_lines_find(const char *text, size_t bytes, const char *key, uint32_t nth)
{
    struct scan scan = {text, text + bytes, key, strlen(key), 1, nth};
    size_t indent;

    if (bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) { /* byte order mark */
        scan.at += 3;
    }
    /* The first line with content tells the notation. */
    for (; scan.at < scan.end; skip_line(&scan)) {
        const char *start = scan.at;

        skip_blanks(&scan);
        if (scan.at == scan.end || strchr("#\r\n", *scan.at) ||
            (scan.at == start && (*start == '%' || *start == '-'))) {
            continue;
        }
        if (*scan.at == '{') {
            return find_in_flow(&scan);
        }
        indent = (size_t)(scan.at - start);
        scan.at = start;
        return find_in_block(&scan, indent);
    }
    return 0;
}
