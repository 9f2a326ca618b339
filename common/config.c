/* Loading goes from the command line (which names the file) over the file to one decision an
 * option: the first place that gives a value wins and is remembered.  All values of the file are
 * checked, also those that a flag overrides: a file is meant to be right as a whole.  Variables are
 * not: RANK may be somebody else's. */
#include "common/config_internal.h"

#include "common/assert.h"
#include "common/exit.h"
#include "common/shown.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SOURCE_BYTES = 512 };

struct load {
    const struct gk_program *program;
    void *values;
    struct gk_config_flags flags;
    struct gk_config_file file; /* no texts: there is no file */
    const struct gk_config_args *args;
    struct gk_config *config;
    int exit; /* for an error that comes now */
    struct gk_words *words;
};

static struct gk_config *new_config(const struct gk_program *program)
{
    struct gk_config *config = calloc(1, sizeof(*config));

    if (!config) {
        return NULL;
    }
    config->program = program;
    config->entries = calloc(program->options_count + 1, sizeof(*config->entries));
    if (!config->entries) {
        free(config);
        return NULL;
    }
    return config;
}

static enum gk_err remember(struct load *load, size_t entry, const char *text, const char *source)
{
    struct gk_config_entry *target = &load->config->entries[entry];

    target->source = strdup(source);
    target->text = text ? strdup(text) : NULL;
    if (!target->source || (text && !target->text)) {
        load->exit = GK_EXIT_INTERNAL;
        gk_words_set(load->words, "%s", gk_err_text(GK_E_NOMEM));
        return GK_E_NOMEM;
    }
    return GK_OK;
}

/* An empty variable counts as not set: that is how compose files and unit files pass on what nobody
 * gave. */
static const char *read_variable(const char *name)
{
    const char *text = getenv(name);

    return text && *text ? text : NULL;
}

static void name_file_place(const struct load *load, size_t option, char *ret_source)
{
    const struct gk_config_entry *file = &load->config->entries[load->program->options_count];
    uint32_t line = load->file.lines[option];

    if (line > 0) {
        (void)snprintf(ret_source, SOURCE_BYTES, "%s:%u", file->text, line);
    } else {
        (void)snprintf(ret_source, SOURCE_BYTES, "%s", file->text);
    }
}

static const char *default_of(const struct load *load, size_t option)
{
    const struct gk_program *program = load->program;
    const char *text = NULL;

    if (program->preset) {
        size_t by = gk_config_table_find(program, program->preset_by);

        if (by < option && load->config->entries[by].text) {
            text = program->preset(load->config->entries[by].text, program->options[option].name);
        }
    }
    return text ? text : program->options[option].default_text;
}

/* The last one counts. */
static const char *find_given(const struct load *load, const char *name)
{
    for (size_t i = load->args->given_count; i-- > 0;) {
        if (strcmp(load->args->given[i].name, name) == 0) {
            return load->args->given[i].text;
        }
    }
    return NULL;
}

static enum gk_err check_given_names(const struct load *load)
{
    for (size_t i = 0; i < load->args->given_count; i++) {
        const char *name = load->args->given[i].name;
        const char *nearest = gk_config_table_nearest(load->program, name);

        if (gk_config_table_find(load->program, name) == GK_CONFIG_NONE) {
            gk_words_set(load->words, "unknown setting '%s'%s%s%s", gk_shown(name).text,
                         nearest ? "; did you mean '" : "", nearest ? nearest : "",
                         nearest ? "'?" : "");
            return GK_E_CONFIG;
        }
    }
    return GK_OK;
}

/* The text in force and its source; NULL: unset. */
static const char *choose(const struct load *load, size_t option, char *ret_source)
{
    const struct gk_option *entry = &load->program->options[option];
    char variable[GK_CONFIG_VARIABLE_BYTES];

    if (load->flags.texts[option]) {
        (void)snprintf(ret_source, SOURCE_BYTES, "flag");
        return load->flags.texts[option];
    }
    for (size_t i = 0; !load->args->no_environment && gk_config_table_variable(entry, i, variable);
         i++) {
        const char *text = read_variable(variable);

        if (i > 0 && find_given(load, entry->name)) {
            break; /* RANK and its like were not set for us: the program knows better */
        }
        if (text) {
            (void)snprintf(ret_source, SOURCE_BYTES, "%s", variable);
            return text;
        }
    }
    if (load->file.texts && load->file.texts[option]) {
        name_file_place(load, option, ret_source);
        return load->file.texts[option];
    }
    if (find_given(load, entry->name)) {
        (void)snprintf(ret_source, SOURCE_BYTES, "given");
        return find_given(load, entry->name);
    }
    (void)snprintf(ret_source, SOURCE_BYTES, "default");
    return default_of(load, option);
}

static enum gk_err resolve(struct load *load, size_t option)
{
    const struct gk_option *entry = &load->program->options[option];
    unsigned char *target = (unsigned char *)load->values + entry->offset;
    char source[SOURCE_BYTES];
    const char *text = choose(load, option, source);
    unsigned char checked[GK_CONFIG_VALUE_BYTES];
    enum gk_err err;

    if (!text) {
        return remember(load, option, NULL, source);
    }
    if (gk_config_value_parse(entry, text, checked, load->words)) {
        load->exit = GK_EXIT_USAGE;
        if (strcmp(source, "flag") == 0) {
            gk_words_prefix(load->words, "--%s: ", entry->name);
        } else if (strcmp(source, "given") == 0) {
            gk_words_prefix(load->words, "%s: ", entry->name);
        } else {
            gk_words_prefix(load->words, "%s (%s): ", source, entry->name);
        }
        return GK_E_CONFIG;
    }
    err = remember(load, option, entry->type == GK_OPTION_BOOL ? gk_config_value_bool(text) : text,
                   source);
    if (err) {
        return err;
    }
    err = gk_config_value_parse(entry, load->config->entries[option].text, target, NULL);
    GK_ASSERT(err == GK_OK);
    return GK_OK;
}

static enum gk_err check_file_values(struct load *load)
{
    unsigned char value[GK_CONFIG_VALUE_BYTES];
    char place[SOURCE_BYTES];

    for (size_t i = 0; i < load->program->options_count; i++) {
        const struct gk_option *option = &load->program->options[i];
        const char *text = load->file.texts[i];

        if (text && gk_config_value_parse(option, text, value, load->words)) {
            name_file_place(load, i, place);
            gk_words_prefix(load->words, "%.200s: %s: ", place, option->name);
            return GK_E_CONFIG;
        }
    }
    return GK_OK;
}

static enum gk_err load_file(struct load *load)
{
    const char *path = load->flags.file;
    const char *source = "flag";
    enum gk_err err;

    if (path && !*path) {
        gk_words_set(load->words, "--config needs the name of a file");
        return GK_E_CONFIG;
    }
    if (!path) {
        path = read_variable("GKPS_CONFIG");
        source = path ? "GKPS_CONFIG" : "default";
    }
    err = remember(load, load->program->options_count, path, source);
    if (err || !path) {
        return err;
    }
    load->exit = GK_EXIT_CONFIG;
    err = gk_config_file_read(load->program, path, &load->file, load->words);
    return err ? err : check_file_values(load);
}

static enum gk_err print(struct load *load, enum gk_err printed)
{
    if (printed == GK_E_IO) {
        load->exit = GK_EXIT_IO;
        return printed;
    }
    /* A reader that has gone had enough of it. */
    load->exit = GK_EXIT_OK;
    return GK_E_HELP;
}

static enum gk_err load_all(struct load *load, int argc, char **argv)
{
    const struct gk_program *program = load->program;
    enum gk_err err = gk_config_flags_read(program, argc, argv, &load->flags, load->words);

    if (err) {
        return err;
    }
    load->config->command = load->flags.command;
    load->config->command_count = load->flags.command_count;
    if (load->flags.request == GK_CONFIG_HELP) {
        return print(load, gk_config_help_print(program, load->words));
    }
    if (load->flags.request == GK_CONFIG_VERSION) {
        return print(load, gk_config_version_print(program, load->words));
    }
    err = argc > 0 ? load_file(load) : remember(load, program->options_count, NULL, "default");
    err = err ? err : check_given_names(load);
    for (size_t i = 0; i < program->options_count && !err; i++) {
        err = resolve(load, i);
    }
    if (!err && load->flags.request == GK_CONFIG_PRINT) {
        err = print(load, gk_config_values_print(load->config, load->words));
    }
    return err;
}

enum gk_err gk_config_load(const struct gk_config_args *args, struct gk_config **ret_config,
                           int *ret_exit, struct gk_words *words)
{
    struct load load = {.program = args->program,
                        .values = args->values,
                        .args = args,
                        .exit = GK_EXIT_USAGE,
                        .words = words};
    enum gk_err err;

    GK_ASSERT(args->argc == 0 || args->given_count == 0);
    gk_config_table_check(args->program, args->values_bytes);
    memset(args->values, 0, args->values_bytes);
    load.config = new_config(args->program);
    if (!load.config) {
        gk_words_set(words, "%s", gk_err_text(GK_E_NOMEM));
        err = GK_E_NOMEM;
        goto out;
    }
    err = load_all(&load, args->argc, args->argv);
    if (err) {
        goto out;
    }
    load.config->positional = load.flags.positional;
    load.config->positional_count = load.flags.positional_count;
    load.flags.positional = NULL;
    load.exit = GK_EXIT_OK;
    *ret_config = load.config;
    load.config = NULL;
out:
    gk_config_file_fini(&load.file, args->program->options_count);
    gk_config_flags_fini(&load.flags);
    if (err) { /* the strings go with the config */
        memset(args->values, 0, args->values_bytes);
    }
    gk_config_free(load.config);
    *ret_exit = err == GK_E_NOMEM ? GK_EXIT_INTERNAL : load.exit;
    return err;
}

static const struct gk_config_entry *entry_of(const struct gk_config *config, const char *name)
{
    size_t entry = gk_config_table_find(config->program, name);

    if (entry == GK_CONFIG_NONE) {
        GK_ASSERT(strcmp(name, "config") == 0);
        entry = config->program->options_count;
    }
    return &config->entries[entry];
}

const char *gk_config_source(const struct gk_config *config, const char *name)
{
    return entry_of(config, name)->source;
}

static bool is_variable(const struct gk_config *config, const char *name, const char *source)
{
    const struct gk_option *option =
        &config->program->options[gk_config_table_find(config->program, name)];
    char variable[GK_CONFIG_VARIABLE_BYTES];

    for (size_t i = 0; gk_config_table_variable(option, i, variable); i++) {
        if (strcmp(variable, source) == 0) {
            return true;
        }
    }
    return false;
}

int gk_config_blame(const struct gk_config *config, const char *name, struct gk_words *words)
{
    const char *source = gk_config_source(config, name);

    if (strcmp(source, "given") == 0) {
        gk_words_prefix(words, "%s: ", name);
        return GK_EXIT_USAGE;
    }
    if (strcmp(source, "flag") == 0 || strcmp(source, "default") == 0) {
        gk_words_prefix(words, "--%s: ", name);
        return GK_EXIT_USAGE;
    }
    if (is_variable(config, name, source)) {
        gk_words_prefix(words, "%s (%s): ", source, name);
        return GK_EXIT_USAGE;
    }
    gk_words_prefix(words, "%.200s: %s: ", source, name);
    return GK_EXIT_CONFIG;
}

const char *gk_config_text(const struct gk_config *config, const char *name)
{
    return entry_of(config, name)->text;
}

size_t gk_config_positional(const struct gk_config *config, const char *const **ret_arguments)
{
    *ret_arguments = (const char *const *)config->positional;
    return config->positional_count;
}

size_t gk_config_command(const struct gk_config *config, char *const **ret_arguments)
{
    *ret_arguments = config->command;
    return config->command_count;
}

void gk_config_free(struct gk_config *config)
{
    if (!config) {
        return;
    }
    for (size_t i = 0; i <= config->program->options_count; i++) {
        free(config->entries[i].text);
        free(config->entries[i].source);
    }
    free(config->entries);
    free(config->positional);
    free(config);
}
