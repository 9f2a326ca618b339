#include "worker/lib/keeper.h"

#include "common/assert.h"
#include "common/log.h"
#include "common/net/daemon.h"

#include <inttypes.h>

/* From so many parameters on the costs are named. */
enum { COSTLY_FLOATS = 16 * 1024 * 1024 };

static void fail(struct gk_keeper *keeper, enum gk_err err)
{
    keeper->failed(keeper->context, gk_daemon_exit_code(err), keeper->words.text);
}

static void say_costs(const struct gk_slot_setup *setup)
{
    double mib = 1 << 20;

    if (setup->params_count >= COSTLY_FLOATS) {
        gk_log(GK_LOG_WARN, "WORKER-STATE-COSTS",
               "each step writes the residual, %.0f MiB, into %s (%.0f MiB in all) and sums it up: "
               "a fast disk is needed, or a worker without --state-dir",
               (double)setup->params_count * sizeof(float) / mib, setup->directory,
               (double)gk_slot_bytes(setup) / mib);
    }
}

/* One line about what was found. */
static void say_found(const struct gk_slot_found *found, const struct gk_slot_setup *setup)
{
    const struct gk_worker_slot *slot = &found->slot;

    if (found->damage.text[0]) {
        gk_log(GK_LOG_WARN, "WORKER-STATE-DAMAGED", "%s", found->damage.text);
    }
    if (slot->state == GK_SLOT_LEFT) {
        gk_log(GK_LOG_INFO, "WORKER-STATE",
               "rank %" PRIu32 " had left at step %" PRIu64 ", says %s", slot->identity.rank,
               gk_left_step(slot->identity.left_at), setup->directory);
    } else if (slot->remembers) {
        gk_log(GK_LOG_INFO, "WORKER-STATE", "resuming rank %" PRIu32 " at step %" PRIu64 " from %s",
               slot->identity.rank, slot->memory.step + 1, setup->directory);
    } else if (found->created) {
        gk_log(GK_LOG_INFO, "WORKER-STATE", "new state in %s, %.1f MiB", setup->directory,
               (double)gk_slot_bytes(setup) / (1 << 20));
    } else {
        gk_log(GK_LOG_INFO, "WORKER-STATE", "going on with an empty residual in %s",
               setup->directory);
    }
    say_costs(setup);
}

enum gk_err gk_keeper_open(struct gk_keeper *keeper, const struct gk_worker_config *config,
                           struct gk_worker *core, uint32_t *rank, struct gk_words *words)
{
    struct gk_slot_setup setup = {.directory = keeper->settings->state_dir,
                                  .job = config->job,
                                  .workers = config->workers,
                                  .servers = config->servers,
                                  .rank = config->rank,
                                  .params_count = config->spec->params_count,
                                  .push_max = config->spec->push_max,
                                  .spec_hash = config->spec_hash,
                                  .model_signature = config->model_signature,
                                  .chunk_floats = GK_CHUNK_FLOATS,
                                  .aux_bytes = keeper->aux_bytes,
                                  .sync = keeper->settings->state_sync};
    struct gk_slot_found found;
    enum gk_err err;

    if (!setup.directory) {
        return GK_OK;
    }
    err = gk_slot_open(&setup, &keeper->slot, &found, words);
    if (err) {
        return err;
    }
    say_found(&found, &setup);
    keeper->remembers = found.slot.remembers;
    if (found.slot.remembers || found.slot.state == GK_SLOT_LEFT) {
        *rank = found.slot.identity.rank;
    }
    gk_worker_resume(core, &found.slot);
    return gk_flat_use_slot(keeper->flat, keeper->slot, words);
}

void gk_keeper_close(struct gk_keeper *keeper)
{
    if (keeper->slot) {
        struct gk_words words;

        (void)gk_flat_use_slot(keeper->flat, NULL, &words);
        gk_slot_close(keeper->slot);
        keeper->slot = NULL;
    }
}

void gk_keeper_forget(struct gk_keeper *keeper)
{
    if (keeper->slot) {
        gk_slot_forget(keeper->slot);
    }
}

static void run_persist(void *context, void *job)
{
    struct gk_keeper *keeper = job;

    (void)context;
    keeper->err = gk_flat_persist(keeper->flat, &keeper->memory, &keeper->words);
}

static void persist_done(void *context, void *job)
{
    struct gk_keeper *keeper = job;

    (void)context;
    if (keeper->err) {
        fail(keeper, keeper->err);
    } else {
        keeper->kept(keeper->context);
    }
}

void gk_keeper_persist(struct gk_keeper *keeper, struct gk_compute *compute,
                       const struct gk_worker_memory *memory)
{
    struct gk_compute_job job = {.run = run_persist, .done = persist_done, .job = keeper};
    enum gk_err err;

    if (!keeper->slot) {
        keeper->kept(keeper->context); /* there is nothing to wait for */
        return;
    }
    keeper->memory = *memory;
    err = gk_compute_submit(compute, &job);
    GK_ASSERT(!err); /* one computation at a time: the queue cannot be full */
}

void gk_keeper_remember(struct gk_keeper *keeper, const struct gk_worker_identity *identity)
{
    enum gk_err err = GK_OK;

    if (keeper->slot) {
        err = gk_slot_remember(keeper->slot, identity, &keeper->words);
    }
    if (err) {
        fail(keeper, err);
    }
}

void gk_keeper_reset(struct gk_keeper *keeper)
{
    enum gk_err err = gk_flat_reset(keeper->flat, &keeper->words);

    if (err) {
        fail(keeper, err);
    }
}
