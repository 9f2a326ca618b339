/* `gkps run`: what lies around the launch: options, programs, the place of the summary, and what is
 * said at both ends. */
#include "tool/commands.h"

#include "common/exit.h"
#include "common/log.h"
#include "common/shown.h"
#include "common/stdout.h"
#include "common/tensors.h"
#include "tool/faults_judge.h"
#include "tool/json.h"
#include "tool/launch.h"
#include "tool/machine.h"
#include "tool/output.h"
#include "tool/run_command.h"
#include "tool/run_options.h"
#include "tool/run_state.h"
#include "tool/state_dir.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PROGRAM_BYTES = 4096, COMMAND_BYTES = 400 };

/* Beside this program, else by name in PATH. */
static void find_program(const char *name, char *ret, size_t ret_bytes)
{
    char self[PROGRAM_BYTES];
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    char *slash;
    int n = -1;

    self[length > 0 ? length : 0] = '\0';
    slash = strrchr(self, '/');
    if (slash) {
        *slash = '\0';
        n = snprintf(ret, ret_bytes, "%s/%s", self, name);
    }
    if (n < 0 || (size_t)n >= ret_bytes || access(ret, X_OK) != 0) {
        (void)snprintf(ret, ret_bytes, "%s", name);
    }
}

/* Standard error when the summary is for standard output. */
static int finish_output(FILE *out)
{
    struct gk_words words;

    /* A reader that has gone wanted no more; the training was not for it. */
    if (gk_stdout_flush(out, &words) != GK_E_IO) {
        return GK_EXIT_OK;
    }
    gk_log(GK_LOG_ERROR, "RUN-OUTPUT-FAILED", "what this run printed is not whole: %s", words.text);
    return GK_EXIT_IO;
}

static void announce_model(const struct gk_run_config *run, FILE *out)
{
    const struct gk_run_options *options = &run->options;

    (void)fprintf(
        out,
        "job %s: %s on %s, %s at density %s, %s at rate %s; %" PRIu64 " server%s, %" PRIu64
        " worker%s, %" PRIu64 " steps of %" PRIu64 " x %" PRIu64 " samples\n",
        options->job, gk_config_text(run->config, "model"), gk_shown(options->data).text,
        gk_config_text(run->config, "compressor"), gk_config_text(run->config, "density"),
        gk_config_text(run->config, "optimizer"), gk_config_text(run->config, "lr"),
        options->servers, options->servers == 1 ? "" : "s", options->workers,
        options->workers == 1 ? "" : "s", options->steps, options->workers, options->batch);
}

static void announce_command(const struct gk_run_config *run, FILE *out)
{
    const struct gk_run_options *options = &run->options;
    uint64_t cores = gk_machine_cores();
    uint64_t threads = cores / options->workers;
    char command[COMMAND_BYTES], given[COMMAND_BYTES];

    gk_run_command_text(run, command, sizeof(command));
    gk_run_command_options(run, given, sizeof(given));
    (void)fprintf(out, "job %s: %s; %" PRIu64 " server%s, %" PRIu64 " worker%s%s%s\n", options->job,
                  command, options->servers, options->servers == 1 ? "" : "s", options->workers,
                  options->workers == 1 ? "" : "s", given[0] ? ", " : "", given);
    if (!getenv("OMP_NUM_THREADS")) {
        (void)fprintf(out,
                      "OMP_NUM_THREADS=%" PRIu64 " for each worker (%" PRIu64 " cores, %" PRIu64
                      " workers); set it to choose\n",
                      threads > 0 ? threads : 1, cores, options->workers);
    }
}

static void announce(const struct gk_run_config *run, const struct gk_tally *tally, FILE *out)
{
    if (gk_run_is_command(run)) {
        announce_command(run, out);
    } else {
        announce_model(run, out);
    }
    if (tally->resumed) {
        (void)fprintf(out, "goes on at version %" PRIu64 ", from %s\n", tally->resumed_from,
                      gk_shown(run->options.state_dir).text);
    }
    (void)fflush(out);
}

static int save_summary(const struct gk_run_config *run, const struct gk_tally_total *total)
{
    json_t *config = gk_run_config_json(run);
    json_t *summary = config ? gk_tally_json(total, run->options.job, config) : NULL;
    bool whole =
        summary && json_object_set_new(summary, "machine", gk_machine_json(total->blas)) == 0;
    char *text = whole ? gk_json_dump(summary, true) : NULL;
    struct gk_words words;
    int code = GK_EXIT_OK;

    if (!text) {
        gk_log(GK_LOG_ERROR, "RUN-SUMMARY-FAILED", "no summary was written: out of memory");
        code = GK_EXIT_INTERNAL;
    } else {
        enum gk_err err = gk_output_write(run->options.summary, text, &words);

        if (err == GK_E_CLOSED) {
            code = GK_EXIT_SIGPIPE; /* whoever asked for it has gone: nobody to tell */
        } else if (err) {
            gk_log(GK_LOG_ERROR, "RUN-SUMMARY-FAILED", "no summary was written: %s", words.text);
            code = GK_EXIT_IO;
        }
    }
    free(text);
    json_decref(summary);
    json_decref(config);
    return code;
}

static void say_saved(const struct gk_run_options *options, FILE *out)
{
    struct gk_words words; /* on one line, whatever the name of the file */

    if (!options->summary) {
        (void)fprintf(out, "these numbers were not saved (--summary FILE keeps them)\n");
    } else if (strcmp(options->summary, "-") != 0) {
        gk_words_set(&words, "summary saved to %s", options->summary);
        (void)fprintf(out, "%s\n", words.text);
    }
}

/* The run went well: what it gave. */
static int finish(const struct gk_run_config *run, const struct gk_tally *tally, FILE *out)
{
    struct gk_tally_total total;
    int code = GK_EXIT_OK;

    gk_tally_total(tally, &total);
    if (!run->options.quiet) {
        gk_tally_print(&total, run->options.job, out);
    }
    if (!total.one_version) {
        gk_log(GK_LOG_ERROR, "RUN-VERSIONS",
               "the shards ended at different versions: there is no model hash");
        code = GK_EXIT_INTERNAL;
    }
    if (!total.balanced) {
        gk_log(GK_LOG_ERROR, "RUN-LEDGER",
               "pushes are not accounted for: %" PRIu64 " came, %" PRIu64 " applied, %" PRIu64
               " returned, %" PRIu64 " skipped, %" PRIu64 " lost",
               total.pushes, total.applied, total.returned, total.skipped, total.lost);
        code = GK_EXIT_INTERNAL;
    }
    if (run->options.summary) {
        int saved = save_summary(run, &total);

        code = code ? code : saved;
        if (saved) {
            return code;
        }
    }
    if (!run->options.quiet) {
        say_saved(&run->options, out);
    }
    return code ? code : finish_output(out);
}

/* Of a job that has nothing left to do: what its state says. */
static int tell_finished(const struct gk_run_config *run, struct gk_tally *tally, FILE *out)
{
    struct gk_words words;

    if (gk_run_state_tally(run, tally, &words) != GK_OK) {
        gk_log(GK_LOG_ERROR, "RUN-STATE", "%s", words.text);
        return GK_EXIT_CONFIG;
    }
    if (!run->options.quiet) {
        (void)fprintf(out, "job %s is finished; --fresh would begin it anew\n", run->options.job);
    }
    return finish(run, tally, out);
}

/* Whether it is of this model is for the worker to say, but most mistakes show before the start. */
static int check_init(const struct gk_run_options *options)
{
    struct gk_tensors *tensors;
    struct gk_words words;
    enum gk_err err = gk_tensors_read(options->init, &tensors, &words);

    if (err) {
        gk_log(GK_LOG_ERROR, "RUN-INIT", "--init: %s", words.text);
        return err == GK_E_NOMEM ? GK_EXIT_INTERNAL : GK_EXIT_DATA;
    }
    for (uint32_t i = 0; i < tensors->count && !err; i++) {
        const struct gk_tensors_entry *entry = &tensors->list[i];

        for (uint64_t k = 0; k < entry->count && !err; k++) {
            err = isfinite(entry->values[k]) ? GK_OK : GK_E_NONFINITE;
        }
        if (err) {
            gk_log(GK_LOG_ERROR, "RUN-INIT", "--init: %.200s: '%s' has values that are not finite",
                   options->init, entry->name);
        }
    }
    gk_tensors_free(tensors);
    return err ? GK_EXIT_DATA : GK_EXIT_OK;
}

/* No shard is there that might need no file any more: it can be judged before anything is made. */
static bool is_new(const struct gk_run_config *run)
{
    struct gk_state_content content;
    struct gk_words words;

    return !run->options.state_dir || run->options.fresh || run->replace ||
           gk_state_look(run->options.state_dir, &content, &words) != GK_OK || content.servers == 0;
}

static int run_launch(const struct gk_run_config *run, const struct gk_faults_stage *stage,
                      struct gk_tally *tally, FILE *out)
{
    char server[PROGRAM_BYTES], worker[PROGRAM_BYTES];
    struct gk_console console;
    const struct gk_launch_plan plan = {.run = run,
                                        .server_program = server,
                                        .worker_program = worker,
                                        .console = &console,
                                        .stage = stage};
    int code;

    find_program("gkps-server", server, sizeof(server));
    find_program("gkps-worker", worker, sizeof(worker));
    gk_console_init(&console, out);
    console.bar = console.bar && !stage; /* the log comes through another process */
    if (!run->options.quiet) {
        announce(run, tally, out);
    }
    code = gk_launch_run(&plan, tally);
    if (stage) {
        gk_faults_stage_result(stage, tally);
    }
    if (code == GK_EXIT_OK) {
        return finish(run, tally, out);
    }
    if (run->options.summary) {
        gk_log(GK_LOG_WARN, "RUN-SUMMARY-NONE", "no summary was written to %s",
               run->options.summary);
    }
    return code;
}

static int probe_summary(const struct gk_run_options *options)
{
    struct gk_words words;

    if (!options->summary || gk_output_probe(options->summary, &words) == GK_OK) {
        return GK_EXIT_OK;
    }
    gk_log(GK_LOG_ERROR, "RUN-SUMMARY-FAILED", "%s%s", words.text,
           strstr(words.text, "no regular file") ? " (for a pipe: --summary -)" : "");
    return GK_EXIT_CONFIG;
}

static int run_job(const struct gk_run_config *run, const struct gk_faults_stage *stage)
{
    const struct gk_run_options *options = &run->options;
    bool summary_to_stdout = options->summary && strcmp(options->summary, "-") == 0;
    FILE *out = summary_to_stdout ? stderr : stdout;
    struct gk_run_state state = {.lock = -1};
    struct gk_tally tally;
    struct gk_words words;
    bool early = options->init && is_new(run);
    int code = early ? check_init(options) : GK_EXIT_OK;

    if (code) {
        return code;
    }
    if (probe_summary(options) != GK_EXIT_OK) {
        return GK_EXIT_CONFIG;
    }
    if (gk_tally_init(&tally, (uint32_t)options->servers, (uint32_t)options->workers) != GK_OK) {
        gk_log(GK_LOG_ERROR, "RUN-START-FAILED", "out of memory");
        return GK_EXIT_INTERNAL;
    }
    tally.uneven = gk_run_is_command(run);
    tally.steps = tally.uneven && !gk_run_given(run, "steps") ? 0 : options->steps;
    if (options->state_dir &&
        gk_run_state_open(run, options->quiet ? NULL : out, &state, &code, &words) != GK_OK) {
        gk_log(GK_LOG_ERROR, "RUN-STATE", "%s", words.text);
    } else if (probe_summary(options) != GK_EXIT_OK) {
        code = GK_EXIT_CONFIG; /* a name in the folder that is one of the state since then */
    } else if (state.finished) {
        code = tell_finished(run, &tally, out);
    } else {
        struct gk_run_config here = *run;

        tally.resumed = state.begun;
        tally.resumed_from = state.version;
        if (state.whole) {
            here.options.init = NULL; /* the file may be gone by now */
        }
        code = here.options.init && !early ? check_init(&here.options) : GK_EXIT_OK;
        code = code ? code : run_launch(&here, stage, &tally, out);
    }
    gk_run_state_close(&state);
    gk_tally_fini(&tally);
    return code;
}

static int launch_stage(void *context, const struct gk_faults_stage *stage)
{
    struct gk_run_config run = *(const struct gk_run_config *)context;

    if (!stage->faults) { /* the undisturbed run is a means, not an end */
        run.options.state_dir = NULL;
        run.options.quiet = true;
        run.options.summary = NULL;
    }
    return run_job(&run, stage);
}

/* What was made for a script that went well. */
static void remove_temporary(const char *dir)
{
    char lock[GK_STATE_PATH_BYTES];
    struct gk_words words;

    (void)snprintf(lock, sizeof(lock), "%s/" GK_STATE_LOCK, dir);
    if (gk_state_remove(dir, &words) != GK_OK) {
        gk_log(GK_LOG_WARN, "RUN-STATE", "%s", words.text);
    }
    (void)unlink(lock);
    (void)rmdir(dir);
}

static int run_script(struct gk_run_config *run)
{
    const struct gk_faults_trial trial = {.faults = run->faults,
                                          .launch = launch_stage,
                                          .context = run,
                                          .state_dir = run->options.state_dir,
                                          .out = run->options.quiet ? NULL : stdout};

    int code = gk_faults_judge(&trial);

    if (run->temporary_state[0] && code == GK_EXIT_OK) {
        remove_temporary(run->temporary_state);
    } else if (run->temporary_state[0]) {
        gk_log(GK_LOG_WARN, "RUN-STATE", "the state of the daemons is kept in %s",
               run->temporary_state);
    }
    return code;
}

int gk_tool_run(int argc, char **argv)
{
    struct gk_run_config run;
    struct gk_words words;
    int code = GK_EXIT_USAGE;
    enum gk_err err = gk_run_config_load(&run, argc, argv, &code, &words);

    if (err == GK_E_HELP) {
        return GK_EXIT_OK;
    }
    if (err) {
        (void)fprintf(stderr, "gkps run: %s\n", words.text);
        return code;
    }
    (void)signal(SIGPIPE,
                 SIG_IGN); /* a reader of our output that goes away does not end the training */
    gk_log_open("gkps", (enum gk_log_format)run.options.log_format,
                (enum gk_log_level)run.options.log_level, STDERR_FILENO);
    code = run.faults ? run_script(&run) : run_job(&run, NULL);
    gk_run_config_fini(&run);
    return code;
}
