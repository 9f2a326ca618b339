/* The file is parsed by libcyaml against a schema of one optional string an option, so that values
 * stay texts, and their types, bounds and places are treated as those of flags and variables.
 *
 * What libcyaml says of a failure is meant for its own log: the callback `hear` keeps its first
 * complaint and the innermost place, and `explain` makes one line of words of them.  Its line
 * numbers are those of what came before the error, so a key's line is looked up in the text. */
#include "common/config_internal.h"

#include "common/regular.h"
#include "common/shown.h"

#include <cyaml/cyaml.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPORT_BYTES = 256 };

/* What libcyaml said of a failure: its first complaint, and the place in its trace. */
struct report {
    char complaint[REPORT_BYTES];
    char key[REPORT_BYTES]; /* the field in whose value it stood; empty: none */
    unsigned line;          /* of the last thing that was read without complaint; 0: none */
};

struct loader {
    const struct gk_program *program;
    const char *path;
    char *bytes;
    size_t bytes_count;
    struct report report;
    struct gk_words *words;
};

static enum gk_err no_memory(struct loader *loader)
{
    gk_words_set(loader->words, "%.200s: %s", loader->path, gk_err_text(GK_E_NOMEM));
    return GK_E_NOMEM;
}

static enum gk_err read_bytes(struct loader *loader)
{
    FILE *file = NULL;
    enum gk_err err = GK_OK;

    loader->bytes = malloc(GK_CONFIG_FILE_BYTES_MAX + 1);
    if (!loader->bytes) {
        return no_memory(loader);
    }
    err = gk_regular_open(loader->path, &file, loader->words);
    if (err) {
        gk_words_prefix(loader->words, "%.200s: ", loader->path);
        return err == GK_E_NOMEM ? err : GK_E_CONFIG;
    }
    errno = 0;
    loader->bytes_count = fread(loader->bytes, 1, GK_CONFIG_FILE_BYTES_MAX + 1, file);
    if (ferror(file)) {
        gk_words_set(loader->words, "%.200s: cannot be read: %s", loader->path, strerror(errno));
        err = GK_E_CONFIG;
    } else if (loader->bytes_count > GK_CONFIG_FILE_BYTES_MAX) {
        gk_words_set(loader->words, "%.200s: larger than %d bytes: this is no configuration file",
                     loader->path, GK_CONFIG_FILE_BYTES_MAX);
        err = GK_E_CONFIG;
    }
    (void)fclose(file); /* nothing was written */
    return err;
}

/* "  in mapping field 'rank' (line: 3, column: 4)", or without a field; the first such line is the
 * innermost. */
static void hear_place(struct report *report, const char *text)
{
    static const char field[] = "  in mapping field '";
    static const char plain[] = "  in mapping (";
    static const char mark[] = "(line: ";
    const char *line;

    if (report->line > 0) {
        return;
    }
    if (strncmp(text, field, sizeof(field) - 1) == 0) {
        const char *key = text + sizeof(field) - 1;

        (void)snprintf(report->key, sizeof(report->key), "%.*s", (int)strcspn(key, "'"), key);
    } else if (strncmp(text, plain, sizeof(plain) - 1) != 0) {
        return;
    }
    line = strstr(text, mark);
    report->line = line ? (unsigned)strtoul(line + sizeof(mark) - 1, NULL, 10) : 0;
}

static void hear(cyaml_log_t level, void *context, const char *format, va_list args)
{
    struct report *report = context;
    char text[REPORT_BYTES];
    const char *at = text;
    size_t length;

    (void)level; /* the configuration asks for warnings and errors alone */
    (void)vsnprintf(text, sizeof(text), format, args);
    length = strcspn(text, "\n");
    text[length] = '\0';
    if (strncmp(at, "Load: ", 6) == 0) {
        at += 6;
    }
    if (strncmp(at, "Backtrace", 9) == 0) {
        return;
    }
    if (strncmp(at, "  in ", 5) == 0) {
        hear_place(report, at);
    } else if (!report->complaint[0]) {
        (void)snprintf(report->complaint, sizeof(report->complaint), "%s", at);
    }
}

/* "job.yaml:3: ", or "job.yaml: " when the line is not known. */
static void prefix_place(struct loader *loader, uint32_t line)
{
    if (line > 0) {
        gk_words_prefix(loader->words, "%.200s:%u: ", loader->path, line);
    } else {
        gk_words_prefix(loader->words, "%.200s: ", loader->path);
    }
}

static uint32_t line_of(const struct loader *loader, const char *key, uint32_t nth)
{
    return gk_config_lines_find(loader->bytes, loader->bytes_count, key, nth);
}

/* The text behind a known beginning of the complaint, or NULL. */
static const char *complaint_after(const struct loader *loader, const char *beginning)
{
    size_t length = strlen(beginning);
    const char *complaint = loader->report.complaint;

    return strncmp(complaint, beginning, length) == 0 ? complaint + length : NULL;
}

static void explain_key(struct loader *loader, const char *key)
{
    const char *nearest = gk_config_table_nearest(loader->program, key);

    if (nearest) {
        gk_words_set(loader->words, "unknown key '%s'; did you mean '%s'?", gk_shown(key).text,
                     nearest);
    } else {
        gk_words_set(loader->words, "unknown key '%s'; --help lists all", gk_shown(key).text);
    }
    prefix_place(loader, line_of(loader, key, 1));
}

/* libyaml names no problem when it had no memory, so that libcyaml prints a null pointer. */
static bool is_no_memory(const struct loader *loader, cyaml_err_t error)
{
    return error == CYAML_ERR_OOM || error == CYAML_ERR_LIBYAML_PARSER_INIT ||
           strcmp(loader->report.complaint, "libyaml: (null)") == 0;
}

/* One line of words from libcyaml's error.  Its line numbers are those of the thing before the
 * error, so keys are looked for in the text, and an error of YAML itself is said to stand "here or
 * below". */
static void explain(struct loader *loader, cyaml_err_t error)
{
    const struct report *report = &loader->report;
    const char *key = complaint_after(loader, "Unexpected key: ");
    const char *twice = complaint_after(loader, "Mapping field already seen: ");
    const char *yaml = complaint_after(loader, "libyaml: ");

    if (key) {
        explain_key(loader, key);
    } else if (twice) {
        gk_words_set(loader->words, "key '%.60s' is given twice", twice);
        prefix_place(loader, line_of(loader, twice, 2));
    } else if (yaml) {
        gk_words_set(loader->words, "not valid YAML%s: %s", report->line ? " here or below" : "",
                     yaml);
        prefix_place(loader, report->line);
    } else if (error == CYAML_ERR_ALIAS) {
        gk_words_set(loader->words, "%.60s: aliases (*name) are not supported here", report->key);
        prefix_place(loader, line_of(loader, report->key, 1));
    } else if (error == CYAML_ERR_INVALID_VALUE && report->key[0]) {
        gk_words_set(loader->words, "%.60s: one value is expected, not a list or a mapping",
                     report->key);
        prefix_place(loader, line_of(loader, report->key, 1));
    } else if (error == CYAML_ERR_INVALID_VALUE) {
        gk_words_set(loader->words, "lines of the form 'name: value' are expected");
        prefix_place(loader, 0);
    } else {
        gk_words_set(loader->words, "not understood%s: %s", report->line ? " here or below" : "",
                     report->complaint[0] ? report->complaint : cyaml_strerror(error));
        prefix_place(loader, report->line);
    }
}

/* One optional string an option, into an array of pointers. */
static cyaml_schema_field_t *new_fields(const struct gk_program *program)
{
    cyaml_schema_field_t *fields = calloc(program->options_count + 1, sizeof(*fields));

    for (size_t i = 0; fields && i < program->options_count; i++) {
        fields[i].key = program->options[i].name;
        fields[i].data_offset = (uint32_t)(i * sizeof(char *));
        fields[i].value.type = CYAML_STRING;
        fields[i].value.flags = (enum cyaml_flag)(CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL);
        fields[i].value.data_size = sizeof(char);
        fields[i].value.string.max = CYAML_UNLIMITED;
    }
    return fields; /* the last one, all zero, is the end mark */
}

static enum gk_err keep_texts(struct loader *loader, char **texts, struct gk_config_file *file)
{
    size_t count = loader->program->options_count;

    for (size_t i = 0; texts && i < count; i++) {
        if (!texts[i]) {
            continue;
        }
        file->texts[i] = strdup(texts[i]);
        if (!file->texts[i]) {
            return no_memory(loader);
        }
        file->lines[i] = line_of(loader, loader->program->options[i].name, 1);
    }
    return GK_OK;
}

static enum gk_err parse_bytes(struct loader *loader, struct gk_config_file *file)
{
    cyaml_schema_field_t *fields = new_fields(loader->program);
    cyaml_schema_value_t top = {
        .type = CYAML_MAPPING,
        .flags = CYAML_FLAG_POINTER,
        .data_size = (uint32_t)((loader->program->options_count + 1) * sizeof(char *)),
        .mapping = {.fields = fields},
    };
    cyaml_config_t config = {
        .log_fn = hear,
        .log_ctx = &loader->report,
        .mem_fn = cyaml_mem,
        .log_level = CYAML_LOG_WARNING,
        .flags = CYAML_CFG_NO_ALIAS,
    };
    char **texts = NULL;
    cyaml_err_t error;
    enum gk_err err;

    if (!fields) {
        return no_memory(loader);
    }
    error = cyaml_load_data((const uint8_t *)loader->bytes, loader->bytes_count, &config, &top,
                            (cyaml_data_t **)&texts, NULL);
    if (is_no_memory(loader, error)) {
        err = no_memory(loader);
    } else if (error) {
        explain(loader, error);
        err = GK_E_CONFIG;
    } else if (loader->report.complaint[0]) { /* a warning; libcyaml knows this one alone */
        gk_words_set(loader->words, "%.200s: more than one YAML document", loader->path);
        err = GK_E_CONFIG;
    } else {
        err = keep_texts(loader, texts, file);
    }
    (void)cyaml_free(&config, &top, texts, 0); /* fails for a broken schema only */
    free(fields);
    return err;
}

enum gk_err gk_config_file_read(const struct gk_program *program, const char *path,
                                struct gk_config_file *ret_file, struct gk_words *words)
{
    struct loader loader = {.program = program, .path = path, .words = words};
    struct gk_config_file file = {0};
    enum gk_err err;

    file.texts = calloc(program->options_count + 1, sizeof(*file.texts));
    file.lines = calloc(program->options_count + 1, sizeof(*file.lines));
    if (!file.texts || !file.lines) {
        err = no_memory(&loader);
        goto out;
    }
    err = read_bytes(&loader);
    if (err) {
        goto out;
    }
    err = parse_bytes(&loader, &file);
out:
    free(loader.bytes);
    if (err) {
        gk_config_file_fini(&file, program->options_count);
        return err;
    }
    *ret_file = file;
    return GK_OK;
}

void gk_config_file_fini(struct gk_config_file *file, size_t options_count)
{
    for (size_t i = 0; file->texts && i < options_count; i++) {
        free(file->texts[i]);
    }
    free(file->texts);
    free(file->lines);
    *file = (struct gk_config_file){0};
}
