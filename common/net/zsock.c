/* The recipe that keeps a ZeroMQ socket alive under libuv.
 *
 * The descriptor of a socket belongs to its mailbox of commands, not to its data, and is
 * edge-triggered; every send and every look at ZMQ_EVENTS takes commands out and with them the
 * signal of a message that has just arrived.  Nothing would announce that message a second time.
 * Therefore, in each turn of the loop:
 *
 *   poll      wakes the loop, no more;
 *   check     hears the monitor, looks at ZMQ_EVENTS and receives up to the budget;
 *   prepare   flushes, looks at ZMQ_EVENTS last of all before the loop blocks, and
 *   idle      is active when there is something to read or to flush, so that it does not block.
 *
 * All sends happen in the flushes, on this thread: none can come between prepare's look and the
 * block.  A message for a peer without room waits in its outbox.  ZeroMQ wakes us when there is
 * room again, but our own look may have taken that very signal, so that a timer with backoff bounds
 * the wait.  A second timer turns the loop once a second, and check counts a wake as missed when it
 * finds a message beside a descriptor that never became readable. */
#include "common/net/zsock_internal.h"

#include "common/assert.h"
#include "common/net/fault.h"
#include "common/net/process.h"

#include <zmq.h>

#include <errno.h>
#include <poll.h>
#include <stdlib.h>

void gk_zsock_fail(struct gk_zsock *zsock, const char *doing, int error)
{
    struct gk_words words;

    if (!gk_zsock_usable(zsock)) {
        return;
    }
    zsock->failed = true;
    (void)uv_idle_stop(&zsock->idle);
    (void)uv_timer_stop(&zsock->retry);
    (void)uv_timer_stop(&zsock->peer.timer);
    (void)uv_poll_stop(&zsock->poll);
    (void)uv_poll_stop(&zsock->monitor_poll);
    gk_words_set(&words, "%s: %s failed: %s", zsock->address, doing, zmq_strerror(error));
    if (zsock->callbacks.error) {
        zsock->callbacks.error(zsock->context, GK_E_IO, words.text);
    }
}

/* ZMQ_EVENTS; takes every waiting command out of the mailbox.  True: something can be read. */
static bool readable(struct gk_zsock *zsock)
{
    int events = 0;
    size_t size = sizeof(events);
    int rc;

    do {
        rc = zmq_getsockopt(zsock->socket, ZMQ_EVENTS, &events, &size);
    } while (rc != 0 && zmq_errno() == EINTR);
    if (rc != 0) {
        gk_zsock_fail(zsock, "asking for events", zmq_errno());
        return false;
    }
    return (events & ZMQ_POLLIN) != 0;
}

static void on_wake(uv_poll_t *handle, int status, int events)
{
    struct gk_zsock *zsock = handle->data;

    (void)events;
    zsock->woken = true;
    if (status < 0) {
        gk_zsock_fail(zsock, "polling", -status);
    }
}

static void on_monitor_wake(uv_poll_t *handle, int status, int events)
{
    struct gk_zsock *zsock = handle->data;

    (void)status; /* the read after it shows the same */
    (void)events;
    zsock->monitor_due = true;
}

static void on_idle(uv_idle_t *handle)
{
    (void)handle; /* being active is its only effect */
}

static void on_retry(uv_timer_t *handle)
{
    (void)handle; /* the turn that it causes flushes */
}

static void on_watchdog(uv_timer_t *handle)
{
    struct gk_zsock *zsock = handle->data;

    zsock->monitor_due = true;
    if (zsock->type == GK_ZSOCK_ROUTER && !gk_process_files_free(1)) {
        gk_zsock_tell(zsock, GK_ZSOCK_FULL);
    }
}

static bool descriptor_readable(const struct gk_zsock *zsock)
{
    struct pollfd fd = {.events = POLLIN};

    return uv_fileno((const uv_handle_t *)&zsock->poll, &fd.fd) == 0 && poll(&fd, 1, 0) > 0;
}

/* A message that was here while the loop slept, without any signal.  One that arrived just now has
 * made the descriptor readable, and a short sleep cannot tell the two apart. */
static bool wake_missed(const struct gk_zsock *zsock)
{
    return zsock->slept && !zsock->woken &&
           uv_hrtime() - zsock->slept_ns > GK_ZSOCK_MISSED_US * UINT64_C(1000) &&
           !descriptor_readable(zsock);
}

static void on_check(uv_check_t *handle)
{
    struct gk_zsock *zsock = handle->data;
    bool suspicious;

    if (!gk_zsock_usable(zsock)) {
        return;
    }
    (void)uv_idle_stop(&zsock->idle);
    suspicious = wake_missed(zsock);
    if (zsock->monitor_due) {
        zsock->monitor_due = gk_zsock_monitor_read(zsock);
    }
    if (suspicious && gk_zsock_usable(zsock)) { /* what has come meanwhile was not missed */
        suspicious = !descriptor_readable(zsock);
    }
    if (gk_zsock_usable(zsock) && readable(zsock)) {
        zsock->stats.missed_wakes += suspicious ? 1 : 0;
        gk_zsock_inbox_receive(zsock);
    } else {
        gk_zsock_guard_drained(zsock);
    }
    zsock->woken = false;
}

/* Flush, and once more if something stays behind: the look at ZMQ_EVENTS takes in that a peer has
 * room again. */
static enum gk_zsock_flush settle(struct gk_zsock *zsock, bool *ret_readable)
{
    enum gk_zsock_flush left = gk_zsock_outbox_flush(zsock);

    *ret_readable = gk_zsock_usable(zsock) && readable(zsock);
    if (left == GK_ZSOCK_FLUSH_BLOCKED && gk_zsock_usable(zsock)) {
        left = gk_zsock_outbox_flush(zsock);
        *ret_readable = gk_zsock_usable(zsock) && readable(zsock);
    }
    return left;
}

static void retry_later(struct gk_zsock *zsock, bool progress)
{
    if (progress || zsock->retry_ms == 0) {
        zsock->retry_ms = GK_ZSOCK_RETRY_MS_MIN;
    } else if (uv_is_active((uv_handle_t *)&zsock->retry)) {
        return;
    } else if (zsock->retry_ms < GK_ZSOCK_RETRY_MS_MAX) {
        zsock->retry_ms *= 2;
    }
    (void)uv_timer_start(&zsock->retry, on_retry, zsock->retry_ms, 0);
}

static void on_prepare(uv_prepare_t *handle)
{
    struct gk_zsock *zsock = handle->data;
    uint64_t sent_before = zsock->stats.messages_out;
    enum gk_zsock_flush left;
    bool input;

    if (!gk_zsock_usable(zsock)) {
        return;
    }
    left = settle(zsock, &input);
    if (!gk_zsock_usable(zsock)) {
        return;
    }
    if (left == GK_ZSOCK_FLUSH_BLOCKED) {
        retry_later(zsock, zsock->stats.messages_out != sent_before);
    } else {
        zsock->retry_ms = 0;
        (void)uv_timer_stop(&zsock->retry);
    }
    if (input || left == GK_ZSOCK_FLUSH_MORE || zsock->monitor_due) {
        (void)uv_idle_start(&zsock->idle, on_idle);
    } else {
        (void)uv_idle_stop(&zsock->idle);
    }
    zsock->slept = !input;
    zsock->slept_ns = uv_hrtime();
}

static void add_handle(struct gk_zsock *zsock, uv_handle_t *handle)
{
    handle->data = zsock;
    zsock->handles++;
}

/* All handles, started.  Only the two polls can fail; on failure the caller closes what exists. */
static int handles_open(struct gk_zsock *zsock)
{
    int rc = uv_poll_init(zsock->loop, &zsock->poll, gk_zsock_socket_fd(zsock->socket));

    if (rc != 0) {
        return rc;
    }
    add_handle(zsock, (uv_handle_t *)&zsock->poll);
    rc = uv_poll_init(zsock->loop, &zsock->monitor_poll, gk_zsock_socket_fd(zsock->monitor));
    if (rc != 0) {
        return rc;
    }
    add_handle(zsock, (uv_handle_t *)&zsock->monitor_poll);
    (void)uv_prepare_init(zsock->loop,
                          &zsock->prepare); /* these seven and their starts always succeed */
    add_handle(zsock, (uv_handle_t *)&zsock->prepare);
    (void)uv_check_init(zsock->loop, &zsock->check);
    add_handle(zsock, (uv_handle_t *)&zsock->check);
    (void)uv_idle_init(zsock->loop, &zsock->idle);
    add_handle(zsock, (uv_handle_t *)&zsock->idle);
    (void)uv_timer_init(zsock->loop, &zsock->watchdog);
    add_handle(zsock, (uv_handle_t *)&zsock->watchdog);
    (void)uv_timer_init(zsock->loop, &zsock->retry);
    add_handle(zsock, (uv_handle_t *)&zsock->retry);
    (void)uv_timer_init(zsock->loop, &zsock->guard.timer);
    add_handle(zsock, (uv_handle_t *)&zsock->guard.timer);
    (void)uv_timer_init(zsock->loop, &zsock->peer.timer);
    add_handle(zsock, (uv_handle_t *)&zsock->peer.timer);

    /* The poll alone keeps the loop running, as long as the socket is open. */
    uv_unref((uv_handle_t *)&zsock->monitor_poll);
    uv_unref((uv_handle_t *)&zsock->prepare);
    uv_unref((uv_handle_t *)&zsock->check);
    uv_unref((uv_handle_t *)&zsock->watchdog);
    uv_unref((uv_handle_t *)&zsock->retry);
    uv_unref((uv_handle_t *)&zsock->guard.timer);
    uv_unref((uv_handle_t *)&zsock->peer.timer);
    rc = uv_poll_start(&zsock->poll, UV_READABLE, on_wake);
    if (rc == 0) {
        rc = uv_poll_start(&zsock->monitor_poll, UV_READABLE, on_monitor_wake);
    }
    (void)uv_prepare_start(&zsock->prepare, on_prepare);
    (void)uv_check_start(&zsock->check, on_check);
    (void)uv_timer_start(&zsock->watchdog, on_watchdog, GK_ZSOCK_WATCHDOG_MS, GK_ZSOCK_WATCHDOG_MS);
    return rc;
}

/* What the faults leave of a message goes on as if there were none. */
static void pass_out(void *context, uint64_t route, struct gk_buf *const *parts,
                     uint32_t parts_count)
{
    struct gk_zsock *zsock = context;

    if (gk_zsock_usable(zsock)) {
        (void)uv_idle_start(&zsock->idle, on_idle);
        (void)gk_zsock_outbox_put(zsock, route, parts, parts_count); /* counts what it drops */
    }
}

static void pass_in(void *context, uint64_t route, struct gk_buf *const *parts,
                    uint32_t parts_count)
{
    struct gk_zsock *zsock = context;

    if (gk_zsock_usable(zsock)) {
        zsock->callbacks.message(zsock->context, route, parts, parts_count);
    }
}

static enum gk_err open_fault(struct gk_zsock *zsock, const struct gk_zsock_pair *pair)
{
    return gk_fault_open(&(struct gk_fault_setup){.loop = zsock->loop,
                                                  .us = pair->us,
                                                  .peer = pair->peer,
                                                  .out = pass_out,
                                                  .in = pass_in,
                                                  .context = zsock},
                         &zsock->fault);
}

struct gk_fault *gk_zsock_fault(struct gk_zsock *zsock)
{
    return zsock->fault;
}

void gk_zsock_deliver(struct gk_zsock *zsock, uint64_t route, struct gk_buf *const *parts,
                      uint32_t parts_count)
{
    if (zsock->fault) {
        gk_fault_message(zsock->fault, GK_FAULT_IN, route, parts, parts_count);
    } else {
        zsock->callbacks.message(zsock->context, route, parts, parts_count);
    }
}

enum gk_err gk_zsock_open(const struct gk_zsock_setup *setup, struct gk_zsock **ret_zsock,
                          struct gk_words *words)
{
    struct gk_zsock *zsock = calloc(1, sizeof(*zsock));
    enum gk_err err;
    int rc;

    if (!zsock) {
        gk_words_set(words, "%s: out of memory", setup->address);
        return GK_E_NOMEM;
    }
    zsock->loop = setup->loop;
    zsock->zmq = setup->zmq;
    zsock->type = setup->type;
    zsock->monitor_due = true;
    gk_zsock_peer_init(zsock);
    gk_zsock_guard_init(zsock);
    err = gk_zsock_socket_open(zsock, setup->address, words);
    if (err) {
        free(zsock);
        return err;
    }
    rc = handles_open(zsock);
    if (rc != 0) {
        gk_words_set(words, "%s: the event loop cannot watch the socket: %s", setup->address,
                     uv_strerror(rc));
        gk_zsock_close(zsock, 0); /* nobody hears of it: the callbacks are not set yet */
        return rc == UV_EMFILE || rc == UV_ENFILE ? GK_E_LIMIT : GK_E_IO;
    }
    if (setup->faults && open_fault(zsock, setup->faults)) {
        gk_words_set(words, "%s: out of memory", setup->address);
        gk_zsock_close(zsock, 0);
        return GK_E_NOMEM;
    }
    zsock->callbacks = *setup->callbacks;
    zsock->context = setup->context;
    *ret_zsock = zsock;
    return GK_OK;
}

const char *gk_zsock_address(const struct gk_zsock *zsock)
{
    return zsock->address;
}

enum gk_err gk_zsock_send(struct gk_zsock *zsock, uint64_t route, struct gk_buf *const *parts,
                          uint32_t parts_count)
{
    GK_ASSERT(parts_count > 0 && parts_count <= GK_PARTS_MAX);
    if (!gk_zsock_usable(zsock)) {
        zsock->stats.dropped_out++;
        return GK_E_CLOSED;
    }
    if (zsock->fault) {
        gk_fault_message(zsock->fault, GK_FAULT_OUT, zsock->type == GK_ZSOCK_DEALER ? 0 : route,
                         parts, parts_count);
        return GK_OK;
    }
    /* This turn's prepare may have run already, when another socket's callback sends on this one.
     */
    (void)uv_idle_start(&zsock->idle, on_idle);
    return gk_zsock_outbox_put(zsock, zsock->type == GK_ZSOCK_DEALER ? 0 : route, parts,
                               parts_count);
}

const struct gk_zsock_stats *gk_zsock_stats(const struct gk_zsock *zsock)
{
    return &zsock->stats;
}

uint64_t gk_zsock_pending(const struct gk_zsock *zsock)
{
    return zsock->pending;
}

void gk_zsock_expect(struct gk_zsock *zsock, uint32_t peers)
{
    zsock->guard.peers = peers;
}

/* The descriptors are ZeroMQ's: its sockets may go only when libuv has let go of them. */
static void finish_close(struct gk_zsock *zsock)
{
    void (*closed)(void *context) = zsock->callbacks.closed;
    void *context = zsock->context;

    gk_zsock_socket_close(zsock, zsock->linger_ms);
    gk_zsock_outbox_clear(zsock);
    gk_zsock_guard_fini(zsock);
    free(zsock);
    if (closed) {
        closed(context);
    }
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct gk_zsock *zsock = handle->data;

    zsock->handles--;
    if (zsock->handles == 0) {
        finish_close(zsock);
    }
}

static void close_handles(struct gk_zsock *zsock)
{
    uv_handle_t *const handles[GK_ZSOCK_HANDLES_MAX] = {
        (uv_handle_t *)&zsock->poll,       (uv_handle_t *)&zsock->monitor_poll,
        (uv_handle_t *)&zsock->prepare,    (uv_handle_t *)&zsock->check,
        (uv_handle_t *)&zsock->idle,       (uv_handle_t *)&zsock->watchdog,
        (uv_handle_t *)&zsock->retry,      (uv_handle_t *)&zsock->guard.timer,
        (uv_handle_t *)&zsock->peer.timer,
    };
    uint32_t count = zsock->handles;

    for (uint32_t i = 0; i < count; i++) { /* in the order in which they were made */
        uv_close(handles[i], on_handle_closed);
    }
}

void gk_zsock_close(struct gk_zsock *zsock, int linger_ms)
{
    if (!zsock || zsock->closing) {
        return;
    }
    /* From here on the owner hears of nothing but the end, also when this is called from within a
     * callback. */
    zsock->callbacks = (struct gk_zsock_callbacks){.closed = zsock->callbacks.closed};
    gk_fault_close(zsock->fault); /* what it delays is lost */
    zsock->fault = NULL;
    if (linger_ms > 0 && !zsock->failed) {
        (void)gk_zsock_outbox_flush(zsock); /* what the linger is for */
    }
    zsock->closing = true;
    zsock->linger_ms = linger_ms;
    if (zsock->handles == 0) {
        finish_close(zsock);
    } else {
        close_handles(zsock);
    }
}
