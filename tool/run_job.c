#include "tool/run_job.h"

#include "common/regular.h"
#include "common/shown.h"
#include "tool/json.h"
#include "tool/output.h"
#include "tool/run_command.h"
#include "tool/state_dir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whatever has a say in which model comes out. */
const char *const gk_run_job_options[] = {
    "job",        "servers",      "workers",   "model",      "data",     "steps",  "batch",
    "compressor", "density",      "optimizer", "lr",         "momentum", "beta1",  "beta2",
    "epsilon",    "weight-decay", "schedule",  "milestones", "lr-gamma", "lr-min", "warmup",
    "seed",       "nonfinite",    "clip",      "init",
};
const size_t gk_run_job_options_count = sizeof(gk_run_job_options) / sizeof(gk_run_job_options[0]);

static bool is_of_the_job(const char *name)
{
    for (size_t i = 0; i < gk_run_job_options_count; i++) {
        if (strcmp(gk_run_job_options[i], name) == 0) {
            return true;
        }
    }
    return false;
}

static enum gk_err take_options(json_t *options, const char *path, struct gk_args *ret_args,
                                struct gk_words *words)
{
    const char *name;
    json_t *value;

    if (!json_is_object(options)) {
        gk_words_set(words, "%.200s: there are no options in it", path);
        return GK_E_CORRUPT;
    }
    json_object_foreach(options, name, value)
    {
        if (!is_of_the_job(name) || !json_is_string(value)) {
            gk_words_set(words, "%.200s: '%.60s' is no option of a job", path, name);
            return GK_E_CORRUPT;
        }
        gk_args_add(ret_args, "--%s=%s", name, json_string_value(value));
    }
    return ret_args->failed ? GK_E_NOMEM : GK_OK;
}

static enum gk_err take_command(const json_t *command, const char *path, struct gk_args *ret_args,
                                struct gk_words *words)
{
    size_t i;
    json_t *word;

    if (!command || json_is_null(command)) {
        return GK_OK;
    }
    if (!json_is_array(command) || json_array_size(command) == 0) {
        gk_words_set(words, "%.200s: 'command' is no list of words", path);
        return GK_E_CORRUPT;
    }
    gk_args_add(ret_args, "--");
    json_array_foreach(command, i, word)
    {
        if (!json_is_string(word)) {
            gk_words_set(words, "%.200s: 'command' is no list of words", path);
            return GK_E_CORRUPT;
        }
        gk_args_add(ret_args, "%s", json_string_value(word));
    }
    return ret_args->failed ? GK_E_NOMEM : GK_OK;
}

enum gk_err gk_run_job_read(const char *dir, struct gk_args *ret_args, struct gk_words *words)
{
    char path[GK_STATE_PATH_BYTES];
    json_error_t error;
    json_t *object;
    FILE *file;
    enum gk_err err;

    (void)snprintf(path, sizeof(path), "%s/%s", dir, GK_STATE_JOB);
    err = gk_regular_open(path, &file, words);
    if (err) {
        gk_words_prefix(words, "%.200s: ", path);
        return err;
    }
    object = json_loadf(file, JSON_REJECT_DUPLICATES, &error);
    (void)fclose(file); /* nothing was written */
    if (!object) {
        gk_words_set(words,
                     "%.200s is damaged, line %d: %s; a copy of it would help, or to remove it and "
                     "give the options of the job again",
                     path, error.line, error.text);
        return GK_E_CORRUPT;
    }
    err = take_options(json_object_get(object, "options"), path, ret_args, words);
    err = err ? err : take_command(json_object_get(object, "command"), path, ret_args, words);
    json_decref(object);
    return err;
}

/* The text to be kept; NULL: none, for it is not a part of the job. */
static const char *text_of(const struct gk_run_config *run, const char *name)
{
    static const char *const always[] = {"servers", "workers"};
    bool kept = !gk_run_is_command(run) || gk_run_given(run, name);

    if (strcmp(name, "job") == 0) {
        return run->options.job;
    }
    for (size_t i = 0; i < sizeof(always) / sizeof(always[0]); i++) {
        kept = kept || strcmp(name, always[i]) == 0;
    }
    return kept ? gk_config_text(run->config, name) : NULL;
}

enum gk_err gk_run_job_write(const struct gk_run_config *run, struct gk_words *words)
{
    json_t *options = json_object();
    json_t *object = json_pack("{s:s, s:o}", "gkps", GK_VERSION, "options", options);
    char path[GK_STATE_PATH_BYTES];
    bool whole = object != NULL;
    char *text = NULL;
    enum gk_err err = GK_E_NOMEM;

    for (size_t i = 0; i < gk_run_job_options_count && whole; i++) {
        const char *name = gk_run_job_options[i];
        const char *value = text_of(run, name);

        whole = !value || json_object_set_new(options, name, gk_json_string(value)) == 0;
    }
    if (whole && gk_run_is_command(run)) {
        whole = json_object_set_new(object, "command", gk_run_command_json(run)) == 0;
    }
    (void)snprintf(path, sizeof(path), "%s/%s", run->options.state_dir, GK_STATE_JOB);
    text = whole ? gk_json_dump(object, true) : NULL;
    if (text) {
        err = gk_output_write(path, text, words);
    } else {
        gk_words_set(words, "%s", gk_err_text(err));
    }
    free(text);
    json_decref(object);
    return err;
}

const char *gk_run_job_differs(const struct gk_run_config *run, const struct gk_run_config *stored)
{
    json_t *wanted = gk_run_config_json(run), *there = gk_run_config_json(stored);
    const char *differs = NULL;

    if (gk_run_is_command(run) &&
        !json_equal(json_object_get(wanted, "command"), json_object_get(there, "command"))) {
        differs = "command";
    }
    for (size_t i = 0; i < gk_run_job_options_count && !differs; i++) {
        const char *name = gk_run_job_options[i];

        if (gk_run_given(run, name) &&
            !json_equal(json_object_get(wanted, name), json_object_get(there, name))) {
            differs = name;
        }
    }
    json_decref(wanted);
    json_decref(there);
    return differs;
}

void gk_run_job_refuse(const struct gk_run_config *run, const struct gk_run_config *stored,
                       const char *differs, struct gk_words *words)
{
    char there[GK_SHOWN_BYTES + 4], wanted[GK_SHOWN_BYTES + 4];
    const char *text;

    if (strcmp(differs, "command") == 0) {
        gk_run_command_text(stored, there, sizeof(there));
        gk_run_command_text(run, wanted, sizeof(wanted));
        gk_words_set(words,
                     "%.100s holds the job '%s' of %s, not of %s: another --state-dir would help, "
                     "or --fresh, which removes it",
                     run->options.state_dir, stored->options.job,
                     there[0] ? there : "a built-in model", wanted);
        return;
    }
    text = gk_run_is_command(stored) && !gk_run_given(stored, differs)
               ? NULL
               : gk_config_text(stored->config, differs);
    gk_words_set(words,
                 "%.100s holds the job '%s' with --%s %.60s, not %.60s: another --state-dir would "
                 "help, or --fresh, which removes it",
                 run->options.state_dir, stored->options.job, differs, text ? text : "unset",
                 gk_config_text(run->config, differs));
}
