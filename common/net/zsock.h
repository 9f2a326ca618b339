/* ZeroMQ sockets under libuv: the only module that calls zmq_send or zmq_recv.
 *
 * The descriptor of a ZeroMQ socket is edge-triggered and any send may swallow the edge of a
 * message that has arrived, so a poll callback alone goes deaf for good.  Here `prepare` flushes
 * the outboxes and re-reads ZMQ_EVENTS before every block, `check` receives by a budget, an idle
 * handle keeps the loop from blocking while something is readable, and a watchdog counts wakes
 * that were missed all the same (must stay 0).  All on the loop thread; no other module may own
 * a prepare handle. */
#ifndef GK_COMMON_NET_ZSOCK_H
#define GK_COMMON_NET_ZSOCK_H

#include "common/buf.h"
#include "common/err.h"
#include "common/limits.h"
#include "common/words.h"

#include <stdbool.h>
#include <stdint.h>

struct uv_loop_s;
struct gk_fault;
struct gk_zsock;

struct gk_zsock_pair { /* names the two ends of a DEALER in the draws of its faults */
    uint32_t us, peer;
};

enum { GK_ZSOCK_ADDRESS_BYTES = 320 }; /* "tcp://", a name of 253, the port */

enum gk_zsock_type { GK_ZSOCK_ROUTER, GK_ZSOCK_DEALER };

enum gk_zsock_event {
    GK_ZSOCK_UP,       /* DEALER: connection and handshake done */
    GK_ZSOCK_DOWN,     /* DEALER: connection lost; connecting goes on, whatever ended it */
    GK_ZSOCK_STRANGER, /* DEALER: what is at the address speaks another protocol; tried again */
    GK_ZSOCK_REJECTED, /* ROUTER: a connection ended before or in its handshake (noise) */
    GK_ZSOCK_CUT,      /* ROUTER: a connection was ended for the memory that it took */
    GK_ZSOCK_FULL,     /* ROUTER: no descriptors left: new connections are ended, or wait */
};

struct gk_zsock_callbacks {
    /* One whole message; `route` tells the peer of a ROUTER (0 for a DEALER).  Parts are borrowed:
     * take a reference to keep one.  Data of each part is aligned to 8 bytes, which is what
     * ZeroMQ gives (16 would mean a copy of every large part). */
    void (*message)(void *context, uint64_t route, struct gk_buf *const *parts,
                    uint32_t parts_count);
    void (*event)(void *context, enum gk_zsock_event event); /* may be NULL */
    /* A message to that route could not be sent because the peer is gone (ROUTER); its outbox
     * was dropped. */
    void (*gone)(void *context, uint64_t route); /* may be NULL */
    /* The socket failed for good. */
    void (*error)(void *context, enum gk_err err, const char *words);
    /* Memory may be released from here on. */
    void (*closed)(void *context); /* may be NULL */
};

struct gk_zsock_stats {
    uint64_t messages_in, messages_out, bytes_in, bytes_out;
    uint64_t dropped_out;  /* outbox full or peer gone */
    uint64_t dropped_in;   /* too many parts, or a routing id of the peer's own choosing */
    uint64_t rejected;     /* connections that ended in their handshake */
    uint64_t cut;          /* connections that were ended for the memory that they took */
    uint64_t turned_away;  /* connections that were ended because descriptors ran out */
    uint64_t missed_wakes; /* must stay 0 */
    uint64_t blocked;      /* sends that had to wait for room */
};

/* Is this "tcp://HOST:PORT" with a port from 1 to 65535, or to bind also 0 or *?  HOST is a name,
 * an IPv4 address, an IPv6 address in brackets, or to bind *.  GK_E_INVALID, and words with the
 * address and what is wrong with it.  Asks no resolver.  Any thread. */
enum gk_err gk_zsock_address_check(const char *address, bool bind, struct gk_words *words);

struct gk_zsock_setup {
    struct uv_loop_s *loop;
    void *zmq; /* a ZeroMQ context (gk_net_context) */
    enum gk_zsock_type type;
    const char *address;                        /* borrowed for the call */
    const struct gk_zsock_callbacks *callbacks; /* copied */
    void *context;                              /* of the callbacks */
    const struct gk_zsock_pair *faults; /* borrowed for the call; NULL: no trouble on purpose */
};

/* ROUTER: bind to the address ("tcp://127.0.0.1:*" lets the system choose a port); DEALER: connect,
 * now or whenever the peer is there, until closed: attempts come up to a second apart, or up to 45
 * where something else was found at the address.  A name is connected to by IPv4 where it has such
 * an address by now, else by IPv6; finding out may block as long as the resolver does.  Each
 * attempt asks for the address of that family anew, without blocking us: a host may move.
 * GK_E_BUSY: the port is in use; GK_E_INVALID: malformed address, or none of this machine's;
 * GK_E_LIMIT: no descriptors or sockets left; GK_E_NOMEM; GK_E_IO; words say which address and why.
 * Loop thread only, like everything below. */
enum gk_err gk_zsock_open(const struct gk_zsock_setup *setup, struct gk_zsock **ret_zsock,
                          struct gk_words *words);

/* Where it is bound, with the real port: "tcp://127.0.0.1:40123". */
const char *gk_zsock_address(const struct gk_zsock *zsock);

/* Queue one message; takes a reference to each part.  Sent before the loop blocks next. GK_E_LIMIT:
 * the peer's outbox is full; GK_E_NOMEM; GK_E_CLOSED: after close or error.  Then the message is
 * dropped and counted: every request of the protocol is retried. */
enum gk_err gk_zsock_send(struct gk_zsock *zsock, uint64_t route, struct gk_buf *const *parts,
                          uint32_t parts_count);

/* What stands between the socket and its owner; NULL: nothing, it was opened without. */
struct gk_fault *gk_zsock_fault(struct gk_zsock *zsock);

const struct gk_zsock_stats *gk_zsock_stats(const struct gk_zsock *zsock);

/* How many peers a ROUTER expects: each of them may be in the middle of a large message, strangers
 * may not all be. */
void gk_zsock_expect(struct gk_zsock *zsock, uint32_t peers);

/* Messages queued or not yet accepted by ZeroMQ, all peers. */
uint64_t gk_zsock_pending(const struct gk_zsock *zsock);

/* Idempotent, does not block, accepts NULL.  With `linger_ms` > 0 ZeroMQ may go on sending what
 * it has accepted for so long, on its own thread, bounded by gk_net_context_free().  `closed` is
 * called last. */
void gk_zsock_close(struct gk_zsock *zsock, int linger_ms);

/* A ZeroMQ context with one I/O thread and our limits; NULL: none could be made, for want of memory
 * or descriptors. */
void *gk_net_context(void);

/* After all sockets are closed.  Blocks for the longest linger at most.  Accepts NULL. */
void gk_net_context_free(void *zmq);

#endif
