/* What one run is like: everything follows from the seed, and is printed before the run starts.
 *
 * Swarm: each fault is off in half of the runs and extreme in some, so that a run with many kills
 * and no loss, or with much reordering alone, comes up as often as the average of all of them. */
#ifndef GK_TESTS_SIM_OPTIONS_H
#define GK_TESTS_SIM_OPTIONS_H

#include "server/store/store.h"
#include "tests/sim/disk.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    GK_SIM_RANKS_MAX = 6,
    GK_SIM_SHARDS_MAX = 4,
    GK_SIM_PROCS_MAX = 12, /* worker processes: one a rank, and twins */
    GK_SIM_NODES_MAX = GK_SIM_SHARDS_MAX + GK_SIM_PROCS_MAX,
    GK_SIM_STEPS_MAX = 80,
};

/* More than a log ever has here; without a limit its room would be taken in steps of 8 MiB. */
#define GK_SIM_LOG_BYTES (UINT64_C(4) << 20)

/* Bugs of the simulator's own shells. */
enum gk_sim_plant {
    /* The push is sent before residual and push are in the slot. */
    GK_SIM_PLANT_SEND_BEFORE_FLIP = 1 << 0,
    /* Disks confirm a sync and do nothing. */
    GK_SIM_PLANT_NO_SYNC = 1 << 1,
};

struct gk_sim_plants {
    uint32_t server, worker, shell; /* enum gk_server_plant, gk_worker_plant, gk_sim_plant */
};

struct gk_sim_faults {
    /* Of the network, per 1000 messages. */
    uint32_t drop, duplicate, delay, corrupt;
    uint32_t late;     /* survives the end of its connection */
    uint32_t replay;   /* an old message to a shard comes again */
    uint32_t stranger; /* somebody else speaks to a shard: another job, another run, a tool */
    bool reorder;      /* within a connection */
    uint64_t delay_us_max;

    /* Of processes and connections, per 100 000 steps of a process. */
    uint32_t kill_shard, stop_shard;   /* kill -9, SIGTERM; what is durable stays */
    uint32_t kill_worker, stop_worker; /* what is in its slot stays */
    uint32_t lose_worker;              /* kill -9, and the slot is gone */
    uint32_t power_worker;             /* as a kill, and its slot is perhaps damaged */
    uint32_t twin;                     /* paused, and a new life takes its rank */
    uint32_t halve; /* of 1000 chunks of a push that arrive and do not end it: its sender is lost */
    uint32_t disconnect, partition, pause, jump;
    uint32_t freeze; /* all processes stand still together, as when a machine sleeps */
    uint64_t down_us_max, partition_us_max, pause_us_max, jump_us_max, freeze_us_max;

    /* Of disks, per 100 000 steps of a shard. */
    uint32_t power_shard; /* as a kill, and what was not synced is lost */
    uint32_t die;         /* a kill or a power failure in one of the next calls of the disk */
    uint32_t fail_sync;   /* one of the next syncs fails; half as often one of the next writes */
    uint32_t fill;        /* no room */
    uint64_t full_us_max;

    uint32_t slow; /* per 1000 computations and writes */
    uint64_t slow_us_max;
    bool reinit; /* a rank 0 that lost its slot draws other initial parameters */
};

/* The state directories of the shards. */
struct gk_sim_store_options {
    bool disks;
    enum gk_sync_policy sync;
    uint64_t fold_every, log_bytes_max, keep_versions;
    uint32_t block_floats;
    uint64_t batch_bytes;
    bool unordered;        /* names are written back in any order */
    enum gk_sim_loss loss; /* by a power failure */
};

struct gk_sim_options {
    uint64_t seed;
    struct gk_sim_store_options store;
    uint64_t deadline_us; /* of all processes; 0: none */
    uint32_t workers, servers;
    uint64_t params_count, steps;
    uint32_t worker_chunk, server_chunk; /* floats */
    uint32_t optimizer;                  /* enum gk_optimizer */
    float lr, momentum, weight_decay;
    bool sums;  /* the workers have an optimizer of their own */
    bool rates; /* the workers bring the learning rate of each step */
    bool warmup;
    uint64_t k;    /* entries a push; params_count: dense */
    uint32_t idle; /* per 1000 (rank, step): no samples, an empty push */
    uint64_t eval_every;
    bool any_rank; /* shard 0 assigns them */
    bool early;    /* ranks leave before the last step: */
    bool endless;  /* which nobody knows: all leave, and the job spec has 2^32 - 1 */
    uint64_t leave_at[GK_SIM_RANKS_MAX];

    uint64_t latency_us_min, latency_us_max;
    uint64_t step_us[GK_SIM_RANKS_MAX]; /* of a gradient, on average */
    uint64_t op_us_max;                 /* of everything else that takes time */
    uint64_t start_us_max;              /* processes start within so long */
    uint64_t safety_us;                 /* faults end */
    struct gk_sim_faults faults;

    struct gk_sim_plants plants;
};

void gk_sim_options_draw(struct gk_sim_options *options, uint64_t seed);

/* A small job without any fault: what the stories and the enumeration start from. */
void gk_sim_options_calm(struct gk_sim_options *options, uint32_t workers, uint32_t servers,
                         uint64_t steps);

/* The step at which a rank leaves; the last one is the job's last version. */
uint64_t gk_sim_leave_at(const struct gk_sim_options *options, uint32_t rank);
uint64_t gk_sim_last_version(const struct gk_sim_options *options);

/* True when a worker's memory may be lost: then the model is not that of the undisturbed job. */
bool gk_sim_options_lossy(const struct gk_sim_options *options);

/* One line a subject, to stdout. */
void gk_sim_options_print(const struct gk_sim_options *options);

#endif
