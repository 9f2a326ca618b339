/* A bounded window of chunk requests to one shard: INIT, PUSH and PULL_DENSE all send their chunks
 * through one.
 *
 * Chunks 0 .. next-1 have been sent; those not answered yet sit in the slots with the time of their
 * next try.  The id of a retry is that of its request but for the highest bits, which number the
 * tries: the answer to any copy ends the request, and tells how long the link takes, because nobody
 * has to guess which copy was answered (as RFC 7323 does for TCP; Karn and Partridge 1987 tell
 * why).  An answer without a slot is a duplicate. */
#ifndef GK_WORKER_CORE_WINDOW_H
#define GK_WORKER_CORE_WINDOW_H

#include "common/limits.h"

#include <stdbool.h>
#include <stdint.h>

_Static_assert(GK_PUSH_WINDOW <= GK_PULL_WINDOW, "one kind of window serves both");

enum {
    GK_WINDOW_TRIES_MAX = 8, /* that have a number of their own; later ones share the last */
    GK_WINDOW_TRY_SHIFT = 61,
};

struct gk_window_slot {
    bool active;
    uint32_t chunk;
    uint32_t tries;
    uint64_t req_id; /* of the first try */
    uint64_t tried_us[GK_WINDOW_TRIES_MAX];
    uint64_t retry_us;
    uint64_t backoff_us;
};

struct gk_window {
    uint32_t chunks; /* 0: not in use */
    uint32_t next;   /* first chunk that was never sent */
    uint32_t done;   /* chunks answered */
    uint32_t limit;  /* slots that may be used */
    /* How long an answer takes, kept from one use to the next; 0: none has come.  That of the last
     * one, or half way to it where it was longer, because one that was lost tells too much. */
    uint64_t answer_us;
    struct gk_window_slot slots[GK_PULL_WINDOW];
};

/* Begin with `chunks` > 0 chunks and at most `limit` of them outstanding. */
void gk_window_start(struct gk_window *window, uint32_t chunks, uint32_t limit);

/* Nothing is outstanding any more. */
void gk_window_stop(struct gk_window *window);

/* The next chunk to send now: a retry that is due, or a new one.  Takes a request id from *req_ids
 * for a new one. False: nothing to send.  Call until false. */
bool gk_window_send(struct gk_window *window, uint64_t now_us, uint64_t *req_ids,
                    uint32_t *ret_chunk, uint64_t *ret_req_id, bool *ret_again);

/* An answer: true, with the chunk, when it ends a request.  The retries of what is outstanding move
 * back, also behind an answer to a copy, which ends nothing: the shard, or the link, is busy with
 * what was asked before. */
bool gk_window_answer(struct gk_window *window, uint64_t req_id, uint64_t now_us,
                      uint32_t *ret_chunk);

/* An answer to something else that was asked before: the retries move back all the same. */
void gk_window_heard(struct gk_window *window, uint64_t now_us);

/* Whether the slot is outstanding and made a try with that id. */
bool gk_window_slot_has(const struct gk_window_slot *slot, uint64_t req_id);

/* True when that request is outstanding. */
bool gk_window_holds(const struct gk_window *window, uint64_t req_id);

/* Everything outstanding is due now (the connection or the session is a new one). */
void gk_window_resend(struct gk_window *window, uint64_t now_us);

/* Earliest time at which gk_window_send() has something; UINT64_MAX: only after an answer. */
uint64_t gk_window_due_us(const struct gk_window *window, uint64_t now_us);

static inline bool gk_window_active(const struct gk_window *window)
{
    return window->chunks > 0 && window->done < window->chunks;
}

static inline bool gk_window_complete(const struct gk_window *window)
{
    return window->chunks > 0 && window->done == window->chunks;
}

#endif
