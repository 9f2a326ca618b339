/* One option table per program drives its flags, its GKPS_* variables, its YAML file, --help and
 * --print-config.
 *
 * Which value counts, first to last:
 * - flag: --name VALUE or --name=VALUE; booleans --name and --no-name (or --name=false).  Of a flag
 *   given twice the last one counts; -- ends the flags;
 * - variable: GKPS_NAME with - as _, then the further names of `env_also` in order.  An empty
 *   variable counts as not set.  Variables that name no option are not looked at: they may be meant
 *   for another program;
 * - file, named by --config or, where there is a command line, by GKPS_CONFIG: `name: value`.  All
 *   its values are checked, also those that a flag or a variable overrides.  An empty value is an
 *   empty string;
 * - given: what the caller of a library says, where there is no command line; before the names of
 *   `env_also`, which others have set for purposes of their own;
 * - default: that which goes with the value of another option (`preset`), or that of the table.
 *
 * An unknown key, a value out of range or a choice that does not exist is an error that names key,
 * place (flag, variable, file:line) and what is allowed.  Booleans are true, yes, on, 1, false, no,
 * off, 0.
 *
 * Every program also has --help (-h), --version, --config FILE and --print-config, whose output can
 * serve as a file. */
#ifndef GK_COMMON_CONFIG_H
#define GK_COMMON_CONFIG_H

#include "common/err.h"
#include "common/words.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum gk_option_type {
    GK_OPTION_STRING, /* const char *, owned by the config; NULL: no default, nothing given */
    GK_OPTION_UINT,   /* uint64_t, within [min, max] */
    GK_OPTION_BYTES,  /* uint64_t, the same, with suffixes k, M, G (powers of 1024) */
    GK_OPTION_FLOAT,  /* double, within [min, max] */
    GK_OPTION_BOOL,   /* bool */
    GK_OPTION_CHOICE, /* uint32_t: position in `choices`, "a|b|c" */
};

struct gk_option {
    const char *name; /* "log-format" */
    enum gk_option_type type;
    size_t offset;            /* of the value in the program's options struct */
    const char *default_text; /* parsed like any other value; NULL: zero / NULL, shown as "unset" */
    const char *choices;      /* CHOICE only */
    double min, max;          /* UINT, BYTES, FLOAT; both 0: no bounds */
    const char *argument;     /* "FILE", "N"; shown in --help; NULL for BOOL */
    const char *help;         /* one sentence */
    const char *env_also; /* "RANK|SLURM_PROCID": further variables, after GKPS_NAME; may be NULL */
    const char *group;    /* heading in --help; options of one group stand together */
};

struct gk_program {
    const char *name;    /* "gkps-server", "gkps run" */
    const char *summary; /* one or two sentences under the usage line */
    const char *usage;   /* "[options]" */
    const char *notes;   /* printed at the end of --help: examples, exit codes; may be NULL */
    /* A list in --help that another module knows, such as the values of an option: its heading, and
     * name and explanation of entry i, false when there are no more.  May be NULL. */
    const char *list_heading;
    bool (*list_entry)(size_t i, const char **ret_name, const char **ret_explanation);
    const struct gk_option *options;
    size_t options_count;
    size_t positional_max; /* arguments that are no flags; more are an error */
    bool command; /* what stands behind -- is a command of the user's: gk_config_command() */
    /* Defaults that go with the value of one option, `preset_by`, which stands before them in the
     * table: the text for an option that nobody gave, or NULL: that of the table.  May be NULL. */
    const char *preset_by;
    const char *(*preset)(const char *value, const char *option);
};

/* A value that a program gives by a call: `name` of an option, text.  Borrowed for the load. */
struct gk_config_given {
    const char *name, *text;
};

/* What to load, and into what: `values`, `values_bytes` large.  A library has no command line
 * (argc 0), and what its caller gives counts after the variables. */
struct gk_config_args {
    const struct gk_program *program; /* borrowed for the config's life */
    int argc;
    char **argv; /* argv[0] is skipped; positional arguments are borrowed for the config's life */
    void *values;
    size_t values_bytes;
    const struct gk_config_given *given; /* given_count of them; argc must be 0 */
    size_t given_count;
    bool no_environment; /* variables are not looked at */
};

struct gk_config; /* owns the strings and remembers where each value came from */

/* Parse into the values, which this call zeroes first, and again when it fails.  Before threads
 * start: it reads the environment.
 * - GK_E_HELP: --help, --version or --print-config was given, its text went to stdout: exit 0.
 * - GK_E_CONFIG: `words` says what and where: exit 64 for a flag or a variable, 78 for the file.
 * - GK_E_NOMEM: exit 70.  GK_E_IO (stdout cannot be written): exit 74.
 *
 * *ret_exit is always set.  On success *ret_config is the caller's, to be freed last. */
enum gk_err gk_config_load(const struct gk_config_args *args, struct gk_config **ret_config,
                           int *ret_exit, struct gk_words *words);

/* Where the value of `name` (an option of the table, or "config") came from: "flag", "GKPS_RANK",
 * "SLURM_PROCID", "job.yaml:3", "given", "default".  "job.yaml" alone where an unusual notation
 * hides the line. */
const char *gk_config_source(const struct gk_config *config, const char *name);

/* A value that the program refuses after loading, alone or beside others: the place where it came
 * from is put before the words, as it is before the loader's own ("--rank: ", "SLURM_PROCID (rank):
 * ", "job.yaml:3: rank: ").  Returns the exit code that goes with the place: 78 for the file, else
 * 64. */
int gk_config_blame(const struct gk_config *config, const char *name, struct gk_words *words);

/* Positional arguments, at most positional_max. */
size_t gk_config_positional(const struct gk_config *config, const char *const **ret_arguments);

/* How many arguments stand behind --, and where they begin in argv; 0: there is no --.  Of a
 * program that takes a command; an -- with nothing behind it is an error (64). */
size_t gk_config_command(const struct gk_config *config, char *const **ret_arguments);

/* The value in force as text, as it was given (booleans: "true", "false"); NULL: unset.  Owned by
 * the config.  Lets a launcher pass values on, as --name=TEXT. */
const char *gk_config_text(const struct gk_config *config, const char *name);

void gk_config_free(struct gk_config *config);

#endif
