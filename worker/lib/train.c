#include "worker/lib/handle.h"

#include "common/assert.h"
#include "common/exit.h"
#include "common/limits.h"
#include "common/log.h"
#include "common/net/daemon.h"
#include "proto/spec.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
    int code = GKPS_OK;

    for (uint32_t i = 0; i < gkps->tensors_count && !code; i++) {
        const struct gk_flat_tensor *tensor = &gkps->tensors[i];

        if (tensor->flags & GK_TENSOR_FROZEN) {
            continue;
        }
        code = tensor->gradient ? gk_handle_check_place(gkps, call, tensor->gradient, i)
                                : gk_handle_misuse(gkps,
                                                   "%s: no memory is bound to the gradient of "
                                                   "tensor %" PRIu32 " ('%s')",
                                                   call, i, tensor->name);
        code = code ? code : gk_handle_check_place(gkps, call, tensor->params, i);
    }
    return code;
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
    code = code ? code : gk_handle_settle(gkps);
    if (!code) {
        push(gkps, &given, NULL, installs);
    }
    return code;
}

static int end_step(struct gkps *gkps, const char *call, struct gkps_step *step)
{
    struct gk_engine_view view;

    if (gk_engine_wait(gkps->engine, step->timeout_ms, gkps->installs)) {
        return gk_handle_timed_out(gkps, call, step->timeout_ms);
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
    struct gk_engine_view view;

    code = code ? code : gk_handle_settle(gkps);
    if (!code && gk_engine_install(gkps->engine)) {
        (void)gk_engine_wait(gkps->engine, 0, false);
        gk_engine_view(gkps->engine, &view);
        code = gk_handle_ended(gkps, &view);
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
        return gk_handle_timed_out(gkps, "gkps_leave", timeout_ms);
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
        return gk_engine_note(gkps->engine, words) ? gk_handle_out_of(gkps, "a note") : GKPS_OK;
    }
    notes = realloc(gkps->notes, (gkps->notes_count + 1) * sizeof(*notes));
    if (!notes) {
        return gk_handle_out_of(gkps, "a note");
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
