/* The pure worker core: one step function.  Events go in (connections, messages, finished
 * computations, timers), actions come out (messages to send, computations to start, parameters to
 * install); no I/O, no clock, no lock, no log, and no allocation after gk_worker_new().  The daemon
 * and the simulator are two shells around it.
 *
 * What it does for one step t: STEP (gradient, selection, encoding), PERSIST, then one push per
 * shard and one pull of version t + 1 per shard, each through a bounded window; the push stays in
 * the ring until every shard's verdict on it is durable.  worker/README.md has the state diagrams
 * and the invariants. */
#ifndef GK_WORKER_CORE_WORKER_H
#define GK_WORKER_CORE_WORKER_H

#include "common/log.h"
#include "proto/msg.h"
#include "proto/spec.h"
#include "worker/core/push.h"
#include "worker/core/slot.h"

struct gk_worker;

struct gk_worker_config { /* borrowed; must outlive the core */
    const char *job;
    const char *const *addresses; /* of the shards, for words */
    uint32_t servers, workers;
    uint32_t rank; /* GK_RANK_ANY: shard 0 assigns one */
    const struct gk_spec *spec;
    uint64_t spec_hash, model_signature;
    /* Of life nonce and job uid: random in the daemon, drawn from the seed in the simulator. */
    uint64_t seed;
    /* With optimizer NONE alone.  The worker has an optimizer of its own: it begins with the
     * parameters of version 0, and fetches of each later version what the ranks have pushed.  Where
     * its slot comes from there its parameters come from too; no shard has them. */
    bool sums;
    bool takeover;         /* the launcher has reaped this rank's older life */
    uint64_t deadline_us;  /* for joining, and for a shard that went away; 0: none */
    uint64_t eval_every;   /* versions; 0: none but the last one */
    bool evaluates;        /* says EVALUATE at these versions and at the last one */
    uint32_t chunk_floats; /* of INIT and pulls; 0, outside tests: GK_CHUNK_FLOATS */
    uint32_t plant;        /* enum gk_worker_plant: the simulator's planted bugs */
};

enum gk_worker_plant { /* each must be caught by the simulator */
                       /* PUSH_OKs of a former session count. */
                       GK_WORKER_PLANT_OLD_ACKS = 1 << 0,
                       /* PARAMS of any version are installed. */
                       GK_WORKER_PLANT_MIXED_PULL = 1 << 1,
                       /* Leaves without waiting for LEAVE_OK. */
                       GK_WORKER_PLANT_FORGET_LEAVE = 1 << 2,
};

enum gk_worker_event_kind {
    GK_WORKER_START,
    GK_WORKER_TICK,    /* the armed timer */
    GK_WORKER_PEER_UP, /* connected to `shard` */
    GK_WORKER_PEER_DOWN,
    GK_WORKER_MESSAGE,     /* `msg` from `shard` */
    GK_WORKER_BAD_MESSAGE, /* something from `shard` that did not pass validation */
    GK_WORKER_INIT_MADE,   /* answer to MAKE_INIT: init_id */
    GK_WORKER_STEP_DONE,   /* answer to STEP: push, or failed with words */
    GK_WORKER_PERSISTED,   /* answer to PERSIST */
    GK_WORKER_EVALUATED,   /* answer to EVALUATE */
    GK_WORKER_LEAVE,       /* in place of STEP_DONE: this rank makes no more steps */
    GK_WORKER_STOP,        /* a signal, or the launcher is gone: exit with exit_code */
    GK_WORKER_EVENTS_COUNT,
};

struct gk_worker_event {
    enum gk_worker_event_kind kind;
    uint64_t now_us; /* monotonic; does not go backwards */
    uint32_t shard;
    const struct gk_msg *msg; /* borrowed; frames that are kept get a reference */
    uint64_t init_id;
    struct gk_push *push; /* STEP_DONE: taken by the core; NULL: failed */
    int exit_code;        /* STOP; STEP_DONE that failed */
    const char *words;    /* STOP; STEP_DONE that failed; BAD_MESSAGE */
};

enum gk_worker_action_kind {
    GK_WORKER_SEND, /* msg to shard */
    /* The same; the shell attaches the values [h.lo, h.hi) of the initial vector, and before them
     * the spec to chunk 0. */
    GK_WORKER_SEND_INIT,
    GK_WORKER_RANK,      /* the rank that was assigned is in `rank`; before STEP, perhaps again */
    GK_WORKER_MAKE_INIT, /* compute the initial vector and its id */
    GK_WORKER_STEP,      /* gradient at version `step`, selection, encoding */
    GK_WORKER_PERSIST,   /* residual and push of `step`, with `memory`; without a slot: at once */
    GK_WORKER_REMEMBER,  /* `identity` into the slot, before the actions behind it */
    /* Values in `buf` are of version `step`, [lo, hi).  Plane 0: the parameters.  Plane 1, with
     * config.sums from version 1 on: the sum of the step before, divided by its `samples`, for the
     * worker's own optimizer.  0 samples on all shards: nobody had any, no optimizer step. */
    GK_WORKER_INSTALL,
    GK_WORKER_EVALUATE,  /* the installed parameters, version `step` */
    GK_WORKER_RESET,     /* the residual is void: set it to zero; so is what the slot holds */
    GK_WORKER_ARM_TIMER, /* one timer, absolute time at_us; replaces the former */
    GK_WORKER_TRACE,     /* a line for the log */
    GK_WORKER_EXIT,      /* the last action ever */
};

struct gk_worker_action {
    enum gk_worker_action_kind kind;
    uint32_t shard;
    uint32_t rank; /* RANK */
    uint64_t step;
    uint64_t lo, hi;
    uint32_t plane;                     /* INSTALL */
    uint64_t samples;                   /* INSTALL of plane 1 */
    struct gk_buf *buf;                 /* INSTALL: a reference owned by the action list */
    struct gk_worker_memory memory;     /* PERSIST */
    struct gk_worker_identity identity; /* REMEMBER */
    uint64_t at_us;
    enum gk_log_level level; /* TRACE */
    const char *id;          /* TRACE: static */
    int exit_code;           /* EXIT */
    struct gk_words words;   /* TRACE, EXIT */
    struct gk_msg msg;       /* SEND: frame references are owned by the action list */
};

/* Appended by the core, performed by the shell in this order, then cleared. */
struct gk_worker_actions {
    struct gk_worker_action *list;
    uint32_t count, room;
};

enum gk_worker_phase {
    GK_PHASE_IDLE,       /* before START */
    GK_PHASE_JOINING,    /* until all shards show one init id */
    GK_PHASE_EXCHANGING, /* push and pull until version `target` is here */
    GK_PHASE_COMPUTING,
    GK_PHASE_PERSISTING,
    GK_PHASE_EVALUATING,
    GK_PHASE_LEAVING,
    GK_PHASE_DONE, /* EXIT was emitted */
    GK_PHASE_COUNT,
};

struct gk_worker_stats {
    uint64_t steps;      /* pushed */
    uint64_t retries;    /* requests sent again */
    uint64_t duplicates; /* answers nobody waited for */
    uint64_t bad_messages, nacks;
    uint64_t lost;           /* pushes replaced by an empty one with LOST */
    uint64_t residuals_lost; /* times that this life went on with an empty residual */
    uint64_t sessions;       /* opened, all shards */
    uint64_t push_us, wait_us, pull_us;
};

/* Memory for all shards; GK_E_NOMEM. */
enum gk_err gk_worker_new(const struct gk_worker_config *config, struct gk_worker **ret_worker);
void gk_worker_free(struct gk_worker *worker);

/* A life that finds a slot; before START.  Takes its pushes.  The residual is the shell's. */
void gk_worker_resume(struct gk_worker *worker, struct gk_worker_slot *slot);

/* A new life in the same memory, for the simulator: the core is as after gk_worker_new() and
 * gk_worker_resume() with what the actions have written down: REMEMBER, and PERSIST of the steps
 * below `next_step`; 0: none, or void since.  Then START. */
void gk_worker_restart(struct gk_worker *worker, uint64_t next_step);

/* An action list with room for everything one step can emit. */
enum gk_err gk_worker_actions_new(uint32_t servers, struct gk_worker_actions **ret_actions);
void gk_worker_actions_clear(struct gk_worker_actions *actions); /* drops the references */
void gk_worker_actions_free(struct gk_worker_actions *actions);

/* Advance by one event.  Appends to `out`, in the order the shell must honour.  One thread. */
void gk_worker_step(struct gk_worker *worker, const struct gk_worker_event *event,
                    struct gk_worker_actions *out);

const struct gk_worker_stats *gk_worker_stats(const struct gk_worker *worker);
enum gk_worker_phase gk_worker_phase(const struct gk_worker *worker);
uint64_t gk_worker_version(const struct gk_worker *worker); /* last installed on all shards */
/* All that this life does is to say LEAVE once more: its slot says that a former one had left. */
bool gk_worker_left_before(const struct gk_worker *worker);
const char *gk_worker_phase_name(enum gk_worker_phase phase);

/* Asserts everything that must hold between two events. */
void gk_worker_check(const struct gk_worker *worker);

#endif
