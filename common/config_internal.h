/* What the files of the configuration module share; nobody else includes this.
 *
 * config.c         loading: which place wins, where each value came from
 * config_table.c   the option table: look-up, names of variables, nearest name, its own check
 * config_value.c   one text into one typed value, and what is allowed in words
 * config_flags.c   the command line
 * config_file.c    the YAML file, by libcyaml
 * config_lines.c   on which line of the file a key stands
 * config_help.c    --help, --version, --print-config */
#ifndef GK_COMMON_CONFIG_INTERNAL_H
#define GK_COMMON_CONFIG_INTERNAL_H

#include "common/config.h"

#define GK_CONFIG_FILE_BYTES_MAX (1 << 20)
#define GK_CONFIG_NAME_BYTES 64                             /* of an option, with its terminator */
#define GK_CONFIG_VARIABLE_BYTES (GK_CONFIG_NAME_BYTES + 5) /* GKPS_NAME, or one of env_also */
#define GK_CONFIG_ALLOWED_BYTES 256
#define GK_CONFIG_VALUE_BYTES 8 /* the largest typed value */
#define GK_CONFIG_NONE SIZE_MAX

struct gk_config_entry {
    char *text;   /* as given (booleans: true, false); NULL: unset */
    char *source; /* "flag", "GKPS_RANK", "job.yaml:3", "default" */
};

struct gk_config {
    const struct gk_program *program;
    struct gk_config_entry *entries; /* one an option, and a last one for --config */
    const char **positional;
    size_t positional_count;
    char *const *command; /* in argv */
    size_t command_count;
};

enum gk_config_request { GK_CONFIG_RUN, GK_CONFIG_HELP, GK_CONFIG_VERSION, GK_CONFIG_PRINT };

struct gk_config_flags {
    const char **texts; /* one an option, into argv; NULL: not given */
    const char *file;   /* of --config */
    enum gk_config_request request;
    const char **positional; /* into argv */
    size_t positional_count;
    char *const *command; /* in argv, behind -- */
    size_t command_count;
};

struct gk_config_file {
    char **texts;    /* one an option; NULL: not given */
    uint32_t *lines; /* one an option; 0: not found */
};

/* The flags that every program has. */
enum { GK_CONFIG_COMMON_COUNT = 4 };
extern const char *const gk_config_common[GK_CONFIG_COMMON_COUNT];

/* Assert that the table makes sense: that is a matter of the program, not of its user. */
void gk_config_table_check(const struct gk_program *program, size_t values_bytes);

/* Position of the option, or GK_CONFIG_NONE. */
size_t gk_config_table_find(const struct gk_program *program, const char *name);

/* Write the name of variable `number` of the option: 0 is GKPS_NAME, then env_also.  False: there
 * are no more. */
bool gk_config_table_variable(const struct gk_option *option, size_t number, char *ret_name);

/* The option name nearest to what was written, or NULL when none is near. */
const char *gk_config_table_nearest(const struct gk_program *program, const char *name);

/* The like for one given name: true when `candidate` is nearer than *distance, which is updated. */
bool gk_config_table_nearer(const char *name, const char *candidate, size_t *distance);

/* Parse the text into *ret_value, whose type is the option's (a string is not copied).
 * GK_E_CONFIG: the words quote the text and say what is allowed, but not where it stood. */
enum gk_err gk_config_value_parse(const struct gk_option *option, const char *text, void *ret_value,
                                  struct gk_words *words);

/* "true" or "false" of a text that gk_config_value_parse accepts for a boolean. */
const char *gk_config_value_bool(const char *text);

/* What the option accepts, in words: "a whole number from 1 to 1024"; empty for strings. */
void gk_config_value_allowed(const struct gk_option *option, char *ret_text, size_t bytes);

/* Read the command line.  GK_E_CONFIG, GK_E_NOMEM.  On success to be freed with
 * gk_config_flags_fini. */
enum gk_err gk_config_flags_read(const struct gk_program *program, int argc, char **argv,
                                 struct gk_config_flags *ret_flags, struct gk_words *words);

void gk_config_flags_fini(struct gk_config_flags *flags);

/* Read the file; values stay texts.  GK_E_CONFIG, GK_E_NOMEM.  On success to be freed with
 * gk_config_file_fini. */
enum gk_err gk_config_file_read(const struct gk_program *program, const char *path,
                                struct gk_config_file *ret_file, struct gk_words *words);

void gk_config_file_fini(struct gk_config_file *file, size_t options_count);

/* The line (from 1) on which the top-level key stands for the nth time (from 1) in a YAML text; 0:
 * not found, as happens with unusual notations.  The text may be anything. */
uint32_t gk_config_lines_find(const char *text, size_t bytes, const char *key, uint32_t nth);

/* Write the text that was asked for to stdout.  Errors as gk_stdout_flush. */
enum gk_err gk_config_help_print(const struct gk_program *program, struct gk_words *words);
enum gk_err gk_config_version_print(const struct gk_program *program, struct gk_words *words);
enum gk_err gk_config_values_print(const struct gk_config *config, struct gk_words *words);

#endif
