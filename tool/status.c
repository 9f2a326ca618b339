/* `gkps status`: ask each server over a DEALER, once or every second, and show what came. */
#include "tool/commands.h"

#include "common/config.h"
#include "common/exit.h"
#include "common/limits.h"
#include "common/net/clock.h"
#include "common/net/signals.h"
#include "common/net/zsock.h"
#include "common/stdout.h"
#include "proto/msg.h"
#include "tool/json.h"
#include "tool/probe.h"
#include "tool/status_view.h"

#include <uv.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    TICK_MS = 50,
    ASK_AGAIN_US = 500 * 1000,
    WATCH_US = 1000 * 1000,
    PAUSE_US = 3000 * 1000, /* without a look at the clock: we were stopped */
    PROBE_MS = 300,
    PROBE_ROUNDS = 10, /* of --watch, from one probe of a silent server to the next */
    ADDRESS_BYTES = 256,
};

struct status_options {
    const char *server;
    double timeout;
    bool json, watch;
};

struct status_peer {
    struct status *status;
    char address[ADDRESS_BYTES];
    struct gk_zsock *zsock;
    bool up;
    enum gk_probe_result probed;
    uint64_t probed_round; /* 0: never */
    json_t *answer;        /* of this round */
    struct gk_words words;
};

struct status {
    struct status_options options;
    void *zmq;
    uv_loop_t loop;
    uv_timer_t tick;
    struct gk_signals *signals;
    struct status_peer *peers;
    uint32_t peers_count;
    uint64_t round; /* also the request id, so that a late answer is not taken for a new one */
    bool asking;
    uint64_t round_us, asked_us;
    bool tick_due;
    uv_check_t after_reading;
    uint64_t looked_us; /* the clock, when it was looked at last */
    bool terminal;      /* --watch: draw over the last picture */
    bool ended;
    int code;
};

#define AT(member) offsetof(struct status_options, member)

static const struct gk_option options_table[] = {
    {"server", GK_OPTION_STRING, AT(server), NULL, NULL, 0, 0, "ADDR[,ADDR...]",
     "Servers to ask: tcp://HOST:PORT, or HOST:PORT.", NULL, NULL},
    {"json", GK_OPTION_BOOL, AT(json), "false", NULL, 0, 0, NULL, "Print one JSON object.", NULL,
     NULL},
    {"watch", GK_OPTION_BOOL, AT(watch), "false", NULL, 0, 0, NULL,
     "Ask every second until Ctrl-C.", NULL, NULL},
    {"timeout", GK_OPTION_FLOAT, AT(timeout), "5", NULL, 0.1, 3600, "S",
     "Seconds to wait for the answers.", NULL, NULL},
};

static const struct gk_program program = {
    .name = "gkps status",
    .summary = "Ask running servers for shards, ranks and the ledger of pushes.",
    .usage = "--server ADDR[,ADDR...] [options]",
    .notes = "Example:\n"
             "  gkps status --server 10.0.0.5:7000,10.0.0.6:7000 --watch\n"
             "\n"
             "Exit codes: 0 all answered and every push is accounted for, 64 usage, 69 a server "
             "did not\n"
             "answer, 70 a ledger does not balance, 74 the output cannot be written, 130, 141 and "
             "143\n"
             "stopped by a signal (141: the reader of the output has gone).\n",
    .options = options_table,
    .options_count = sizeof(options_table) / sizeof(options_table[0]),
    .positional_max = 0,
};

static void ask(struct status_peer *peer)
{
    struct gk_msg msg;
    struct gk_buf *parts[GK_PARTS_MAX];
    uint32_t parts_count;

    memset(&msg, 0, sizeof(msg));
    msg.h.kind = GK_KIND_STATUS;
    msg.h.req_id = peer->status->round;
    msg.h.rank = GK_RANK_ANY;
    if (gk_msg_to_wire(&msg, parts, &parts_count) != GK_OK) {
        return; /* no memory: asked again later */
    }
    (void)gk_zsock_send(peer->zsock, 0, parts, parts_count); /* a full outbox: asked again later */
    for (uint32_t i = 0; i < parts_count; i++) {
        gk_buf_unref(parts[i]);
    }
}

static void ask_missing(struct status *status)
{
    status->asked_us = gk_now_us();
    for (uint32_t i = 0; i < status->peers_count; i++) {
        if (status->peers[i].up && !status->peers[i].answer) {
            ask(&status->peers[i]);
        }
    }
}

static void start_round(struct status *status)
{
    status->round++;
    status->asking = true;
    status->round_us = gk_now_us();
    for (uint32_t i = 0; i < status->peers_count; i++) {
        json_decref(status->peers[i].answer);
        status->peers[i].answer = NULL;
        status->peers[i].words.text[0] = '\0';
    }
    ask_missing(status);
}

static enum gk_err print_json(const struct gk_status_server *servers, uint32_t count, bool indent)
{
    json_t *object = gk_status_json(servers, count);
    char *text = gk_json_dump(object, indent);
    enum gk_err err = text ? GK_OK : GK_E_NOMEM;

    (void)fputs(text ? text : "", stdout); /* errors stay with the stream */
    free(text);
    json_decref(object);
    return err;
}

/* In one piece, so that a terminal never shows half a picture. */
static enum gk_err print_text(const struct status *status, const struct gk_status_server *servers)
{
    char *text = NULL;
    size_t size = 0;
    FILE *memory = open_memstream(&text, &size);

    if (!memory) {
        return GK_E_NOMEM;
    }
    if (status->terminal) {
        (void)fputs("\x1b[H\x1b[2J", memory);
    } else if (status->round > 1) {
        (void)fputc('\n', memory);
    }
    gk_status_print(servers, status->peers_count, memory);
    if (fclose(memory) != 0) {
        free(text);
        return GK_E_NOMEM;
    }
    (void)fwrite(text, 1, size, stdout); /* errors stay with the stream */
    free(text);
    return GK_OK;
}

static void end(struct status *status, int code)
{
    status->ended = true;
    status->code = code;
    uv_stop(&status->loop);
}

/* Whoever never came up: what does its address say?  Bounded, and rare while watching. */
static void probe_silent(struct status *status)
{
    struct gk_probe *probes = calloc(status->peers_count, sizeof(*probes));
    uint32_t count = 0;

    for (uint32_t i = 0; i < status->peers_count && probes; i++) {
        struct status_peer *peer = &status->peers[i];

        if (!peer->up && !peer->answer && !peer->words.text[0] &&
            (peer->probed_round == 0 || status->round - peer->probed_round >= PROBE_ROUNDS)) {
            peer->probed_round = status->round;
            probes[count].address = peer->address;
            probes[count++].result = &peer->probed;
        }
    }
    if (count > 0) {
        gk_probe(probes, count, PROBE_MS);
    }
    free(probes);
}

/* A picture that did not arrive ends the command: quietly when its reader has gone. */
static bool show(struct status *status, const struct gk_status_server *servers)
{
    bool json = status->options.json;
    struct gk_words words;
    enum gk_err err = json ? print_json(servers, status->peers_count, !status->options.watch)
                           : print_text(status, servers);

    gk_words_set(&words, "%s", gk_err_text(err));
    err = err ? err : gk_stdout_flush(stdout, &words);
    if (!err) {
        return true;
    }
    if (err == GK_E_CLOSED) {
        end(status, GK_EXIT_SIGPIPE);
    } else {
        (void)fprintf(stderr, "gkps status: %s\n", words.text);
        end(status, err == GK_E_IO ? GK_EXIT_IO : GK_EXIT_INTERNAL);
    }
    return false;
}

static void end_round(struct status *status)
{
    struct gk_status_server *servers = calloc(status->peers_count, sizeof(*servers));

    status->asking = false;
    if (!servers) {
        (void)fprintf(stderr, "gkps status: %s\n", gk_err_text(GK_E_NOMEM));
        end(status, GK_EXIT_INTERNAL);
        return;
    }
    probe_silent(status);
    for (uint32_t i = 0; i < status->peers_count; i++) {
        struct status_peer *peer = &status->peers[i];

        if (!peer->answer && !peer->words.text[0]) {
            gk_words_set(
                &peer->words, "%s%s", peer->address,
                peer->up ? " is connected but does not answer: it is busy, stuck, or no gkps server"
                         : gk_probe_words(peer->probed));
        }
        servers[i].address = peer->address;
        servers[i].status = peer->answer;
        servers[i].words = peer->words.text;
    }
    if (!show(status, servers)) {
        free(servers);
        return;
    }
    for (uint32_t i = 0; i < status->peers_count; i++) {
        if (!servers[i].status) {
            (void)fprintf(stderr, "gkps status: %s\n", servers[i].words);
        }
    }
    if (!status->options.watch) {
        end(status, gk_status_code(servers, status->peers_count));
    }
    free(servers);
}

static bool all_answered(const struct status *status)
{
    for (uint32_t i = 0; i < status->peers_count; i++) {
        if (!status->peers[i].answer) {
            return false;
        }
    }
    return true;
}

static void take_answer(struct status_peer *peer, const struct gk_msg *msg)
{
    json_error_t error;
    json_t *answer;

    if (msg->h.req_id != peer->status->round || !peer->status->asking || peer->answer) {
        return;
    }
    if (msg->h.kind != GK_KIND_STATUS_OK || msg->frames_count != 1) {
        gk_words_set(&peer->words, "%s answered %s: %s", peer->address, gk_kind_name(msg->h.kind),
                     msg->words.text[0] ? msg->words.text : gk_code_name(msg->h.code));
        return;
    }
    answer = json_loadb((const char *)msg->frame[0]->data, msg->frame[0]->size, 0, &error);
    if (!json_is_object(answer)) {
        gk_words_set(&peer->words, "%s answered with JSON that cannot be read", peer->address);
        json_decref(answer);
        return;
    }
    peer->answer = answer;
    if (all_answered(peer->status)) {
        end_round(peer->status);
    }
}

static void on_message(void *context, uint64_t route, struct gk_buf *const *parts,
                       uint32_t parts_count)
{
    struct status_peer *peer = context;
    struct gk_words words;
    struct gk_msg msg;

    (void)route;
    memset(&msg, 0, sizeof(msg));
    if (gk_msg_from_wire(parts, parts_count, &msg, &words) != GK_OK) {
        gk_words_set(&peer->words, "%s answered with something that is no gkps message: %s",
                     peer->address, words.text);
        return;
    }
    take_answer(peer, &msg);
    gk_msg_clear(&msg);
}

static void on_event(void *context, enum gk_zsock_event event)
{
    struct status_peer *peer = context;

    peer->up = event == GK_ZSOCK_UP;
    if (peer->up && peer->status->asking && !peer->answer) {
        ask(peer);
    }
}

static void on_error(void *context, enum gk_err err, const char *words)
{
    struct status_peer *peer = context;

    (void)err;
    peer->up = false;
    gk_words_set(&peer->words, "%s: %s", peer->address, words);
}

/* Behind the reading of this turn of the loop: what has come in counts, however late it is. */
static void after_reading(uv_check_t *check)
{
    struct status *status = check->data;
    uint64_t now_us = gk_now_us();
    uint64_t limit_us = (uint64_t)(status->options.timeout * 1e6);
    uint64_t pause_us = now_us - status->looked_us;

    status->looked_us = now_us;
    if (pause_us >= PAUSE_US) { /* we stood still, not the servers */
        status->round_us = now_us;
    }
    if (!status->tick_due || status->ended) {
        return;
    }
    status->tick_due = false;

    /* While watching, a server that is away must not slow down the picture of the others. */
    if (status->round > 1 && limit_us > WATCH_US) {
        limit_us = WATCH_US;
    }
    if (status->asking && now_us - status->round_us >= limit_us) {
        end_round(status);
    } else if (status->asking && now_us - status->asked_us >= ASK_AGAIN_US) {
        ask_missing(status);
    } else if (!status->asking && now_us - status->round_us >= WATCH_US) {
        start_round(status);
    }
}

static void on_tick(uv_timer_t *timer)
{
    struct status *status = timer->data;

    status->tick_due = true;
}

static void on_signal(void *context, int number)
{
    end(context, number == SIGINT ? GK_EXIT_SIGINT : GK_EXIT_SIGTERM);
}

static enum gk_err add_peer(struct status *status, const char *address, size_t length,
                            struct gk_words *words)
{
    bool scheme = false;
    struct status_peer *peers;
    struct status_peer *peer;

    for (size_t i = 0; i + 3 <= length; i++) {
        scheme = scheme || strncmp(address + i, "://", 3) == 0;
    }
    if (length == 0 || length + 8 > ADDRESS_BYTES) {
        gk_words_set(words, "--server: an address is empty or too long");
        return GK_E_CONFIG;
    }
    if (status->peers_count == GK_SERVERS_MAX) {
        gk_words_set(words, "--server: more than %d addresses", GK_SERVERS_MAX);
        return GK_E_CONFIG;
    }
    peers = realloc(status->peers, (status->peers_count + 1) * sizeof(*peers));
    if (!peers) {
        gk_words_set(words, "out of memory");
        return GK_E_NOMEM;
    }
    status->peers = peers;
    peer = &peers[status->peers_count++];
    memset(peer, 0, sizeof(*peer));
    (void)snprintf(peer->address, sizeof(peer->address), "%s%.*s", scheme ? "" : "tcp://",
                   (int)length, address);
    return GK_OK;
}

static enum gk_err add_peers(struct status *status, struct gk_words *words)
{
    const char *at = status->options.server;
    enum gk_err err = GK_OK;

    if (!at) {
        gk_words_set(words, "--server ADDR is needed (gkps status --help)");
        return GK_E_CONFIG;
    }
    while (!err) {
        size_t length = strcspn(at, ",");

        err = add_peer(status, at, length, words);
        if (at[length] == '\0') {
            break;
        }
        at += length + 1;
    }
    return err;
}

static enum gk_err open_peers(struct status *status, struct gk_words *words)
{
    static const struct gk_zsock_callbacks callbacks = {
        .message = on_message, .event = on_event, .error = on_error};
    enum gk_err err = GK_OK;

    for (uint32_t i = 0; i < status->peers_count && !err; i++) {
        struct status_peer *peer = &status->peers[i];

        peer->status = status;
        err = gk_zsock_open(&(struct gk_zsock_setup){.loop = &status->loop,
                                                     .zmq = status->zmq,
                                                     .type = GK_ZSOCK_DEALER,
                                                     .address = peer->address,
                                                     .callbacks = &callbacks,
                                                     .context = peer},
                            &peer->zsock, words);
    }
    return err;
}

static void close_all(struct status *status)
{
    for (uint32_t i = 0; i < status->peers_count; i++) {
        if (status->peers[i].zsock) {
            gk_zsock_close(status->peers[i].zsock, 0);
        }
    }
    uv_close((uv_handle_t *)&status->tick, NULL);
    uv_close((uv_handle_t *)&status->after_reading, NULL);
    gk_signals_close(status->signals);
    while (uv_run(&status->loop, UV_RUN_DEFAULT) != 0) {
        /* A stop that was asked for ends the first call. */
    }
    (void)uv_loop_close(&status->loop);
}

static int ask_all(struct status *status)
{
    struct gk_words words;
    enum gk_err err;

    status->zmq = gk_net_context();
    if (!status->zmq || uv_loop_init(&status->loop) != 0) {
        (void)fprintf(stderr, "gkps status: too few resources for a socket\n");
        gk_net_context_free(status->zmq);
        return GK_EXIT_INTERNAL;
    }
    (void)uv_timer_init(&status->loop, &status->tick); /* cannot fail */
    status->tick.data = status;
    (void)uv_check_init(&status->loop, &status->after_reading); /* cannot fail, nor can its start */
    status->after_reading.data = status;
    err = gk_signals_open(&status->loop, on_signal, status, &status->signals, &words);
    if (!err) {
        err = open_peers(status, &words);
    }
    if (err) {
        (void)fprintf(stderr, "gkps status: %s\n", words.text);
        status->code = err == GK_E_INVALID ? GK_EXIT_USAGE : GK_EXIT_INTERNAL;
    } else {
        start_round(status);
        status->looked_us = status->round_us;
        (void)uv_check_start(&status->after_reading, after_reading);
        (void)uv_timer_start(&status->tick, on_tick, TICK_MS, TICK_MS);
        while (!status->ended) {
            (void)uv_run(&status->loop, UV_RUN_DEFAULT);
        }
    }
    close_all(status);
    gk_net_context_free(status->zmq);
    return status->code;
}

int gk_tool_status(int argc, char **argv)
{
    struct status status;
    const struct gk_config_args args = {.program = &program,
                                        .argc = argc,
                                        .argv = argv,
                                        .values = &status.options,
                                        .values_bytes = sizeof(status.options)};
    struct gk_config *config = NULL;
    struct gk_words words;
    int code = GK_EXIT_USAGE;
    enum gk_err err;

    memset(&status, 0, sizeof(status));
    err = gk_config_load(&args, &config, &code, &words);
    if (err == GK_E_HELP) {
        return GK_EXIT_OK;
    }
    if (!err) {
        code = GK_EXIT_USAGE;
        err = add_peers(&status, &words);
    }
    if (err) {
        (void)fprintf(stderr, "gkps status: %s\n", words.text);
    } else {
        status.terminal =
            status.options.watch && !status.options.json && isatty(STDOUT_FILENO) == 1;
        code = ask_all(&status);
    }
    for (uint32_t i = 0; i < status.peers_count; i++) {
        json_decref(status.peers[i].answer);
    }
    free(status.peers);
    gk_config_free(config);
    return code;
}
