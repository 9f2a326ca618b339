/* A calm job, with a crash in one call of one disk, for each of the calls; then the same with a
 * second crash while that recovers.  Folds and new segments are among them.  Every run must come to
 * the hash of the undisturbed job. */
#include "tests/sim/crashes.h"

#include <inttypes.h>
#include <stdio.h>

enum how { KILL, POWER_ALL, POWER_NONE, POWER_SOME, HOWS_COUNT };

struct cluster {
    uint32_t workers, servers;
    uint64_t steps; /* 54: two folds, and the removal of what they replace; 28: one */
    enum gk_sync_policy sync;
};

struct crash {
    uint32_t shard;
    uint64_t at, again; /* calls before it, of the disk and of the next life; again 0: once */
    enum how how;
};

struct crashes {
    struct gk_sim *sim;
    struct gk_sim_options options;
    uint64_t number, only; /* of the next run */
    uint64_t runs, folds;
    bool trace;
};

static const char *const policies[] = {"always", "interval", "never"};
static const char *const hows[HOWS_COUNT] = {"killed", "all unsynced lost", "nothing lost",
                                             "some of it lost"};

static void options_of(const struct cluster *cluster, uint64_t seed, struct gk_sim_options *options)
{
    gk_sim_options_calm(options, cluster->workers, cluster->servers, cluster->steps);
    options->seed = seed;
    options->params_count = 16 * cluster->servers + 5;
    options->k = 6;
    options->worker_chunk = options->server_chunk = 4096;
    options->faults.down_us_max = 3000;
    options->store = (struct gk_sim_store_options){
        .disks = true,
        .sync = cluster->sync,
        .fold_every = 20,
        .log_bytes_max = GK_SIM_LOG_BYTES,
        .block_floats = 7,
        .batch_bytes = 4096,
    };
}

/* Without a crash: calls of each disk. */
static bool count_calls(struct crashes *crashes, uint64_t *ret_calls)
{
    struct gk_sim *sim = crashes->sim;
    bool passed;

    if (!gk_sim_init(sim, &crashes->options)) {
        return false;
    }
    gk_sim_finish(sim);
    for (uint32_t s = 0; s < crashes->options.servers; s++) {
        ret_calls[s] = sim->shards[s].disk->calls;
    }
    crashes->folds = sim->stats.folds;
    passed = !gk_sim_failed(sim);
    if (!passed) {
        printf("FAIL without a crash: %s: %s\n", sim->failure.checker, sim->failure.words.text);
    }
    gk_sim_fini(sim);
    return passed;
}

static bool run(struct crashes *crashes, const struct crash *crash)
{
    static const enum gk_sim_loss losses[HOWS_COUNT] = {
        [POWER_ALL] = GK_SIM_LOSS_ALL,
        [POWER_NONE] = GK_SIM_LOSS_NONE,
        [POWER_SOME] = GK_SIM_LOSS_SOME,
    };
    struct gk_sim *sim = crashes->sim;
    uint64_t number = crashes->number++;
    bool passed;

    if (crashes->only != GK_SIM_CRASHES_ALL && crashes->only != number) {
        return true;
    }
    crashes->options.store.loss = losses[crash->how];
    crashes->runs++;
    if (!gk_sim_init(sim, &crashes->options)) {
        return false;
    }
    sim->trace = crashes->trace;
    sim->shards[crash->shard].disk->die_again = crash->again;
    gk_sim_storage_die(sim, crash->shard, crash->at, crash->how != KILL);
    gk_sim_finish(sim);
    if (!gk_sim_failed(sim) && sim->shards[crash->shard].disk->calls < crash->at) {
        gk_sim_fail(sim, "crashes", "nothing crashed");
    }
    passed = !gk_sim_failed(sim);
    if (!passed) {
        printf("FAIL with shard %u %s in call %" PRIu64 ", again in %" PRIu64 ": %s: %s\n"
               "replay: gk_sim --all-crashes --from 0x%" PRIx64 " --crash %" PRIu64 " --trace\n",
               crash->shard, hows[crash->how], crash->at, crash->again, sim->failure.checker,
               sim->failure.words.text, crashes->options.seed, number);
    }
    gk_sim_fini(sim);
    return passed;
}

/* Once in this call, and once more in one of the first calls of the next life. */
static bool crash_in_call(struct crashes *crashes, uint32_t shard, uint64_t at)
{
    struct crash crash = {.shard = shard, .at = at};
    uint32_t hows_count = crashes->options.store.sync == GK_SYNC_NEVER ? 1 : HOWS_COUNT;

    for (uint32_t how = 0; how < hows_count; how++) {
        crash.how = (enum how)how;
        crash.again = 0;
        if (!run(crashes, &crash)) {
            return false;
        }
        crash.again = 1 + (at + how) % 10;
        if ((how == KILL || how == POWER_SOME) && !run(crashes, &crash)) {
            return false;
        }
    }
    return true;
}

bool gk_sim_crashes(struct gk_sim *sim, const struct gk_sim_crashes *which)
{
    static const struct cluster clusters[] = {
        {1, 1, 54, GK_SYNC_ALWAYS},   {1, 1, 54, GK_SYNC_INTERVAL}, {1, 1, 54, GK_SYNC_NEVER},
        {2, 2, 4, GK_SYNC_ALWAYS},    {2, 2, 4, GK_SYNC_INTERVAL},  {2, 2, 54, GK_SYNC_ALWAYS},
        {2, 2, 54, GK_SYNC_INTERVAL}, /* the long ones */
    };
    size_t count = sizeof(clusters) / sizeof(clusters[0]) - (which->all ? 0 : 2);
    struct crashes crashes = {.sim = sim, .only = which->only, .trace = which->trace};

    for (size_t i = 0; i < count; i++) {
        const struct cluster *cluster = &clusters[i];
        uint64_t calls[GK_SIM_SHARDS_MAX], all = 0;

        options_of(cluster, which->seed, &crashes.options);
        crashes.runs = 0;
        if (!count_calls(&crashes, calls)) {
            return false;
        }
        for (uint32_t s = 0; s < cluster->servers; s++) {
            for (uint64_t at = 1; at <= calls[s]; at++) {
                if (!crash_in_call(&crashes, s, at)) {
                    return false;
                }
            }
            all += calls[s];
        }
        printf("%u worker%s, %u server%s, %" PRIu64 " steps, sync %s: %" PRIu64
               " calls of disks, %" PRIu64 " folds, a crash in each: %" PRIu64 " runs\n",
               cluster->workers, cluster->workers > 1 ? "s" : "", cluster->servers,
               cluster->servers > 1 ? "s" : "", cluster->steps, policies[cluster->sync], all,
               crashes.folds, crashes.runs);
    }
    return true;
}
