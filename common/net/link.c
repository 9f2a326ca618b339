/* JSON lines over a stream that the process inherited or made.
 *
 * Both directions are bounded: a line that is too long is skipped to its end, and what a reader
 * does not take is dropped beyond a few megabytes.  Closing waits for the writes on their way:
 * after a failure a second, after success as long as there is somebody who may read them. */
#include "common/net/link.h"

#include <uv.h>

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

enum {
    QUEUE_BYTES_MAX = 4 * 1024 * 1024, /* written and not yet taken by the other side */
    UNREAD_BYTES_MAX = 32 * 1024,      /* as the system counts: some 40 short lines */
    CLOSE_MS_MAX = 1000,
};

struct gk_link {
    uv_pipe_t pipe;
    uv_timer_t limit; /* of the close */
    uint32_t handles;
    struct gk_link_callbacks callbacks;
    void *context;
    void (*closed)(void *context);
    bool closing;
    bool ended;
    bool skipping; /* inside a line that is too long */
    size_t used;
    char line[GK_LINK_LINE_BYTES_MAX];
    char input[GK_LINK_LINE_BYTES_MAX];
};

struct outgoing {
    uv_write_t request;
    char *text; /* of jansson */
};

static void on_handle_closed(uv_handle_t *handle)
{
    struct gk_link *link = handle->data;
    void (*closed)(void *context) = link->closed;
    void *context = link->context;

    link->handles--;
    if (link->handles > 0) {
        return;
    }
    free(link);
    if (closed) {
        closed(context);
    }
}

static void close_handles(struct gk_link *link)
{
    if (!uv_is_closing((uv_handle_t *)&link->pipe)) {
        uv_close((uv_handle_t *)&link->pipe, on_handle_closed);
        uv_close((uv_handle_t *)&link->limit, on_handle_closed);
    }
}

static void end(struct gk_link *link)
{
    if (link->ended) {
        return;
    }
    link->ended = true;
    (void)uv_read_stop((uv_stream_t *)&link->pipe);
    if (link->closing) {
        close_handles(link); /* nobody will read what still waits */
    } else if (link->callbacks.ended) {
        link->callbacks.ended(link->context);
    }
}

static void deliver(struct gk_link *link)
{
    json_t *object = json_loadb(link->line, link->used, JSON_REJECT_DUPLICATES, NULL);

    if (json_is_object(object) && link->callbacks.line) {
        link->callbacks.line(link->context, object);
    }
    json_decref(object);
}

/* Take bytes in, up to the end of a line. */
static size_t take(struct gk_link *link, const char *data, size_t size)
{
    const char *newline = memchr(data, '\n', size);
    size_t piece = newline ? (size_t)(newline - data) : size;

    if (piece > sizeof(link->line) - link->used) {
        link->skipping = true;
    }
    if (!link->skipping) {
        memcpy(link->line + link->used, data, piece);
        link->used += piece;
    }
    if (!newline) {
        return piece;
    }
    if (!link->skipping) {
        deliver(link);
    }
    link->skipping = false;
    link->used = 0;
    return piece + 1;
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *ret_buf)
{
    struct gk_link *link = handle->data;

    (void)suggested;
    *ret_buf = uv_buf_init(link->input, sizeof(link->input));
}

static void on_read(uv_stream_t *stream, ssize_t size, const uv_buf_t *buf)
{
    struct gk_link *link = stream->data;

    if (size < 0) {
        end(link); /* end of file, or an error that means the same */
        return;
    }
    for (size_t used = 0; used < (size_t)size && !link->closing;) {
        used += take(link, buf->base + used, (size_t)size - used);
    }
}

static void on_limit(uv_timer_t *timer)
{
    close_handles(timer->data);
}

enum gk_err gk_link_open(struct uv_loop_s *loop, int fd, const struct gk_link_callbacks *callbacks,
                         void *context, struct gk_link **ret_link, struct gk_words *words)
{
    struct gk_link *link;
    int flags = fcntl(fd, F_GETFD);
    struct stat stat;
    int rc;

    /* libuv aborts when it is to watch a plain file. */
    if (flags < 0 || fstat(fd, &stat) != 0 || !S_ISSOCK(stat.st_mode)) {
        gk_words_set(words, "the launcher's link: descriptor %d is not an open socket", fd);
        return GK_E_INVALID;
    }
    link = calloc(1, sizeof(*link));
    if (!link) {
        gk_words_set(words, "the launcher's link: out of memory");
        return GK_E_NOMEM;
    }
    (void)fcntl(fd, F_SETFD, flags | FD_CLOEXEC); /* the descriptor is good: cannot fail */
    (void)uv_timer_init(loop, &link->limit);      /* this and the next cannot fail */
    (void)uv_pipe_init(loop, &link->pipe, 0);
    link->limit.data = link;
    link->pipe.data = link;
    link->handles = 2;
    rc = uv_pipe_open(&link->pipe, fd);
    if (rc == 0) {
        rc = uv_read_start((uv_stream_t *)&link->pipe, on_alloc, on_read);
    }
    if (rc != 0) {
        gk_words_set(words, "the launcher's link: descriptor %d cannot be used: %s", fd,
                     uv_strerror(rc));
        close_handles(link); /* frees it in the loop's next turn */
        return GK_E_INVALID;
    }
    link->callbacks = *callbacks;
    link->context = context;
    *ret_link = link;
    return GK_OK;
}

static void on_written(uv_write_t *request, int status)
{
    struct outgoing *out = (struct outgoing *)request;
    struct gk_link *link = request->handle->data;

    (void)status; /* a reader that is gone shows as the end of the stream */
    free(out->text);
    free(out);
    if (link->closing && uv_stream_get_write_queue_size((uv_stream_t *)&link->pipe) == 0) {
        close_handles(link);
    }
}

void gk_link_send(struct gk_link *link, const json_t *object)
{
    struct outgoing *out;
    size_t size;
    uv_buf_t buf;

    if (!link || link->closing || link->ended ||
        uv_stream_get_write_queue_size((uv_stream_t *)&link->pipe) > QUEUE_BYTES_MAX) {
        return;
    }
    out = calloc(1, sizeof(*out));
    if (!out) {
        return;
    }
    out->text = json_dumps(object, JSON_COMPACT);
    size = out->text ? strlen(out->text) : 0;
    if (size == 0 || size >= GK_LINK_LINE_BYTES_MAX) {
        goto drop;
    }
    out->text[size] = '\n'; /* in the place of the terminator, which nobody needs any more */
    buf = uv_buf_init(out->text, (unsigned)size + 1);
    if (uv_write(&out->request, (uv_stream_t *)&link->pipe, &buf, 1, on_written) == 0) {
        return;
    }
drop:
    free(out->text);
    free(out);
}

bool gk_link_heard(const struct gk_link *link)
{
    uv_os_fd_t fd;
    int unread = 0;

    if (!link) {
        return true;
    }
    if (uv_fileno((const uv_handle_t *)&link->pipe, &fd) == 0) {
        (void)ioctl(fd, TIOCOUTQ, &unread); /* a system that does not know it leaves 0 */
    }
    return unread <= UNREAD_BYTES_MAX &&
           uv_stream_get_write_queue_size((const uv_stream_t *)&link->pipe) == 0;
}

/* Reading goes on, for the end of the stream alone. */
static void begin_close(struct gk_link *link, void (*closed)(void *context))
{
    link->closing = true;
    link->closed = closed;
    if (link->ended || uv_stream_get_write_queue_size((uv_stream_t *)&link->pipe) == 0) {
        close_handles(link);
    }
}

void gk_link_close(struct gk_link *link, void (*closed)(void *context))
{
    if (!link || link->closing) {
        return;
    }
    begin_close(link, closed);
    if (!uv_is_closing((uv_handle_t *)&link->pipe)) {
        (void)uv_timer_start(&link->limit, on_limit, CLOSE_MS_MAX, 0);
    }
}

void gk_link_finish(struct gk_link *link, void (*closed)(void *context))
{
    if (link && !link->closing) {
        begin_close(link, closed);
    }
}
