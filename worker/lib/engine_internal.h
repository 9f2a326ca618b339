/* What the files of the engine share; nobody else includes this.
 *
 * engine.c        the engine's thread: events into the core, actions out of it
 * engine_turns.c  whose turn it is: what the two threads share, and the program's side of it
 * engine_open.c   opening and closing */
#ifndef GK_WORKER_LIB_ENGINE_INTERNAL_H
#define GK_WORKER_LIB_ENGINE_INTERNAL_H

#include "common/net/daemon.h"
#include "common/net/feed.h"
#include "common/net/zsock.h"
#include "worker/core/worker.h"
#include "worker/lib/engine.h"
#include "worker/lib/keeper.h"

#include <uv.h>

#include <pthread.h>
#include <stdatomic.h>

enum { GK_ENGINE_EVENTS_MAX = 16 };

struct gk_engine_peer { /* context of one shard's socket */
    struct gk_engine *engine;
    uint32_t shard;
    struct gk_zsock *zsock;
};

struct gk_engine_kept { /* values that came while the program may look at its memory */
    uint32_t plane;
    struct gk_range range;
    struct gk_buf *buf;
};

struct gk_engine_note {
    struct gk_engine_note *next;
    struct gk_words words;
};

enum gk_engine_asked {
    GK_ASKED_NOTHING,
    GK_ASKED_INIT_MADE,
    GK_ASKED_STEP,
    GK_ASKED_LEAVE,
    GK_ASKED_FAIL,
};

/* What the two threads share. */
struct gk_engine_shared {
    pthread_mutex_t mutex;
    pthread_cond_t turned;
    struct gk_engine_view view;
    bool install; /* the program waits: its memory may be written to */
    struct gk_engine_kept *kept;
    uint32_t kept_count, kept_room;
    uint64_t kept_version;
    enum gk_engine_asked asked;
    uint64_t init_id;
    int fail_code;
    struct gk_words fail_words;
    struct gk_flat_step step;
    double loss;
    uint64_t turned_us;           /* since when it is the program's turn */
    struct gk_engine_note *notes; /* newest first */
    bool eval_told;
    struct gk_report_eval eval;
    bool close;
};

struct gk_engine {
    const struct gk_engine_setup *setup;
    struct gk_engine_shared shared;
    atomic_int stop_code;        /* 0: none */
    struct gk_engine *next_open; /* of gk_forks_begin() */
    pthread_t thread;

    /* The engine's thread alone, once it runs. */
    uv_loop_t loop;
    bool loop_open;
    uv_async_t wake; /* the program wants something */
    struct gk_daemon daemon;
    struct gk_timer *timer;
    void *zmq;
    struct gk_engine_peer *peers;
    uint32_t peers_count;
    struct gk_compute *compute;
    struct gk_worker_config config;
    struct gk_worker *core;
    struct gk_worker_actions *actions;
    struct gk_worker_report report;
    struct gk_worker_event events[GK_ENGINE_EVENTS_MAX];
    struct gk_feed feed;
    struct gk_flat_step step; /* under way: the compute thread's until it is done */
    uint64_t selected;        /* of the last one that was done */
    double loss;
    uint64_t compute_us; /* between the turns before it */
    struct gk_keeper keeper;
    struct gk_words words; /* of an event that waits */
    enum gk_turn next;     /* LIBRARY: the events so far change nothing */
    uint64_t next_version;
    bool closing, job_begun, stopped;
    bool fails;    /* the event that ends it waits: no other turn is given any more */
    bool unwanted; /* it ends because the program closes it */
    int exit_code;
};

/* engine_turns.c */
void gk_engine_lock(struct gk_engine *engine);
void gk_engine_unlock(struct gk_engine *engine);
/* Everything that came with an event has been done: what the program sees changes at once. */
void gk_engine_publish(struct gk_engine *engine);
/* Values of the core's INSTALL: into the bound memory, or kept. */
void gk_engine_take(struct gk_engine *engine, const struct gk_worker_action *action);
/* Forget what was kept. */
void gk_engine_drop_kept(struct gk_engine *engine);

/* engine.c */
extern const struct gk_zsock_callbacks gk_engine_socket_callbacks; /* context: the peer */
void gk_engine_on_timer(void *context);
void gk_engine_on_wake(uv_async_t *handle);
void gk_engine_on_kept(void *context);
void gk_engine_on_failed(void *context, int exit_code, const char *words);
void gk_engine_on_stop(void *context, int exit_code, const char *words);
void gk_engine_on_command(void *context, const json_t *line);
void gk_engine_step_core(void *context, void *event); /* of gk_feed */
enum gk_err gk_engine_set_rank(struct gk_engine *engine, uint32_t rank, struct gk_words *words);
void gk_engine_shut_down(struct gk_engine *engine);
void *gk_engine_main(void *engine);

#endif
