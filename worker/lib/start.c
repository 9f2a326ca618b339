#include "worker/lib/handle.h"

#include "common/exit.h"
#include "common/log.h"
#include "common/net/clock.h"
#include "common/net/daemon.h"
#include "proto/spec.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MS = 1000 };

/* What is left of a wait that began at `since_us`; at least 1. */
static int64_t remaining_ms(int64_t timeout_ms, uint64_t since_us)
{
    int64_t gone_ms = (int64_t)((gk_now_us() - since_us) / MS);

    return timeout_ms > 0 ? (timeout_ms > gone_ms ? timeout_ms - gone_ms : 1) : 0;
}

static int check_bound(struct gkps *gkps)
{
    int code;

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
        code = gk_handle_check_place(gkps, "gkps_start", gkps->tensors[i].params, i);
        code =
            code ? code : gk_handle_check_place(gkps, "gkps_start", gkps->tensors[i].gradient, i);
        if (code) {
            return code;
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
    struct gk_words words;
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
    err = gk_engine_open(&gkps->engine_setup, &engine, ret_exit, &words);
    if (err) {
        gkps->words = words; /* which are of failures alone */
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
    struct gk_words words;
    enum gk_err err;

    if (code) {
        return code;
    }
    gkps->lists = calloc(gkps->tensors_count, sizeof(*gkps->lists));
    if (!gkps->lists) {
        return gk_handle_out_of(gkps, "a handle");
    }
    err = gk_flat_open(&setup, &gkps->flat, &exit_code, &words);
    if (err) {
        gkps->words = words;
        gk_daemon_early_death((int)gkps->options->settings.launcher_fd, "WORKER-EXIT", exit_code,
                              gkps->words.text);
        return gk_handle_fail(gkps, exit_code == GK_EXIT_INTERNAL ? GKPS_E_INTERNAL : GKPS_E_CONFIG,
                              exit_code);
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
    enum gk_err err = GK_OK;

    if (start->initialise && call_initialise(gkps, start, words, sizeof(words)) != 0) {
        words[sizeof(words) - 1] = '\0';
        gk_words_set(&gkps->words, "%s", words[0] ? words : "the initial parameters cannot be had");
        err = GK_E_NOTFOUND;
    } else if (gkps->bound_on_device) {
        err = gk_flat_settle(gkps->flat, gkps->stream, &gkps->words);
    }
    err = err ? err : gk_flat_make_init(gkps->flat, &init_id, &gkps->words);
    if (err) {
        gk_engine_fail(gkps->engine,
                       err == GK_E_NOMEM || err == GK_E_IO ? GK_EXIT_INTERNAL : GK_EXIT_DATA,
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
            return gk_handle_timed_out(gkps, "gkps_start", start->timeout_ms);
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
    /* What the program's stream still does to its parameters must not meet those of the job. */
    code = code ? code : gk_handle_settle(gkps);
    code = code ? code : join(gkps, &given);
    if (code == GKPS_OK) {
        memcpy(start, &given, given.size);
    }
    return code;
}
