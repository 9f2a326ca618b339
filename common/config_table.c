/* Look-ups in the option table, which is looked through from its start each time: it is small, and
 * start-up alone reads it.  A name that was mistyped is compared with all by edit distance; more
 * than a few edits make another word, not a slip. */
#include "common/config_internal.h"

#include "common/assert.h"

#include <string.h>

const char *const gk_config_common[GK_CONFIG_COMMON_COUNT] = {"config", "print-config", "help",
                                                              "version"};

static size_t type_bytes(enum gk_option_type type)
{
    switch (type) {
    case GK_OPTION_STRING:
        return sizeof(const char *);
    case GK_OPTION_UINT:
    case GK_OPTION_BYTES:
        return sizeof(uint64_t);
    case GK_OPTION_FLOAT:
        return sizeof(double);
    case GK_OPTION_BOOL:
        return sizeof(bool);
    case GK_OPTION_CHOICE:
        return sizeof(uint32_t);
    }
    return SIZE_MAX;
}

static bool name_is_sound(const char *name)
{
    size_t length = strlen(name);

    for (size_t i = 0; i < GK_CONFIG_COMMON_COUNT; i++) {
        if (strcmp(name, gk_config_common[i]) == 0) {
            return false;
        }
    }
    return length > 0 && length < GK_CONFIG_NAME_BYTES && name[0] != '-' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == length;
}

static void check_option(const struct gk_option *option, size_t values_bytes)
{
    unsigned char value[GK_CONFIG_VALUE_BYTES];
    size_t bytes = type_bytes(option->type);

    GK_ASSERT(name_is_sound(option->name));
    GK_ASSERT(bytes <= values_bytes && option->offset <= values_bytes - bytes);
    GK_ASSERT(option->help);
    GK_ASSERT((option->type == GK_OPTION_CHOICE) == (option->choices != NULL));
    GK_ASSERT(option->min <= option->max);
    GK_ASSERT(!option->default_text ||
              gk_config_value_parse(option, option->default_text, value, NULL) == GK_OK);
}

void gk_config_table_check(const struct gk_program *program, size_t values_bytes)
{
    GK_ASSERT((program->list_heading != NULL) == (program->list_entry != NULL));
    GK_ASSERT((program->preset_by != NULL) == (program->preset != NULL));
    GK_ASSERT(!program->preset_by ||
              gk_config_table_find(program, program->preset_by) != GK_CONFIG_NONE);
    for (size_t i = 0; i < program->options_count; i++) {
        check_option(&program->options[i], values_bytes);
        GK_ASSERT(gk_config_table_find(program, program->options[i].name) == i);
    }
}

size_t gk_config_table_find(const struct gk_program *program, const char *name)
{
    for (size_t i = 0; i < program->options_count; i++) {
        if (strcmp(program->options[i].name, name) == 0) {
            return i;
        }
    }
    return GK_CONFIG_NONE;
}

static void own_variable(const char *name, char *ret_name)
{
    memcpy(ret_name, "GKPS_", 5);
    for (ret_name += 5; *name; name++, ret_name++) {
        if (*name == '-') {
            *ret_name = '_';
        } else if (*name >= 'a' && *name <= 'z') {
            *ret_name = (char)(*name - 'a' + 'A');
        } else {
            *ret_name = *name;
        }
    }
    *ret_name = '\0';
}

bool gk_config_table_variable(const struct gk_option *option, size_t number, char *ret_name)
{
    const char *at = option->env_also;
    size_t length;

    if (number == 0) {
        own_variable(option->name, ret_name);
        return true;
    }
    while (at && number > 1) {
        at = strchr(at, '|');
        at = at ? at + 1 : NULL;
        number--;
    }
    if (!at) {
        return false;
    }
    length = strcspn(at, "|");
    GK_ASSERT(length > 0 && length < GK_CONFIG_VARIABLE_BYTES);
    memcpy(ret_name, at, length);
    ret_name[length] = '\0';
    return true;
}

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Edits (insert, delete, replace, swap neighbours) that turn a into b: optimal string alignment. */
static size_t edit_distance(const char *a, const char *b)
{
    size_t rows[3][GK_CONFIG_NAME_BYTES];
    size_t *older = rows[0], *old = rows[1], *now = rows[2], *kept;
    size_t a_length = strlen(a), b_length = strlen(b);

    if (a_length >= GK_CONFIG_NAME_BYTES || b_length >= GK_CONFIG_NAME_BYTES) {
        return SIZE_MAX;
    }
    for (size_t j = 0; j <= b_length; j++) {
        old[j] = j;
        older[j] = j;
    }
    for (size_t i = 1; i <= a_length; i++) {
        now[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            size_t replaced = old[j - 1] + (a[i - 1] != b[j - 1]);

            now[j] = min_size(replaced, min_size(old[j], now[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                now[j] = min_size(now[j], older[j - 2] + 1);
            }
        }
        kept = older;
        older = old;
        old = now;
        now = kept;
    }
    return old[b_length];
}

bool gk_config_table_nearer(const char *name, const char *candidate, size_t *distance)
{
    size_t found = edit_distance(name, candidate);

    /* More edits than that make another word, not a slip. */
    if (found >= *distance || found > 1 + strlen(candidate) / 5) {
        return false;
    }
    *distance = found;
    return true;
}

const char *gk_config_table_nearest(const struct gk_program *program, const char *name)
{
    const char *nearest = NULL;
    size_t distance = SIZE_MAX;

    for (size_t i = 0; i < program->options_count; i++) {
        if (gk_config_table_nearer(name, program->options[i].name, &distance)) {
            nearest = program->options[i].name;
        }
    }
    return nearest;
}
