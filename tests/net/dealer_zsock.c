/* The integration under test: common/net/zsock. */
#include "tests/net/dealer.h"

#include "common/net/zsock.h"

#include <stdio.h>
#include <stdlib.h>

struct dealer {
    uv_loop_t *loop;
    void *zmq;
    struct gk_zsock *zsock;
    uint64_t replies;
    bool closed;
};

static void on_message(void *context, uint64_t route, struct gk_buf *const *parts,
                       uint32_t parts_count)
{
    struct dealer *dealer = context;

    (void)route;
    (void)parts;
    (void)parts_count;
    dealer->replies++;
}

static void on_error(void *context, enum gk_err err, const char *words)
{
    (void)context;
    (void)err;
    (void)fprintf(stderr, "%s\n", words);
    exit(2);
}

static void on_closed(void *context)
{
    ((struct dealer *)context)->closed = true;
}

struct dealer *dealer_open(uv_loop_t *loop, const char *address)
{
    static const struct gk_zsock_callbacks callbacks = {
        .message = on_message, .error = on_error, .closed = on_closed};
    struct dealer *dealer = calloc(1, sizeof(*dealer));
    struct gk_words words = {{0}};

    if (!dealer) {
        exit(2);
    }
    dealer->loop = loop;
    dealer->zmq = gk_net_context();
    if (gk_zsock_open(&(struct gk_zsock_setup){.loop = loop,
                                               .zmq = dealer->zmq,
                                               .type = GK_ZSOCK_DEALER,
                                               .address = address,
                                               .callbacks = &callbacks,
                                               .context = dealer},
                      &dealer->zsock, &words) != GK_OK) {
        (void)fprintf(stderr, "%s\n", words.text);
        exit(2);
    }
    return dealer;
}

void dealer_send(struct dealer *dealer)
{
    struct gk_buf *part = gk_buf_new(20);

    if (!part || gk_zsock_send(dealer->zsock, 0, &part, 1) != GK_OK) {
        (void)fprintf(stderr, "cannot send\n");
        exit(2);
    }
    gk_buf_unref(part);
}

uint64_t dealer_replies(const struct dealer *dealer)
{
    return dealer->replies;
}

void dealer_close(struct dealer *dealer)
{
    if (gk_zsock_stats(dealer->zsock)->missed_wakes != 0) {
        (void)fprintf(stderr, "missed wakes\n");
        exit(2);
    }
    gk_zsock_close(dealer->zsock, 0);
    while (!dealer->closed) {
        (void)uv_run(dealer->loop, UV_RUN_ONCE);
    }
    gk_net_context_free(dealer->zmq);
    free(dealer);
}
