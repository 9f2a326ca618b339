#include "worker/lib/engine.h"

#include "common/exit.h"
#include "common/limits.h"
#include "common/net/clock.h"
#include "common/net/compute.h"
#include "common/net/timer.h"
#include "worker/lib/engine_internal.h"
#include "worker/lib/forks.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static enum gk_err open_sockets(struct gk_engine *engine, struct gk_words *words)
{
    const struct gk_addresses *addresses = engine->setup->addresses;
    struct gk_zsock_pair pair = {.us = engine->config.rank};
    const struct gk_zsock_pair *faults = engine->setup->settings->allow_faults ? &pair : NULL;
    enum gk_err err = GK_OK;

    engine->zmq = gk_net_context();
    engine->peers = calloc(addresses->count, sizeof(*engine->peers));
    if (!engine->zmq || !engine->peers) {
        gk_words_set(words, "no memory for sockets");
        return GK_E_NOMEM;
    }
    for (uint32_t i = 0; i < addresses->count && !err; i++) {
        engine->peers[i].engine = engine;
        pair.peer = i;
        engine->peers[i].shard = i;
        engine->peers_count = i + 1;
        err = gk_zsock_open(&(struct gk_zsock_setup){.loop = &engine->loop,
                                                     .zmq = engine->zmq,
                                                     .type = GK_ZSOCK_DEALER,
                                                     .address = addresses->list[i],
                                                     .callbacks = &gk_engine_socket_callbacks,
                                                     .context = &engine->peers[i],
                                                     .faults = faults},
                            &engine->peers[i].zsock, words);
    }
    return err;
}

static enum gk_err open_core(struct gk_engine *engine, struct gk_words *words)
{
    const struct gk_engine_setup *setup = engine->setup;
    struct gk_worker_config *config = &engine->config;
    const struct gk_spec *spec = gk_flat_spec(setup->flat);
    size_t spec_bytes;
    enum gk_err err;

    config->job = setup->settings->job;
    config->addresses = setup->addresses->list;
    config->servers = setup->addresses->count;
    config->workers = (uint32_t)setup->settings->workers;
    config->rank = setup->rank;
    config->spec = spec;
    (void)gk_flat_spec_bytes(setup->flat, &spec_bytes, &config->spec_hash);
    config->model_signature = gk_spec_model_signature(spec);
    config->takeover = setup->settings->takeover;
    config->deadline_us = setup->settings->deadline_s * 1000 * 1000;
    config->evaluates = true;
    config->sums = spec->optimizer == GK_OPTIMIZER_NONE;
    err = gk_random_bytes(&config->seed, sizeof(config->seed));
    err = err ? err : gk_worker_new(config, &engine->core);
    err = err ? err : gk_worker_actions_new(config->servers, &engine->actions);
    if (err) {
        gk_words_set(words, "cannot start: %s", gk_err_text(err));
    }
    return err;
}

static enum gk_err open_shared(struct gk_engine *engine, struct gk_words *words)
{
    struct gk_engine_shared *shared = &engine->shared;
    const struct gk_spec *spec = gk_flat_spec(engine->setup->flat);
    pthread_condattr_t monotonic;

    (void)pthread_mutex_init(&shared->mutex, NULL);
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&shared->turned, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    shared->kept_room = (uint32_t)(spec->params_count / GK_CHUNK_FLOATS + spec->servers + 1);
    shared->kept = calloc(shared->kept_room, sizeof(*shared->kept));
    if (!shared->kept) {
        gk_words_set(words, "no memory for %" PRIu32 " chunks", shared->kept_room);
        return GK_E_NOMEM;
    }
    return GK_OK;
}

static enum gk_err open_loop(struct gk_engine *engine, struct gk_words *words)
{
    int rc = uv_loop_init(&engine->loop);

    engine->loop_open = rc == 0;
    rc = rc ? rc : uv_async_init(&engine->loop, &engine->wake, gk_engine_on_wake);
    if (rc) {
        gk_words_set(words, "cannot open an event loop: %s", uv_strerror(rc));
        return rc == UV_ENOMEM ? GK_E_NOMEM : GK_E_LIMIT;
    }
    engine->wake.data = engine;
    return GK_OK;
}

static enum gk_err open_handles(struct gk_engine *engine, struct gk_words *words)
{
    enum gk_err err;

    gk_words_set(words, "no memory for a timer");
    err = gk_timer_open(&engine->loop, gk_engine_on_timer, engine, &engine->timer);
    return err ? err : gk_compute_open(&engine->loop, engine, &engine->compute, words);
}

static enum gk_err open_all(struct gk_engine *engine, int *ret_exit, struct gk_words *words)
{
    const struct gk_engine_setup *setup = engine->setup;
    uint32_t rank = setup->rank;
    enum gk_err err =
        gk_daemon_open(&engine->daemon, &engine->loop, (int)setup->settings->launcher_fd, words);

    if (err == GK_E_INVALID) {
        *ret_exit = GK_EXIT_USAGE;
        return err;
    }
    err = err ? err : open_core(engine, words);
    err = err ? err : gk_keeper_open(&engine->keeper, &engine->config, engine->core, &rank, words);
    err = err ? err : open_handles(engine, words);
    if (!err && rank != GK_RANK_ANY) {
        err = gk_engine_set_rank(engine, rank, words);
    }
    err = err ? err : open_sockets(engine, words);
    *ret_exit = err ? gk_daemon_exit_code(err) : GK_EXIT_OK;
    return err;
}

static enum gk_err start_thread(struct gk_engine *engine, struct gk_words *words)
{
    int error = pthread_create(&engine->thread, NULL, gk_engine_main, engine);

    if (error) {
        gk_words_set(words, "cannot start a thread: %s", strerror(error));
        return GK_E_LIMIT;
    }
    return GK_OK;
}

static void fini(struct gk_engine *engine)
{
    struct gk_engine_shared *shared = &engine->shared;

    gk_forks_end(engine);
    if (engine->loop_open) {
        gk_daemon_end_loop(&engine->loop);
    }
    gk_net_context_free(engine->zmq);
    gk_worker_actions_free(engine->actions);
    gk_worker_free(engine->core);
    gk_keeper_close(&engine->keeper);
    gk_push_free(engine->step.push); /* of a step that ended while we were closing */
    while (shared->notes) {
        struct gk_engine_note *note = shared->notes;

        shared->notes = note->next;
        free(note);
    }
    gk_engine_drop_kept(engine);
    free(shared->kept);
    (void)pthread_cond_destroy(&shared->turned);
    (void)pthread_mutex_destroy(&shared->mutex);
    free(engine->peers);
    free(engine);
}

/* Signals are for the program's threads: ours begin without, and so does what they start.  A
 * launcher that is gone may give this thread a SIGPIPE meanwhile, which is nobody's. */
struct signals {
    sigset_t before;
    bool broken_pipe; /* one was waiting already */
};

static bool broken_pipe_waits(void)
{
    sigset_t waiting;

    (void)sigemptyset(&waiting);
    (void)sigpending(&waiting);
    return sigismember(&waiting, SIGPIPE) == 1;
}

static void mask_signals(struct signals *ret_signals)
{
    sigset_t all;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &ret_signals->before);
    ret_signals->broken_pipe = broken_pipe_waits();
}

static void unmask_signals(const struct signals *signals)
{
    const struct timespec now = {0};
    sigset_t broken_pipe;

    (void)sigemptyset(&broken_pipe);
    (void)sigaddset(&broken_pipe, SIGPIPE);
    if (!signals->broken_pipe && broken_pipe_waits()) {
        (void)sigtimedwait(&broken_pipe, NULL, &now);
    }
    (void)pthread_sigmask(SIG_SETMASK, &signals->before, NULL);
}

enum gk_err gk_engine_open(const struct gk_engine_setup *setup, struct gk_engine **ret_engine,
                           int *ret_exit, struct gk_words *words)
{
    struct gk_engine *engine = calloc(1, sizeof(*engine));
    struct signals signals;
    enum gk_err err;

    *ret_exit = GK_EXIT_INTERNAL;
    if (!engine) {
        gk_words_set(words, "no memory for a worker");
        return GK_E_NOMEM;
    }
    engine->setup = setup;
    gk_forks_begin(engine);
    engine->daemon =
        (struct gk_daemon){.stop = gk_engine_on_stop,
                           .no_signals = true,
                           .command = setup->settings->allow_faults ? gk_engine_on_command : NULL,
                           .context = engine};
    engine->keeper = (struct gk_keeper){.flat = setup->flat,
                                        .settings = setup->settings,
                                        .aux_bytes = setup->aux_bytes,
                                        .kept = gk_engine_on_kept,
                                        .failed = gk_engine_on_failed,
                                        .context = engine};
    engine->report.daemon = &engine->daemon;
    engine->report.arithmetic = setup->arithmetic;
    engine->report.params_count = gk_flat_spec(setup->flat)->params_count;
    engine->report.every_step = setup->settings->allow_faults; /* a script may count them */
    engine->feed = (struct gk_feed){.events = engine->events,
                                    .event_bytes = sizeof(engine->events[0]),
                                    .room = GK_ENGINE_EVENTS_MAX,
                                    .step = gk_engine_step_core,
                                    .context = engine};
    mask_signals(&signals);
    err = open_shared(engine, words);
    err = err ? err : open_loop(engine, words);
    err = err ? err : open_all(engine, ret_exit, words);
    err = err ? err : start_thread(engine, words);
    if (err) {
        if (engine->wake.data) {
            gk_daemon_death(&engine->daemon, "WORKER-EXIT", *ret_exit, words->text);
            gk_engine_shut_down(engine);
            uv_close((uv_handle_t *)&engine->wake, NULL);
        }
        fini(engine);
    } else {
        *ret_engine = engine;
    }
    unmask_signals(&signals);
    return err;
}

void gk_engine_close(struct gk_engine *engine)
{
    if (!engine) {
        return;
    }
    gk_engine_lock(engine);
    engine->shared.close = true;
    engine->shared.install = false;
    gk_engine_unlock(engine);
    (void)uv_async_send(&engine->wake);
    (void)pthread_join(engine->thread, NULL);
    fini(engine);
}

void gk_engine_forget(struct gk_engine *engine)
{
    gk_keeper_forget(&engine->keeper);
}
