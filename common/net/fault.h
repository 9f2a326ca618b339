/* Trouble on the way between two daemons, on purpose: for fault scripts (docs/faults.md).
 *
 * One object stands between a socket and its owner.  Each message, in either direction, is lost,
 * damaged, doubled or delayed with a chance; the draws are a function of the seed, the pair, the
 * direction and the number of the message.  Damage is one bit of one frame, after all checks were
 * written into it.  Without an object a socket has none of this; loop thread only. */
#ifndef GK_COMMON_NET_FAULT_H
#define GK_COMMON_NET_FAULT_H

#include "common/buf.h"
#include "common/err.h"
#include "common/words.h"

#include <jansson.h>

#include <stdbool.h>
#include <stdint.h>

struct uv_loop_s;
struct gk_fault;

enum gk_fault_kind {                     /* in the order of the names in fault.c */
                     GK_FAULT_PARTITION, /* nothing passes */
                     GK_FAULT_DROP,
                     GK_FAULT_CORRUPT,
                     GK_FAULT_DUPLICATE,
                     GK_FAULT_DELAY, /* by `amount_us`; what follows overtakes when it is not
                                        delayed too */
                     GK_FAULT_KINDS,
};

enum gk_fault_way { GK_FAULT_OUT, GK_FAULT_IN };

enum { /* waiting messages of one object; more are lost, as in a network */
       GK_FAULT_QUEUE_MESSAGES_MAX = 512,
       GK_FAULT_QUEUE_BYTES_MAX = 64 * 1024 * 1024,
};

/* Where a message goes on; it borrows the parts. */
typedef void gk_fault_pass(void *context, uint64_t route, struct gk_buf *const *parts,
                           uint32_t parts_count);

struct gk_fault_setup {
    struct uv_loop_s *loop;
    uint32_t us, peer; /* name the pair in the draws */
    gk_fault_pass *out, *in;
    void *context;
};

/* GK_E_NOMEM. */
enum gk_err gk_fault_open(const struct gk_fault_setup *setup, struct gk_fault **ret_fault);

/* Idempotent; what still waits is lost; no callback from here on.  Accepts NULL. */
void gk_fault_close(struct gk_fault *fault);

/* What the launcher asks for. */
struct gk_fault_command {
    uint64_t seed;
    uint32_t kind; /* enum gk_fault_kind; GK_FAULT_KINDS: all of them end */
    int64_t peer;  /* -1: every one */
    double chance; /* 0: this kind ends */
    uint64_t amount_us;
};

/* {"fault": "drop", "peer": 1, "chance": 0.2, "amount_us": 0, "seed": 7}; "heal" ends all kinds.
 * GK_E_INVALID and words: it is none of these. */
enum gk_err gk_fault_command_read(const json_t *object, struct gk_fault_command *ret_command,
                                  struct gk_words *words);

/* Obey; what waits already keeps its time. */
void gk_fault_set(struct gk_fault *fault, const struct gk_fault_command *command);

/* A message begins its way: the callbacks get what comes of it, now or later. */
void gk_fault_message(struct gk_fault *fault, enum gk_fault_way way, uint64_t route,
                      struct gk_buf *const *parts, uint32_t parts_count);

struct gk_fault_stats {
    uint64_t messages;             /* that met an object */
    uint64_t done[GK_FAULT_KINDS]; /* of each kind */
    uint64_t overflowed;           /* lost because the queue was full */
};

const struct gk_fault_stats *gk_fault_stats(const struct gk_fault *fault);

#endif
