/* A small YAML file as a tree whose every value knows its line, for errors of the form FILE:LINE.
 *
 * libcyaml tells no line of a value, so that libyaml below it is used here directly.  The first
 * complaint is kept, and all getters after it do nothing: the caller reads the whole file and asks
 * at the end.  Any thread, one at a time. */
#ifndef GK_TOOL_FAULTS_YAML_H
#define GK_TOOL_FAULTS_YAML_H

#include "common/err.h"
#include "common/words.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { GK_YAML_BYTES_MAX = 64 * 1024 };

struct gk_yaml;

enum gk_yaml_type { GK_YAML_NONE, GK_YAML_TEXT, GK_YAML_LIST, GK_YAML_MAP };

struct gk_yaml_value { /* by value; valid while the file is */
    struct gk_yaml *yaml;
    int node; /* 0: none */
};

/* GK_E_CONFIG and words "FILE:LINE: ..."; GK_E_NOMEM. */
enum gk_err gk_yaml_read(const char *path, struct gk_yaml **ret_yaml, struct gk_words *words);
void gk_yaml_free(struct gk_yaml *yaml); /* accepts NULL */

/* Whether all that was asked for was good; else GK_E_CONFIG and the first complaint. */
enum gk_err gk_yaml_result(const struct gk_yaml *yaml, struct gk_words *words);

/* The file's name without its folders. */
const char *gk_yaml_name(const struct gk_yaml *yaml);

struct gk_yaml_value gk_yaml_root(struct gk_yaml *yaml);
enum gk_yaml_type gk_yaml_type(struct gk_yaml_value value);
uint32_t gk_yaml_line(struct gk_yaml_value value); /* from 1; 0: none */

/* A text, terminated; "" for anything else. */
const char *gk_yaml_text(struct gk_yaml_value value);

uint32_t gk_yaml_count(struct gk_yaml_value value); /* of a list or a map */
struct gk_yaml_value gk_yaml_item(struct gk_yaml_value list, uint32_t i);
const char *gk_yaml_key(struct gk_yaml_value map, uint32_t i, struct gk_yaml_value *ret_value);

/* The value of a key; none when it is not there. */
struct gk_yaml_value gk_yaml_get(struct gk_yaml_value map, const char *key);

/* A map with keys of the list ("a|b|c") alone, none twice: else a complaint that names the nearest.
 * `what` is the map in words: "a fault".  False: not so. */
bool gk_yaml_expect_map(struct gk_yaml_value value, const char *keys, const char *what);

/* "FILE:LINE: " and the text.  Only the first one of a file counts.  False, always. */
bool gk_yaml_complain(struct gk_yaml_value at, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Which of "a|b|c" the text is; -1: none. */
int gk_yaml_choice(const char *text, const char *choices);

/* The one of "a|b|c" that was probably meant, into `ret`; "" when none is near. */
void gk_yaml_nearest(const char *text, const char *choices, char *ret, size_t ret_bytes);

#endif
