#include "tool/faults_yaml.h"

#include "common/regular.h"
#include "common/shown.h"

#include <yaml.h>

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_BYTES = 32, COMPLAINT_BYTES = 400 };

struct gk_yaml {
    char *path;
    yaml_document_t document;
    bool loaded;
    bool wrong;
    struct gk_words complaint;
};

static enum gk_err read_file(const char *path, char *ret, size_t *ret_bytes, struct gk_words *words)
{
    FILE *file;
    enum gk_err err = gk_regular_open(path, &file, words);

    if (err) {
        gk_words_prefix(words, "%s: ", gk_shown(path).text);
        return err == GK_E_NOMEM ? err : GK_E_CONFIG;
    }
    errno = 0;
    *ret_bytes = fread(ret, 1, GK_YAML_BYTES_MAX + 1, file);
    if (ferror(file)) {
        gk_words_set(words, "%s: cannot be read: %s", gk_shown(path).text, strerror(errno));
        err = GK_E_CONFIG;
    } else if (*ret_bytes > GK_YAML_BYTES_MAX) {
        gk_words_set(words, "%s: larger than %d bytes: this is no fault script",
                     gk_shown(path).text, GK_YAML_BYTES_MAX);
        err = GK_E_CONFIG;
    }
    (void)fclose(file); /* nothing was written */
    return err;
}

static enum gk_err load_document(const struct gk_yaml *yaml, yaml_parser_t *parser,
                                 yaml_document_t *ret, struct gk_words *words)
{
    if (yaml_parser_load(parser, ret)) {
        return GK_OK;
    }
    gk_words_set(words, "%s:%zu: not valid YAML: %s%s%s", gk_shown(yaml->path).text,
                 parser->problem_mark.line + 1, parser->context ? parser->context : "",
                 parser->context ? ", " : "", parser->problem ? parser->problem : "no memory");
    return parser->error == YAML_MEMORY_ERROR ? GK_E_NOMEM : GK_E_CONFIG;
}

/* What stands in a second document would be left out without a word: a fault, or an expectation. */
static enum gk_err expect_end(const struct gk_yaml *yaml, yaml_parser_t *parser,
                              struct gk_words *words)
{
    yaml_document_t second;
    enum gk_err err = load_document(yaml, parser, &second, words);

    if (err) {
        return err;
    }
    if (yaml_document_get_root_node(&second)) {
        gk_words_set(words, "%s:%zu: a second document begins here; a fault script is one",
                     gk_shown(yaml->path).text, second.start_mark.line + 1);
        err = GK_E_CONFIG;
    }
    yaml_document_delete(&second);
    return err;
}

static enum gk_err parse(struct gk_yaml *yaml, const char *bytes, size_t bytes_count,
                         struct gk_words *words)
{
    yaml_parser_t parser;
    enum gk_err err;

    if (!yaml_parser_initialize(&parser)) {
        return GK_E_NOMEM;
    }
    yaml_parser_set_input_string(&parser, (const unsigned char *)bytes, bytes_count);
    err = load_document(yaml, &parser, &yaml->document, words);
    yaml->loaded = !err;
    if (!err && yaml_document_get_root_node(&yaml->document)) {
        err = expect_end(yaml, &parser, words);
    }
    yaml_parser_delete(&parser);
    return err;
}

enum gk_err gk_yaml_read(const char *path, struct gk_yaml **ret_yaml, struct gk_words *words)
{
    struct gk_yaml *yaml = calloc(1, sizeof(*yaml));
    char *bytes = malloc(GK_YAML_BYTES_MAX + 1);
    size_t bytes_count = 0;
    enum gk_err err = GK_E_NOMEM;

    gk_words_set(words, "no memory to read a fault script");
    if (yaml) {
        yaml->path = strdup(path);
    }
    if (yaml && yaml->path && bytes) {
        err = read_file(path, bytes, &bytes_count, words);
        err = err ? err : parse(yaml, bytes, bytes_count, words);
    }
    free(bytes);
    if (err) {
        gk_yaml_free(yaml);
        return err;
    }
    *ret_yaml = yaml;
    return GK_OK;
}

void gk_yaml_free(struct gk_yaml *yaml)
{
    if (yaml) {
        if (yaml->loaded) {
            yaml_document_delete(&yaml->document);
        }
        free(yaml->path);
        free(yaml);
    }
}

enum gk_err gk_yaml_result(const struct gk_yaml *yaml, struct gk_words *words)
{
    if (yaml->wrong) {
        *words = yaml->complaint;
        return GK_E_CONFIG;
    }
    return GK_OK;
}

const char *gk_yaml_name(const struct gk_yaml *yaml)
{
    const char *slash = strrchr(yaml->path, '/');

    return slash ? slash + 1 : yaml->path;
}

static yaml_node_t *node_of(struct gk_yaml_value value)
{
    return value.node ? yaml_document_get_node(&value.yaml->document, value.node) : NULL;
}

struct gk_yaml_value gk_yaml_root(struct gk_yaml *yaml)
{
    /* The root is node 1; an empty file has none. */
    return (struct gk_yaml_value){yaml, yaml_document_get_root_node(&yaml->document) ? 1 : 0};
}

enum gk_yaml_type gk_yaml_type(struct gk_yaml_value value)
{
    const yaml_node_t *node = node_of(value);

    switch (node ? node->type : YAML_NO_NODE) {
    case YAML_SCALAR_NODE:
        return GK_YAML_TEXT;
    case YAML_SEQUENCE_NODE:
        return GK_YAML_LIST;
    case YAML_MAPPING_NODE:
        return GK_YAML_MAP;
    case YAML_NO_NODE:
        break;
    }
    return GK_YAML_NONE;
}

uint32_t gk_yaml_line(struct gk_yaml_value value)
{
    const yaml_node_t *node = node_of(value);

    return node ? (uint32_t)node->start_mark.line + 1 : 0;
}

const char *gk_yaml_text(struct gk_yaml_value value)
{
    const yaml_node_t *node = node_of(value);

    return node && node->type == YAML_SCALAR_NODE ? (const char *)node->data.scalar.value : "";
}

uint32_t gk_yaml_count(struct gk_yaml_value value)
{
    const yaml_node_t *node = node_of(value);

    if (node && node->type == YAML_SEQUENCE_NODE) {
        return (uint32_t)(node->data.sequence.items.top - node->data.sequence.items.start);
    }
    if (node && node->type == YAML_MAPPING_NODE) {
        return (uint32_t)(node->data.mapping.pairs.top - node->data.mapping.pairs.start);
    }
    return 0;
}

struct gk_yaml_value gk_yaml_item(struct gk_yaml_value list, uint32_t i)
{
    const yaml_node_t *node = node_of(list);

    return (struct gk_yaml_value){list.yaml, node->data.sequence.items.start[i]};
}

const char *gk_yaml_key(struct gk_yaml_value map, uint32_t i, struct gk_yaml_value *ret_value)
{
    const yaml_node_pair_t *pair = &node_of(map)->data.mapping.pairs.start[i];

    *ret_value = (struct gk_yaml_value){map.yaml, pair->value};
    return gk_yaml_text((struct gk_yaml_value){map.yaml, pair->key});
}

struct gk_yaml_value gk_yaml_get(struct gk_yaml_value map, const char *key)
{
    struct gk_yaml_value value;

    for (uint32_t i = 0; gk_yaml_type(map) == GK_YAML_MAP && i < gk_yaml_count(map); i++) {
        if (strcmp(gk_yaml_key(map, i, &value), key) == 0) {
            return value;
        }
    }
    return (struct gk_yaml_value){map.yaml, 0};
}

bool gk_yaml_complain(struct gk_yaml_value at, const char *format, ...)
{
    struct gk_yaml *yaml = at.yaml;
    char text[COMPLAINT_BYTES];
    uint32_t line = gk_yaml_line(at);
    va_list args;

    if (yaml->wrong) {
        return false;
    }
    yaml->wrong = true;
    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    gk_words_set(&yaml->complaint, "%s:%u: %s", gk_shown(yaml->path).text, line ? line : 1, text);
    return false;
}

/* The next of "a|b|c"; false at the end. */
static bool next_choice(const char **choices, char *ret)
{
    size_t length = strcspn(*choices, "|");

    if (length == 0 || length >= KEY_BYTES) {
        return false;
    }
    memcpy(ret, *choices, length);
    ret[length] = '\0';
    *choices += length + ((*choices)[length] == '|');
    return true;
}

int gk_yaml_choice(const char *text, const char *choices)
{
    char choice[KEY_BYTES];

    for (int i = 0; next_choice(&choices, choice); i++) {
        if (strcmp(text, choice) == 0) {
            return i;
        }
    }
    return -1;
}

/* Letters to change, add or leave out (Levenshtein); both shorter than KEY_BYTES. */
static unsigned distance(const char *a, const char *b)
{
    unsigned row[KEY_BYTES + 1], length = (unsigned)strlen(b);

    for (unsigned j = 0; j <= length; j++) {
        row[j] = j;
    }
    for (unsigned i = 1; a[i - 1]; i++) {
        unsigned corner = row[0];

        row[0] = i;
        for (unsigned j = 1; j <= length; j++) {
            unsigned change = corner + (a[i - 1] != b[j - 1]);
            unsigned less = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;

            corner = row[j];
            row[j] = change < less ? change : less;
        }
    }
    return row[length];
}

void gk_yaml_nearest(const char *text, const char *choices, char *ret, size_t ret_bytes)
{
    unsigned best = 3; /* further is something else */
    char choice[KEY_BYTES];

    ret[0] = '\0';
    while (strlen(text) < KEY_BYTES && next_choice(&choices, choice)) {
        unsigned steps = distance(text, choice);

        if (steps < best && steps < strlen(choice)) {
            best = steps;
            (void)snprintf(ret, ret_bytes, "%s", choice);
        }
    }
}

/* "a|b|c" as "a, b, c". */
static void list_choices(const char *choices, char *ret, size_t ret_bytes)
{
    char choice[KEY_BYTES];
    size_t used = 0;

    ret[0] = '\0';
    while (used + 1 < ret_bytes && next_choice(&choices, choice)) {
        (void)snprintf(ret + used, ret_bytes - used, "%s%s", used ? ", " : "", choice);
        used = strlen(ret);
    }
}

static bool check_key(struct gk_yaml_value map, uint32_t i, const char *keys, const char *what)
{
    const yaml_node_pair_t *pairs = node_of(map)->data.mapping.pairs.start;
    struct gk_yaml_value at = {map.yaml, pairs[i].key}, value;
    const char *key = gk_yaml_key(map, i, &value);
    char nearest[KEY_BYTES], all[COMPLAINT_BYTES / 2];

    for (uint32_t j = 0; j < i; j++) {
        if (strcmp(key, gk_yaml_key(map, j, &value)) == 0) {
            return gk_yaml_complain(at, "%s: key '%s' is given twice", what, gk_shown(key).text);
        }
    }
    if (gk_yaml_choice(key, keys) >= 0) {
        return true;
    }
    gk_yaml_nearest(key, keys, nearest, sizeof(nearest));
    if (nearest[0]) {
        return gk_yaml_complain(at, "%s has no key '%s'; did you mean '%s'?", what,
                                gk_shown(key).text, nearest);
    }
    list_choices(keys, all, sizeof(all));
    return gk_yaml_complain(at, "%s has no key '%s'; it has: %s", what, gk_shown(key).text, all);
}

bool gk_yaml_expect_map(struct gk_yaml_value value, const char *keys, const char *what)
{
    if (gk_yaml_type(value) != GK_YAML_MAP) {
        return gk_yaml_complain(value, "%s is a list of 'key: value'", what);
    }
    for (uint32_t i = 0; i < gk_yaml_count(value); i++) {
        if (!check_key(value, i, keys, what)) {
            return false;
        }
    }
    return true;
}
