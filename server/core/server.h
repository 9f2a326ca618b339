/* The pure server core: one shard as one step function.  Events go in (messages, finished
 * computations and writes, timers), actions come out (messages to send, sums to compute, records to
 * write); no I/O, no clock, no lock, no log, and no allocation once the job's memory is set up. The
 * daemon, the simulator and the unit tests are three shells around it.
 *
 * What it does for one step t: collect one push per active rank, SUM them in rank order, WRITE the
 * record, and only then APPLY it and serve version t + 1.  server/README.md has the state diagrams,
 * the path of a push and the invariants. */
#ifndef GK_SERVER_CORE_SERVER_H
#define GK_SERVER_CORE_SERVER_H

#include "common/backend.h"
#include "common/log.h"
#include "proto/msg.h"
#include "server/core/image.h"
#include "server/core/record.h"

enum {
    GK_SERVER_PULLS_MAX = 2 * GK_PULL_WINDOW, /* waiting pulls per rank */
    GK_SERVER_SERVE_MAX = 64,   /* waiting pulls answered per step; a timer goes on with the rest */
    GK_SERVER_MEMBERS_MAX = 32, /* ranks per MEMBER record: two replies and two lines each */
    GK_SERVER_ACTIONS_MAX = GK_SERVER_SERVE_MAX + 4 * GK_SERVER_MEMBERS_MAX + 32,
};

enum gk_server_plant { /* planted bugs: each must be caught by the simulator, which alone sets them
                        */
                       GK_SERVER_PLANT_NO_DEDUP = 1
                                                  << 0, /* a push of a decided step counts again */
                       GK_SERVER_PLANT_STALE_FIRST =
                           1 << 1, /* staleness is judged before deduplication: RETURNED though
                                      applied */
                       GK_SERVER_PLANT_ARRIVAL_ORDER = 1
                                                       << 2,  /* sums run in the order of arrival */
                       GK_SERVER_PLANT_SAME_SESSION = 1 << 3, /* sessions survive the shard's life:
                                                                 its old PUSH_OKs look valid */
                       GK_SERVER_PLANT_MIXED_CHUNKS =
                           1 << 4, /* chunks of different pushes are put together */
                       GK_SERVER_PLANT_FORGET_LEAVE = 1 << 5, /* LEAVE_OK without a record */
};

struct gk_server_config { /* strings borrowed; must outlive the core */
    const char *job;
    uint32_t shard, servers, workers;
    uint64_t memory_bytes; /* budget for planes, sums and pushes; 0: none */
    uint64_t deadline_us;  /* for workers and model to arrive; 0: none */
    uint32_t chunk_floats; /* smallest full chunk; GK_CHUNK_FLOATS outside tests */
    uint64_t seed;  /* of sessions: random in the daemon, drawn from the seed in the simulator */
    bool local;     /* reachable from this machine only: DRAIN is obeyed */
    uint32_t plant; /* enum gk_server_plant */
};

/* Sizes that SETUP asks for. */
struct gk_server_setup {
    uint64_t lo, hi;
    uint32_t workers;
    uint32_t optimizer;    /* enum gk_optimizer */
    uint32_t planes_count; /* parameters, then moments */
    uint64_t plane_bytes;  /* of each */
    uint64_t sum_bytes;    /* of sum_idx and of sum_val, each */
    uint64_t tables_bytes;
    uint64_t
        push_bytes; /* reserved per rank for received frames; the shell allocates nothing for it */
    uint64_t total_bytes; /* what is held against the budget */
};

/* The memory itself, zeroed, aligned to 64 bytes.  Owned by the shell, lent to the core until the
 * next SETUP or until the core is freed. */
struct gk_server_memory {
    float *planes[3];
    uint32_t *sum_idx;
    float *sum_val;
    void *tables;
};

enum gk_server_event_kind {
    GK_SERVER_START,
    GK_SERVER_TICK,        /* the armed timer */
    GK_SERVER_MESSAGE,     /* msg from route */
    GK_SERVER_BAD_MESSAGE, /* something from route that failed validation: err, words, and the
                              header if it was readable */
    GK_SERVER_PEER_GONE,   /* route cannot be reached any more */
    GK_SERVER_SETUP_DONE,  /* memory, or err and words */
    GK_SERVER_SUM_DONE,
    GK_SERVER_WRITE_DONE, /* GK_E_LIMIT: the disk is full; the record is offered again after a
                             while. Any other error ends the process */
    GK_SERVER_SYNCED,     /* what was written is safe up to `version` */
    GK_SERVER_APPLY_DONE,
    GK_SERVER_HASH_DONE,
    GK_SERVER_PIN_DONE, /* with err: nothing is held */
    GK_SERVER_STOP,     /* a signal, or the launcher is gone: finish the commit in flight, exit with
                           exit_code */
    GK_SERVER_EVENTS_COUNT,
};

struct gk_server_event {
    enum gk_server_event_kind kind;
    uint64_t now_us;                /* monotonic */
    uint64_t route;                 /* not 0 */
    const struct gk_msg *msg;       /* MESSAGE: borrowed; frames that are kept get a reference */
    const struct gk_header *header; /* BAD_MESSAGE; kind 0: unreadable */
    uint64_t op; /* *_DONE: of the action; a number from a former life is ignored */
    struct gk_server_memory memory; /* SETUP_DONE */
    enum gk_err err;   /* SETUP_DONE, BAD_MESSAGE, and *_DONE of a computation that failed */
    const char *words; /* with err; STOP; may be NULL */
    int exit_code;     /* STOP */
    bool unsynced;     /* WRITE_DONE: a host crash could still take it; SYNCED follows */
    uint64_t version;  /* SYNCED */
};

enum gk_server_action_kind {
    GK_SERVER_SEND,   /* msg to route; it has no frames */
    GK_SERVER_PARAMS, /* msg to route with a copy of `values` as its frame: copy now, APPLY may
                         follow */
    GK_SERVER_STATUS, /* the shell's JSON view as STATUS_OK: msg to route with the text as its frame
                       */
    GK_SERVER_SETUP,  /* allocate (free what an earlier SETUP gave), then SETUP_DONE */
    GK_SERVER_SUM,    /* the sum slot of the vector table, then SUM_DONE */
    GK_SERVER_WRITE,  /* make the record durable, then WRITE_DONE; without a state dir: at once */
    GK_SERVER_APPLY,  /* the apply slot, then APPLY_DONE */
    GK_SERVER_HASH,   /* the hash slot, then HASH_DONE */
    GK_SERVER_FRAME,  /* msg to route with a copy of `bytes` as its frame: copy now */
    GK_SERVER_PIN,    /* copy and hash the plane before any later APPLY, then PIN_DONE */
    GK_SERVER_UNPIN,  /* free the copy of a PIN that is done */
    GK_SERVER_ARM_TIMER, /* one timer, absolute time at_us; replaces the former; UINT64_MAX: none */
    GK_SERVER_TRACE,     /* a line for the log */
    GK_SERVER_EXIT,      /* the last action ever */
    GK_SERVER_ACTION_KINDS_COUNT,
};

/* A copy of the parameters of one version.  The memory is the shell's; at most one of each slot. */
struct gk_pin_args {
    uint32_t slot; /* below GK_PINS_MAX */
    const float *x;
    uint64_t n, index0;
    float *values; /* set by the shell, lent until UNPIN */
    uint64_t hash; /* set by the shell: of plane 0 */
};

struct gk_server_action {
    enum gk_server_action_kind kind;
    uint64_t route;
    uint64_t op;
    union { /* borrowed from the core; untouched until the *_DONE event, but PARAMS only within this
               turn */
        struct gk_server_setup setup;
        const struct gk_sum_args *sum;
        const struct gk_record *record;
        const struct gk_apply_args *apply;
        const struct gk_hash_args *hash;
        struct gk_pin_args *pin; /* PIN */
        uint32_t unpin;          /* UNPIN: the slot */
        struct {
            const void *data;
            size_t count;
        } bytes; /* FRAME: only within this turn, too */
        struct {
            const float *values;
            uint64_t count;
        } params;
        uint64_t at_us;
        struct {
            enum gk_log_level level;
            const char *id; /* static */
        } trace;
        struct {
            int code;
            const char *id; /* static, for the log */
        } exit;
    } u;
    struct gk_words words; /* TRACE, EXIT */
    struct gk_msg msg;     /* SEND, PARAMS, STATUS, FRAME */
};

/* Appended by the core, performed by the shell in this order; the shell sets count to 0 before the
 * next step. */
struct gk_server_actions {
    uint32_t count;
    struct gk_server_action list[GK_SERVER_ACTIONS_MAX];
};

enum gk_shard_state {
    GK_SHARD_WAITING,  /* no version, no memory: for the HELLOs of all ranks and for INIT */
    GK_SHARD_SETUP,    /* the shell allocates */
    GK_SHARD_INIT,     /* the initial parameters come in, then their record is written */
    GK_SHARD_RUNNING,  /* rounds */
    GK_SHARD_FINISHED, /* all ranks have left; answers duplicates for a bounded time */
    GK_SHARD_DRAINING, /* told to stop: ends the commit in flight, accepts nothing new */
    GK_SHARD_EXITED,   /* EXIT was emitted */
    GK_SHARD_STATES_COUNT,
};

enum gk_round_state {
    GK_ROUND_COLLECTING, /* pushes of step = version */
    GK_ROUND_SUMMING,    /* pushes are locked */
    GK_ROUND_WRITING,    /* the record waits for the disk */
    GK_ROUND_APPLYING,   /* version is one more already; the planes are not there yet */
    GK_ROUND_STATES_COUNT,
};

/* Distinct complete pushes: pushes = applied + returned + skipped + lost + pending + dropped. */
struct gk_ledger {
    uint64_t pushes;                           /* completely received */
    uint64_t applied, returned, skipped, lost; /* decided, by verdict */
    uint64_t pending;                          /* in the open round */
    uint64_t
        dropped; /* replaced by a newer life's or another push before the commit; never summed */
    uint64_t duplicates; /* chunks that came again */
    uint64_t nacks;
    uint64_t bad_messages;
};

struct gk_server;

/* Memory for all ranks; GK_E_NOMEM. */
enum gk_err gk_server_new(const struct gk_server_config *config, struct gk_server **ret_server);

/* What a shard with this image needs.  GK_E_LIMIT: more than the budget; GK_E_CORRUPT, GK_E_NOMEM:
 * its spec. */
enum gk_err gk_server_size(const struct gk_server *server, const struct gk_image *image,
                           struct gk_server_setup *ret_setup, struct gk_words *words);

/* Before START: go on where a state directory ends, with its image (copied) and, if it is
 * initialised, memory of gk_server_size() whose planes are those of image->version.  The image is
 * that of the former life: START begins the next one.  Errors of gk_server_size(). */
enum gk_err gk_server_resume(struct gk_server *server, const struct gk_image *image,
                             const struct gk_server_memory *memory, struct gk_words *words);

/* Drops the pushes.  The memory of SETUP stays the shell's.  Accepts NULL. */
void gk_server_free(struct gk_server *server);

/* Advance by one event.  Borrows ev and all it points to.  Appends to `out`, in the order the shell
 * must honour; never blocks.  Loop thread only. */
void gk_server_step(struct gk_server *server, const struct gk_server_event *ev,
                    struct gk_server_actions *out);

/* A new life: what is durable stays, everything else is forgotten; then START.  For simulators and
 * tests: an APPLY whose APPLY_DONE was not delivered must not have run, START emits it again. */
void gk_server_restart(struct gk_server *server);

/* Asserts everything that must hold between two events. */
void gk_server_check(const struct gk_server *server);

/* A const view for STATUS, logs and tests. */
struct gk_server_view {
    enum gk_shard_state state;
    enum gk_round_state round;
    bool initialised;
    uint32_t incarnation;
    struct gk_uid job_uid;
    uint64_t init_id;
    uint64_t version, durable_version, optimizer_step;
    uint64_t lo, hi;
    bool hashed;
    uint64_t hash, hash_version;
    uint64_t reserved_bytes;
    bool round_open; /* COLLECTING, and somebody is missing */
    uint64_t round_open_us;
    bool disk_full;              /* a record waits for room */
    uint64_t disk_full_us;       /* since when */
    const char *disk_full_words; /* of the core */
    uint32_t present;            /* ranks that have said HELLO to this life */
    struct gk_ledger ledger;
};

struct gk_rank_view {
    bool present, left, contributed, missing; /* missing: the open round waits for it */
    uint32_t incarnation;
    bool heard; /* in this life of the shard */
    uint64_t heard_us;
    bool pushed; /* in this job: last_step is the step of its last known push */
    uint64_t last_step;
    struct gk_ping ping; /* what it says it waits for */
};

void gk_server_view(const struct gk_server *server, struct gk_server_view *ret);
void gk_server_view_rank(const struct gk_server *server, uint32_t rank, struct gk_rank_view *ret);

/* Plane of the shard (0: parameters); NULL before SETUP. */
const float *gk_server_plane(const struct gk_server *server, uint32_t plane);

const char *gk_shard_state_name(enum gk_shard_state state);
const char *gk_round_state_name(enum gk_round_state state);

/* True when the state machine has an arrow from one state to the other: for the table test. */
bool gk_shard_may_follow(enum gk_shard_state from, enum gk_shard_state to);
bool gk_round_may_follow(enum gk_round_state from, enum gk_round_state to);

#endif
