/* What a connection makes ZeroMQ hold, in bytes.
 *
 * ZeroMQ bounds the messages of a connection and the bytes of a frame, but neither the frames of a
 * message nor the bytes of all: a peer that never ends its message fills the memory, and so would a
 * hundred whose messages are as large as they may be.  The system knows how many bytes a connection
 * has brought, and we know how many came out of it; the difference is what is held.  A connection
 * that holds more than any peer of ours ever would is shut down; ZeroMQ then frees what it has.
 *
 * ZeroMQ owns the descriptors, on another thread.  A cookie of the system's tells whether one is
 * still the connection that it was.  Between that look and the shutdown it could still become
 * another one, which would have to connect again: that is all the harm there can be.  Where the
 * system has no such numbers nothing is counted and nothing ends.
 *
 * Descriptors are bounded too: without one ZeroMQ cannot accept, and it tries again without a pause
 * and without ending anything.  The system gives the lowest number that is free, so that a high one
 * means that nearly all are in use; the newest connections are turned away then. */
#include "common/net/zsock_internal.h"

#include "common/bits.h"
#include "common/net/tcp.h"

#include <zmq.h>

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum {
    CONNECTIONS_MAX = 1 << 16, /* descriptors beyond are not watched */
    CONNECTIONS_MIN = 64,
    LOOKS_MAX = 128, /* connections looked at in one turn of the timer */
    /* A new connection, and any that brings much, is watched closely for a second.  The slow turn
     * is longer than a block that counts as a missed wake, so that it does not hide one. */
    FAST_MS = 10,
    SLOW_MS = 120,
    FAST_TURNS = 100,
    MUCH_BYTES = 1 << 20,
    SHORT_FRAME_BYTES = 255,
    SHORT_HEAD_BYTES = 2,
    LONG_HEAD_BYTES = 9,
    FILES_KEPT = 16, /* descriptors that connections never take */
};

void gk_zsock_guard_init(struct gk_zsock *zsock)
{
    struct rlimit limit;

    zsock->guard.fd_max = CONNECTIONS_MAX - 1;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < CONNECTIONS_MAX) {
        zsock->guard.fd_max = (int)limit.rlim_cur - FILES_KEPT - 1;
    }
}

/* Room for descriptor `fd`; NULL: there is none. */
static struct gk_zsock_connection *place_of(struct gk_zsock_guard *guard, int fd)
{
    uint32_t room = guard->room > 0 ? guard->room : CONNECTIONS_MIN;
    struct gk_zsock_connection *grown;

    if (fd < 0 || fd >= CONNECTIONS_MAX) {
        return NULL;
    }
    while (room <= (uint32_t)fd) {
        room *= 2;
    }
    if (room > guard->room) {
        grown = realloc(guard->connections, room * sizeof(*grown));
        if (!grown) {
            return NULL;
        }
        memset(grown + guard->room, 0, (room - guard->room) * sizeof(*grown));
        guard->connections = grown;
        guard->room = room;
    }
    return &guard->connections[fd];
}

static void forget(struct gk_zsock_guard *guard, struct gk_zsock_connection *connection)
{
    guard->held -= connection->held;
    guard->count -= connection->cookie != 0;
    memset(connection, 0, sizeof(*connection));
}

static void on_turn(uv_timer_t *handle)
{
    gk_zsock_guard_turn(handle->data);
}

static void watch_closely(struct gk_zsock *zsock)
{
    struct gk_zsock_guard *guard = &zsock->guard;

    if (guard->fast_turns == 0) {
        (void)uv_timer_start(&guard->timer, on_turn, FAST_MS, 0);
    }
    guard->fast_turns = FAST_TURNS;
}

void gk_zsock_guard_accept(struct gk_zsock *zsock, int fd)
{
    struct gk_zsock_guard *guard = &zsock->guard;
    struct gk_zsock_connection *connection;
    uint64_t cookie, received;

    if (fd > guard->fd_max && gk_tcp_received(fd, &received)) {
        gk_tcp_cut(fd);
        zsock->stats.turned_away++;
        gk_zsock_tell(zsock, GK_ZSOCK_FULL);
        return;
    }
    connection = place_of(guard, fd);
    if (!connection || !gk_tcp_cookie(fd, &cookie) || !gk_tcp_received(fd, &received) ||
        cookie == connection->cookie) {
        return;
    }
    forget(guard, connection);
    /* What came before is as good as delivered: to the benefit of the peer, by a few frames. */
    *connection = (struct gk_zsock_connection){
        .cookie = cookie, .delivered = received, .seen = received, .turn = guard->turn};
    guard->count++;
    watch_closely(zsock);
}

void gk_zsock_guard_count(struct gk_zsock *zsock, void *frame)
{
    struct gk_zsock_guard *guard = &zsock->guard;
    int fd = zmq_msg_get(frame, ZMQ_SRCFD);
    size_t size = zmq_msg_size(frame);

    if (fd >= 0 && (uint32_t)fd < guard->room && guard->connections[fd].cookie != 0) {
        guard->connections[fd].delivered +=
            size + (size > SHORT_FRAME_BYTES ? LONG_HEAD_BYTES : SHORT_HEAD_BYTES);
    }
}

/* More than a peer that keeps to the protocol makes ZeroMQ hold; or, when all together hold too
 * much, more than its share. */
static bool too_much(const struct gk_zsock_guard *guard,
                     const struct gk_zsock_connection *connection, uint64_t backlog)
{
    uint64_t all_max =
        GK_ZSOCK_STRANGERS_BYTES_MAX + guard->peers * (uint64_t)GK_ZSOCK_HELD_BYTES_MAX;

    return backlog > GK_ZSOCK_BACKLOG_BYTES_MAX || connection->held > GK_ZSOCK_HELD_BYTES_MAX ||
           (guard->held > all_max && connection->held > guard->held / guard->count);
}

/* What had come at the last look, and is not delivered although everything that was whole has been
 * delivered since, belongs to a message that has not ended. */
static void look(struct gk_zsock *zsock, int fd)
{
    struct gk_zsock_guard *guard = &zsock->guard;
    struct gk_zsock_connection *connection = &guard->connections[fd];
    uint64_t cookie, received, held;

    if (!gk_tcp_cookie(fd, &cookie) || cookie != connection->cookie ||
        !gk_tcp_received(fd, &received)) {
        forget(guard, connection);
        gk_zsock_guard_accept(zsock, fd); /* another one, whose beginning was missed */
        return;
    }
    connection->delivered = gk_min_u64(connection->delivered, received);
    held = connection->seen > connection->delivered ? connection->seen - connection->delivered : 0;
    held = guard->drained >= connection->turn ? held : gk_min_u64(held, connection->held);
    guard->held += held - connection->held;
    connection->held = held;
    if (received - connection->delivered > MUCH_BYTES) {
        watch_closely(zsock);
    }
    connection->seen = received;
    connection->turn = guard->turn;
    if (too_much(guard, connection, received - connection->delivered)) {
        forget(guard, connection);
        gk_tcp_cut(fd);
        zsock->stats.cut++;
        gk_zsock_tell(zsock, GK_ZSOCK_CUT);
    }
}

void gk_zsock_guard_drained(struct gk_zsock *zsock)
{
    zsock->guard.drained = zsock->guard.turn;
}

static void next_turn(struct gk_zsock_guard *guard)
{
    if (guard->count > 0) {
        guard->fast_turns -= guard->fast_turns > 0;
        (void)uv_timer_start(&guard->timer, on_turn, guard->fast_turns > 0 ? FAST_MS : SLOW_MS, 0);
    } else {
        guard->fast_turns = 0;
    }
}

void gk_zsock_guard_turn(struct gk_zsock *zsock)
{
    struct gk_zsock_guard *guard = &zsock->guard;
    uint32_t looks = 0;

    guard->turn++;
    for (uint32_t i = 0; i < guard->room && looks < LOOKS_MAX && gk_zsock_usable(zsock); i++) {
        uint32_t fd = guard->next++ % guard->room;

        if (guard->connections[fd].cookie != 0) {
            look(zsock, (int)fd);
            looks++;
        }
    }
    if (gk_zsock_usable(zsock)) {
        next_turn(guard);
    }
}

void gk_zsock_guard_fini(struct gk_zsock *zsock)
{
    free(zsock->guard.connections);
    zsock->guard.connections = NULL;
    zsock->guard.room = 0;
}
