#include "worker/lib/handle.h"

#include "common/assert.h"
#include "common/exit.h"
#include "common/limits.h"
#include "common/log.h"
#include "common/net/clock.h"
#include "common/net/daemon.h"
#include "proto/spec.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MS = 1000 };

/* What is left of a wait that began at `since_us`; at least 1. */
static int64_t remaining_ms(int64_t timeout_ms, uint64_t since_us)
{
    int64_t gone_ms = (int64_t)((gk_now_us() - since_us) / MS);

    return timeout_ms > 0 ? (timeout_ms > gone_ms ? timeout_ms - gone_ms : 1) : 0;
}

static int timed_out(struct gkps *gkps, const char *call, int64_t timeout_ms)
{
    gk_words_set(&gkps->words,
                 "%s: not after %" PRId64 " ms; the log says whom it waits for, and the same wait "
                 "may go on",
                 call, timeout_ms);
    return gk_handle_fail(gkps, GKPS_E_TIMEOUT, GK_EXIT_PEER);
}

static int out_of(struct gkps *gkps, const char *what)
{
    gk_words_set(&gkps->words, "no memory for %s", what);
    return gk_handle_fail(gkps, GKPS_E_INTERNAL, GK_EXIT_INTERNAL);
}

/* Starting. */

static int check_bound(struct gkps *gkps)
{
    if (gkps->tensors_count == 0) {
        return gk_handle_misuse(gkps, "gkps_start: there is no model: gkps_tensors() first");
    }
    for (uint32_t i = 0; i < gkps->tensors_count; i++) {
        if (!gkps->tensors[i].params) {
            return gk_handle_misuse(gkps,
                                    "gkps_start: no memory is bound to the parameters of "
                                    "tensor %" PRIu32 " ('%s')",
                                    i, gkps->tensors[i].name);
        }
    }
    return GKPS_OK;
}

static void log_start(const struct gkps *gkps)
{
    const struct gk_spec *spec = gk_flat_spec(gkps->flat);

    gk_log(GK_LOG_INFO, "WORKER-MODEL",
           "model %s: %" PRIu64 " parameters in %" PRIu32 " tensors; %s at density %g, at most "
           "%" PRIu64 " entries a step; %s; %.1f MiB for gradient and residual",
           spec->model, spec->params_count, spec->tensors_count, gkps->options->settings.compressor,
           gkps->options->settings.density, spec->push_max, gk_flat_table(gkps->flat),
           2.0 * sizeof(float) * (double)spec->params_count / (1 << 20));
}

static enum gk_err open_engine(struct gkps *gkps, int *ret_exit)
{
    struct gk_engine *engine = NULL;
    enum gk_err err;

    gkps->engine_setup = (struct gk_engine_setup){
        .settings = gkps->place.values,
        .flat = gkps->flat,
        .addresses = &gkps->addresses,
        .rank = gkps->rank,
        .aux_bytes = gkps->aux_bytes,
        .arithmetic = gkps->arithmetic[0] ? gkps->arithmetic : NULL,
        .ended = gkps->ended,
        .ended_context = gkps->ended_context,
    };
    err = gk_engine_open(&gkps->engine_setup, &engine, ret_exit, &gkps->words);
    if (err) {
        return err;
    }
    atomic_store(&gkps->engine, engine);
    if (atomic_load(&gkps->stop_code)) {
        gk_engine_stop(engine, atomic_load(&gkps->stop_code));
    }
    for (uint32_t i = 0; i < gkps->notes_count; i++) {
        (void)gk_engine_note(engine, gkps->notes[i].text);
    }
    return GK_OK;
}

static int open_all(struct gkps *gkps)
{
    const struct gk_flat_setup setup = {.place = &gkps->place,
                                        .servers = gkps->addresses.count,
                                        .model = gkps->options->model,
                                        .tensors = gkps->tensors,
                                        .tensors_count = gkps->tensors_count};
    int code = check_bound(gkps);
    int exit_code = GK_EXIT_INTERNAL;
    enum gk_err err;

    if (code) {
        return code;
    }
    gkps->lists = calloc(gkps->tensors_count, sizeof(*gkps->lists));
    if (!gkps->lists) {
        return out_of(gkps, "a handle");
    }
    err = gk_flat_open(&setup, &gkps->flat, &exit_code, &gkps->words);
    if (err) {
        gk_daemon_early_death((int)gkps->options->settings.launcher_fd, "WORKER-EXIT", exit_code,
                              gkps->words.text);
        return gk_handle_fail(gkps, err == GK_E_NOMEM ? GKPS_E_INTERNAL : GKPS_E_CONFIG, exit_code);
    }
    log_start(gkps);
    err = open_engine(gkps, &exit_code);
    if (err) {
        return gk_handle_fail(gkps,
                              exit_code == GK_EXIT_RETRY      ? GKPS_E_RETRY
                              : exit_code == GK_EXIT_CONFIG   ? GKPS_E_STATE
                              : exit_code == GK_EXIT_INTERNAL ? GKPS_E_INTERNAL
                                                              : GKPS_E_CONFIG,
                              exit_code);
    }
    gkps->stage = GK_STAGE_STARTING;
    return GKPS_OK;
}

/* It may not call back: what it would begin is under way. */
static int call_initialise(struct gkps *gkps, const struct gkps_start *start, char *words,
                           size_t words_bytes)
{
    int failed;

    gkps->stage = GK_STAGE_INITIALISING;
    failed = start->initialise(start->initialise_context, words, words_bytes);
    gkps->stage = GK_STAGE_STARTING;
    return failed;
}

/* Rank 0 gives the parameters with which the job begins. */
static void make_init(struct gkps *gkps, const struct gkps_start *start)
{
    char words[GK_WORDS_BYTES] = "";
    uint64_t init_id;
    enum gk_err err;

    if (start->initialise && call_initialise(gkps, start, words, sizeof(words)) != 0) {
        words[sizeof(words) - 1] = '\0';
        gk_words_set(&gkps->words, "%s", words[0] ? words : "the initial parameters cannot be had");
        err = GK_E_NOTFOUND;
    } else {
        err = gk_flat_make_init(gkps->flat, &init_id, &gkps->words);
    }
    if (err) {
        gk_engine_fail(gkps->engine, err == GK_E_NOMEM ? GK_EXIT_INTERNAL : GK_EXIT_DATA,
                       &gkps->words);
    } else {
        gk_engine_init_made(gkps->engine, init_id);
    }
}

/* The rank takes part from here on. */
static void begin(struct gkps *gkps, const struct gk_engine_view *view, struct gkps_start *start)
{
    const void *aux = gk_engine_aux(gkps->engine);

    gkps->stage = GK_STAGE_READY;
    gkps->version = view->version;
    gkps->residuals_lost = view->residuals_lost;
    start->step = view->version;
    start->lost = view->residuals_lost > 0;
    start->resumed = gk_engine_remembers(gkps->engine) && !start->lost;
    start->finished = view->turn == GK_TURN_LAST;
    if (start->resumed && aux) {
        memcpy(gkps->aux, aux, gkps->aux_bytes);
    }
}

static int join(struct gkps *gkps, struct gkps_start *start)
{
    uint64_t since_us = gk_now_us();
    struct gk_engine_view view = {.turn = GK_TURN_INIT};

    while (view.turn == GK_TURN_INIT) {
        if (gk_engine_wait(gkps->engine, remaining_ms(start->timeout_ms, since_us), true)) {
            return timed_out(gkps, "gkps_start", start->timeout_ms);
        }
        gk_engine_view(gkps->engine, &view);
        if (view.turn == GK_TURN_INIT) {
            make_init(gkps, start);
        }
    }
    start->rank = view.rank;
    start->workers = (uint32_t)gkps->options->settings.workers;
    if (view.turn == GK_TURN_ENDED) {
        start->left = view.exit_code == GK_EXIT_OK;
        start->finished = start->left;
        start->step = view.version;
        return gk_handle_ended(gkps, &view);
    }
    begin(gkps, &view, start);
    return GKPS_OK;
}

int gkps_start(struct gkps *gkps, struct gkps_start *start)
{
    struct gkps_start given;
    int code = gk_handle_enter(gkps, "gkps_start", 1 << GK_STAGE_OPEN | 1 << GK_STAGE_STARTING);

    if (code) {
        return code;
    }
    if (!start || !gk_handle_take(&given, sizeof(given), sizeof(given), start)) {
        return gk_handle_misuse(gkps, "gkps_start: NULL, or a struct gkps_start of a size that "
                                      "this library does not know");
    }
    if (gkps->stage == GK_STAGE_OPEN) {
        code = open_all(gkps);
    }
    code = code ? code : join(gkps, &given);
    if (code == GKPS_OK) {
        memcpy(start, &given, given.size);
    }
    return code;
}

/* Steps. */

static int take_step(struct gkps *gkps, const char *call, const struct gkps_step *step,
                     struct gkps_step *ret)
{
    const uint32_t known = GKPS_SUM | GKPS_SKIP | GKPS_LR | GKPS_LOSS;

    if (!step || !gk_handle_take(ret, sizeof(*ret), sizeof(*ret), step)) {
        return gk_handle_misuse(gkps,
                                "%s: NULL, or a struct gkps_step of a size that this library does "
                                "not know",
                                call);
    }
    if (ret->flags & ~known || ret->reserved) {
        return gk_handle_misuse(gkps, "%s: a flag that this library does not know", call);
    }
    if (!(ret->flags & GKPS_SKIP) && ret->samples == 0) {
        return gk_handle_misuse(gkps,
                                "%s: step %" PRIu64 " has 0 samples; a rank that has nothing for a "
                                "step says GKPS_SKIP",
                                call, gkps->version);
    }
    ret->lr += 0.0; /* one form of 0: -0 is no rate on the wire */
    if (ret->flags & GKPS_LR && !gk_rate_good((float)ret->lr)) {
        return gk_handle_misuse(gkps, "%s: step %" PRIu64 ": a learning rate of %g", call,
                                gkps->version, ret->lr);
    }
    return GKPS_OK;
}

static int check_gradients(struct gkps *gkps, const char *call)
{
    for (uint32_t i = 0; i < gkps->tensors_count; i++) {
        const struct gk_flat_tensor *tensor = &gkps->tensors[i];

        if (!tensor->gradient && !(tensor->flags & GK_TENSOR_FROZEN)) {
            return gk_handle_misuse(
                gkps, "%s: no memory is bound to the gradient of tensor %" PRIu32 " ('%s')", call,
                i, tensor->name);
        }
    }
    return GKPS_OK;
}

static int finished(struct gkps *gkps, const char *call)
{
    struct gk_engine_view view;

    gk_engine_view(gkps->engine, &view);
    if (view.turn == GK_TURN_LAST) {
        return gk_handle_misuse(gkps,
                                "%s: step %" PRIu64 " was the last one of the setting steps: "
                                "gkps_leave()",
                                call, view.version - 1);
    }
    return GKPS_OK;
}

static void push(struct gkps *gkps, const struct gkps_step *step, const struct gk_flat_list *list,
                 bool installs)
{
    const struct gk_flat_step flat = {.step = gkps->version,
                                      .samples = step->samples,
                                      .mean = !(step->flags & GKPS_SUM),
                                      .skip = step->flags & GKPS_SKIP,
                                      .lr_given = step->flags & GKPS_LR,
                                      .lr = (float)step->lr,
                                      .list = list,
                                      .aux = gkps->aux ? gkps->aux_copy : NULL,
                                      .aux_bytes = gkps->aux_bytes};

    if (gkps->aux) {
        memcpy(gkps->aux_copy, gkps->aux, gkps->aux_bytes);
    }
    gkps->installs = installs;
    gkps->stage = GK_STAGE_PUSHED;
    gk_engine_step(gkps->engine, &flat, step->flags & GKPS_LOSS ? step->loss : (double)NAN);
}

static int begin_step(struct gkps *gkps, const char *call, const struct gkps_step *step,
                      bool installs)
{
    struct gkps_step given;
    int code = gk_handle_enter(gkps, call, 1 << GK_STAGE_READY);

    code = code ? code : take_step(gkps, call, step, &given);
    code = code ? code : finished(gkps, call);
    code = code || given.flags & GKPS_SKIP ? code : check_gradients(gkps, call);
    if (!code) {
        push(gkps, &given, NULL, installs);
    }
    return code;
}

static int end_step(struct gkps *gkps, const char *call, struct gkps_step *step)
{
    struct gk_engine_view view;

    if (gk_engine_wait(gkps->engine, step->timeout_ms, gkps->installs)) {
        return timed_out(gkps, call, step->timeout_ms);
    }
    gk_engine_view(gkps->engine, &view);
    if (view.turn == GK_TURN_ENDED) {
        return gk_handle_ended(gkps, &view);
    }
    gkps->stage = GK_STAGE_READY;
    gkps->version = view.version;
    step->version = view.version;
    step->selected = view.selected;
    step->lost = view.residuals_lost > gkps->residuals_lost;
    step->finished = view.turn == GK_TURN_LAST;
    gkps->residuals_lost = view.residuals_lost;
    return GKPS_OK;
}

int gkps_push(struct gkps *gkps, const struct gkps_step *step)
{
    return begin_step(gkps, "gkps_push", step, false);
}

int gkps_step(struct gkps *gkps, struct gkps_step *step)
{
    int code = begin_step(gkps, "gkps_step", step, true);

    return code ? code : end_step(gkps, "gkps_step", step);
}

int gkps_wait(struct gkps *gkps, struct gkps_step *step)
{
    struct gkps_step given;
    int code = gk_handle_enter(gkps, "gkps_wait", 1 << GK_STAGE_PUSHED);

    if (code) {
        return code;
    }
    if (!step || !gk_handle_take(&given, sizeof(given), sizeof(given), step)) {
        return gk_handle_misuse(gkps, "gkps_wait: NULL, or a struct gkps_step of a size that this "
                                      "library does not know");
    }
    return end_step(gkps, "gkps_wait", step);
}

int gkps_pull(struct gkps *gkps)
{
    int code = gk_handle_enter(gkps, "gkps_pull", 1 << GK_STAGE_READY);

    if (!code) {
        gk_engine_install(gkps->engine);
    }
    return code;
}

/* One list, against its tensor. */
static int take_list(struct gkps *gkps, uint32_t i, const struct gkps_sparse *given)
{
    const struct gk_flat_tensor *tensor = &gkps->tensors[i];

    if (given->count > 0 && (!given->indices || !given->values)) {
        return gk_handle_misuse(gkps, "gkps_push_sparse: tensor %" PRIu32 " ('%s'): NULL", i,
                                tensor->name);
    }
    for (uint64_t k = 0; k < given->count; k++) {
        const char *what = given->indices[k] >= tensor->count ? "is not in the tensor"
                           : k > 0 && given->indices[k] <= given->indices[k - 1] ? "does not rise"
                           : !isfinite(given->values[k]) ? "has a value that is not finite"
                                                         : NULL;

        if (what) {
            return gk_handle_misuse(gkps,
                                    "gkps_push_sparse: tensor %" PRIu32 " ('%s'): entry %" PRIu64
                                    ", index %" PRIu32 ", %s",
                                    i, tensor->name, k, given->indices[k], what);
        }
    }
    gkps->lists[i] =
        (struct gk_flat_list){.idx = given->indices, .val = given->values, .count = given->count};
    return GKPS_OK;
}

static int take_lists(struct gkps *gkps, const struct gkps_sparse *list)
{
    uint64_t push_max = gk_flat_spec(gkps->flat)->push_max;
    const char *at = (const char *)list;
    uint64_t n = 0;
    int code = GKPS_OK;

    if (!list) {
        return gk_handle_misuse(gkps, "gkps_push_sparse: the list is NULL");
    }
    for (uint32_t i = 0; i < gkps->tensors_count && !code; i++) {
        struct gkps_sparse given;

        if (!gk_handle_take(&given, sizeof(given), sizeof(given), at)) {
            return gk_handle_misuse(gkps,
                                    "gkps_push_sparse: list %" PRIu32 " has a size that this "
                                    "library does not know",
                                    i);
        }
        at += given.size;
        n += given.count;
        code = take_list(gkps, i, &given);
    }
    if (!code && n > push_max) {
        code = gk_handle_misuse(gkps,
                                "gkps_push_sparse: %" PRIu64 " entries, more than the %" PRIu64
                                " that the setting density allows",
                                n, push_max);
    }
    return code;
}

int gkps_push_sparse(struct gkps *gkps, const struct gkps_step *step,
                     const struct gkps_sparse *list)
{
    struct gkps_step given;
    int code = gk_handle_enter(gkps, "gkps_push_sparse", 1 << GK_STAGE_READY);

    code = code ? code : take_step(gkps, "gkps_push_sparse", step, &given);
    code = code ? code : finished(gkps, "gkps_push_sparse");
    code = code ? code : take_lists(gkps, list);
    if (!code) {
        push(gkps, &given, gkps->lists, false);
    }
    return code;
}

/* The rest. */

int gkps_leave(struct gkps *gkps, int64_t timeout_ms)
{
    struct gk_engine_view view;
    int code = gk_handle_enter(gkps, "gkps_leave",
                               1 << GK_STAGE_READY | 1 << GK_STAGE_LEAVING | 1 << GK_STAGE_LEFT);

    if (code || gkps->stage == GK_STAGE_LEFT) {
        return code;
    }
    if (gkps->stage == GK_STAGE_READY) {
        gk_engine_leave(gkps->engine);
        gkps->stage = GK_STAGE_LEAVING;
    }
    if (gk_engine_wait(gkps->engine, timeout_ms, false)) {
        return timed_out(gkps, "gkps_leave", timeout_ms);
    }
    gk_engine_view(gkps->engine, &view);
    GK_ASSERT(view.turn == GK_TURN_ENDED);
    return gk_handle_ended(gkps, &view);
}

static double seconds(uint64_t us)
{
    return (double)us / 1e6;
}

int gkps_stats(const struct gkps *gkps, struct gkps_stats *ret_stats)
{
    struct gk_engine_view view = {.version = 0};
    const struct gk_worker_report *report = &view.report;
    struct gkps_stats stats = {.size = sizeof(stats)};
    struct gk_engine *engine;

    if (!gkps || !ret_stats || ret_stats->size != sizeof(stats)) {
        return GKPS_E_ARGUMENT;
    }
    if (gkps->owner != getpid()) {
        return GKPS_E_FORKED;
    }
    engine = atomic_load(&gkps->engine);
    if (engine) {
        gk_engine_view(engine, &view);
    }
    stats.steps = report->steps;
    stats.samples = report->samples;
    stats.selected = report->selected;
    stats.bytes_pushed = report->bytes_pushed;
    stats.bytes_pulled = report->bytes_pulled;
    stats.bytes_headers = report->bytes_headers;
    stats.bytes_dense = gk_report_bytes_dense(report);
    stats.retries = view.stats.retries;
    stats.lost = view.stats.lost;
    stats.residuals_lost = view.stats.residuals_lost;
    stats.compute_s = seconds(report->compute_us);
    stats.select_s = seconds(report->select_us);
    stats.push_s = seconds(view.stats.push_us);
    stats.wait_s = seconds(view.stats.wait_us);
    stats.pull_s = seconds(view.stats.pull_us);
    *ret_stats = stats;
    return GKPS_OK;
}

int gkps_report(struct gkps *gkps, double accuracy, double loss)
{
    const unsigned stages = 1 << GK_STAGE_READY;
    int code = gk_handle_enter(gkps, "gkps_report", stages);
    struct gk_report_eval eval = {.accuracy = accuracy, .loss = loss};

    if (!code) {
        eval.step = gkps->version;
        gk_engine_eval(gkps->engine, &eval);
    }
    return code;
}

int gkps_note(struct gkps *gkps, const char *words)
{
    int code = gk_handle_enter(gkps, "gkps_note", (1u << GK_STAGE_LEFT) - 1); /* up to there */
    struct gk_words *notes;

    if (code) {
        return code;
    }
    if (!words) {
        return gk_handle_misuse(gkps, "gkps_note: NULL");
    }
    if (gkps->engine) {
        return gk_engine_note(gkps->engine, words) ? out_of(gkps, "a note") : GKPS_OK;
    }
    notes = realloc(gkps->notes, (gkps->notes_count + 1) * sizeof(*notes));
    if (!notes) {
        return out_of(gkps, "a note");
    }
    gkps->notes = notes;
    gk_words_set(&gkps->notes[gkps->notes_count++], "%s", words);
    return GKPS_OK;
}

int gkps_fail(struct gkps *gkps, int exit_code, const char *words)
{
    int code = gk_handle_enter(gkps, "gkps_fail",
                               1 << GK_STAGE_OPEN | 1 << GK_STAGE_READY | 1 << GK_STAGE_LEFT);
    struct gk_engine_view view = {.exit_code = exit_code ? exit_code : GK_EXIT_INTERNAL};

    if (code) {
        return code;
    }
    gk_words_set(&view.words, "%s", words ? words : "the program has failed");
    if (gkps->stage == GK_STAGE_READY) {
        gk_engine_fail(gkps->engine, view.exit_code, &view.words);
        (void)gk_engine_wait(gkps->engine, 0, false); /* it ends at once */
    } else if (gkps->stage == GK_STAGE_OPEN) {
        gk_daemon_early_death((int)gkps->options->settings.launcher_fd, "WORKER-EXIT",
                              view.exit_code, view.words.text);
    } else { /* the launcher has heard the last word of this rank */
        gk_log(GK_LOG_ERROR, "WORKER-EXIT", "%s (exit code %d)", view.words.text, view.exit_code);
    }
    return gk_handle_ended(gkps, &view);
}

void gkps_stop(struct gkps *gkps, int exit_code)
{
    struct gk_engine *engine;

    if (!gkps || gkps->owner != getpid()) {
        return; /* the wake-up of a child's copy would be one of the parent's thread */
    }
    atomic_store(&gkps->stop_code, exit_code ? exit_code : GK_EXIT_INTERNAL);
    engine = atomic_load(&gkps->engine);
    if (engine) {
        gk_engine_stop(engine, exit_code);
    }
}
