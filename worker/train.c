#include "worker/train.h"

#include "common/exit.h"
#include "common/log.h"
#include "worker/include/gkps.h"
#include "worker/watch.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* What the library needs to know of the flags: every setting of its table, as it was resolved. */
static struct gkps_setting *list_settings(const struct gk_worker_options *options,
                                          size_t *ret_count)
{
    const struct gk_program *program = gk_worker_program();
    struct gkps_setting *list = calloc(program->options_count, sizeof(*list));
    size_t count = 0;

    for (size_t i = 0; list && i < program->options_count; i++) {
        const struct gk_option *option = &program->options[i];
        const char *text = gk_config_text(options->config, option->name);

        if (text && gk_worker_is_setting(option->name)) {
            list[count++] = (struct gkps_setting){.key = option->name, .value = text};
        }
    }
    *ret_count = count;
    return list;
}

static int open_library(const struct gk_worker_options *options, const struct gk_trainer *trainer,
                        struct gk_watch *watch, struct gkps **ret_gkps)
{
    size_t count;
    struct gkps_setting *settings = list_settings(options, &count);
    const struct gkps_config config = {.size = sizeof(config),
                                       .flags = GKPS_NO_ENVIRONMENT,
                                       .settings = settings,
                                       .settings_count = count,
                                       .ended = gk_watch_ended,
                                       .ended_context = watch,
                                       .device = gk_trainer_device(trainer),
                                       .arithmetic = gk_trainer_arithmetic(trainer)};
    int code = settings ? gkps_open(&config, ret_gkps) : GKPS_E_INTERNAL;

    free(settings);
    return code;
}

static int give_tensors(struct gkps *gkps, struct gk_trainer *trainer)
{
    uint32_t count;
    const struct gk_tensor *tensors = gk_trainer_tensors(trainer, &count);
    struct gkps_tensor *list = calloc(count, sizeof(*list));
    uint64_t(*dims)[GK_TENSOR_DIMS_MAX] = calloc(count, sizeof(*dims));
    uint64_t aux_count;
    float *aux = gk_trainer_aux(trainer, &aux_count);
    int code = GKPS_E_INTERNAL;

    if (list && dims) {
        for (uint32_t i = 0; i < count; i++) {
            for (uint32_t k = 0; k < tensors[i].dims_count; k++) {
                dims[i][k] = tensors[i].dims[k];
            }
            list[i] = (struct gkps_tensor){
                .size = sizeof(list[i]),
                .name = tensors[i].name,
                .dims = dims[i],
                .dims_count = tensors[i].dims_count,
                .flags = tensors[i].flags & GK_TENSOR_NO_DECAY ? GKPS_NO_DECAY : 0,
                .params = gk_trainer_params(trainer) + tensors[i].offset,
                .gradient = gk_trainer_gradient(trainer) + tensors[i].offset};
        }
        code = gkps_tensors(gkps, list, count);
    }
    if (!code && aux_count > 0) {
        code = gkps_aux(gkps, aux, aux_count * sizeof(*aux));
    }
    free(list);
    free(dims);
    return code;
}

static int initialise(void *context, char *words, size_t words_bytes)
{
    struct gk_words why;
    enum gk_err err = gk_trainer_initialise(context, &why);

    if (err) {
        (void)snprintf(words, words_bytes, "%s", why.text);
    }
    return err ? -1 : 0;
}

/* Rank 0 speaks for all: they opened the same. */
static void say_what_opened(struct gkps *gkps, const struct gk_trainer *trainer, bool speaks)
{
    const char *note = gk_trainer_data_note(trainer);
    struct gk_words words;

    gk_trainer_describe(trainer, &words);
    gk_log(GK_LOG_INFO, "WORKER-START", "%s", words.text);
    if (!speaks) {
        return;
    }
    (void)gkps_note(gkps, words.text);
    if (note[0]) {
        gk_log(GK_LOG_INFO, "WORKER-DATA", "%s", note);
        (void)gkps_note(gkps, note);
    }
}

static int evaluate(struct gkps *gkps, struct gk_trainer *trainer, uint64_t version)
{
    struct gk_trainer_result result;
    struct gk_words words;

    if (gk_trainer_evaluate(trainer, version, &result, &words)) {
        return gkps_fail(gkps, GK_EXIT_INTERNAL, words.text);
    }
    gk_log(GK_LOG_INFO, "WORKER-EVAL", "step %" PRIu64 ": test accuracy %.4f, loss %.4f", version,
           result.accuracy, result.loss);
    return gkps_report(gkps, result.accuracy, result.loss);
}

static bool is_due(const struct gk_worker_options *options, uint64_t version, bool last)
{
    return last || (options->eval_every > 0 && version > 0 && version % options->eval_every == 0);
}

/* From the version that is installed to the last one. */
static int train(struct gkps *gkps, const struct gk_worker_options *options,
                 struct gk_trainer *trainer, const struct gkps_start *start)
{
    uint64_t version = start->step;
    bool last = start->finished;
    int code = GKPS_OK;

    while (!code) {
        struct gk_trainer_result result;
        struct gk_words words;
        struct gkps_step step = {
            .size = sizeof(step), .flags = GKPS_SUM | GKPS_LOSS, .samples = options->batch};

        if (start->rank == 0 && is_due(options, version, last)) {
            code = evaluate(gkps, trainer, version);
        }
        if (code || last) {
            break;
        }
        if (gk_trainer_compute(trainer, version, &result, &words)) {
            return gkps_fail(gkps, GK_EXIT_INTERNAL, words.text);
        }
        step.loss = result.loss;
        code = gkps_step(gkps, &step);
        version = step.version;
        last = step.finished;
    }
    return code ? code : gkps_leave(gkps, 0);
}

static int run(struct gkps *gkps, const struct gk_worker_options *options,
               struct gk_trainer *trainer)
{
    struct gkps_start start = {
        .size = sizeof(start), .initialise = initialise, .initialise_context = trainer};
    struct gk_words words;
    int code = give_tensors(gkps, trainer);

    code = code ? code : gkps_start(gkps, &start);
    if (code) {
        return code;
    }
    if (start.left) {
        return GKPS_OK;
    }
    if (gk_trainer_set_rank(trainer, start.rank, &words)) {
        return gkps_fail(gkps, GK_EXIT_INTERNAL, words.text);
    }
    return train(gkps, options, trainer, &start);
}

/* Of the process; gkps_open() has left it where NULL finds it. */
static int exit_code_of(const struct gkps *gkps, int code)
{
    int exit_code;

    (void)gkps_error(gkps, &exit_code);
    return code == GKPS_OK ? GK_EXIT_OK : exit_code ? exit_code : GK_EXIT_INTERNAL;
}

/* The library has told the launcher, if there is one; else nobody knows yet. */
static void say_not_opened(const struct gk_worker_options *options)
{
    int exit_code;
    const char *words = gkps_error(NULL, &exit_code);

    gk_log(options->settings.launcher_fd > 0 ? GK_LOG_DEBUG : GK_LOG_ERROR, "WORKER-EXIT",
           "%s (exit code %d)", words[0] ? words : "no memory for the settings",
           exit_code ? exit_code : GK_EXIT_INTERNAL);
}

int gk_train(const struct gk_worker_options *options, uint32_t rank, struct gk_trainer *trainer)
{
    struct gkps *gkps = NULL;
    struct gk_watch *watch = NULL;
    int exit_code;
    int code;

    if (gk_watch_open(&watch)) {
        gk_log(GK_LOG_ERROR, "WORKER-EXIT", "no descriptor or thread left to watch for signals");
        return GK_EXIT_RETRY;
    }
    code = open_library(options, trainer, watch, &gkps);
    if (code) {
        say_not_opened(options);
    } else {
        gk_watch_handle(watch, gkps);
        say_what_opened(gkps, trainer, rank == 0);
        code = run(gkps, options, trainer);
    }
    exit_code = exit_code_of(gkps, code);
    gk_watch_close(watch);
    gkps_close(gkps);
    return exit_code;
}
