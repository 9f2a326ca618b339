/* A running job's model.
 *
 *   ASKING --all STATUS_OK, one job--> PINNING --all PIN_OK--> PULLING --every chunk--> end
 *      ^                                  | missed, or the job      | a pin is gone
 *      +---------- another try -----------+ stands still            |
 *      +------------------------------------------------------------+
 *
 * The version must be ahead of all shards when the last PIN arrives, and not far ahead of a slow
 * job: the margin begins small and grows with each miss; when no shard makes a version for a while,
 * the one where the job stands is taken.  Tries are bounded, and all of it by one deadline. */
#include "tool/export_live_internal.h"

#include "common/bits.h"
#include "common/exit.h"
#include "common/net/clock.h"
#include "common/net/signals.h"
#include "tool/probe.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TICK_MS = 50,
    TRIES_MAX = 12,
    MARGIN_MIN = 2,
    MARGIN_MAX = 1 << 16,
    STILL_US = 2 * 1000 * 1000, /* without a new version: the job is slow, or stands */
    ASK_AGAIN_US = 500 * 1000,
    PROBE_MS = 300,
    FLUSH_TURNS = 4,
};

void gk_live_end(struct gk_live *live, int code)
{
    if (live->phase == GK_LIVE_ENDED) {
        return;
    }
    live->phase = GK_LIVE_ENDED;
    live->code = code;
    for (uint32_t i = 0; i < live->peers_count; i++) {
        if (live->peers[i].known && live->tries > 0) {
            gk_live_ask_pin(&live->peers[i], GK_FLAG_RELEASE);
        }
    }
    uv_stop(&live->loop);
}

/* Begin, or begin again. */
void gk_live_try_again(struct gk_live *live, const char *why)
{
    if (live->tries == TRIES_MAX) {
        gk_words_set(live->words, "gave up after %d tries: %s", TRIES_MAX, why);
        gk_live_end(live, GK_EXIT_RETRY);
        return;
    }
    live->tries++;
    live->phase = GK_LIVE_ASKING;
    live->req_id++;
    live->highest = 0;
    live->asked_us = gk_now_us();
    for (uint32_t i = 0; i < live->peers_count; i++) {
        struct gk_live_peer *peer = &live->peers[i];

        peer->known = peer->pinned = false;
        memset(peer->chunks, 0, sizeof(peer->chunks));
        gk_live_ask_status(peer);
    }
}

/* Nobody's version but one that was asked for by name can be given up. */
static void missed(struct gk_live *live, const struct gk_live_peer *peer, const char *why)
{
    if (live->wish->at_given) {
        gk_words_set(live->words, "%s (shard %" PRIu32 "): %s", peer->address, peer->shard, why);
        gk_live_end(live, GK_EXIT_CONFIG);
        return;
    }
    live->stands = false;
    live->margin = gk_min_u64(4 * live->margin, MARGIN_MAX);
    gk_live_try_again(live, why);
}

static void begin_pinning(struct gk_live *live)
{
    uint64_t highest = 0;

    if (!gk_live_one_job(live, live->words)) {
        gk_live_end(live, GK_EXIT_CONFIG);
        return;
    }
    for (uint32_t i = 0; i < live->peers_count; i++) {
        highest = gk_max_u64(highest, live->peers[i].version);
    }
    live->highest = highest;
    live->version = highest + (live->final || live->stands ? 0 : live->margin);
    live->version = live->wish->at_given ? live->wish->at : live->version;
    live->version = gk_min_u64(live->version, GK_VERSION_MAX);
    live->phase = GK_LIVE_PINNING;
    live->moved_us = gk_now_us();
    for (uint32_t i = 0; i < live->peers_count; i++) {
        gk_live_ask_pin(&live->peers[i], 0);
    }
}

static void on_status(struct gk_live_peer *peer, const struct gk_msg *msg)
{
    struct gk_live *live = peer->live;

    if (live->phase != GK_LIVE_ASKING || msg->h.req_id != live->req_id || peer->known) {
        return;
    }
    if (!gk_live_read_status(peer, msg, live->words)) {
        gk_live_end(live, peer->job[0] ? GK_EXIT_RETRY : GK_EXIT_DATA);
        return;
    }
    peer->known = true;
    for (uint32_t i = 0; i < live->peers_count; i++) {
        if (!live->peers[i].known) {
            return;
        }
    }
    begin_pinning(live);
}

/* Pins. */

static void begin_pulling(struct gk_live *live)
{
    live->phase = GK_LIVE_PULLING;
    for (uint32_t i = 0; i < live->peers_count; i++) {
        gk_live_fill_window(&live->peers[i]);
    }
}

static void on_pinned(struct gk_live_peer *peer, const struct gk_msg *msg)
{
    struct gk_live *live = peer->live;
    const struct gk_header *h = &msg->h;
    const struct gk_spec *spec = &live->model->spec;
    struct gk_words words;
    enum gk_err err;

    /* A server that was restarted meanwhile may have pinned the version anew: the same values. */
    if (live->phase != GK_LIVE_PINNING || h->req_id != live->export_id ||
        h->version != live->version || peer->pinned) {
        return;
    }
    err = gk_live_take_spec(live, msg->frame[0], &words);
    if (!err && (spec->servers != peer->servers ||
                 h->lo != gk_partition_lo(spec->params_count, spec->servers, peer->shard) ||
                 h->hi != gk_partition_lo(spec->params_count, spec->servers, peer->shard + 1))) {
        gk_words_set(&words, "its range is not that of shard %" PRIu32, peer->shard);
        err = GK_E_CORRUPT;
    }
    if (err) {
        gk_words_set(live->words, "%s (shard %" PRIu32 "): %s", peer->address, peer->shard,
                     words.text);
        gk_live_end(live, err == GK_E_NOMEM ? GK_EXIT_INTERNAL : GK_EXIT_DATA);
        return;
    }
    peer->pinned = true;
    peer->words.text[0] = '\0';
    peer->lo = peer->next = h->lo;
    peer->hi = h->hi;
    peer->taken = 0;
    peer->hash = h->state_hash;
    for (uint32_t i = 0; i < live->peers_count; i++) {
        if (!live->peers[i].pinned) {
            return;
        }
    }
    begin_pulling(live);
}

/* How far the job is: as long as it moves, there is nothing to do but wait. */
static void look_at_version(struct gk_live_peer *peer, uint64_t version)
{
    struct gk_live *live = peer->live;

    peer->version = version;
    if (version > live->highest) {
        live->highest = version;
        live->moved_us = gk_now_us();
    }
}

static void on_nack(struct gk_live_peer *peer, const struct gk_msg *msg)
{
    struct gk_live *live = peer->live;
    const struct gk_header *h = &msg->h;
    const char *words = msg->words.text[0] ? msg->words.text : gk_code_name(h->code);
    bool of_pin = live->phase == GK_LIVE_PINNING && h->req_id == live->export_id && !peer->pinned;

    if (!of_pin && live->phase != GK_LIVE_PULLING) {
        return;
    }
    gk_words_set(&peer->words, "%s", words);
    if (h->code == GK_CODE_UNSUPPORTED) {
        gk_words_set(live->words, "%s is an older server, which cannot be read while it runs: %s",
                     peer->address, words);
        gk_live_end(live, GK_EXIT_REFUSED);
    } else if (h->flags & GK_FLAG_RETRYABLE) {
        if (of_pin) {
            look_at_version(peer, h->version);
        }
    } else if (h->code == GK_CODE_PAST && of_pin) {
        missed(live, peer, words);
    } else if (h->code == GK_CODE_PAST) {
        gk_live_try_again(live, words); /* the server was restarted, or we were too slow */
    } else if (h->code == GK_CODE_FINISHED) {
        live->final = true;
        missed(live, peer, words);
    } else {
        gk_words_set(live->words, "%s (shard %" PRIu32 "): %s", peer->address, peer->shard, words);
        gk_live_end(live, GK_EXIT_REFUSED);
    }
}

/* What the loop tells. */

static void on_message(void *context, uint64_t route, struct gk_buf *const *parts,
                       uint32_t parts_count)
{
    struct gk_live_peer *peer = context;
    struct gk_words words;
    struct gk_msg msg;

    (void)route;
    if (gk_msg_from_wire(parts, parts_count, &msg, &words) != GK_OK) {
        gk_words_set(&peer->words, "what it says is no message that we can use: %s", words.text);
        return;
    }
    if (msg.h.kind == GK_KIND_STATUS_OK) {
        on_status(peer, &msg);
    } else if (msg.h.kind == GK_KIND_PIN_OK) {
        on_pinned(peer, &msg);
    } else if (msg.h.kind == GK_KIND_PIN_PARAMS) {
        gk_live_values(peer, &msg);
    } else if (msg.h.kind == GK_KIND_NACK) {
        on_nack(peer, &msg);
    }
    gk_msg_clear(&msg);
}

static void on_event(void *context, enum gk_zsock_event event)
{
    struct gk_live_peer *peer = context;

    peer->up = event == GK_ZSOCK_UP;
    if (peer->up && peer->live->phase == GK_LIVE_ASKING && !peer->known) {
        gk_live_ask_status(peer);
    }
}

static void on_error(void *context, enum gk_err err, const char *words)
{
    struct gk_live_peer *peer = context;

    gk_words_set(peer->live->words, "%s: %s (%s)", peer->address, words, gk_err_text(err));
    gk_live_end(peer->live, GK_EXIT_INTERNAL);
}

static bool holds_up(const struct gk_live *live, const struct gk_live_peer *peer)
{
    return live->phase == GK_LIVE_ASKING    ? !peer->known
           : live->phase == GK_LIVE_PINNING ? !peer->pinned
                                            : peer->taken < peer->hi - peer->lo;
}

/* Names the first server that we still wait for. */
static void give_up(struct gk_live *live)
{
    static const char *const wants[] = {"its status", "the version", "its values"};
    enum gk_probe_result probed = GK_PROBE_UNKNOWN;

    for (uint32_t i = 0; i < live->peers_count; i++) {
        const struct gk_live_peer *peer = &live->peers[i];
        const struct gk_probe probe = {.address = peer->address, .result = &probed};
        char shard[32] = "";

        if (!holds_up(live, peer)) {
            continue;
        }
        if (live->phase != GK_LIVE_ASKING) {
            (void)snprintf(shard, sizeof(shard), " (shard %" PRIu32 ")", peer->shard);
        }
        if (peer->up) {
            gk_words_set(live->words, "%s%s: timed out while we waited for %s%s%s", peer->address,
                         shard, wants[live->phase], peer->words.text[0] ? ": " : "",
                         peer->words.text);
        } else {
            gk_probe(&probe, 1, PROBE_MS);
            gk_words_set(live->words, "%s%s%s", peer->address, shard, gk_probe_words(probed));
        }
        break;
    }
    gk_live_end(live, GK_EXIT_PEER);
}

static void ask_again(struct gk_live *live, uint64_t now_us)
{
    bool due = now_us - live->asked_us >= ASK_AGAIN_US;

    live->asked_us = due ? now_us : live->asked_us;
    for (uint32_t i = 0; i < live->peers_count; i++) {
        struct gk_live_peer *peer = &live->peers[i];

        if (live->phase == GK_LIVE_ASKING && due && !peer->known) {
            gk_live_ask_status(peer);
        } else if (live->phase == GK_LIVE_PINNING && (due || !peer->pinned)) {
            gk_live_ask_pin(peer,
                            0); /* one that is pinned stays so as long as we wait for the others */
        }
        for (uint32_t c = 0; live->phase == GK_LIVE_PULLING && c < GK_PULL_WINDOW; c++) {
            struct gk_live_chunk *chunk = &peer->chunks[c];

            if (chunk->hi != 0 && now_us - chunk->asked_us >= chunk->delay_us) {
                gk_live_ask_chunk(peer, chunk);
            }
        }
    }
}

static void on_tick(uv_timer_t *timer)
{
    struct gk_live *live = timer->data;
    uint64_t now_us = gk_now_us();

    if (live->phase == GK_LIVE_ENDED) {
        return;
    }
    if (now_us - live->began_us >= live->wish->timeout_us) {
        give_up(live);
    } else if (live->phase == GK_LIVE_PINNING && !live->wish->at_given &&
               live->version > live->highest && now_us - live->moved_us >= STILL_US) {
        live->stands = true;
        gk_live_try_again(live, "the job makes no versions");
    } else {
        ask_again(live, now_us);
    }
}

static void on_signal(void *context, int number)
{
    struct gk_live *live = context;

    gk_words_set(live->words, "stopped by a signal");
    gk_live_end(live, number == SIGINT ? GK_EXIT_SIGINT : GK_EXIT_SIGTERM);
}

/* Opening and closing. */

static bool add_peers(struct gk_live *live, const char *at)
{
    for (bool more = true; more;) {
        size_t length = strcspn(at, ",");
        struct gk_live_peer *peer = &live->peers[live->peers_count];
        bool scheme = strstr(at, "://") && strstr(at, "://") < at + length;

        if (live->peers_count == GK_SERVERS_MAX || length == 0 ||
            length + 8 > sizeof(peer->address)) {
            gk_words_set(live->words, "--server: an address is empty or too long, or there are "
                                      "too many");
            return false;
        }
        (void)snprintf(peer->address, sizeof(peer->address), "%s%.*s", scheme ? "" : "tcp://",
                       (int)length, at);
        peer->live = live;
        live->peers_count++;
        more = at[length] == ',';
        at += length + more;
    }
    return true;
}

static enum gk_err open_peers(struct gk_live *live)
{
    static const struct gk_zsock_callbacks callbacks = {
        .message = on_message, .event = on_event, .error = on_error};
    enum gk_err err = GK_OK;

    for (uint32_t i = 0; i < live->peers_count && !err; i++) {
        struct gk_live_peer *peer = &live->peers[i];

        err = gk_zsock_open(&(struct gk_zsock_setup){.loop = &live->loop,
                                                     .zmq = live->zmq,
                                                     .type = GK_ZSOCK_DEALER,
                                                     .address = peer->address,
                                                     .callbacks = &callbacks,
                                                     .context = peer},
                            &peer->zsock, live->words);
    }
    return err;
}

static void close_all(struct gk_live *live)
{
    for (uint32_t i = 0; i < FLUSH_TURNS; i++) {
        (void)uv_run(&live->loop, UV_RUN_NOWAIT); /* so that a RELEASE is on its way */
    }
    for (uint32_t i = 0; i < live->peers_count; i++) {
        gk_zsock_close(live->peers[i].zsock, PROBE_MS);
    }
    uv_close((uv_handle_t *)&live->tick, NULL);
    gk_signals_close(live->signals);
    while (uv_run(&live->loop, UV_RUN_DEFAULT) != 0) {
        /* A stop that was asked for ends the first call. */
    }
    (void)uv_loop_close(&live->loop);
}

static void go(struct gk_live *live)
{
    enum gk_err err = gk_random_bytes(&live->export_id, sizeof(live->export_id));

    if (err) {
        gk_words_set(live->words, "no random numbers: %s", gk_err_text(err));
    } else {
        err = gk_signals_open(&live->loop, on_signal, live, &live->signals, live->words);
    }
    err = err ? err : open_peers(live);
    if (err) {
        live->code = err == GK_E_INVALID ? GK_EXIT_USAGE : GK_EXIT_INTERNAL;
        live->phase = GK_LIVE_ENDED;
    } else {
        live->began_us = gk_now_us();
        gk_live_try_again(live, "");
        (void)uv_timer_start(&live->tick, on_tick, TICK_MS, TICK_MS); /* cannot fail */
    }
    while (live->phase != GK_LIVE_ENDED) {
        (void)uv_run(&live->loop, UV_RUN_DEFAULT);
    }
}

int gk_export_live(const struct gk_live_wish *wish, struct gk_live_model *ret,
                   struct gk_words *words)
{
    struct gk_live *live = calloc(1, sizeof(*live)); /* too large for a stack */
    int code = GK_EXIT_USAGE;

    memset(ret, 0, sizeof(*ret));
    if (!live) {
        gk_words_set(words, "no memory");
        return GK_EXIT_INTERNAL;
    }
    live->wish = wish;
    live->model = ret;
    live->words = words;
    live->margin = MARGIN_MIN;
    if (!add_peers(live, wish->servers)) {
        free(live);
        return code;
    }
    live->zmq = gk_net_context();
    if (!live->zmq || uv_loop_init(&live->loop) != 0) {
        gk_words_set(words, "too few resources for a socket");
        code = GK_EXIT_INTERNAL;
    } else {
        (void)uv_timer_init(&live->loop, &live->tick); /* cannot fail */
        live->tick.data = live;
        go(live);
        close_all(live);
        code = live->code;
    }
    gk_net_context_free(live->zmq);
    free(live);
    return code;
}

void gk_live_model_clear(struct gk_live_model *model)
{
    gk_spec_clear(&model->spec);
    free(model->params);
    memset(model, 0, sizeof(*model));
}
