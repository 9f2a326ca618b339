/* The parts of `gkps export --server` share this: the conversation with the servers of a job. */
#ifndef GK_TOOL_EXPORT_LIVE_INTERNAL_H
#define GK_TOOL_EXPORT_LIVE_INTERNAL_H

#include "common/net/zsock.h"
#include "proto/msg.h"
#include "tool/export_live.h"

#include <uv.h>

enum gk_live_phase { GK_LIVE_ASKING, GK_LIVE_PINNING, GK_LIVE_PULLING, GK_LIVE_ENDED };

struct gk_live_chunk { /* outstanding; hi 0: none */
    uint64_t lo, hi, asked_us, delay_us;
};

struct gk_live_peer {
    struct gk_live *live;
    char address[GK_ZSOCK_ADDRESS_BYTES];
    struct gk_zsock *zsock;
    bool up;
    struct gk_words words; /* why it holds us up, in its own words */

    bool known; /* of this try: STATUS has come */
    uint32_t shard, servers, epoch;
    struct gk_uid uid;
    char job[GK_JOB_NAME_BYTES];
    uint64_t version; /* the last that it spoke of */

    bool pinned;
    uint64_t lo, hi, next, taken, hash;
    struct gk_live_chunk chunks[GK_PULL_WINDOW];
};

struct gk_live {
    const struct gk_live_wish *wish;
    struct gk_live_model *model;
    struct gk_words *words;
    void *zmq;
    uv_loop_t loop;
    uv_timer_t tick;
    struct gk_signals *signals;
    struct gk_live_peer peers[GK_SERVERS_MAX];
    uint32_t peers_count;

    enum gk_live_phase phase;
    uint64_t export_id, req_id; /* of PIN; of STATUS and PULL_PIN */
    uint64_t version, margin, highest;
    bool final, stands; /* how the next version is chosen */
    uint32_t tries;
    uint64_t began_us, asked_us, moved_us;
    uint64_t spec_hash;
    int code;
};

/* export_live.c */
void gk_live_end(struct gk_live *live, int code);
void gk_live_try_again(struct gk_live *live, const char *why);

/* export_ask.c: requests; what cannot be sent now is asked again later. */
void gk_live_ask_status(struct gk_live_peer *peer);
void gk_live_ask_pin(struct gk_live_peer *peer, uint32_t flags);
void gk_live_ask_chunk(struct gk_live_peer *peer, struct gk_live_chunk *chunk);

/* export_ask.c: what STATUS says.  True: this shard has a version. */
bool gk_live_read_status(struct gk_live_peer *peer, const struct gk_msg *msg,
                         struct gk_words *words);
bool gk_live_one_job(const struct gk_live *live, struct gk_words *words);

/* export_values.c */
enum gk_err gk_live_take_spec(struct gk_live *live, const struct gk_buf *frame,
                              struct gk_words *words);
void gk_live_fill_window(struct gk_live_peer *peer);
void gk_live_values(struct gk_live_peer *peer, const struct gk_msg *msg);

#endif
