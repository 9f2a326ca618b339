/* Goal: the line between launcher and daemon passes JSON objects, survives everything else, and
 * tells when the other side is gone. Method: a socketpair; one end is the link, the other is
 * written and read by hand or is a link too. */
#include "common/net/link.h"

#include "common/net/clock.h"

#include <criterion/criterion.h>
#include <uv.h>

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct side {
    struct gk_link *link;
    int lines, ended, closed;
    long long last; /* "n" of the last object */
    bool close_on_line;
};

static uv_loop_t loop;

static void on_closed(void *context)
{
    ((struct side *)context)->closed++;
}

static void on_line(void *context, const json_t *object)
{
    struct side *side = context;

    cr_assert(json_is_object(object));
    cr_assert_eq(side->closed, 0);
    side->lines++;
    side->last = json_integer_value(json_object_get(object, "n"));
    if (side->close_on_line) {
        gk_link_close(side->link, on_closed);
    }
}

static void on_ended(void *context)
{
    ((struct side *)context)->ended++;
}

static const struct gk_link_callbacks callbacks = {.line = on_line, .ended = on_ended};

/* Returns the other end. */
static int open_side(struct side *side)
{
    struct gk_words words;
    int fds[2];

    (void)signal(SIGPIPE, SIG_IGN);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    cr_assert_eq(gk_link_open(&loop, fds[0], &callbacks, side, &side->link, &words), GK_OK);
    cr_assert(fcntl(fds[0], F_GETFD) & FD_CLOEXEC);
    return fds[1];
}

static void write_text(int fd, const char *text)
{
    cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
}

static void run_until(const int *count, int value)
{
    int alive = 1;

    while (*count < value) {
        cr_assert_neq(alive, 0);
        alive = uv_run(&loop, UV_RUN_ONCE);
    }
}

static void finish(struct side *side)
{
    gk_link_close(side->link, on_closed);
    gk_link_close(side->link, NULL); /* idempotent: the first callback counts */
    uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(side->closed, 1);
    cr_assert_eq(uv_loop_close(&loop), 0);
}

Test(net_link, lines)
{
    struct side side = {0};
    int fd;

    uv_loop_init(&loop);
    fd = open_side(&side);
    write_text(fd, "{\"n\":1}\n{\"n\":2}\n{\"n\"");
    run_until(&side.lines, 2);
    write_text(fd, ":3}\n");
    run_until(&side.lines, 3);
    cr_assert_eq(side.last, 3);
    /* No object, no JSON, nothing: skipped. */
    write_text(fd, "\n[1]\n7\n{\"n\":\nnonsense\n{\"n\":1}{\"n\":2}\n{\"a\":1,\"a\":2}\n\x01\xff\n{"
                   "\"n\":4}\r\n");
    run_until(&side.lines, 4);
    cr_assert_eq(side.last, 4);
    cr_assert_eq(side.ended, 0);
    close(fd);
    run_until(&side.ended, 1);
    finish(&side);
    cr_assert_eq(side.ended, 1);
}

/* A line beyond the limit is skipped to its end; one at the limit is not. */
Test(net_link, oversized_line)
{
    struct side side = {0};
    size_t size = 3 * GK_LINK_LINE_BYTES_MAX;
    char *text = malloc(size);
    int fd;

    uv_loop_init(&loop);
    fd = open_side(&side);
    cr_assert_not_null(text);
    memset(text, ' ', size);
    memcpy(text, "{\"n\":5}", 7);
    text[GK_LINK_LINE_BYTES_MAX] = '\n'; /* exactly the limit */
    memcpy(text + GK_LINK_LINE_BYTES_MAX + 1, "{\"n\":6}", 7);
    memcpy(text + size - 9, "\n{\"n\":7}\n", 9);
    cr_assert_eq(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    for (size_t at = 0; at < size;) {
        ssize_t n = write(fd, text + at, size - at);

        at += n > 0 ? (size_t)n : 0;
        uv_run(&loop, UV_RUN_NOWAIT);
    }
    run_until(&side.lines, 2);
    cr_assert_eq(side.last, 7);
    free(text);
    close(fd);
    run_until(&side.ended, 1);
    finish(&side);
    cr_assert_eq(side.lines, 2);
}

static void send_number(struct gk_link *link, int n)
{
    json_t *object = json_pack("{s:i}", "n", n);

    gk_link_send(link, object);
    json_decref(object);
}

/* Both ends are links; what was sent before the close arrives, then the end of the stream. */
Test(net_link, two_links)
{
    enum { LINES = 5000 };
    struct side child = {0}, launcher = {0};
    struct gk_words words;
    int fd;

    uv_loop_init(&loop);
    fd = open_side(&child);
    cr_assert_eq(gk_link_open(&loop, fd, &callbacks, &launcher, &launcher.link, &words), GK_OK);
    for (int i = 1; i <= LINES; i++) {
        send_number(child.link, i);
    }
    gk_link_close(child.link, on_closed);
    send_number(child.link, LINES + 1); /* after the close: dropped */
    run_until(&launcher.ended, 1);
    cr_assert_eq(launcher.lines, LINES);
    cr_assert_eq(launcher.last, LINES);
    cr_assert_eq(child.closed, 1);
    cr_assert_eq(child.ended, 0);
    finish(&launcher);
}

/* A launcher that is gone or does not read costs nothing but its lines. */
Test(net_link, other_side_gone)
{
    struct side side = {0};
    int fd;

    uv_loop_init(&loop);
    fd = open_side(&side);
    close(fd);
    for (int i = 0; i < 100; i++) {
        send_number(side.link, i);
    }
    run_until(&side.ended, 1);
    send_number(side.link, 1);
    send_number(NULL, 1);
    gk_link_close(NULL, NULL);
    finish(&side);
    cr_assert_eq(side.ended, 1);
}

Test(net_link, other_side_does_not_read)
{
    struct side side = {0};
    json_t *object = json_object();
    char *text = malloc(60 * 1000);
    uint64_t start_us = gk_now_us();
    int fd;

    uv_loop_init(&loop);
    fd = open_side(&side);
    memset(text, 'x', 60 * 1000 - 1);
    text[60 * 1000 - 1] = 0;
    json_object_set_new(object, "text", json_string(text));
    for (int i = 0; i < 1000; i++) {
        gk_link_send(side.link, object);
    }
    finish(&side); /* by its own time limit */
    cr_assert_lt(gk_now_us() - start_us, 15 * 1000 * 1000);
    close(fd);
    free(text);
    json_decref(object);
}

/* A reader that does not read is noticed long before it would cost anything, and so is that it
 * reads again. */
Test(net_link, heard)
{
    struct side side = {0};
    char text[4096];
    int fd, sent = 0;

    uv_loop_init(&loop);
    fd = open_side(&side);
    cr_assert(gk_link_heard(NULL));
    for (; gk_link_heard(side.link); sent++) {
        cr_assert_lt(sent, 1000);
        send_number(side.link, sent);
        uv_run(&loop, UV_RUN_NOWAIT);
    }
    cr_assert_gt(sent, 10);
    cr_assert_gt(recv(fd, text, sizeof(text), 0), 7 * sent);
    cr_assert(gk_link_heard(side.link));
    finish(&side);
    close(fd);
}

/* More than the system takes, and the end of it. */
static void fill(struct gk_link *link)
{
    json_t *object = json_object();
    char text[50 * 1000 + 1];

    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = 0;
    json_object_set_new(object, "text", json_string(text));
    for (int i = 0; i < 40; i++) {
        gk_link_send(link, object);
    }
    cr_assert_not(gk_link_heard(link));
    json_decref(object);
}

/* The end of a run that went well waits for its reader, however long that takes: there is no timer
 * in the loop. */
Test(net_link, finish_waits_for_the_reader)
{
    struct side side = {0};
    char text[64 * 1024], last[9] = {0};
    int fd;

    uv_loop_init(&loop);
    fd = open_side(&side);
    fill(side.link);
    send_number(side.link, 8);
    gk_link_finish(side.link, on_closed);
    gk_link_finish(side.link, NULL);
    gk_link_close(side.link, NULL); /* the first one counts */
    cr_assert_neq(uv_run(&loop, UV_RUN_NOWAIT), 0);
    cr_assert_eq(uv_backend_timeout(&loop), -1);
    cr_assert_eq(side.closed, 0);
    while (side.closed == 0) {
        cr_assert_gt(recv(fd, text, sizeof(text), MSG_DONTWAIT), 0);
        uv_run(&loop, UV_RUN_NOWAIT);
    }
    for (ssize_t got; (got = recv(fd, text, sizeof(text), 0)) > 0;) {
        cr_assert_geq(got, 8);
        memcpy(last, text + got - 8, 8);
    }
    cr_assert_str_eq(last, "{\"n\":8}\n");
    cr_assert_eq(uv_loop_close(&loop), 0);
    close(fd);
}

Test(net_link, finish_ends_with_the_reader)
{
    for (int gone_first = 0; gone_first < 2; gone_first++) {
        struct side side = {0};
        int fd;

        uv_loop_init(&loop);
        fd = open_side(&side);
        fill(side.link);
        if (gone_first) {
            close(fd);
            run_until(&side.ended, 1);
        }
        gk_link_finish(side.link, on_closed);
        uv_run(&loop, UV_RUN_NOWAIT);
        cr_assert_eq(side.closed, gone_first);
        if (!gone_first) {
            close(fd);
        }
        uv_run(&loop, UV_RUN_DEFAULT);
        cr_assert_eq(side.closed, 1);
        cr_assert_eq(side.ended, gone_first);
        cr_assert_eq(uv_loop_close(&loop), 0);
    }
}

Test(net_link, close_in_a_line)
{
    struct side side = {.close_on_line = true};
    int fd;

    uv_loop_init(&loop);
    fd = open_side(&side);
    write_text(fd, "{\"n\":1}\n{\"n\":2}\n");
    uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(side.lines, 1);
    cr_assert_eq(side.closed, 1);
    cr_assert_eq(uv_loop_close(&loop), 0);
    close(fd);
}

Test(net_link, bad_descriptor)
{
    struct gk_link *link = NULL;
    struct gk_words words = {{0}};
    int file = open("/dev/null", O_RDWR);

    uv_loop_init(&loop);
    cr_assert_eq(gk_link_open(&loop, 987, &callbacks, NULL, &link, &words), GK_E_INVALID);
    cr_assert_not_null(strstr(words.text, "987"));
    cr_assert_eq(gk_link_open(&loop, file, &callbacks, NULL, &link, &words), GK_E_INVALID);
    cr_assert_eq(fcntl(file, F_GETFD), 0); /* untouched */
    close(file);
    cr_assert_null(link);
    uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(uv_loop_close(&loop), 0);
}
