/* Conversations of small jobs between the real cores, recorded event by event as each core saw
 * them.  One thread, one queue of messages, time that goes on when nothing else can happen; faults
 * at fixed places. */
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/seeds.h"
#include "tests/fuzz/server_shell.h"
#include "tests/fuzz/worker_shell.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SERVERS_MAX = FUZZ_WORKER_SERVERS_MAX,
    LIVES_MAX = FUZZ_WORKERS + 1, /* the last one is rank 1's second life */
    PACKETS_MAX = 1024,
    SEED_BYTES_MAX = 1 << 16,
    ROUNDS_MAX = 2000,
};

struct recording {
    uint8_t bytes[SEED_BYTES_MAX];
    size_t size;
    uint32_t events;
};

struct packet {
    bool to_server;
    uint32_t server, life;
    struct fuzz_message message;
};

static struct network {
    uint32_t servers, lives;
    bool dead[LIVES_MAX];
    bool cut; /* pushes of life 1 to shard 1 are lost */
    struct server_shell server[SERVERS_MAX];
    struct worker_shell worker[LIVES_MAX];
    struct recording server_tape[SERVERS_MAX], worker_tape[LIVES_MAX];
    struct packet packets[PACKETS_MAX];
    uint32_t first, count;
} net;

static void record(struct recording *tape, const struct fuzz_event *event)
{
    size_t more = fuzz_event_write(event, tape->bytes + tape->size, SEED_BYTES_MAX - tape->size);

    FUZZ_CHECK(more > 0 && tape->events < FUZZ_EVENTS_MAX);
    tape->size += more;
    tape->events++;
}

static void to_server(uint32_t server, const struct fuzz_event *event)
{
    record(&net.server_tape[server], event);
    server_shell_apply(&net.server[server], event);
}

static void to_worker(uint32_t life, const struct fuzz_event *event)
{
    if (!net.dead[life] && !net.worker[life].exited) {
        record(&net.worker_tape[life], event);
        worker_shell_apply(&net.worker[life], event);
    }
}

/* Our messages begin with magic, checksum, and the field of the kind. */
static uint8_t kind_of(const struct fuzz_message *message)
{
    return message->parts[0].bytes[9];
}

/* The queue takes copies: the shells keep what they send. */
static void post(bool is_to_server, uint32_t server, uint32_t life,
                 const struct fuzz_message *message)
{
    struct packet *packet = &net.packets[(net.first + net.count) % PACKETS_MAX];

    if (net.cut && is_to_server && server == 1 && life == 1 && kind_of(message) == GK_KIND_PUSH) {
        return;
    }
    FUZZ_CHECK(net.count < PACKETS_MAX);
    net.count++;
    *packet = (struct packet){.to_server = is_to_server, .server = server, .life = life};
    for (uint32_t i = 0; i < message->count; i++) {
        fuzz_message_add(&packet->message, message->parts[i].bytes, message->parts[i].size);
    }
}

static void server_sent(void *context, uint64_t route, const struct fuzz_message *message)
{
    const struct server_shell *shell = context;

    if (route - 1 < LIVES_MAX) {
        post(false, (uint32_t)(shell - net.server), (uint32_t)(route - 1), message);
    }
}

static void worker_sent(void *context, uint32_t shard, const struct fuzz_message *message)
{
    const struct worker_shell *shell = context;

    post(true, shard, (uint32_t)(shell - net.worker), message);
}

/* With the numbers that a later, changed run would draw otherwise replaced by their aliases. */
static void alias(struct packet *packet)
{
    struct fuzz_message changed;
    struct gk_msg msg;
    struct gk_words words;

    FUZZ_CHECK(fuzz_message_parse(&packet->message, &msg, &words) == GK_OK);
    if (packet->to_server) {
        bool known = msg.h.rank < FUZZ_SERVER_WORKERS_MAX &&
                     msg.h.session == net.server[packet->server].session[msg.h.rank];

        msg.h.session = known && msg.h.session != 0 ? FUZZ_THE_SESSION : msg.h.session;
    } else {
        msg.h.req_id = worker_shell_alias(&net.worker[packet->life], packet->server, &msg.h);
    }
    fuzz_message_check_ours(&msg);
    fuzz_message_send(&msg, &changed);
    gk_msg_clear(&msg);
    fuzz_message_clear(&packet->message);
    packet->message = changed;
}

static void deliver(void)
{
    struct packet packet = net.packets[net.first];
    struct fuzz_event event = {.op = FUZZ_MESSAGE};

    net.first = (net.first + 1) % PACKETS_MAX;
    net.count--;
    alias(&packet);
    event.message = packet.message;
    if (packet.to_server) {
        event.who = (uint8_t)packet.life;
        to_server(packet.server, &event);
    } else {
        event.who = (uint8_t)packet.server;
        to_worker(packet.life, &event);
    }
    fuzz_message_clear(&event.message);
}

static bool work(void)
{
    const struct fuzz_event event = {.op = FUZZ_DONE};

    for (uint32_t i = 0; i < net.servers; i++) {
        if (net.server[i].pending_count > 0) {
            to_server(i, &event);
            return true;
        }
    }
    for (uint32_t i = 0; i < net.lives; i++) {
        if (!net.dead[i] && !net.worker[i].exited && net.worker[i].pending_count > 0) {
            to_worker(i, &event);
            return true;
        }
    }
    return false;
}

static void let_time_pass(void)
{
    struct fuzz_event event = {.op = FUZZ_TICK, .argument = 200000};

    for (uint32_t i = 0; i < net.servers; i++) {
        to_server(i, &event);
    }
    for (uint32_t i = 0; i < net.lives; i++) {
        to_worker(i, &event);
    }
}

static bool over(void)
{
    bool all = true;

    for (uint32_t i = 0; i < net.lives; i++) {
        all = all && (net.dead[i] || net.worker[i].exited);
    }
    return all;
}

static uint64_t version(void)
{
    struct gk_server_view view;

    gk_server_view(net.server[0].core, &view);
    return view.version;
}

/* Until the job has ended, or shard 0 is at this version. */
static void run(uint64_t until_version)
{
    for (uint32_t round = 0; !over() && version() < until_version; round++) {
        FUZZ_CHECK(round < ROUNDS_MAX);
        if (net.count > 0) {
            deliver();
        } else if (!work()) {
            let_time_pass();
        }
    }
}

static void open_worker(uint32_t life, uint8_t setup)
{
    struct fuzz_event event = {.op = FUZZ_UP};

    setup |= net.servers == 2 ? FUZZ_WORKER_TWO : 0;
    worker_shell_init(&net.worker[life], setup);
    net.worker[life].sent = worker_sent;
    net.worker[life].context = &net.worker[life];
    net.worker_tape[life].bytes[net.worker_tape[life].size++] = setup;
    net.lives = life + 1;
    for (uint32_t i = 0; i < net.servers; i++) {
        event.who = (uint8_t)i;
        to_worker(life, &event);
    }
}

static void open_network(uint32_t servers, uint8_t worker_setup)
{
    memset(&net, 0, sizeof(net));
    net.servers = servers;
    for (uint32_t i = 0; i < servers; i++) {
        uint8_t setup = FUZZ_WORKERS - 1;

        setup |= servers == 2 ? FUZZ_SERVER_TWO : 0;
        setup |= i == 1 ? FUZZ_SERVER_SECOND : 0;
        server_shell_init(&net.server[i], setup);
        net.server[i].sent = server_sent;
        net.server[i].context = &net.server[i];
        net.server_tape[i].bytes[net.server_tape[i].size++] = setup;
    }
    for (uint32_t i = 0; i < FUZZ_WORKERS; i++) {
        uint8_t life = i > 0 && (worker_setup & FUZZ_WORKER_ANY) ? FUZZ_WORKER_SECOND_LIFE : 0;

        open_worker(i, (uint8_t)(worker_setup | i | life));
    }
}

/* What was recorded, and the end of all cores. */
static void write_network(const char *name)
{
    char path[64];

    for (uint32_t i = 0; i < net.lives; i++) {
        (void)snprintf(path, sizeof(path), "%s-%u", name, (unsigned)i);
        seeds_write("worker", path, net.worker_tape[i].bytes, net.worker_tape[i].size);
        worker_shell_fini(&net.worker[i]);
    }
    for (uint32_t i = 0; i < net.servers; i++) {
        (void)snprintf(path, sizeof(path), "%s-%u", name, (unsigned)i);
        seeds_write("server", path, net.server_tape[i].bytes, net.server_tape[i].size);
        server_shell_fini(&net.server[i]);
    }
    for (; net.count > 0; net.count--) {
        fuzz_message_clear(&net.packets[net.first].message);
        net.first = (net.first + 1) % PACKETS_MAX;
    }
}

/* The job went well: every worker that was not killed ended with 0. */
static void close_network(const char *name)
{
    while (net.count > 0) {
        deliver();
    }
    for (uint32_t i = 0; i < net.lives; i++) {
        FUZZ_CHECK(net.dead[i] || (net.worker[i].exited && net.worker[i].exit_code == 0));
    }
    write_network(name);
}

static void restart_server(void)
{
    const struct fuzz_event restart = {.op = FUZZ_RESTART}, down = {.op = FUZZ_DOWN},
                            up = {.op = FUZZ_UP};

    while (net.count > 0) {
        fuzz_message_clear(&net.packets[net.first].message);
        net.first = (net.first + 1) % PACKETS_MAX;
        net.count--;
    }
    to_server(0, &restart);
    for (uint32_t i = 0; i < net.lives; i++) {
        to_worker(i, &down);
        to_worker(i, &up);
    }
}

static void restart_worker(void)
{
    const struct fuzz_event restart = {.op = FUZZ_RESTART}, up = {.op = FUZZ_UP};
    const struct fuzz_event down = {.op = FUZZ_DOWN};

    to_server(0, &down);
    to_worker(0, &restart);
    to_worker(0, &up);
}

static void replace_worker(void)
{
    const struct fuzz_event down = {.op = FUZZ_DOWN, .who = 1};

    net.dead[1] = true;
    to_server(0, &down);
    open_worker(2, 1 | FUZZ_WORKER_TAKEOVER | FUZZ_WORKER_SECOND_LIFE);
}

static void ask(uint32_t kind)
{
    struct gk_msg msg = {.h = {.kind = kind, .req_id = 5, .rank = GK_RANK_ANY}};
    struct fuzz_event event = {.op = FUZZ_MESSAGE, .who = 9};

    fuzz_message_check_ours(&msg);
    fuzz_message_send(&msg, &event.message);
    to_server(0, &event);
    fuzz_message_clear(&event.message);
}

/* The first worker is told no, in every way there is. */
static void say_no(uint32_t code, uint32_t flags)
{
    struct gk_msg msg = {.h = {.kind = GK_KIND_NACK,
                               .session = net.server[0].session[0],
                               .req_id = FUZZ_THE_REQUEST,
                               .flags = flags,
                               .code = code}};
    struct fuzz_event event = {.op = FUZZ_MESSAGE};

    gk_words_set(&msg.words, "no");
    fuzz_message_check_ours(&msg);
    fuzz_message_send(&msg, &event.message);
    to_worker(0, &event);
    fuzz_message_clear(&event.message);
}

/* Jobs that do not end well. */
static void talk_badly(void)
{
    static const uint32_t fatal[] = {GK_CODE_FENCED,     GK_CODE_BAD_STEP,  GK_CODE_NO_MEMORY,
                                     GK_CODE_LOST_SHARD, GK_CODE_BAD_SHAPE, GK_CODE_FINISHED};
    char name[64];

    for (size_t i = 0; i < sizeof(fatal) / sizeof(fatal[0]); i++) {
        open_network(1, 0);
        run(1);
        say_no(GK_CODE_NOT_READY, GK_FLAG_RETRYABLE);
        say_no(GK_CODE_BAD_MESSAGE, 0);
        say_no(GK_CODE_DRAINING, GK_FLAG_RETRYABLE);
        say_no(GK_CODE_NO_SESSION, 0);
        run(2);
        say_no(fatal[i], 0);
        (void)snprintf(name, sizeof(name), "no-%u", (unsigned)fatal[i]);
        write_network(name);
    }
    open_network(1, FUZZ_WORKER_HUGE);
    for (uint32_t round = 0; !net.server[0].exited; round++) {
        FUZZ_CHECK(round < ROUNDS_MAX);
        if (net.count > 0) {
            deliver();
        } else if (!work()) {
            let_time_pass();
        }
    }
    write_network("overflow");
}

void seeds_talk(void)
{
    open_network(1, 0);
    run(UINT64_MAX);
    close_network("plain");

    open_network(2, FUZZ_WORKER_EVALUATES);
    run(UINT64_MAX);
    close_network("shards");

    open_network(2, FUZZ_WORKER_ANY);
    run(UINT64_MAX);
    close_network("assigned");

    open_network(1, 0);
    run(1);
    restart_server();
    run(UINT64_MAX);
    close_network("restart");

    open_network(1, FUZZ_WORKER_TAKEOVER);
    run(1);
    restart_worker();
    run(UINT64_MAX);
    close_network("slot");

    open_network(1, FUZZ_WORKER_PATIENT);
    run(1);
    replace_worker();
    run(UINT64_MAX);
    close_network("life");

    open_network(1, 0);
    run(2);
    ask(GK_KIND_STATUS);
    run(UINT64_MAX);
    ask(GK_KIND_DRAIN);
    close_network("drain");

    open_network(2, FUZZ_WORKER_PATIENT);
    net.cut = true;
    run(1);
    net.cut = false;
    replace_worker();
    run(UINT64_MAX);
    close_network("lost");

    talk_badly();
}
