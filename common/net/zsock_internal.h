/* Inside the ZeroMQ socket module: what its files share.  zsock.c runs the recipe under libuv,
 * zsock_socket.c makes and configures the sockets, zsock_outbox.c queues and sends, zsock_inbox.c
 * receives, zsock_monitor.c hears connections come and go, zsock_guard.c bounds what they hold,
 * zsock_peer.c connects again where ZeroMQ does not. */
#ifndef GK_COMMON_NET_ZSOCK_INTERNAL_H
#define GK_COMMON_NET_ZSOCK_INTERNAL_H

#include "common/net/zsock.h"
#include "common/rng.h"

#include <stddef.h>
#include <uv.h>

enum {
    /* Messages per connection inside ZeroMQ.  Each may hold a chunk, so they are few. */
    GK_ZSOCK_SEND_HWM = 16,
    GK_ZSOCK_RECEIVE_HWM = 32,
    /* What a connection may make ZeroMQ hold: of a message that has not ended (one of the largest,
     * and what the system has buffered), and in all (a full pipe of two-frame chunks, and that). */
    GK_ZSOCK_HELD_BYTES_MAX = 2 * GK_PARTS_MAX * GK_FRAME_BYTES_MAX,
    GK_ZSOCK_BACKLOG_BYTES_MAX = (GK_ZSOCK_RECEIVE_HWM + 16) * GK_FRAME_BYTES_MAX,
    /* All of the former together, beside what the peers may that are expected. */
    GK_ZSOCK_STRANGERS_BYTES_MAX = 128 * 1024 * 1024,
    GK_ZSOCK_COPY_OUT_BYTES = 512, /* parts up to this size are copied when sent */
    GK_ZSOCK_COPY_IN_BYTES =
        8192, /* smaller received parts share one buffer inside ZeroMQ, unaligned: copied */
    GK_ZSOCK_OUTBOXES_MAX = 4096, /* peers with messages waiting at one time */
    GK_ZSOCK_BUCKETS = 1024,      /* of the table of outboxes; a power of two */
    GK_ZSOCK_HANDLES_MAX = 9,     /* uv handles of one socket */
    GK_ZSOCK_WATCHDOG_MS = 1000,
    GK_ZSOCK_RETRY_MS_MIN = 1,
    GK_ZSOCK_RETRY_MS_MAX = 100,
    GK_ZSOCK_MISSED_US =
        100 * 1000, /* a block this long beside a readable socket is a missed wake */
};

struct gk_zsock_message { /* one message in an outbox; holds a reference to each part */
    struct gk_zsock_message *next;
    bool counted; /* it found no room before, in stats.blocked */
    uint32_t parts_count;
    uint64_t bytes;
    struct gk_buf *parts[GK_PARTS_MAX];
};

struct gk_zsock_queue { /* in order */
    uint32_t count;
    uint64_t bytes;
    struct gk_zsock_message *first, *last;
};

struct gk_zsock_outbox { /* what waits for one peer; exists only while something does */
    struct gk_zsock_outbox *bucket_next;
    struct gk_zsock_outbox *prev, *next; /* ring of all outboxes */
    uint64_t route;
    struct gk_zsock_queue small, bulk; /* `small` goes first */
};

struct gk_zsock_connection { /* by its descriptor */
    uint64_t cookie;         /* the system's name for it; 0: none is here */
    uint64_t delivered;      /* bytes that came out of ZeroMQ, or are taken for it */
    uint64_t seen;           /* bytes that had come at the last look */
    uint64_t held;           /* of those, what belongs to a message that has not ended */
    uint64_t turn;           /* of the last look */
};

struct gk_zsock_guard { /* ROUTER */
    struct gk_zsock_connection *connections;
    uint32_t room, count, next;
    uint32_t fast_turns;
    uint32_t peers;         /* that are expected */
    int fd_max;             /* connections beyond are turned away */
    uint64_t turn, drained; /* `drained`: the last one in which nothing was left to receive */
    uint64_t held;          /* by all */
    uv_timer_t timer;
};

struct gk_zsock_peer { /* DEALER */
    uv_timer_t timer;  /* runs while ZeroMQ may have given up */
    struct gk_rng rng;
    uint64_t draws;
    uint64_t wait_ms; /* the next time */
    bool known;       /* the connection that ended last had done its handshake */
};

struct gk_zsock {
    uv_loop_t *loop;
    void *zmq;     /* context */
    void *socket;  /* NULL once closed */
    void *monitor; /* our end of the monitor pair */
    enum gk_zsock_type type;
    struct gk_zsock_callbacks callbacks;
    void *context;
    struct gk_fault *fault; /* NULL: no trouble on purpose */
    struct gk_zsock_stats stats;
    char address[GK_ZSOCK_ADDRESS_BYTES];

    uv_prepare_t prepare;
    uv_check_t check;
    uv_idle_t idle;
    uv_poll_t poll;
    uv_poll_t monitor_poll;
    uv_timer_t watchdog;
    uv_timer_t retry;
    struct gk_zsock_guard guard;
    struct gk_zsock_peer peer;
    uint32_t handles; /* initialised and not yet closed */

    int linger_ms;
    bool closing;
    bool failed;       /* `error` was called; the socket is not touched any more */
    bool woken;        /* the poll callback ran in this turn */
    bool monitor_due;  /* the monitor may have events */
    bool slept;        /* prepare saw nothing to read, so that the loop could block */
    bool skipping;     /* the rest of a message with too many parts is still to be drained */
    bool fresh;        /* messages were queued since the last flush */
    bool up;           /* DEALER: connected */
    uint64_t slept_ns; /* when prepare ended */
    uint64_t retry_ms; /* current backoff while an outbox is blocked */

    struct gk_zsock_outbox *ring; /* where the next flush starts */
    uint32_t outboxes_count;
    uint64_t pending;
    struct gk_zsock_outbox *buckets[GK_ZSOCK_BUCKETS];
};

/* What a flush left behind. */
enum gk_zsock_flush {
    GK_ZSOCK_FLUSH_DONE,    /* nothing */
    GK_ZSOCK_FLUSH_BLOCKED, /* messages for peers without room */
    GK_ZSOCK_FLUSH_MORE,    /* the time was up */
};

/* True when the socket may still be used; callbacks of the owner may have closed it. */
static inline bool gk_zsock_usable(const struct gk_zsock *zsock)
{
    return !zsock->closing && !zsock->failed;
}

/* Report an errno of ZeroMQ to the owner, once; the socket is not used any more.  `doing`:
 * "receiving". */
void gk_zsock_fail(struct gk_zsock *zsock, const char *doing, int error);

/* Tell the owner, unless it has closed the socket. */
void gk_zsock_tell(struct gk_zsock *zsock, enum gk_zsock_event event);

/* A whole message for the owner; borrows the parts. */
void gk_zsock_deliver(struct gk_zsock *zsock, uint64_t route, struct gk_buf *const *parts,
                      uint32_t parts_count);

/* zsock_socket.c: make socket and monitor pair, set the options, bind or connect, fill `address`.
 * Undoes itself. */
enum gk_err gk_zsock_socket_open(struct gk_zsock *zsock, const char *address,
                                 struct gk_words *words);

/* The descriptor to poll; -1 on failure. */
int gk_zsock_socket_fd(void *socket);

/* Close both sockets, the monitor first. */
void gk_zsock_socket_close(struct gk_zsock *zsock, int linger_ms);

/* zsock_outbox.c: see gk_zsock_send. */
enum gk_err gk_zsock_outbox_put(struct gk_zsock *zsock, uint64_t route, struct gk_buf *const *parts,
                                uint32_t parts_count);

/* Hand to ZeroMQ what it takes now.  May call `gone` and `error`. */
enum gk_zsock_flush gk_zsock_outbox_flush(struct gk_zsock *zsock);

/* Drop everything, without callbacks. */
void gk_zsock_outbox_clear(struct gk_zsock *zsock);

/* zsock_inbox.c: receive and deliver up to the budget of one turn. */
void gk_zsock_inbox_receive(struct gk_zsock *zsock);

/* zsock_guard.c: learn how many descriptors there may be. */
void gk_zsock_guard_init(struct gk_zsock *zsock);

/* A connection was accepted. */
void gk_zsock_guard_accept(struct gk_zsock *zsock, int fd);

/* A frame (zmq_msg_t) was received. */
void gk_zsock_guard_count(struct gk_zsock *zsock, void *frame);

/* Nothing is left to receive. */
void gk_zsock_guard_drained(struct gk_zsock *zsock);

/* Look at the connections, end those that hold too much. */
void gk_zsock_guard_turn(struct gk_zsock *zsock);
void gk_zsock_guard_fini(struct gk_zsock *zsock);

/* zsock_peer.c: a handshake is done; ZeroMQ will try again by itself; a connection has ended, with
 * or without its handshake done. */
void gk_zsock_peer_init(struct gk_zsock *zsock);
void gk_zsock_peer_up(struct gk_zsock *zsock);
void gk_zsock_peer_retried(struct gk_zsock *zsock);
void gk_zsock_peer_ended(struct gk_zsock *zsock, bool was_up);

/* zsock_monitor.c: read the events that are there and tell the owner.  True: there may be more. */
bool gk_zsock_monitor_read(struct gk_zsock *zsock);

/* The ZMQ events of the monitor that this module understands. */
int gk_zsock_monitor_mask(enum gk_zsock_type type);

#endif
