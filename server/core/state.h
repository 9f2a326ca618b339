/* The state of the server core, private to server/core.
 *
 * `image` and the planes are what records and their replay give back; `durable` is what follows
 * from them, kept over a restart so that it need not be made again; `live` is what a restart
 * forgets. Whatever is in none of them is configuration or belongs to the step that runs. */
#ifndef GK_SERVER_CORE_STATE_H
#define GK_SERVER_CORE_STATE_H

#include "common/limits.h"
#include "common/rng.h"
#include "proto/spec.h"
#include "server/core/assembly.h"
#include "server/core/image.h"
#include "server/core/server.h"

#include <stdbool.h>
#include <stdint.h>

struct gk_server_durable { /* beside the image */
    uint64_t spec_hash, model_signature;
    struct gk_spec
        spec; /* its tensors are the only allocation after gk_server_new(), made at INIT */
    uint8_t spec_bytes[GK_SPEC_BYTES_MAX];
    size_t spec_bytes_count;
    uint64_t lo, hi;
    uint64_t durable_version; /* up to which a host crash loses nothing */
    bool unapplied; /* the record of `version` is written, the planes still hold version - 1 */
    struct gk_update update;      /* of that record, in the sum buffers */
    struct gk_server_setup setup; /* total_bytes 0: no memory yet */
    struct gk_server_memory memory;
};

struct gk_pull { /* held back until its version exists; (plane, lo, hi) is the key */
    uint64_t req_id;
    uint64_t version;
    uint32_t plane;
    bool at_least;
    uint64_t lo, hi;
};

/* A change of one rank's durable row on its way through WRITE, with the replies that wait for it.
 */
struct gk_change {
    bool wanted; /* not yet in a record */
    bool hello;  /* a life that waits for WELCOME */
    uint32_t incarnation;
    uint64_t life_nonce;
    uint64_t hello_req_id, hello_route;
    struct gk_hello hello_body;
    bool leave; /* a rank that waits for LEAVE_OK */
    uint64_t left_at;
    uint64_t leave_req_id;
};

struct gk_push_slot { /* of the step `version` of the shard, in memory as received */
    struct gk_assembly assembly;
    uint64_t push_id;
    uint64_t step, base_version, samples, push_bytes;
    uint32_t incarnation;
    bool lost;
    bool has_rate; /* LR_FROM_CLIENT */
    uint32_t lr_bits;
    bool contributed; /* complete: counted into the round */
    uint64_t arrival; /* order of completion; only a planted bug looks at it */
};

struct gk_rival { /* a life that asks for a rank while another one, that has not joined, holds it */
    struct gk_hello hello;
    uint64_t since_us, heard_us;
};

struct gk_member {       /* one rank, as this life of the shard knows it */
    uint64_t session;    /* 0: none; then nothing below but `change` is meaningful */
    uint64_t life_nonce; /* of the process that holds it */
    uint64_t route;      /* newest; 0: gone */
    bool heard;
    uint64_t heard_us;
    struct gk_hello hello; /* the last accepted one */
    bool engaged;          /* it has joined: pushed, pulled or left */
    struct gk_rival rival;
    bool wanted;        /* another process has asked for this rank, and was told to wait */
    uint64_t wanted_us; /* the last time */
    struct gk_ping ping;
    struct gk_push_slot push;
    struct gk_pull pulls[GK_SERVER_PULLS_MAX];
    uint32_t pulls_count;
    struct gk_change change;
    bool left_unlogged; /* planted bug: the LEAVE is nowhere but in memory */
};

struct gk_round {
    enum gk_round_state state;
    uint64_t op; /* of SUM or APPLY in flight; 0: none */
    uint64_t opened_us;
    uint64_t arrivals;
    uint32_t contributed;                  /* ranks whose push is complete */
    struct gk_list *lists;                 /* in the SETUP memory */
    struct gk_contribution *contributions; /* [workers] */
    uint32_t contributions_count;
    uint64_t samples;
    bool has_rate; /* the ranks' own, in place of the schedule's */
    uint32_t lr_bits;
    struct gk_sum_args sum;
    struct gk_sum_report report;
    struct gk_apply_args apply;
};

struct gk_writer { /* records are written one at a time, in order */
    uint64_t op;   /* 0: idle */
    bool full;     /* the record found no room: offered again at retry_us */
    uint64_t full_since_us, retry_us;
    struct gk_words full_words; /* what found no room */
    struct gk_record record;
    struct gk_member_entry members[GK_SERVER_MEMBERS_MAX];
};

struct gk_hasher { /* of one version */
    bool begun;
    uint64_t version;
    uint32_t plane; /* in work; planes_count: all are done */
    uint64_t op;    /* 0: nothing in flight */
    uint64_t plane_hash, model, state;
    struct gk_hash_args args;
};

enum gk_pin_state {
    GK_PIN_FREE,
    GK_PIN_WAITING, /* for its version */
    GK_PIN_COPYING,
    GK_PIN_HELD,
    GK_PIN_FAILED,  /* there was no memory: told once */
    GK_PIN_LEAVING, /* a copy that nobody wants any more, still being made */
};

struct gk_pin { /* of one export */
    enum gk_pin_state state;
    uint64_t req_id; /* names the export: its requests repeat it */
    uint64_t version;
    uint64_t until_us;
    uint64_t op; /* COPYING, LEAVING */
    struct gk_pin_args args;
};

struct gk_init { /* assembling version 0 */
    struct gk_assembly assembly;
    uint64_t init_id;
    struct gk_uid job_uid;
    uint64_t setup_op;     /* SETUP in flight */
    struct gk_header held; /* the first chunk, while the shell allocates; the last one, while the
                              record is written */
    struct gk_buf *held_values;
    bool writing; /* all chunks are here */
};

struct gk_dispute { /* the ranks of the open round want different learning rates: the end */
    bool begun;
    uint64_t until_us; /* so long everybody who asks is told */
    struct gk_words words;
};

struct gk_server_live {
    enum gk_shard_state state;
    uint64_t started_us;
    uint64_t sessions_drawn;
    struct gk_member *members; /* [workers] */
    struct gk_init init;
    struct gk_round round;
    struct gk_dispute dispute;
    struct gk_writer writer;
    bool pushed; /* a push has come since INIT: version 0 cannot be replaced any more */
    bool finish_wanted;
    struct gk_hasher hasher;
    struct gk_pin pins[GK_PINS_MAX];
    bool hashed; /* the final version, and it was told */
    uint64_t linger_until_us;
    uint64_t drain_until_us;
    int exit_code;
    struct gk_words exit_words;
    bool pulls_due;    /* more waiting pulls can be answered than one step may */
    uint64_t stall_us; /* of the next stall line */
    uint64_t look_us;  /* of the next look at the clock, without anything else to do */
    uint64_t armed_us;
    uint64_t bad_line_us; /* of the next line about bad messages */
    uint64_t pushes, dropped, duplicates, nacks, bad_messages;
};

struct gk_server {
    struct gk_server_config config;
    uint32_t chunk_floats;
    uint64_t ops; /* numbers of actions; never repeated, not even over restarts */
    struct gk_range decay[GK_TENSORS_MAX];
    uint32_t decay_count;
    struct gk_image *image; /* changed by records only, but for an init that replaces version 0 */
    struct gk_server_durable durable;
    struct gk_server_live live;
    /* Of the step that runs. */
    uint64_t now_us;
    struct gk_server_actions *out;
    struct gk_msg nowhere; /* takes replies whose route is gone */
};

/* actions.c: what the core emits. */
struct gk_server_action *gk_server_emit(struct gk_server *server, enum gk_server_action_kind kind);
uint64_t gk_server_emit_op(struct gk_server *server, struct gk_server_action *action);
void gk_server_trace(struct gk_server *server, enum gk_log_level level, const char *id,
                     const char *format, ...) __attribute__((format(printf, 4, 5)));
void gk_server_exit(struct gk_server *server, int code, const char *id, const char *words);

/* actions.c: replies.  All go to the newest route of the rank; nothing is sent when it is gone: the
 * worker asks again. */
void gk_server_fill(const struct gk_server *server, struct gk_header *h, uint32_t kind,
                    uint32_t rank, uint64_t req_id);
struct gk_msg *gk_server_reply(struct gk_server *server, uint32_t kind, uint32_t rank,
                               uint64_t req_id);
void gk_server_nack(struct gk_server *server, uint32_t rank, uint64_t req_id, enum gk_code code,
                    bool retryable, const char *words);
void gk_server_nack_route(struct gk_server *server, uint64_t route, const struct gk_header *h,
                          enum gk_code code, const char *words);

/* server.c */
void gk_server_set_shard(struct gk_server *server, enum gk_shard_state to);
void gk_server_drain(struct gk_server *server, int exit_code, const char *words);
void gk_server_drained(struct gk_server *server); /* EXIT once nothing is in flight */

/* message.c */
void gk_server_message(struct gk_server *server, uint64_t route, const struct gk_msg *msg);
void gk_server_bad_message(struct gk_server *server, const struct gk_server_event *ev);

/* session.c */
void gk_server_hello(struct gk_server *server, uint64_t route, const struct gk_msg *msg);
void gk_server_session_open(struct gk_server *server, uint32_t rank);
/* Before version 0: nobody with another spec is present any more; 0: not known. */
void gk_server_spec_known(struct gk_server *server, uint64_t spec_hash, uint64_t signature);
uint32_t gk_server_present(const struct gk_server *server, struct gk_uid job_uid,
                           uint32_t *ret_missing);
void gk_server_ping(struct gk_server *server, uint32_t rank, const struct gk_msg *msg);
bool gk_server_silent(const struct gk_server *server, uint32_t rank);

/* init.c */
void gk_server_init_chunk(struct gk_server *server, const struct gk_msg *msg);
void gk_server_init_setup_done(struct gk_server *server, const struct gk_server_event *ev);
void gk_server_init_written(struct gk_server *server);
void gk_server_init_clear(struct gk_server *server);

/* setup.c */
uint32_t gk_server_chunks_max(const struct gk_server *server, uint64_t count);
void gk_server_size_setup(const struct gk_server *server, const struct gk_spec *spec,
                          struct gk_server_setup *setup);
bool gk_server_fits_budget(const struct gk_server *server, const struct gk_server_setup *setup,
                           struct gk_words *words);
void gk_server_lend_tables(
    struct gk_server *server); /* give every rank its part of the SETUP memory */

/* push.c */
void gk_server_push(struct gk_server *server, uint32_t rank, const struct gk_msg *msg);
void gk_server_push_drop(struct gk_server *server, uint32_t rank);
void gk_server_push_forget(struct gk_server *server, uint32_t rank); /* after its verdict */

/* round.c */
void gk_server_round_resume(struct gk_server *server); /* open it, and hash the version */
void gk_server_round_close(
    struct gk_server *server); /* if everybody has contributed, or has left */
bool gk_server_round_active(const struct gk_server *server, uint32_t rank);
uint32_t gk_server_round_missing(const struct gk_server *server, uint32_t *ret_lowest);
void gk_server_round_summed(struct gk_server *server, enum gk_err err, const char *words);
void gk_server_round_record(const struct gk_server *server, struct gk_record *record);
void gk_server_round_written(struct gk_server *server, bool unsynced);
void gk_server_round_apply(struct gk_server *server);
void gk_server_round_applied(struct gk_server *server, enum gk_err err, const char *words);

/* rates.c */
bool gk_server_rates_agree(
    struct gk_server *server); /* of all contributions; false: the end begins */
bool gk_server_rates_refuse(struct gk_server *server, uint32_t rank, uint64_t req_id);
void gk_server_rates_watch(struct gk_server *server);

/* hasher.c */
void gk_server_hash_begin(struct gk_server *server);
void gk_server_hash_done(struct gk_server *server, enum gk_err err, const char *words);
bool gk_server_hash_ready(const struct gk_server *server);

/* pin.c */
void gk_server_pin(struct gk_server *server, uint64_t route, const struct gk_header *h);
void gk_server_pin_pull(struct gk_server *server, uint64_t route, const struct gk_header *h);
void gk_server_pin_refuse(struct gk_server *server, uint64_t route, const struct gk_header *h,
                          enum gk_code code, const char *words);
void gk_server_pin_due(struct gk_server *server); /* begin a copy whose version is there */
bool gk_server_pin_awaits(const struct gk_server *server, uint64_t op);
void gk_server_pin_done(struct gk_server *server, const struct gk_server_event *ev);
void gk_server_pin_watch(struct gk_server *server); /* end those that nobody asks for */
void gk_server_pin_paused(struct gk_server *server, uint64_t pause_us);
uint64_t gk_server_pin_bytes(const struct gk_server *server); /* held against the budget */
void gk_server_pin_check(const struct gk_server *server);

/* pull.c */
void gk_server_pull(struct gk_server *server, uint32_t rank, const struct gk_msg *msg);
void gk_server_pull_serve(
    struct gk_server *server); /* as many waiting pulls as one step may answer */

/* writer.c */
void gk_server_write_next(struct gk_server *server);
void gk_server_written(struct gk_server *server, const struct gk_server_event *ev);
void gk_server_synced(struct gk_server *server, uint64_t version);
void gk_server_write_again(struct gk_server *server); /* when it is time to */

/* leave.c */
void gk_server_leave(struct gk_server *server, uint32_t rank, const struct gk_msg *msg);
void gk_server_leave_recorded(struct gk_server *server, uint32_t rank);
void gk_server_finish_written(struct gk_server *server);

/* watch.c */
bool gk_server_before_version(const struct gk_server *server); /* WAITING, SETUP or INIT */
void gk_server_watch(struct gk_server *server);
void gk_server_watch_paused(struct gk_server *server, uint64_t pause_us); /* pause.h; 0: no */
uint64_t gk_server_watch_next_us(const struct gk_server *server);

#endif
