/* The command line, one argument after the other, into one text an option; types and bounds come
 * later, with those of the other places.  A flag that is unknown or lacks its value is an error
 * that says what was probably meant.  --help and --version end the reading: who asks for them need
 * not know the rest. */
#include "common/config_internal.h"

#include "common/shown.h"

#include <stdlib.h>
#include <string.h>

struct reader {
    const struct gk_program *program;
    int argc;
    char **argv;
    int at; /* the argument being read */
    struct gk_config_flags flags;
    struct gk_words *words;
};

/* One argument that begins with "--", taken apart. */
struct flag {
    char name[GK_CONFIG_NAME_BYTES]; /* without "--"; cut when it is too long to be known */
    const char *value;               /* behind '='; NULL: none */
};

static void take_apart(const char *argument, struct flag *ret_flag)
{
    size_t length = strcspn(argument, "=");
    size_t kept = length < GK_CONFIG_NAME_BYTES ? length : GK_CONFIG_NAME_BYTES - 1;

    memcpy(ret_flag->name, argument, kept);
    ret_flag->name[kept] = '\0';
    ret_flag->value = argument[length] ? argument + length + 1 : NULL;
}

/* The value of a flag that needs one: behind '=', or the next argument.  One that looks like a flag
 * is more likely a forgotten value than a value. */
static enum gk_err take_value(struct reader *reader, const struct flag *flag, const char *argument,
                              const char **ret_value)
{
    const char *next;

    if (flag->value) {
        *ret_value = flag->value;
        return GK_OK;
    }
    next = reader->at + 1 < reader->argc ? reader->argv[reader->at + 1] : NULL;
    if (!next) {
        gk_words_set(reader->words, "--%s needs a value: --%s %s", flag->name, flag->name,
                     argument ? argument : "VALUE");
        return GK_E_CONFIG;
    }
    if (strncmp(next, "--", 2) == 0) {
        gk_words_set(reader->words,
                     "--%s needs a value but '%s' follows; a value like that is given as --%s=%s",
                     flag->name, gk_shown(next).text, flag->name, gk_shown(next).text);
        return GK_E_CONFIG;
    }
    reader->at++;
    *ret_value = next;
    return GK_OK;
}

static enum gk_err refuse_value(struct reader *reader, const struct flag *flag)
{
    gk_words_set(reader->words, "--%s takes no value", flag->name);
    return GK_E_CONFIG;
}

static enum gk_err refuse_unknown(struct reader *reader, const char *argument)
{
    const struct gk_program *program = reader->program;
    const char *name = argument + strspn(argument, "-");
    const char *nearest = NULL, *no = "";
    size_t distance = SIZE_MAX;
    struct flag flag;

    take_apart(name, &flag);
    for (size_t i = 0; i < GK_CONFIG_COMMON_COUNT; i++) {
        if (gk_config_table_nearer(flag.name, gk_config_common[i], &distance)) {
            nearest = gk_config_common[i];
        }
    }
    for (size_t i = 0; i < program->options_count; i++) {
        const struct gk_option *option = &program->options[i];

        if (gk_config_table_nearer(flag.name, option->name, &distance)) {
            nearest = option->name;
            no = "";
        }
        if (option->type == GK_OPTION_BOOL && strncmp(flag.name, "no-", 3) == 0 &&
            gk_config_table_nearer(flag.name + 3, option->name, &distance)) {
            nearest = option->name;
            no = "no-";
        }
    }
    if (nearest) {
        gk_words_set(reader->words, "unknown flag %s; did you mean --%s%s?",
                     gk_shown_part(argument, strcspn(argument, "=")).text, no, nearest);
    } else {
        gk_words_set(reader->words, "unknown flag %s; --help lists all",
                     gk_shown_part(argument, strcspn(argument, "=")).text);
    }
    return GK_E_CONFIG;
}

/* A flag that every program has; *ret_known says whether it was one. */
static enum gk_err read_common(struct reader *reader, const struct flag *flag, bool *ret_known)
{
    static const struct {
        const char *name;
        enum gk_config_request request;
    } requests[] = {
        {"help", GK_CONFIG_HELP},
        {"version", GK_CONFIG_VERSION},
        {"print-config", GK_CONFIG_PRINT},
    };

    *ret_known = true;
    if (strcmp(flag->name, "config") == 0) {
        return take_value(reader, flag, "FILE", &reader->flags.file);
    }
    for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
        if (strcmp(flag->name, requests[i].name) == 0) {
            reader->flags.request = requests[i].request;
            return flag->value ? refuse_value(reader, flag) : GK_OK;
        }
    }
    *ret_known = false;
    return GK_OK;
}

static enum gk_err read_flag(struct reader *reader)
{
    const struct gk_program *program = reader->program;
    struct flag flag;
    enum gk_err err;
    size_t option;
    bool known;

    take_apart(reader->argv[reader->at] + 2, &flag);
    err = read_common(reader, &flag, &known);
    if (err || known) {
        return err;
    }
    option = gk_config_table_find(program, flag.name);
    if (option != GK_CONFIG_NONE) {
        if (program->options[option].type == GK_OPTION_BOOL) {
            reader->flags.texts[option] = flag.value ? flag.value : "true";
            return GK_OK;
        }
        return take_value(reader, &flag, program->options[option].argument,
                          &reader->flags.texts[option]);
    }
    if (strncmp(flag.name, "no-", 3) == 0) {
        option = gk_config_table_find(program, flag.name + 3);
    }
    if (option == GK_CONFIG_NONE || program->options[option].type != GK_OPTION_BOOL) {
        return refuse_unknown(reader, reader->argv[reader->at]);
    }
    if (flag.value) {
        return refuse_value(reader, &flag);
    }
    reader->flags.texts[option] = "false";
    return GK_OK;
}

static enum gk_err read_positional(struct reader *reader)
{
    const char *argument = reader->argv[reader->at];

    if (reader->flags.positional_count >= reader->program->positional_max) {
        gk_words_set(reader->words, "unexpected argument '%s'; --help shows the usage",
                     gk_shown(argument).text);
        return GK_E_CONFIG;
    }
    reader->flags.positional[reader->flags.positional_count++] = argument;
    return GK_OK;
}

/* The rest of the line, whatever it looks like. */
static enum gk_err read_command(struct reader *reader)
{
    reader->at++;
    reader->flags.command = reader->argv + reader->at;
    reader->flags.command_count = (size_t)(reader->argc - reader->at);
    reader->at = reader->argc;
    if (reader->flags.command_count == 0) {
        gk_words_set(reader->words, "a command must follow behind --");
        return GK_E_CONFIG;
    }
    return GK_OK;
}

static enum gk_err read_all(struct reader *reader)
{
    enum gk_err err = GK_OK;
    bool flags_end = false;

    for (reader->at = 1; reader->at < reader->argc && !err; reader->at++) {
        const char *argument = reader->argv[reader->at];

        if (flags_end || argument[0] != '-' || argument[1] == '\0') {
            err = read_positional(reader);
        } else if (strcmp(argument, "--") == 0 && reader->program->command) {
            err = read_command(reader);
        } else if (strcmp(argument, "--") == 0) {
            flags_end = true;
        } else if (strcmp(argument, "-h") == 0) {
            reader->flags.request = GK_CONFIG_HELP;
        } else if (argument[1] != '-') {
            err = refuse_unknown(reader, argument);
        } else {
            err = read_flag(reader);
        }
        /* Help is for who does not know the flags: what follows cannot spoil it. */
        if (reader->flags.request == GK_CONFIG_HELP || reader->flags.request == GK_CONFIG_VERSION) {
            break;
        }
    }
    return err;
}

enum gk_err gk_config_flags_read(const struct gk_program *program, int argc, char **argv,
                                 struct gk_config_flags *ret_flags, struct gk_words *words)
{
    struct reader reader = {.program = program, .argc = argc, .argv = argv, .words = words};
    enum gk_err err = GK_E_NOMEM;

    reader.flags.texts = calloc(program->options_count + 1, sizeof(*reader.flags.texts));
    reader.flags.positional = calloc(program->positional_max + 1, sizeof(*reader.flags.positional));
    if (reader.flags.texts && reader.flags.positional) {
        err = read_all(&reader);
    } else {
        gk_words_set(words, "%s", gk_err_text(err));
    }
    if (err) {
        gk_config_flags_fini(&reader.flags);
        return err;
    }
    *ret_flags = reader.flags;
    return GK_OK;
}

void gk_config_flags_fini(struct gk_config_flags *flags)
{
    free(flags->texts);
    free(flags->positional);
    *flags = (struct gk_config_flags){0};
}
