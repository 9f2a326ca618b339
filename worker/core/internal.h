/* Private to worker/core: the state of the core and the functions its files share. */
#ifndef GK_WORKER_CORE_INTERNAL_H
#define GK_WORKER_CORE_INTERNAL_H

#include "common/rng.h"
#include "worker/core/window.h"
#include "worker/core/worker.h"

/* Of the connection to one shard. */
enum gk_session_state {
    GK_SESSION_DOWN,     /* not connected */
    GK_SESSION_GREETING, /* connected, HELLO not answered */
    GK_SESSION_READY,    /* WELCOME is here */
    GK_SESSION_COUNT,
};

struct gk_retry {    /* a request that is not a chunk */
    uint64_t req_id; /* 0: not outstanding */
    uint64_t due_us;
    uint64_t backoff_us;
};

/* What LOST_SHARD is said with: nothing brings back by itself what one shard alone held. */
#define GK_LOST_SHARD_REPAIR                                                                       \
    ". Stop the servers, put a copy of its state directory back and take all shards to its "       \
    "version (gkps rewind --to V DIR...); without a copy begin the job anew (gkps run, with "      \
    "--fresh where there is a state directory)"

struct gk_shard {
    uint32_t index;
    uint64_t lo, hi; /* of the parameter vector */
    enum gk_session_state state;
    uint64_t since_us;   /* of the state */
    uint64_t unready_us; /* when it was last READY, while it is not */

    /* Handshake. */
    uint64_t session;
    bool welcomed; /* at least once in this life */
    struct gk_retry hello;
    uint32_t refusal; /* enum gk_code of the last REFUSE, 0 after a WELCOME */
    struct gk_words refusal_words;

    /* What the shard has shown. */
    bool initialised;
    bool finished;
    uint64_t init_id;
    struct gk_uid job_uid;
    uint64_t version, durable_version; /* durable_version <= version, whatever the shard says */
    uint32_t workers_present;
    uint64_t heard_us;
    struct gk_ping pong; /* the last one */

    /* Work. */
    struct gk_window init, push, pull;
    struct gk_words init_words; /* why INIT is held back */
    uint64_t push_step;         /* of the push window */
    bool push_lost;             /* the push window holds an empty push with LOST */
    uint64_t pull_version;
    struct gk_retry leave;
    bool left;
    bool gone; /* LEAVING: another job or an empty server answers there now */
    uint64_t ping_due_us;
};

struct gk_ring_entry {
    struct gk_push *push; /* NULL: free */
    bool persisted;       /* may be sent */
    bool *decided;        /* per shard: durable verdict seen */
};

struct gk_worker {
    const struct gk_worker_config *config;
    enum gk_worker_phase phase;
    uint32_t chunk_floats;
    uint64_t now_us;
    uint64_t phase_us; /* of the last phase change or other progress, for stall lines */
    uint64_t stall_due_us;
    uint64_t started_us;

    uint32_t rank; /* GK_RANK_ANY until shard 0 has assigned one */
    uint64_t life_nonce;
    uint32_t incarnation;
    uint32_t born_incarnation;   /* of this life at its start */
    uint32_t memory_incarnation; /* the first one with this memory */
    uint32_t former_incarnation; /* the last one before this life that joined */
    uint32_t epoch;
    struct gk_uid job_uid; /* known once joined */
    uint64_t init_id;
    bool resumes;  /* begun with a slot, and has not joined yet */
    bool succeeds; /* the life before it held former_rank everywhere, and is dead */
    uint32_t former_rank;
    bool slot_lost;                       /* begun with a slot that is damaged */
    bool left_before;                     /* begun with the slot of a life that had left */
    struct gk_worker_identity remembered; /* the last one that was written down */
    bool all_welcomed;                    /* once; from then on FENCED means exit */

    bool init_asked, init_made; /* MAKE_INIT */
    uint64_t made_init_id;
    struct gk_uid minted_uid;
    struct gk_uid init_uid; /* what INIT carries */

    uint64_t target;                /* the version that EXCHANGING fetches, or COMPUTING works on */
    uint64_t version;               /* installed on all shards */
    uint64_t evaluated_version;     /* + 1; 0: none */
    uint64_t first_step, next_step; /* this life has made the pushes of [first_step, next_step) */
    uint64_t leaving_us;
    uint64_t left_at; /* as in the identity: 0: it does not leave yet */

    uint64_t req_ids;
    struct gk_ring_entry ring[GK_RING_ENTRIES];
    struct gk_shard *shards;
    struct gk_worker_stats stats;

    /* Where the time of this exchange went. */
    uint64_t exchange_us, pushed_us, first_params_us;

    struct gk_worker_actions *out; /* during gk_worker_step() */
};

/* actions.c: appending to the list. */
struct gk_worker_action *gk_worker_emit(struct gk_worker *worker, enum gk_worker_action_kind kind);
struct gk_msg *gk_worker_emit_send(struct gk_worker *worker, struct gk_shard *shard,
                                   enum gk_kind kind, uint64_t req_id);
void gk_worker_trace(struct gk_worker *worker, enum gk_log_level level, const char *id,
                     const char *format, ...) __attribute__((format(printf, 4, 5)));
void gk_worker_exit(struct gk_worker *worker, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* actions.c: requests that are not chunks. */
void gk_retry_start(struct gk_worker *worker, struct gk_retry *retry);
/* True: send now; moves the next try. */
bool gk_retry_due(struct gk_worker *worker, struct gk_retry *retry);
void gk_retry_stop(struct gk_retry *retry);
uint64_t gk_retry_due_us(const struct gk_retry *retry);

/* session.c */
void gk_session_up(struct gk_worker *worker, struct gk_shard *shard);
void gk_session_down(struct gk_worker *worker, struct gk_shard *shard);
void gk_session_welcome(struct gk_worker *worker, struct gk_shard *shard, const struct gk_msg *msg);
void gk_session_refuse(struct gk_worker *worker, struct gk_shard *shard, const struct gk_msg *msg);
void gk_session_nack(struct gk_worker *worker, struct gk_shard *shard, const struct gk_msg *msg);
void gk_session_pump(struct gk_worker *worker, struct gk_shard *shard);
uint64_t gk_session_due_us(const struct gk_worker *worker, const struct gk_shard *shard);
bool gk_session_all_ready(const struct gk_worker *worker);

/* init.c */
void gk_init_observe(struct gk_worker *worker, struct gk_shard *shard);
void gk_init_pump(struct gk_worker *worker);
uint64_t gk_init_due_us(const struct gk_worker *worker);
void gk_init_ok(struct gk_worker *worker, struct gk_shard *shard, const struct gk_msg *msg);
bool gk_init_agreed(struct gk_worker *worker);

/* exchange.c */
void gk_exchange_observe(struct gk_worker *worker, struct gk_shard *shard,
                         const struct gk_header *header);
void gk_exchange_new_session(struct gk_worker *worker, struct gk_shard *shard);
void gk_exchange_begin(struct gk_worker *worker, uint64_t target);
void gk_exchange_pump(struct gk_worker *worker, struct gk_shard *shard);
uint64_t gk_exchange_due_us(const struct gk_worker *worker, const struct gk_shard *shard);
void gk_exchange_push_ok(struct gk_worker *worker, struct gk_shard *shard,
                         const struct gk_msg *msg);
void gk_exchange_params(struct gk_worker *worker, struct gk_shard *shard, const struct gk_msg *msg);
void gk_exchange_gone(struct gk_worker *worker, struct gk_shard *shard, const struct gk_msg *msg);
bool gk_exchange_complete(struct gk_worker *worker);
uint64_t gk_exchange_highest(const struct gk_worker *worker);

/* ring.c: the pushes that some shard has not yet decided for good. */
void gk_ring_put(struct gk_worker *worker, struct gk_push *push);
void gk_ring_persisted(struct gk_worker *worker);
void gk_ring_observe(struct gk_worker *worker, struct gk_shard *shard,
                     const struct gk_header *header);
void gk_ring_clear(struct gk_worker *worker);
bool gk_ring_has_room(const struct gk_worker *worker);
bool gk_ring_owes(const struct gk_worker *worker, const struct gk_shard *shard);
const struct gk_push *gk_ring_find(const struct gk_worker *worker, uint64_t step,
                                   const struct gk_ring_entry **ret_entry);

/* restart.c */
bool gk_worker_resumes(struct gk_worker *worker, uint64_t highest);
/* The slot is void, before it has joined.  False: there was none. */
bool gk_worker_forget(struct gk_worker *worker);

/* worker.c: the epoch in which a former life had left is over, and that with it: join like a life
 * without a memory. */
void gk_worker_rejoin(struct gk_worker *worker);
void gk_worker_remember(struct gk_worker *worker);

/* leave.c */
void gk_leave_begin(struct gk_worker *worker);
void gk_leave_pump(struct gk_worker *worker, struct gk_shard *shard);
uint64_t gk_leave_due_us(const struct gk_worker *worker, const struct gk_shard *shard);
void gk_leave_ok(struct gk_worker *worker, struct gk_shard *shard, const struct gk_msg *msg);
void gk_leave_progress(struct gk_worker *worker);

/* stall.c: every wait says whom it waits for. */
/* Something went on: the clock of stall lines starts again. */
void gk_stall_progress(struct gk_worker *worker);
void gk_stall_check(struct gk_worker *worker);

/* watch.c: deadlines, and when to look again. */
void gk_watch_paused(struct gk_worker *worker, uint64_t pause_us); /* pause.h; 0: no */
void gk_watch_deadlines(struct gk_worker *worker);
uint64_t gk_watch_due_us(const struct gk_worker *worker);

#endif
