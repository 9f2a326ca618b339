#include "tests/sim/options.h"

#include "common/backend.h"
#include "common/limits.h"
#include "tests/sim/rng.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SECOND UINT64_C(1000000)

/* 0 half of the time, seldom extreme. */
static uint32_t swarm(struct gk_sim_rng *rng, uint32_t mild, uint32_t extreme)
{
    if (gk_sim_chance(rng, 1, 2)) {
        return 0;
    }
    return (uint32_t)(gk_sim_chance(rng, 1, 4) ? gk_sim_between(rng, mild, extreme)
                                               : gk_sim_between(rng, 1, mild));
}

/* Between the two, small values as likely as large ones. */
static uint64_t spread(struct gk_sim_rng *rng, uint64_t lo, uint64_t hi)
{
    uint64_t top = lo;

    while (top < hi && gk_sim_chance(rng, 2, 3)) {
        top *= 2;
    }
    return gk_sim_between(rng, lo, gk_min_u64(top, hi));
}

static void draw_job(struct gk_sim_options *o, struct gk_sim_rng *rng)
{
    static const uint32_t chunks[] = {4, 4, 8, 8, 16, 4096};

    o->workers = (uint32_t)gk_sim_between(rng, 1, GK_SIM_RANKS_MAX);
    o->servers = (uint32_t)gk_sim_between(rng, 1, GK_SIM_SHARDS_MAX);
    o->params_count = 16 * o->servers + gk_sim_below(rng, 128);
    o->steps = gk_sim_between(rng, 3, 30);
    o->worker_chunk = chunks[gk_sim_below(rng, sizeof(chunks) / sizeof(chunks[0]))];
    o->server_chunk =
        o->worker_chunk > 4 && gk_sim_chance(rng, 1, 2) ? o->worker_chunk / 2 : o->worker_chunk;
    o->optimizer = (uint32_t)gk_sim_between(rng, GK_OPTIMIZER_NONE, GK_OPTIMIZER_ADAMW);
    if (o->optimizer == GK_OPTIMIZER_NONE && gk_sim_chance(rng, 1, 4)) {
        o->optimizer = GK_OPTIMIZER_MOMENTUM;
    }
    o->sums = o->optimizer == GK_OPTIMIZER_NONE && gk_sim_chance(rng, 4, 5);
    o->lr = 0.015625f * (float)gk_sim_between(rng, 1, 8);
    o->momentum = o->optimizer >= GK_OPTIMIZER_MOMENTUM ? 0.9f : 0;
    o->weight_decay = gk_sim_chance(rng, 1, 2) ? 0.01f : 0;
    o->warmup = gk_sim_chance(rng, 1, 3);
    o->rates = gk_sim_chance(rng, 1, 3);
    o->k = gk_sim_chance(rng, 1, 4) ? o->params_count : gk_sim_between(rng, 1, o->params_count / 2);
    o->idle = swarm(rng, 100, 900);
    o->eval_every = gk_sim_chance(rng, 1, 2) ? gk_sim_between(rng, 1, 5) : 0;
}

static void draw_times(struct gk_sim_options *o, struct gk_sim_rng *rng)
{
    uint64_t step_us = spread(rng, 1000, 100 * 1000);
    bool uneven = gk_sim_chance(rng, 1, 2);

    o->latency_us_min = gk_sim_between(rng, 20, 300);
    o->latency_us_max = o->latency_us_min + spread(rng, 20, 20 * 1000);
    for (uint32_t r = 0; r < GK_SIM_RANKS_MAX; r++) {
        o->step_us[r] = uneven ? gk_sim_between(rng, step_us / 8, 4 * step_us) : step_us;
    }
    o->op_us_max = spread(rng, 10, 5000);
    o->start_us_max = gk_sim_chance(rng, 1, 4) ? 8 * 1000 * 1000 : 20 * 1000;
    o->safety_us = gk_sim_between(rng, 1, 30) * 1000 * 1000;
}

static void draw_faults(struct gk_sim_faults *f, struct gk_sim_rng *rng)
{
    f->drop = swarm(rng, 30, 300);
    f->duplicate = swarm(rng, 50, 500);
    f->delay = swarm(rng, 30, 300);
    f->delay_us_max = spread(rng, 20 * 1000, 4 * 1000 * 1000);
    f->reorder = gk_sim_chance(rng, 1, 2);
    f->corrupt = swarm(rng, 5, 50);
    f->late = swarm(rng, 300, 900);
    f->replay = swarm(rng, 10, 50);
    f->stranger = swarm(rng, 10, 50);
    f->kill_shard = swarm(rng, 500, 4000);
    f->stop_shard = swarm(rng, 200, 2000);
    f->kill_worker = swarm(rng, 500, 4000);
    f->stop_worker = swarm(rng, 200, 2000);
    if (gk_sim_chance(rng, 2, 5)) {
        f->lose_worker = swarm(rng, 1000, 6000);
        f->power_worker = swarm(rng, 500, 4000);
        f->twin = swarm(rng, 200, 1000);
        f->reinit = gk_sim_chance(rng, 1, 2);
    }
    f->disconnect = swarm(rng, 1000, 8000);
    f->partition = swarm(rng, 300, 2000);
    f->pause = swarm(rng, 200, 2000);
    f->jump = swarm(rng, 100, 1000);
    f->down_us_max = spread(rng, 1000, 8 * 1000 * 1000);
    f->partition_us_max = spread(rng, 10 * 1000, 12 * 1000 * 1000);
    f->pause_us_max = spread(rng, 10 * 1000, 8 * 1000 * 1000);
    f->jump_us_max = spread(rng, 100 * 1000, 60 * 1000 * 1000);
    f->slow = swarm(rng, 20, 200);
    f->slow_us_max = spread(rng, 20 * 1000, 12 * 1000 * 1000);
}

/* In most of the runs whose workers may lose their memory they also lose it between two chunks of a
 * push, and make another one of the same step.  There a push has two chunks for each shard, more or
 * less, so that those of two pushes fit together, and leaves a residual behind, so that they
 * differ.
 */
static void draw_halves(struct gk_sim_options *o)
{
    struct gk_sim_rng rng = {.state = gk_mix64(o->seed ^ UINT64_C(0x68616c766573))};

    if (!gk_sim_options_lossy(o) || gk_sim_chance(&rng, 1, 4)) {
        return;
    }
    o->faults.halve = (uint32_t)gk_sim_between(&rng, 20, 200);
    o->k = gk_sim_between(&rng, o->params_count / 4, o->params_count / 2);
    o->worker_chunk = (uint32_t)(2 * o->k / (3 * o->servers) + 1);
    o->server_chunk = o->server_chunk > o->worker_chunk ? o->worker_chunk : o->server_chunk;
}

/* What was promised is what is tested.  A power failure may take versions that were served when the
 * log is not synced at once; they come again from the rings of workers whose memory was not lost,
 * too. */
static void draw_disk_faults(struct gk_sim_options *o, struct gk_sim_rng *rng)
{
    struct gk_sim_faults *f = &o->faults;
    bool weak = o->store.sync != GK_SYNC_ALWAYS && (gk_sim_options_lossy(o) || o->any_rank);

    f->power_shard = swarm(rng, 500, 4000);
    f->die = swarm(rng, 500, 4000);
    f->fail_sync = swarm(rng, 500, 4000);
    f->fill = swarm(rng, 300, 2000);
    f->full_us_max = spread(rng, 10 * 1000, 8 * 1000 * 1000);
    if (weak) {
        f->power_shard = f->fail_sync = 0;
    }
    if (o->store.sync == GK_SYNC_NEVER) { /* it would be found at the next power failure */
        f->fail_sync = 0;
    }
}

/* Folds begin and end at versions whose hash the log knows, every 25th. */
static void draw_store(struct gk_sim_options *o, struct gk_sim_rng *rng)
{
    struct gk_sim_store_options *store = &o->store;

    store->disks = gk_sim_chance(rng, 1, 2);
    store->sync = gk_sim_chance(rng, 1, 2)   ? GK_SYNC_ALWAYS
                  : gk_sim_chance(rng, 3, 4) ? GK_SYNC_INTERVAL
                                             : GK_SYNC_NEVER;
    store->fold_every = gk_sim_chance(rng, 1, 8) ? 0 : gk_sim_between(rng, 1, 30);
    store->log_bytes_max =
        gk_sim_chance(rng, 1, 2) ? GK_SIM_LOG_BYTES : gk_sim_between(rng, 128, 512) << 10;
    store->keep_versions = gk_sim_chance(rng, 1, 2) ? 0 : gk_sim_between(rng, 1, 60);
    store->block_floats = gk_sim_chance(rng, 1, 2) ? 0 : (uint32_t)gk_sim_between(rng, 4, 64);
    store->batch_bytes = gk_sim_chance(rng, 1, 2) ? 0 : gk_sim_between(rng, 1, 16 * 1024);
    store->unordered = gk_sim_chance(rng, 1, 4);
    store->loss = gk_sim_chance(rng, 1, 8) ? GK_SIM_LOSS_ALL : GK_SIM_LOSS_SOME;
    if (gk_sim_chance(rng, 1, 3)) {
        o->steps = gk_sim_between(rng, 26, GK_SIM_STEPS_MAX);
    }
    draw_disk_faults(o, rng);
}

static void draw_leaving(struct gk_sim_options *o)
{
    struct gk_sim_rng rng = {.state = gk_mix64(o->seed ^ UINT64_C(0x6c65617665))};

    o->early = gk_sim_chance(&rng, 1, 3);
    o->endless = o->early && gk_sim_chance(&rng, 1, 3);
    for (uint32_t r = 0; r < GK_SIM_RANKS_MAX; r++) {
        o->leave_at[r] = gk_sim_chance(&rng, 1, 2) ? gk_sim_between(&rng, 0, o->steps) : o->steps;
    }
}

uint64_t gk_sim_leave_at(const struct gk_sim_options *options, uint32_t rank)
{
    return options->early ? options->leave_at[rank] : options->steps;
}

uint64_t gk_sim_last_version(const struct gk_sim_options *options)
{
    uint64_t last = 0;

    for (uint32_t r = 0; r < options->workers; r++) {
        last = gk_max_u64(last, gk_sim_leave_at(options, r));
    }
    return last;
}

void gk_sim_options_draw(struct gk_sim_options *options, uint64_t seed)
{
    struct gk_sim_rng rng = {.state = gk_mix64(seed ^ UINT64_C(0x6f7074696f6e73))};
    struct gk_sim_rng of_disks = {.state = gk_mix64(seed ^ UINT64_C(0x6469736b73))};

    memset(options, 0, sizeof(*options));
    options->seed = seed;
    draw_job(options, &rng);
    draw_times(options, &rng);
    draw_faults(&options->faults, &rng);
    if (options->sums) { /* parameters that are lost with their memory end the job: a story */
        options->faults.lose_worker = options->faults.power_worker = options->faults.twin = 0;
    }
    options->any_rank =
        gk_sim_chance(&rng, 1, 4) && !gk_sim_options_lossy(options) && !options->sums;
    options->faults.freeze = swarm(&rng, 30, 300);
    options->faults.freeze_us_max = gk_sim_between(&rng, 1, 300) * SECOND;
    options->deadline_us = gk_sim_chance(&rng, 1, 2) ? GK_DEADLINE_S * SECOND : 0;
    draw_store(options, &of_disks);
    draw_leaving(options);
    draw_halves(options);
}

void gk_sim_options_calm(struct gk_sim_options *options, uint32_t workers, uint32_t servers,
                         uint64_t steps)
{
    memset(options, 0, sizeof(*options));
    options->seed = 1;
    options->workers = workers;
    options->servers = servers;
    options->params_count = 16 * servers + 24;
    options->steps = steps;
    options->worker_chunk = 8;
    options->server_chunk = 8;
    options->optimizer = GK_OPTIMIZER_MOMENTUM;
    options->lr = 0.0625f;
    options->momentum = 0.9f;
    options->k = options->params_count / 3;
    options->latency_us_min = 100;
    options->latency_us_max = 200;
    for (uint32_t r = 0; r < GK_SIM_RANKS_MAX; r++) {
        options->step_us[r] = 10 * 1000;
    }
    options->op_us_max = 100;
    options->safety_us = 600 * UINT64_C(1000000);
}

bool gk_sim_options_lossy(const struct gk_sim_options *options)
{
    return options->faults.lose_worker > 0 || options->faults.twin > 0 ||
           options->faults.power_worker > 0;
}

static void print_store(const struct gk_sim_store_options *store, const struct gk_sim_faults *f)
{
    static const char *const policies[] = {"always", "interval", "never"};

    printf("  disks: sync %s, fold every %" PRIu64 ", log of %" PRIu64 " KiB, keep %" PRIu64
           " versions, blocks of %" PRIu32 ", batches of %" PRIu64 "%s%s; of 100000 steps: power "
           "failure %" PRIu32 ", death in the disk %" PRIu32 ", failed sync %" PRIu32
           ", full %" PRIu32 " (up to %" PRIu64 " us)\n",
           policies[store->sync], store->fold_every, store->log_bytes_max >> 10,
           store->keep_versions, store->block_floats, store->batch_bytes,
           store->unordered ? ", names in any order" : "",
           store->loss == GK_SIM_LOSS_ALL ? ", all unsynced is lost" : "", f->power_shard, f->die,
           f->fail_sync, f->fill, f->full_us_max);
}

void gk_sim_options_print(const struct gk_sim_options *o)
{
    const struct gk_sim_faults *f = &o->faults;

    printf("seed 0x%016" PRIx64 "\n", o->seed);
    printf("  job: %" PRIu32 " workers, %" PRIu32 " servers, d %" PRIu64 ", %" PRIu64
           " steps, k %" PRIu64 ", chunks of %" PRIu32 " (servers: %" PRIu32 "), optimizer %" PRIu32
           "%s"
           ", lr %g%s, momentum %g, decay %g, idle %" PRIu32 "/1000, evaluation every %" PRIu64
           "%s\n",
           o->workers, o->servers, o->params_count, o->steps, o->k, o->worker_chunk,
           o->server_chunk, o->optimizer, o->sums ? " and one of the workers" : "", (double)o->lr,
           o->rates    ? " and others from the workers"
           : o->warmup ? " after a warm-up"
                       : "",
           (double)o->momentum, (double)o->weight_decay, o->idle, o->eval_every,
           o->any_rank ? ", ranks assigned" : "");
    for (uint32_t r = 0; o->early && r < o->workers; r++) {
        printf("  rank %" PRIu32 " leaves at step %" PRIu64 "\n", r, o->leave_at[r]);
    }
    printf("  times (us): latency %" PRIu64 " to %" PRIu64 ", gradient %" PRIu64
           " (rank 0) %" PRIu64 " (rank 1), other work up to %" PRIu64 ", start within %" PRIu64
           ", faults until %" PRIu64 "\n",
           o->latency_us_min, o->latency_us_max, o->step_us[0], o->step_us[1], o->op_us_max,
           o->start_us_max, o->safety_us);
    printf("  messages, of 1000: drop %" PRIu32 ", duplicate %" PRIu32 ", delay %" PRIu32
           " (up to %" PRIu64 " us), corrupt %" PRIu32 ", late %" PRIu32 ", replay %" PRIu32
           ", stranger %" PRIu32 "%s\n",
           f->drop, f->duplicate, f->delay, f->delay_us_max, f->corrupt, f->late, f->replay,
           f->stranger, f->reorder ? ", reordered" : "");
    printf("  processes, of 100000 steps: shard killed %" PRIu32 " stopped %" PRIu32
           ", worker killed %" PRIu32 " stopped %" PRIu32 " lost %" PRIu32 " power failure %" PRIu32
           " twin %" PRIu32 " lost between two chunks %" PRIu32 "/1000, disconnected %" PRIu32
           ", partition %" PRIu32 ", pause %" PRIu32 ", clock jump %" PRIu32 ", all frozen %" PRIu32
           "\n",
           f->kill_shard, f->stop_shard, f->kill_worker, f->stop_worker, f->lose_worker,
           f->power_worker, f->twin, f->halve, f->disconnect, f->partition, f->pause, f->jump,
           f->freeze);
    printf("  for up to (us): down %" PRIu64 ", partition %" PRIu64 ", pause %" PRIu64
           ", jump %" PRIu64 ", frozen %" PRIu64 "; deadline %" PRIu64 "; slow work %" PRIu32
           "/1000 up to %" PRIu64 "%s\n",
           f->down_us_max, f->partition_us_max, f->pause_us_max, f->jump_us_max, f->freeze_us_max,
           o->deadline_us, f->slow, f->slow_us_max,
           f->reinit ? "; other initial parameters after a loss" : "");
    if (o->store.disks) {
        print_store(&o->store, f);
    }
}
