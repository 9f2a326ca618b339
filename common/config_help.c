/* Texts for people, made of the option table, so that they cannot differ from what is accepted.
 * What --print-config writes is a file for --config: an option without a value is a comment, and so
 * is the place behind each value. */
#include "common/config_internal.h"

#include "common/limits.h"
#include "common/stdout.h"

#include <stdio.h>
#include <string.h>

enum {
    HELP_COLUMNS = 80,
    HELP_INDENT = 26,       /* where explanations start */
    HELP_TEXT_BYTES = 1024, /* one explanation */
};

/* Words of the text, wrapped, from column `column` on; further lines are indented by `indent`. */
static void print_wrapped(const char *text, size_t column, size_t indent)
{
    bool line_empty = true;

    while (*text) {
        size_t length = strcspn(text, " ");

        if (!line_empty && column + 1 + length > HELP_COLUMNS) {
            (void)printf("\n%*s", (int)indent, "");
            column = indent;
            line_empty = true;
        }
        (void)printf("%s%.*s", line_empty ? "" : " ", (int)length, text);
        column += length + !line_empty;
        line_empty = false;
        text += length;
        text += strspn(text, " ");
    }
    (void)putchar('\n');
}

static void print_flag(const char *flag, const char *explanation)
{
    int width = printf("  %s", flag);
    size_t column = width > 0 ? (size_t)width : 0;

    if (column + 2 > HELP_INDENT) {
        (void)putchar('\n');
        column = 0;
    }
    (void)printf("%*s", (int)(HELP_INDENT - column), "");
    print_wrapped(explanation, HELP_INDENT, HELP_INDENT);
}

static void add_default(const struct gk_option *option, char *text, size_t bytes)
{
    size_t length = strlen(text);

    if (!option->default_text) {
        return;
    }
    (void)snprintf(text + length, bytes - length, " Default: %s.",
                   option->default_text[0] ? option->default_text : "empty");
}

static void add_variables(const struct gk_option *option, char *text, size_t bytes)
{
    char name[GK_CONFIG_VARIABLE_BYTES];

    for (size_t i = 1; gk_config_table_variable(option, i, name); i++) {
        size_t length = strlen(text);

        (void)snprintf(text + length, bytes - length, "%s %s", i == 1 ? " Also from" : ",", name);
    }
    if (option->env_also) {
        size_t length = strlen(text);

        (void)snprintf(text + length, bytes - length, ".");
    }
}

static void print_option(const struct gk_option *option)
{
    char flag[2 * GK_CONFIG_NAME_BYTES];
    char allowed[GK_CONFIG_ALLOWED_BYTES];
    char text[HELP_TEXT_BYTES];
    bool counted = option->min < 0 || option->min > 0 || option->max < 0 || option->max > 0;

    if (option->type == GK_OPTION_BOOL) {
        (void)snprintf(flag, sizeof(flag), "--[no-]%s", option->name);
    } else {
        (void)snprintf(flag, sizeof(flag), "--%s %s", option->name,
                       option->argument ? option->argument : "VALUE");
    }
    (void)snprintf(text, sizeof(text), "%s", option->help);
    if (option->type == GK_OPTION_CHOICE || option->type == GK_OPTION_BYTES || counted) {
        size_t length = strlen(text);

        gk_config_value_allowed(option, allowed, sizeof(allowed));
        (void)snprintf(text + length, sizeof(text) - length, " %s%s.",
                       option->type == GK_OPTION_CHOICE ? "Choices: " : "Takes ", allowed);
    }
    add_default(option, text, sizeof(text));
    add_variables(option, text, sizeof(text));
    print_flag(flag, text);
}

static void print_groups(const struct gk_program *program)
{
    const char *group = NULL;

    for (size_t i = 0; i < program->options_count; i++) {
        const struct gk_option *option = &program->options[i];
        const char *heading = option->group ? option->group : "Options";

        if (!group || strcmp(group, heading) != 0) {
            group = heading;
            (void)printf("\n%s:\n", group);
        }
        print_option(option);
    }
}

static void print_list(const struct gk_program *program)
{
    const char *name;
    const char *explanation;

    if (!program->list_entry) {
        return;
    }
    (void)printf("\n%s:\n", program->list_heading);
    for (size_t i = 0; program->list_entry(i, &name, &explanation); i++) {
        print_flag(name, explanation);
    }
}

enum gk_err gk_config_help_print(const struct gk_program *program, struct gk_words *words)
{
    char text[HELP_TEXT_BYTES];

    (void)printf("usage: %s %s\n", program->name, program->usage);
    if (program->summary) {
        (void)putchar('\n');
        print_wrapped(program->summary, 0, 0);
    }
    print_groups(program);
    print_list(program);
    (void)printf("\nCommon:\n");
    print_flag("--config FILE", "YAML file with options, one 'name: value' a line.");
    print_flag("--print-config", "Print the options in force, each with its source, and exit.");
    print_flag("--help, -h", "Print this text and exit.");
    print_flag("--version", "Print the version and exit.");
    (void)putchar('\n');
    (void)snprintf(
        text, sizeof(text),
        "Each option is also a variable, --log-format as GKPS_LOG_FORMAT, --config as GKPS_CONFIG "
        "(an empty one counts as not set), and a key of the file, log-format. A flag wins over a "
        "variable, a variable over the file, the file over the default. Of a flag given twice the "
        "last one counts. %s",
        program->command ? "What stands behind -- is the command, taken as it is."
                         : "Arguments behind -- are not flags.");
    print_wrapped(text, 0, 0);
    if (program->notes) {
        (void)printf("\n%s", program->notes);
        if (program->notes[0] && program->notes[strlen(program->notes) - 1] != '\n') {
            (void)putchar('\n');
        }
    }
    return gk_stdout_flush(stdout, words);
}

enum gk_err gk_config_version_print(const struct gk_program *program, struct gk_words *words)
{
    (void)printf("%s %s (protocol %d)\n", program->name, GK_VERSION, GK_PROTOCOL_VERSION);
    return gk_stdout_flush(stdout, words);
}

/* Plain where YAML reads the text back as it is, in double quotes where it might not. */
static void print_yaml(const char *text)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    size_t length = strlen(text);
    bool plain = length > 0 && strchr("@,=%:-+", text[0]) == NULL && text[length - 1] != ':';

    for (const char *at = text; *at && plain; at++) {
        plain = strchr(letters, *at) || strchr("._/+@,=%:-", *at);
    }
    if (plain) {
        (void)fputs(text, stdout);
        return;
    }
    (void)putchar('"');
    for (const char *at = text; *at; at++) {
        unsigned char c = (unsigned char)*at;

        if (c < 32 || c == 127) {
            (void)printf("\\x%02x", c);
        } else {
            (void)printf("%s%c", c == '"' || c == '\\' ? "\\" : "", c);
        }
    }
    (void)putchar('"');
}

static void print_entry(const char *name, const struct gk_config_entry *entry, bool in_file)
{
    /* What has no value, or no place in a file, is a comment: the output can be used as a file. */
    (void)printf("%s%s: ", entry->text && in_file ? "" : "# ", name);
    if (entry->text) {
        print_yaml(entry->text);
    } else {
        (void)fputs("unset", stdout);
    }
    (void)fputs("   # ", stdout);
    for (const char *at = entry->source; *at; at++) { /* a file's name may hold anything */
        (void)putchar((unsigned char)*at < 32 || *at == 127 ? '?' : *at);
    }
    (void)putchar('\n');
}

enum gk_err gk_config_values_print(const struct gk_config *config, struct gk_words *words)
{
    const struct gk_program *program = config->program;

    for (size_t i = 0; i < program->options_count; i++) {
        print_entry(program->options[i].name, &config->entries[i], true);
    }
    print_entry("config", &config->entries[program->options_count], false);
    for (size_t i = 0; i < config->command_count; i++) {
        (void)fputs(i == 0 ? "# command: " : " ", stdout);
        print_yaml(config->command[i]);
    }
    (void)fputs(config->command_count > 0 ? "   # behind --\n" : "", stdout);
    return gk_stdout_flush(stdout, words);
}
