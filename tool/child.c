#include "tool/child.h"

#include "common/assert.h"
#include "common/exit.h"
#include "common/net/clock.h"
#include "common/net/link.h"
#include "tool/guard.h"
#include "tool/json.h"

#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void on_handle_closed(uv_handle_t *handle)
{
    struct gk_child *child = handle->data;

    child->closing--;
}

static void close_handle(struct gk_child *child, uv_handle_t *handle)
{
    child->closing++;
    uv_close(handle, on_handle_closed);
}

static bool streams_open(const struct gk_child *child)
{
    for (int i = 0; i < GK_CHILD_STREAMS; i++) {
        if (child->streams[i].open) {
            return true;
        }
    }
    return false;
}

static void check_done(struct gk_child *child)
{
    if (child->done || !child->exited || child->link_open || streams_open(child)) {
        return;
    }
    child->done = true;
    child->callbacks->done(child->context, child);
}

static void on_link_line(void *context, const json_t *object)
{
    struct gk_child *child = context;

    child->callbacks->line(child->context, child, object);
}

/* Closes the link; the child may go on without one, for its exit code counts. */
static void on_link_ended(void *context)
{
    struct gk_child *child = context;

    gk_link_close(child->link, NULL);
    child->link = NULL;
    child->link_open = false;
    check_done(child);
}

static void close_stream(struct gk_child_stream *stream)
{
    if (!stream->open) {
        return;
    }
    stream->open = false;
    stream->child->callbacks->before_output(stream->child->context);
    gk_lines_fini(&stream->lines, stream->out);
    close_handle(stream->child, (uv_handle_t *)&stream->pipe);
}

static void close_streams(struct gk_child *child)
{
    for (int i = 0; i < GK_CHILD_STREAMS; i++) {
        close_stream(&child->streams[i]);
    }
}

static void on_stream_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *ret_buf)
{
    (void)handle;
    ret_buf->base = malloc(suggested);
    ret_buf->len = ret_buf->base ? suggested : 0;
}

static void on_stream_read(uv_stream_t *pipe, ssize_t n, const uv_buf_t *buf)
{
    struct gk_child_stream *stream =
        (struct gk_child_stream *)((char *)pipe - offsetof(struct gk_child_stream, pipe));
    struct gk_child *child = stream->child;

    if (n > 0) {
        child->callbacks->before_output(child->context);
        (void)gk_lines_feed(&stream->lines, buf->base, (size_t)n, stream->out);
    }
    free(buf->base);
    if (n < 0) {
        close_stream(stream);
        check_done(child);
    }
}

static void on_process_exit(uv_process_t *process, int64_t exit_status, int term_signal)
{
    struct gk_child *child = process->data;

    child->exited = true;
    child->exit_status = exit_status;
    child->term_signal = term_signal;
    child->exit_us = gk_now_us();
    close_handle(child, (uv_handle_t *)process);
    check_done(child);
}

static enum gk_err start_error(const char *program, int status, struct gk_words *words)
{
    switch (status) {
    case UV_ENOENT:
        gk_words_set(words, "cannot start %s: it is neither beside gkps nor in PATH", program);
        return GK_E_NOTFOUND;
    case UV_EACCES:
        gk_words_set(words, "cannot start %s: it may not be executed", program);
        return GK_E_NOTFOUND;
    case UV_EAGAIN:
    case UV_ENOMEM:
    case UV_EMFILE:
    case UV_ENFILE:
        gk_words_set(words, "cannot start %s: %s (too many processes or open files)", program,
                     uv_strerror(status));
        return GK_E_LIMIT;
    default:
        gk_words_set(words, "cannot start %s: %s", program, uv_strerror(status));
        return GK_E_IO;
    }
}

/* Standard output is the launcher's, since summaries may be piped from it: that of a daemon goes to
 * standard error. */
static void set_output(struct gk_child *child, const struct gk_child_start *start,
                       uv_stdio_container_t *stdio)
{
    for (int i = 0; i < GK_CHILD_STREAMS; i++) {
        stdio[i].flags = UV_INHERIT_FD;
        stdio[i].data.fd = STDERR_FILENO;
        if (child->streams[i].open) {
            stdio[i].flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE;
            stdio[i].data.stream = (uv_stream_t *)&child->streams[i].pipe;
        } else if (start->capture) {
            stdio[i].flags = UV_IGNORE;
        }
    }
}

static int spawn(uv_loop_t *loop, struct gk_child *child, const struct gk_child_start *start,
                 int link_fd)
{
    uv_stdio_container_t stdio[4];
    uv_process_options_t options;

    memset(&options, 0, sizeof(options));
    memset(stdio, 0, sizeof(stdio));
    stdio[0].flags = UV_IGNORE;
    set_output(child, start, stdio + 1);
    stdio[3].flags = UV_INHERIT_FD;
    stdio[3].data.fd = link_fd;
    options.exit_cb = on_process_exit;
    options.file = start->program;
    options.args = start->args;
    options.env = start->environment;
    options.flags = UV_PROCESS_DETACHED; /* a session of its own */
    options.stdio_count = 4;
    options.stdio = stdio;
    return uv_spawn(loop, &child->process, &options);
}

static void reset(struct gk_child *child, const struct gk_child_callbacks *callbacks, void *context)
{
    struct gk_child fresh;

    memset(&fresh, 0, sizeof(fresh));
    fresh.role = child->role;
    fresh.index = child->index;
    fresh.restart = child->restart;
    memcpy(fresh.address, child->address, sizeof(fresh.address));
    fresh.callbacks = callbacks;
    fresh.context = context;
    *child = fresh;
}

static void open_streams(uv_loop_t *loop, struct gk_child *child,
                         const struct gk_child_start *start)
{
    FILE *const outs[GK_CHILD_STREAMS] = {start->out, stderr};

    for (int i = 0; i < GK_CHILD_STREAMS; i++) {
        struct gk_child_stream *stream = &child->streams[i];
        bool wanted = start->prefix[0] || (i == 1 && start->capture);
        int status;

        if (!wanted) {
            continue;
        }
        status = uv_pipe_init(loop, &stream->pipe, 0);
        GK_ASSERT(status == 0);
        stream->pipe.data = child; /* as of all its handles */
        stream->child = child;
        stream->out = outs[i];
        stream->open = true;
        (void)snprintf(stream->lines.prefix, sizeof(stream->lines.prefix), "%s", start->prefix);
    }
}

static void read_streams(struct gk_child *child)
{
    for (int i = 0; i < GK_CHILD_STREAMS; i++) {
        struct gk_child_stream *stream = &child->streams[i];

        if (stream->open &&
            uv_read_start((uv_stream_t *)&stream->pipe, on_stream_alloc, on_stream_read) != 0) {
            close_stream(stream);
        }
    }
}

enum gk_err gk_child_start(uv_loop_t *loop, struct gk_child *child,
                           const struct gk_child_start *start,
                           const struct gk_child_callbacks *callbacks, void *context,
                           struct gk_words *words)
{
    static const struct gk_link_callbacks link_callbacks = {.line = on_link_line,
                                                            .ended = on_link_ended};
    uv_os_sock_t ends[2]; /* both close-on-exec: no sibling ever holds one */
    enum gk_err err;
    int status;

    GK_ASSERT(child->done && child->closing == 0);
    reset(child, callbacks, context);
    child->guarded = start->guarded;
    gk_restart_begin(&child->restart, gk_now_us());
    child->process.data = child;
    child->done = true;
    status = uv_socketpair(SOCK_STREAM, 0, ends, UV_NONBLOCK_PIPE, 0);
    if (status) {
        return start_error(start->program, status, words);
    }
    err = gk_link_open(loop, ends[0], &link_callbacks, child, &child->link, words);
    if (err) {
        (void)close(ends[1]);
        return err;
    }
    open_streams(loop, child, start);
    status = spawn(loop, child, start, ends[1]);
    (void)close(ends[1]);
    if (status) {
        close_handle(child, (uv_handle_t *)&child->process);
        close_streams(child);
        gk_link_close(child->link, NULL);
        child->link = NULL;
        return start_error(start->program, status, words);
    }
    child->started = true;
    child->done = false;
    child->link_open = true;
    read_streams(child);
    return GK_OK;
}

void gk_child_signal(struct gk_child *child, int number)
{
    if (!child->started || child->exited) {
        return;
    }
    child->killed = child->killed || number == SIGKILL;
    if (child->guarded && number == SIGKILL) {
        number = GK_GUARD_KILL;
    } else if (child->guarded && number == SIGSTOP) {
        number = GK_GUARD_STOP;
    }
    (void)uv_process_kill(&child->process, number); /* it may end just now */
}

void gk_child_tick(struct gk_child *child, uint64_t now_us)
{
    if (!child->started || child->done || !child->exited ||
        now_us < child->exit_us + GK_CHILD_DRAIN_US) {
        return;
    }
    if (child->link) {
        gk_link_close(child->link, NULL);
        child->link = NULL;
    }
    child->link_open = false;
    close_streams(child);
    check_done(child);
}

void gk_child_name(const struct gk_child *child, char *ret, size_t ret_bytes)
{
    (void)snprintf(ret, ret_bytes, "%s %u", gk_role_name(child->role), child->index);
}

static void signal_name(int number, char *ret, size_t ret_bytes)
{
    static const struct {
        int number;
        const char *name;
    } names[] = {
        {SIGABRT, "SIGABRT (a failed assertion; see the log)"},
        {SIGBUS, "SIGBUS"},
        {SIGFPE, "SIGFPE"},
        {SIGHUP, "SIGHUP"},
        {SIGILL, "SIGILL"},
        {SIGINT, "SIGINT"},
        {SIGKILL, "SIGKILL (by hand, or by the system when memory ran out)"},
        {SIGPIPE, "SIGPIPE"},
        {SIGQUIT, "SIGQUIT"},
        {SIGSEGV, "SIGSEGV"},
        {SIGTERM, "SIGTERM"},
        {SIGTRAP, "SIGTRAP"},
        {SIGXCPU, "SIGXCPU"},
    };

    (void)snprintf(ret, ret_bytes, "signal %d", number);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (names[i].number == number) {
            (void)snprintf(ret, ret_bytes, "%s", names[i].name);
        }
    }
}

/* For a child that gave a code and no words. */
static const char *code_words(int64_t code)
{
    switch (code) {
    case GK_EXIT_USAGE:
        return "its flags are wrong";
    case GK_EXIT_DATA:
        return "a data file is missing or damaged";
    case GK_EXIT_PEER:
        return "a peer is missing or lost";
    case GK_EXIT_INTERNAL:
        return "an internal error";
    case GK_EXIT_RETRY:
        return "the same command may succeed later";
    case GK_EXIT_FENCED:
        return "a newer life of it exists";
    case GK_EXIT_REFUSED:
        return "a peer refused it";
    case GK_EXIT_CONFIG:
        return "configuration or state is wrong";
    case GK_EXIT_SIGINT:
    case GK_EXIT_SIGTERM:
        return "somebody else stopped it";
    default:
        return NULL;
    }
}

int64_t gk_child_status(const struct gk_child *child)
{
    if (child->term_signal) {
        return 0;
    }
    /* 70 is also what a handle tells that was closed before it left: why, the program knows. */
    if (child->death_code == GK_EXIT_INTERNAL && child->exit_status != 0) {
        return child->exit_status;
    }
    return child->guarded && child->death_code ? child->death_code : child->exit_status;
}

void gk_child_reason(const struct gk_child *child, struct gk_words *words)
{
    /* What a number means to a program of the user's, nobody here knows. */
    const char *known = child->guarded ? NULL : code_words(child->exit_status);
    char name[32], number[80];

    gk_child_name(child, name, sizeof(name));
    if (child->term_signal == SIGKILL && child->killed) {
        gk_words_set(words, "%s had to be killed%s%s", name, child->death[0] ? ": " : "",
                     child->death);
    } else if (child->term_signal) {
        signal_name(child->term_signal, number, sizeof(number));
        gk_words_set(words, "%s was killed by %s%s%s", name, number, child->death[0] ? ": " : "",
                     child->death);
    } else if (child->death[0]) {
        gk_words_set(words, "%s ended with code %d: %s", name, (int)child->exit_status,
                     child->death);
    } else if (child->exit_status == 0) {
        gk_words_set(words, "%s ended with code 0 but told no result", name);
    } else {
        gk_words_set(words, "%s ended with code %d%s%s", name, (int)child->exit_status,
                     known ? ": " : "", known ? known : "");
    }
}

int gk_child_code(const struct gk_child *child)
{
    int64_t status = gk_child_status(child);

    if (status > 0 && status < 128 && child->guarded) {
        return (int)status;
    }
    if (child->term_signal || !code_words(status)) {
        return GK_EXIT_INTERNAL;
    }
    return (int)status;
}
