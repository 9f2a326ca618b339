/* The simulator: a whole cluster in one thread, in virtual time.
 *
 * The two pure cores are the daemons' own; everything around them is here: clocks, timers, network,
 * arithmetic, what a slot or a log keeps over a restart, and the faults of all of these.  Every
 * draw comes from one seed, so that a run is a function of its options.
 *
 *   options.c  what a run is like          net.c      connections, messages and their faults
 *   queue.c    events in virtual time      shard.c    shell of the server core
 *   toy.c      gradients and selection     proc.c     shell of the worker core
 *   oracle.c   the job, computed in order  faults.c   kills, pauses, partitions, clock jumps
 *   ledger.c   what is committed           history.c  and what a crash may take of it
 *   disk.c     files, and their faults     storage.c  the state directory of a shard
 *   check.c    what must hold              run.c      one run
 *   stories.c, enumerate.c, crashes.c, main.c  ways to use it */
#ifndef GK_TESTS_SIM_SIM_H
#define GK_TESTS_SIM_SIM_H

#include "common/backend.h"
#include "proto/msg.h"
#include "proto/spec.h"
#include "server/core/server.h"
#include "server/store/store.h"
#include "tests/sim/disk.h"
#include "tests/sim/options.h"
#include "tests/sim/rng.h"
#include "worker/core/worker.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gk_sim;

#define GK_SIM_JOB "simulated"
#define GK_SIM_NEVER UINT64_MAX
#define GK_SIM_SECOND UINT64_C(1000000)

enum {
    GK_SIM_HISTORY = 64,
    GK_SIM_INITS_MAX = 256,
    GK_SIM_KEPT_MAX = 256,
    GK_SIM_LINEAGES_MAX = 4096
};

/* Events. */

enum gk_sim_event_kind {
    GK_SIM_PACKET,  /* arrives */
    GK_SIM_CONNECT, /* a process tries to reach a shard */
    GK_SIM_DOWN,    /* a process sees that a connection has ended */
    GK_SIM_GONE,    /* a shard sees that a route has ended */
    GK_SIM_TICK,    /* the timer of a node */
    GK_SIM_WORK,    /* a computation or a write of a node ends */
    GK_SIM_START,   /* a node begins a life */
    GK_SIM_CALM,    /* the faults end */
    GK_SIM_STOP,    /* SIGTERM */
    GK_SIM_WATCH,   /* the checkers look at all nodes, once a second */
};

/* What ends. */
enum gk_sim_work {
    GK_SIM_SETUP,
    GK_SIM_SUM,
    GK_SIM_WRITE,
    GK_SIM_APPLY,
    GK_SIM_HASH,
    GK_SIM_MAKE_INIT,
    GK_SIM_STEP,
    GK_SIM_PERSIST,
    GK_SIM_EVALUATE,
    GK_SIM_FLIP, /* of a planted bug: the slot is complete only now */
    GK_SIM_SYNC, /* of what was written since the last one */
    GK_SIM_FOLD,
};

struct gk_sim_packet {
    struct gk_buf *parts[GK_PARTS_MAX];
    uint32_t parts_count;
    uint32_t kind; /* as sent, for traces and filters */
    uint64_t step; /* as sent */
    uint32_t chunk;
    uint64_t lo;
    uint32_t proc, shard;
    bool to_shard;
    bool corrupt;
    bool late;       /* its connection has ended */
    bool requeued;   /* and it is the first thing that is said on the next one */
    uint64_t serial; /* among those of this sender on this way */
    uint64_t route;  /* of the connection that it was sent on */
    uint64_t life;   /* of the process */
};

struct gk_sim_event {
    uint64_t at_us;
    uint64_t seq; /* order among equals */
    enum gk_sim_event_kind kind;
    uint32_t node; /* whom it happens to */
    uint32_t other;
    uint64_t life;   /* of the node; another one: the event is void */
    uint64_t number; /* TICK: of the timer; WORK of a shard: op; GONE: route */
    enum gk_sim_work work;
    const void *args;             /* WORK of a shard: borrowed from the core */
    struct gk_server_setup setup; /* SETUP */
    struct gk_sim_packet *packet; /* owned */
    uint64_t digest;              /* WRITE: of the record when it was handed over */
};

struct gk_sim_queue { /* a binary heap by (at_us, seq) */
    struct gk_sim_event *events;
    uint32_t count, room;
    uint64_t seq;
};

void gk_sim_queue_push(struct gk_sim_queue *queue, const struct gk_sim_event *event);
bool gk_sim_queue_pop(struct gk_sim_queue *queue, struct gk_sim_event *ret_event);
/* Takes out any one of them; the heap is whole again afterwards. */
void gk_sim_queue_take(struct gk_sim_queue *queue, uint32_t index, struct gk_sim_event *ret_event);
void gk_sim_queue_free(struct gk_sim_queue *queue);

/* Nodes: what shards and worker processes have in common. */

enum gk_sim_life {
    GK_SIM_ABSENT, /* not started yet, or waiting for its next life */
    GK_SIM_ALIVE,
    GK_SIM_ENDED, /* for good */
};

struct gk_sim_node {
    enum gk_sim_life state;
    uint64_t life;                 /* counts them */
    uint64_t clock_us;             /* of the machine, ahead of virtual time; grows only */
    uint64_t paused_us;            /* until then */
    uint64_t timer;                /* number of the armed timer */
    uint64_t timer_at_us;          /* by its own clock */
    bool stopping;                 /* SIGTERM was sent; it comes back */
    uint64_t down_us;              /* for how long at most */
    uint64_t progress_us, said_us; /* virtual: last progress, last line about a wait */
};

struct gk_sim_pair {     /* a process and a shard */
    uint64_t route;      /* of the connection; 0: none */
    uint64_t last_us[2]; /* the latest arrival so far, to and from the shard */
    uint64_t serials[2];
    uint32_t in_flight[2];
    uint64_t blocked_us; /* partition until then */
    uint32_t block;      /* enum gk_sim_block */
    uint64_t down_us;    /* since when the process has no session; GK_SIM_NEVER: it has one */
};

enum gk_sim_block { GK_SIM_BLOCK_LOSE, GK_SIM_BLOCK_HOLD, GK_SIM_BLOCK_CUT, GK_SIM_BLOCKS };

struct gk_sim_shard {
    struct gk_server_config config;
    struct gk_server *core;
    struct gk_server_memory memory;
    bool wiped; /* the next life finds no log */

    struct gk_disk *disk;   /* NULL: what is durable is what stays in the core */
    struct gk_store *store; /* of a life that has begun */
    bool syncing, folding;
    uint64_t written, durable; /* versions of the log of this life */
    uint64_t full_until_us;    /* the disk has no room until then */
    bool power_off;            /* the next end of the process is one of its host */
};

/* A worker process.  The residual is the slot's: `residual` is what a restart finds, `next` what
 * the step in flight has made. */
struct gk_sim_proc {
    uint32_t rank;
    struct gk_worker_config config;
    struct gk_worker *core;
    float *params, *gradient, *residual, *next;
    uint64_t *versions; /* that each parameter was installed with */
    float *sums;        /* of the last version, where the workers have an optimizer of their own */
    uint64_t sum_samples; /* of any shard */
    uint64_t moved;       /* the version that they have moved `params` to */
    float *kept;          /* what the slot holds of `params` */
    float wrong_rate;     /* of a story: added to every rate that it brings */
    uint64_t slot_step;   /* pushes of steps below it are in the slot; 0: the slot is empty */
    uint64_t step;        /* of the gradient in work */
    uint32_t init;        /* which initial parameters it would send */
    uint32_t lineage;     /* of its memory */
    uint32_t incarnation; /* that was remembered last */
    bool twin;            /* a second process of its rank exists */
    bool lost;            /* the next life finds no slot */
    bool damaged;         /* or one that says LOST, with one of these identities, newest first */
    struct gk_worker_identity identities[2];
    int exit_code;
    enum gk_worker_phase phase;
};

/* What the job is, and what it must come to. */
struct gk_sim_job {
    struct gk_spec spec;
    struct gk_tensor tensors[3];
    uint8_t spec_bytes[GK_SPEC_BYTES_MAX];
    size_t spec_bytes_count;
    uint64_t spec_hash, model_signature;
    uint64_t toy_seed;
    uint64_t lo[GK_SIM_SHARDS_MAX + 1];
};

/* Every push that was made: what was decoded from its chunks, and where it went. */
struct gk_sim_push {
    uint32_t rank, lineage;
    uint64_t step, samples;
    uint64_t ids[GK_SIM_SHARDS_MAX];
    bool applied[GK_SIM_SHARDS_MAX];
    bool twice[GK_SIM_SHARDS_MAX]; /* made by two processes */
    bool named[GK_SIM_SHARDS_MAX]; /* as lost, by its worker */
    bool persisted;
    bool dense[GK_SIM_SHARDS_MAX];
    float *values;             /* [d] zeros where nothing was pushed */
    bool *there;               /* [d] pushed at all */
    struct gk_sim_push *older; /* of the same (rank, step) */
};

struct gk_sim_verdict {
    uint32_t verdict, incarnation;
    uint64_t step;
};

/* One shard's history as its records tell it, computed a second time. */
struct gk_sim_shadow {
    bool initialised, finished;
    uint64_t init_id, version, optimizer_step;
    struct gk_sim_verdict verdicts[GK_SIM_RANKS_MAX];
    bool left[GK_SIM_RANKS_MAX];
    uint64_t left_at[GK_SIM_RANKS_MAX];
    uint32_t incarnation[GK_SIM_RANKS_MAX];
    float *moments;   /* [2 * d] first, second; with optimizer NONE the sums over the samples */
    uint64_t samples; /* of the last round */
    uint64_t lost;    /* LOST pushes committed */
    bool excused;     /* a worker left while it was out of reach: it waits for nobody that lives */
};

/* What a shard's log says behind one record. */
struct gk_sim_entry {
    struct gk_sim_shadow shadow; /* with moments of its own */
    uint32_t applied_count;      /* pushes that the record brought into the model */
    struct {
        uint32_t rank;
        uint64_t step, id;
    } applied[GK_SIM_RANKS_MAX];
};

/* All of them, so that a crash can take a shard back to any that it may. */
struct gk_sim_history {
    struct gk_sim_entry *entries; /* the last one is equal to the shadow */
    uint32_t count, room;
    struct gk_sim_entry maybe; /* of a record that was refused, or half-written by a dying process:
                                  nobody knows it, and it may be there all the same */
    bool may_be;
    uint32_t kept, safe; /* entries that a kill, and a power failure, must leave */
    uint32_t lives;      /* incarnation of the last life that was written down for certain */
    bool powered_off;    /* since the last life began */
    bool failed;         /* a sync has failed since then: what was not safe may be cut off */
};

struct gk_sim_ledger {
    struct gk_sim_push **pushes; /* [steps * workers], the newest */
    float *params;               /* [(steps + 1) * d]: of every version that was committed */
    struct gk_sim_shadow shadows[GK_SIM_SHARDS_MAX];
    struct gk_sim_history histories[GK_SIM_SHARDS_MAX]; /* of shards with a disk */
    uint64_t inits[GK_SIM_INITS_MAX]; /* ids of the initial parameters that exist */
    uint32_t inits_count;
    uint32_t lineages; /* of memories: a worker that lost its slot begins another one */
    bool lineage_lost[GK_SIM_LINEAGES_MAX];
    float *sum; /* [d] of the record that is being checked */
    bool *union_there;
};

struct gk_sim_vector { /* global indices [lo, hi) of whole vectors */
    uint64_t step;
    uint64_t lo, hi;
    float *params, *moments; /* as in the shadow */
    const float *sum;
};

struct gk_sim_oracle {
    float *params;    /* [(steps + 1) * d]: what gradients are of */
    uint64_t *hashes; /* [(steps + 1) * servers], of what the shards have */
};

struct gk_sim_failure {
    char checker[16]; /* "" : none */
    struct gk_words words;
    uint64_t at_us;
};

enum gk_sim_fate { GK_SIM_PASS, GK_SIM_LOSE, GK_SIM_KEEP, GK_SIM_DOUBLE };

/* Looks at every message as it is sent; KEEP puts it aside. */
typedef enum gk_sim_fate gk_sim_filter(struct gk_sim *sim, const struct gk_sim_packet *packet);

/* For enumeration: takes the next event out of the queue in place of the earliest.  False: none. */
typedef bool gk_sim_chooser(struct gk_sim *sim, struct gk_sim_event *ret_event);

struct gk_sim_stats { /* of one run, or of many; all of one type */
    uint64_t events, packets, lost, duplicated, corrupted, late, replayed, strangers;
    uint64_t kills, stops, restarts, pauses, partitions, disconnects, jumps, freezes, losses, twins;
    uint64_t crashes, power_failures, folds, syncs_failed, writes_failed, full_refusals;
    uint64_t records_lost, opens, rollbacks, fenced_by_dead;
    uint64_t in_flight_max, stalls, lost_pushes, virtual_us;
};

struct gk_sim {
    struct gk_sim_options options;
    bool trace;
    struct gk_sim_rng rng;
    uint64_t now_us;
    struct gk_sim_queue queue;
    uint64_t digest;    /* of everything that has happened: equal runs have equal ones */
    bool calm;          /* the faults have ended */
    uint64_t frozen_us; /* until then no process starts */
    uint64_t calm_us;

    struct gk_sim_job job;
    struct gk_sim_oracle oracle;
    struct gk_sim_ledger ledger;
    const struct gk_vector_ops *ops;
    struct gk_queue *vectors;

    struct gk_sim_node nodes[GK_SIM_NODES_MAX]; /* shards, then processes */
    struct gk_sim_shard shards[GK_SIM_SHARDS_MAX];
    struct gk_sim_proc procs[GK_SIM_PROCS_MAX];
    uint32_t procs_count;
    struct gk_sim_pair pairs[GK_SIM_PROCS_MAX][GK_SIM_SHARDS_MAX];
    uint64_t routes;
    struct gk_server_actions *server_actions, *server_dying;
    struct gk_worker_actions *worker_actions, *worker_dying;
    struct gk_sim_packet *history[GK_SIM_HISTORY];
    uint32_t history_next;
    uint32_t fault_budget;

    gk_sim_filter *filter;
    gk_sim_chooser *chooser;
    void *user; /* of filter and chooser */
    struct gk_sim_packet *kept[GK_SIM_KEPT_MAX];
    uint32_t kept_count;
    uint32_t losses[GK_SIM_RANKS_MAX]; /* of the memory of a rank, so far */
    uint32_t losses_count;
    bool tail_lost;       /* a shard without syncs has forgotten what it had served */
    uint64_t rollback_us; /* when somebody said so; 0: nobody */
    bool given_up;        /* the job cannot go on, and has said so */
    int expected_exit;    /* in stories that end badly */

    struct gk_sim_stats stats;
    struct gk_sim_failure failure;
    char last_words[GK_SIM_NODES_MAX][GK_WORDS_BYTES]; /* of EXIT */
};

static inline uint32_t gk_sim_shard_node(uint32_t shard)
{
    return shard;
}

static inline uint32_t gk_sim_proc_node(uint32_t proc)
{
    return GK_SIM_SHARDS_MAX + proc;
}

static inline bool gk_sim_node_is_shard(uint32_t node)
{
    return node < GK_SIM_SHARDS_MAX;
}

static inline uint64_t gk_sim_clock(const struct gk_sim *sim, uint32_t node)
{
    return sim->now_us + sim->nodes[node].clock_us;
}

static inline bool gk_sim_failed(const struct gk_sim *sim)
{
    return sim->failure.checker[0] != '\0';
}

/* check.c: the first failure counts. */
void gk_sim_fail(struct gk_sim *sim, const char *checker, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void gk_sim_say(struct gk_sim *sim, uint32_t node, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void gk_sim_note(struct gk_sim *sim, uint64_t a, uint64_t b); /* into the digest */
void gk_sim_check_reply(struct gk_sim *sim, uint32_t shard, const struct gk_msg *msg);
void gk_sim_check_wait_line(struct gk_sim *sim, uint32_t node, const char *id, const char *words);
void gk_sim_check_waits(struct gk_sim *sim);
bool gk_sim_may_be_fenced(const struct gk_sim *sim, uint32_t proc);
void gk_sim_check_exit(struct gk_sim *sim, uint32_t proc);
bool gk_sim_fenced_by_the_dead(const struct gk_sim *sim, uint32_t proc);
void gk_sim_check_end(struct gk_sim *sim);

/* toy.c */
void gk_sim_toy_initial(const struct gk_sim_job *job, uint32_t init, float *ret);
uint64_t gk_sim_toy_init_id(const struct gk_sim_job *job, const float *initial);
float gk_sim_toy_rate(const struct gk_sim *sim, uint64_t step);
uint64_t gk_sim_toy_samples(const struct gk_sim *sim, uint32_t rank, uint64_t step);
void gk_sim_toy_gradient(const struct gk_sim *sim, uint32_t rank, uint64_t step,
                         const float *params, float *ret);
struct gk_push *gk_sim_toy_push(struct gk_sim *sim, struct gk_sim_proc *proc);

/* oracle.c */
bool gk_sim_job_init(struct gk_sim *sim);
void gk_sim_oracle_init(struct gk_sim *sim, uint32_t init); /* number of the initial parameters */
void gk_sim_own_step(const struct gk_sim *sim, uint64_t samples, const float *quotients,
                     float *params);
void gk_sim_oracle_apply(const struct gk_sim *sim, uint64_t optimizer_step, uint64_t samples,
                         const struct gk_sim_vector *vector);
uint64_t gk_sim_oracle_hash(const float *params, uint64_t lo, uint64_t hi);
void gk_sim_oracle_fini(struct gk_sim_oracle *oracle);

/* ledger.c */
void gk_sim_ledger_init(struct gk_sim *sim);
void gk_sim_ledger_fini(struct gk_sim *sim);
void gk_sim_ledger_forget(struct gk_sim *sim, uint32_t shard); /* its log is gone */
struct gk_sim_push *gk_sim_ledger_push(struct gk_sim *sim, const struct gk_sim_proc *proc,
                                       const struct gk_push *push);
void gk_sim_ledger_persisted(struct gk_sim *sim, const struct gk_sim_proc *proc, uint64_t step);
uint32_t gk_sim_ledger_new_init(struct gk_sim *sim);
uint32_t gk_sim_ledger_lineage(struct gk_sim *sim);
void gk_sim_ledger_lose(struct gk_sim *sim, uint32_t lineage);
void gk_sim_ledger_named(struct gk_sim *sim, const struct gk_sim_proc *proc, uint32_t shard,
                         uint64_t step);
uint64_t gk_sim_ledger_digest(const struct gk_record *record);
void gk_sim_ledger_commit(struct gk_sim *sim, uint32_t shard, const struct gk_record *record);
void gk_sim_ledger_applied(struct gk_sim *sim, uint32_t shard);
/* The shard has forgotten all pushes from this step on; or it has this one after all. */
void gk_sim_ledger_take_back(struct gk_sim *sim, uint32_t shard, uint64_t step);
void gk_sim_ledger_give(struct gk_sim *sim, uint32_t shard, uint32_t rank, uint64_t step,
                        uint64_t id);
void gk_sim_ledger_check_pushes(struct gk_sim *sim);

/* history.c */
void gk_sim_history_begin(struct gk_sim *sim, uint32_t shard); /* of a log that is empty */
void gk_sim_history_free(struct gk_sim_history *history);
/* Before a record is written: commits it, and it may be there. */
void gk_sim_history_offer(struct gk_sim *sim, uint32_t shard, const struct gk_record *record);
void gk_sim_history_taken(struct gk_sim *sim, uint32_t shard, bool safe);
void gk_sim_history_refused(struct gk_sim *sim, uint32_t shard);
void gk_sim_history_rewound(struct gk_sim *sim, uint32_t shard, uint64_t version);
void gk_sim_history_synced(struct gk_sim *sim, uint32_t shard);
/* What the next life finds must be one of the entries that the crash had to leave. */
void gk_sim_history_recover(struct gk_sim *sim, uint32_t shard, const struct gk_image *image);

/* storage.c */
void gk_sim_storage_new(struct gk_sim *sim, uint32_t shard);
void gk_sim_storage_free(struct gk_sim *sim, uint32_t shard);
/* False: it cannot be opened now, and the process has ended. */
bool gk_sim_storage_open(struct gk_sim *sim, uint32_t shard);
/* The process ends; `writing`: of a record that was about to be written (NULL: none) a coin decides
 * whether that had happened. */
void gk_sim_storage_close(struct gk_sim *sim, uint32_t shard, const struct gk_sim_event *writing);
/* False: the process has ended in it. */
bool gk_sim_storage_write(struct gk_sim *sim, const struct gk_sim_event *event,
                          struct gk_server_event *done);
bool gk_sim_storage_sync(struct gk_sim *sim, uint32_t shard, struct gk_server_event *synced);
bool gk_sim_storage_fold(struct gk_sim *sim, uint32_t shard);
void gk_sim_storage_look(struct gk_sim *sim, uint32_t shard); /* syncs and folds that are due */
/* What `gkps rewind` does to the directory of a shard that does not run. */
void gk_sim_storage_rewind(struct gk_sim *sim, uint32_t shard, uint64_t version);
void gk_sim_storage_die(struct gk_sim *sim, uint32_t shard, uint64_t calls, bool power_off);

/* net.c */
void gk_sim_send(struct gk_sim *sim, uint32_t proc, uint32_t shard, bool to_shard,
                 const struct gk_msg *msg);
void gk_sim_deliver(struct gk_sim *sim, struct gk_sim_event *event);
void gk_sim_connect(struct gk_sim *sim, uint32_t proc, uint32_t shard);
void gk_sim_disconnect(struct gk_sim *sim, uint32_t proc, uint32_t shard);
void gk_sim_release(struct gk_sim *sim, uint32_t index); /* of what a filter keeps */
void gk_sim_packet_free(struct gk_sim_packet *packet);
void gk_sim_replay(struct gk_sim *sim, uint32_t shard);   /* an old message comes again */
void gk_sim_stranger(struct gk_sim *sim, uint32_t shard); /* somebody else speaks */
void gk_sim_retry_connect(struct gk_sim *sim, uint32_t proc, uint32_t shard);
void gk_sim_tell_route(struct gk_sim *sim, uint32_t shard, uint64_t route,
                       const struct gk_msg *msg);

/* shard.c */
void gk_sim_shard_new(struct gk_sim *sim, uint32_t shard);
void gk_sim_shard_free(struct gk_sim *sim, uint32_t shard);
void gk_sim_shard_step(struct gk_sim *sim, uint32_t shard, struct gk_server_event *event);
void gk_sim_shard_work(struct gk_sim *sim, const struct gk_sim_event *event);
void gk_sim_shard_stale(struct gk_sim *sim, const struct gk_sim_event *event);
void gk_sim_shard_kill(struct gk_sim *sim, uint32_t shard, uint64_t down_us);
void gk_sim_shard_power_off(struct gk_sim *sim, uint32_t shard, uint64_t down_us);
void gk_sim_shard_memory(const struct gk_server_setup *setup, struct gk_server_memory *memory);
void gk_sim_shard_memory_free(struct gk_server_memory *memory);
void gk_sim_shard_core(struct gk_sim *sim, uint32_t shard); /* a new one, in place of the old */
void gk_sim_shard_put(struct gk_sim *sim, uint32_t shard, enum gk_sim_work work);
void gk_sim_shard_start(struct gk_sim *sim, uint32_t shard);

/* proc.c */
uint32_t gk_sim_proc_new(struct gk_sim *sim, uint32_t rank);
void gk_sim_proc_free(struct gk_sim *sim, uint32_t proc);
void gk_sim_proc_step(struct gk_sim *sim, uint32_t proc, struct gk_worker_event *event);
void gk_sim_proc_work(struct gk_sim *sim, const struct gk_sim_event *event);
void gk_sim_proc_kill(struct gk_sim *sim, uint32_t proc, bool lose, uint64_t down_us);
void gk_sim_proc_power_off(struct gk_sim *sim, uint32_t proc, uint64_t down_us);
void gk_sim_proc_start(struct gk_sim *sim, uint32_t proc);

/* faults.c */
void gk_sim_faults_after(struct gk_sim *sim, uint32_t node);
void gk_sim_faults_chunk(struct gk_sim *sim, const struct gk_sim_packet *packet, uint32_t chunks);
void gk_sim_faults_end(struct gk_sim *sim);
void gk_sim_partition(struct gk_sim *sim, uint32_t proc, uint32_t shard, uint64_t length_us);
void gk_sim_pause(struct gk_sim *sim, uint32_t node, uint64_t pause_us);
void gk_sim_freeze(struct gk_sim *sim, uint64_t length_us);
void gk_sim_arm(struct gk_sim *sim, uint32_t node, uint64_t at_us);
uint64_t gk_sim_work_us(struct gk_sim *sim, uint64_t usual_us);

/* run.c */
void gk_sim_stats_add(struct gk_sim_stats *sum, const struct gk_sim_stats *one);
void gk_sim_stats_print(const struct gk_sim_stats *stats);
struct gk_sim *gk_sim_new(void); /* for any number of runs, one after the other */
void gk_sim_free(struct gk_sim *sim);
bool gk_sim_init(struct gk_sim *sim, const struct gk_sim_options *options);
void gk_sim_fini(struct gk_sim *sim);
bool gk_sim_turn(struct gk_sim *sim); /* one event; false: nothing left, done or failed */
bool gk_sim_done(const struct gk_sim *sim);
void gk_sim_finish(struct gk_sim *sim);             /* run to the end and make the last checks */
uint64_t gk_sim_limit_us(const struct gk_sim *sim); /* by when a calm job must be done */

#endif
