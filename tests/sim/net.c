/* Connections and messages.  A connection carries messages in order unless the run reorders them;
 * what is under way when it ends is lost, or arrives late: on the old route, or on the new one
 * before anything else is said there.  Every message crosses as bytes, so that the validation of
 * proto/ is part of every run. */
#include "common/assert.h"
#include "common/hash.h"
#include "tests/sim/sim.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { RECONNECT_US_MIN = 2 * 1000, RECONNECT_US_MAX = 200 * 1000 };

static uint32_t direction(bool to_shard)
{
    return to_shard ? 0 : 1;
}

void gk_sim_packet_free(struct gk_sim_packet *packet)
{
    if (!packet) {
        return;
    }
    for (uint32_t i = 0; i < packet->parts_count; i++) {
        gk_buf_unref(packet->parts[i]);
    }
    free(packet);
}

static struct gk_sim_packet *packet_copy(const struct gk_sim_packet *packet)
{
    struct gk_sim_packet *copy = malloc(sizeof(*copy));

    GK_ASSERT(copy);
    *copy = *packet;
    for (uint32_t i = 0; i < copy->parts_count; i++) {
        (void)gk_buf_ref(copy->parts[i]);
    }
    return copy;
}

static struct gk_sim_packet *packet_new(const struct gk_msg *msg)
{
    struct gk_sim_packet *packet = calloc(1, sizeof(*packet));
    enum gk_err err;

    GK_ASSERT(packet);
    err = gk_msg_to_wire(msg, packet->parts, &packet->parts_count);
    GK_ASSERT(!err);
    packet->kind = msg->h.kind;
    packet->step = msg->h.kind == GK_KIND_PULL_DENSE ? msg->h.version : msg->h.step;
    packet->chunk = msg->h.chunk;
    packet->lo = msg->h.lo;
    return packet;
}

/* One bit of one part; CRCs must find it. */
static void corrupt(struct gk_sim *sim, struct gk_sim_packet *packet)
{
    uint32_t part = (uint32_t)gk_sim_below(&sim->rng, packet->parts_count);
    struct gk_buf *copy;
    uint64_t bit;

    if (packet->parts[part]->size == 0) {
        return;
    }
    copy = gk_buf_copy(packet->parts[part]->data, packet->parts[part]->size);
    GK_ASSERT(copy);
    bit = gk_sim_below(&sim->rng, 8 * copy->size);
    copy->data[bit / 8] = (uint8_t)(copy->data[bit / 8] ^ 1u << bit % 8);
    gk_buf_unref(packet->parts[part]);
    packet->parts[part] = copy;
    packet->corrupt = true;
    sim->stats.corrupted++;
}

/* When it arrives: later than what was sent before, unless this run reorders. */
static uint64_t arrival(struct gk_sim *sim, struct gk_sim_pair *pair, bool to_shard)
{
    const struct gk_sim_options *o = &sim->options;
    uint64_t *last_us = &pair->last_us[direction(to_shard)];
    uint64_t at_us = sim->now_us + gk_sim_between(&sim->rng, o->latency_us_min, o->latency_us_max);

    if (!sim->calm && gk_sim_chance(&sim->rng, o->faults.delay, 1000)) {
        at_us += gk_sim_below(&sim->rng, o->faults.delay_us_max + 1);
    }
    if (pair->blocked_us > sim->now_us && pair->block == GK_SIM_BLOCK_HOLD) {
        at_us = gk_max_u64(at_us, pair->blocked_us);
    }
    if (!o->faults.reorder) {
        at_us = gk_max_u64(at_us, *last_us + 1);
    }
    *last_us = gk_max_u64(*last_us, at_us);
    return at_us;
}

static void count_in_flight(struct gk_sim *sim, struct gk_sim_pair *pair, bool to_shard)
{
    const struct gk_sim_faults *f = &sim->options.faults;
    uint32_t count = ++pair->in_flight[direction(to_shard)];
    /* A window each of INIT, PUSH and PULL and a few single requests, again every half second. */
    uint64_t slowest_us = sim->options.latency_us_max + f->delay_us_max +
                          (f->partition ? f->partition_us_max : 0) +
                          (f->pause ? f->pause_us_max : 0) + (f->freeze ? f->freeze_us_max : 0);
    uint64_t limit = 28 * (2 + slowest_us / GK_RETRY_BULK_US_MIN) * (f->duplicate ? 2 : 1);

    sim->stats.in_flight_max = gk_max_u64(sim->stats.in_flight_max, count);
    if (count > limit) {
        gk_sim_fail(sim, "P6", "%" PRIu32 " messages are under way between two processes", count);
    }
}

/* Takes the packet. */
static void launch(struct gk_sim *sim, struct gk_sim_packet *packet)
{
    struct gk_sim_pair *pair = &sim->pairs[packet->proc][packet->shard];
    struct gk_sim_event event = {
        .kind = GK_SIM_PACKET,
        .at_us = arrival(sim, pair, packet->to_shard),
        .node =
            packet->to_shard ? gk_sim_shard_node(packet->shard) : gk_sim_proc_node(packet->proc),
        .packet = packet,
    };

    count_in_flight(sim, pair, packet->to_shard);
    gk_sim_queue_push(&sim->queue, &event);
    sim->stats.packets++;
}

static void remember(struct gk_sim *sim, const struct gk_sim_packet *packet)
{
    struct gk_sim_packet **slot = &sim->history[sim->history_next];

    if (sim->options.faults.replay == 0 || !packet->to_shard) {
        return;
    }
    gk_sim_packet_free(*slot);
    *slot = packet_copy(packet);
    sim->history_next = (sim->history_next + 1) % GK_SIM_HISTORY;
}

static bool is_lost(struct gk_sim *sim, const struct gk_sim_pair *pair)
{
    return pair->route == 0 ||
           (pair->blocked_us > sim->now_us && pair->block == GK_SIM_BLOCK_LOSE) ||
           (!sim->calm && gk_sim_chance(&sim->rng, sim->options.faults.drop, 1000));
}

void gk_sim_send(struct gk_sim *sim, uint32_t proc, uint32_t shard, bool to_shard,
                 const struct gk_msg *msg)
{
    const struct gk_sim_faults *f = &sim->options.faults;
    struct gk_sim_pair *pair = &sim->pairs[proc][shard];
    struct gk_sim_packet *packet = packet_new(msg);
    enum gk_sim_fate fate = GK_SIM_PASS;

    packet->proc = proc;
    packet->shard = shard;
    packet->to_shard = to_shard;
    packet->route = pair->route;
    packet->serial = pair->serials[direction(to_shard)]++;
    packet->life = sim->nodes[gk_sim_proc_node(proc)].life;
    if (sim->filter) {
        fate = sim->filter(sim, packet);
    }
    if (fate == GK_SIM_KEEP) {
        GK_ASSERT(sim->kept_count < GK_SIM_KEPT_MAX);
        sim->kept[sim->kept_count++] = packet;
        return;
    }
    remember(sim, packet);
    if (fate == GK_SIM_LOSE || is_lost(sim, pair)) {
        sim->stats.lost++;
        gk_sim_packet_free(packet);
        return;
    }
    if (fate == GK_SIM_DOUBLE || (!sim->calm && gk_sim_chance(&sim->rng, f->duplicate, 1000))) {
        sim->stats.duplicated++;
        launch(sim, packet_copy(packet));
    }
    if (!sim->calm && gk_sim_chance(&sim->rng, f->corrupt, 1000)) {
        corrupt(sim, packet);
    }
    launch(sim, packet);
}

/* What a filter has put aside arrives now, on the connection that there is now. */
void gk_sim_release(struct gk_sim *sim, uint32_t index)
{
    struct gk_sim_packet *packet = sim->kept[index];

    GK_ASSERT(index < sim->kept_count);
    sim->kept[index] = sim->kept[--sim->kept_count];
    packet->route = sim->pairs[packet->proc][packet->shard].route;
    launch(sim, packet);
}

/* An answer of a shard: on the connection with that route, if there is one. */
void gk_sim_tell_route(struct gk_sim *sim, uint32_t shard, uint64_t route, const struct gk_msg *msg)
{
    for (uint32_t p = 0; p < sim->procs_count; p++) {
        if (sim->pairs[p][shard].route == route) {
            gk_sim_send(sim, p, shard, false, msg);
            return;
        }
    }
    sim->stats.lost++;
}

static void to_shard(struct gk_sim *sim, const struct gk_sim_packet *packet,
                     const struct gk_msg *msg, enum gk_err err, const char *words)
{
    struct gk_server_event event = {
        .kind = err ? GK_SERVER_BAD_MESSAGE : GK_SERVER_MESSAGE,
        .route = packet->route,
        .msg = err ? NULL : msg,
        .header = &msg->h,
        .err = err,
        .words = err ? words : NULL,
    };

    gk_sim_shard_step(sim, packet->shard, &event);
}

static void to_proc(struct gk_sim *sim, const struct gk_sim_packet *packet,
                    const struct gk_msg *msg, enum gk_err err, const char *words)
{
    struct gk_worker_event event = {
        .kind = err ? GK_WORKER_BAD_MESSAGE : GK_WORKER_MESSAGE,
        .shard = packet->shard,
        .msg = err ? NULL : msg,
        .words = err ? words : NULL,
    };
    struct gk_sim_node *node = &sim->nodes[gk_sim_proc_node(packet->proc)];

    if (msg->h.kind == GK_KIND_WELCOME && !packet->late) {
        sim->pairs[packet->proc][packet->shard].down_us = GK_SIM_NEVER;
    }
    if (msg->h.kind != GK_KIND_PONG && msg->h.kind != GK_KIND_NACK) {
        node->progress_us = sim->now_us;
    }
    gk_sim_proc_step(sim, packet->proc, &event);
}

/* Of damaged messages, by the one that it came to. */
static uint64_t bad_messages(const struct gk_sim *sim, const struct gk_sim_packet *packet)
{
    struct gk_server_view view;

    if (!packet->to_shard) {
        return gk_worker_stats(sim->procs[packet->proc].core)->bad_messages;
    }
    gk_server_view(sim->shards[packet->shard].core, &view);
    return view.ledger.bad_messages;
}

static void check_refusal(struct gk_sim *sim, const struct gk_sim_packet *packet, bool alive,
                          uint64_t bad_before)
{
    if (alive && bad_messages(sim, packet) != bad_before + 1) {
        gk_sim_fail(sim, "P7", "a damaged %s is not counted", gk_kind_name(packet->kind));
    }
}

static bool is_heard(const struct gk_sim *sim, const struct gk_sim_packet *packet)
{
    const struct gk_sim_node *node = packet->to_shard
                                         ? &sim->nodes[gk_sim_shard_node(packet->shard)]
                                         : &sim->nodes[gk_sim_proc_node(packet->proc)];

    return node->state == GK_SIM_ALIVE && (packet->to_shard || node->life == packet->life);
}

/* Takes the event's packet. */
void gk_sim_deliver(struct gk_sim *sim, struct gk_sim_event *event)
{
    struct gk_sim_packet *packet = event->packet;
    struct gk_msg msg;
    struct gk_words words;
    enum gk_err err = gk_msg_from_wire(packet->parts, packet->parts_count, &msg, &words);
    uint64_t bad_before = bad_messages(sim, packet);
    bool heard = is_heard(sim, packet);

    sim->pairs[packet->proc][packet->shard].in_flight[direction(packet->to_shard)]--;
    gk_sim_say(sim, event->node, "<- %s%s %u: %s step %" PRIu64 " chunk %" PRIu32 "%s%s",
               packet->late ? "late, " : "", packet->to_shard ? "worker" : "shard",
               packet->to_shard ? packet->proc : packet->shard, gk_kind_name(packet->kind),
               packet->step, packet->chunk, err ? ", refused: " : "", err ? words.text : "");
    gk_sim_note(sim, packet->kind, gk_hash64(packet->parts[0]->data, packet->parts[0]->size));
    if ((err != GK_OK) != packet->corrupt) {
        gk_sim_fail(sim, "P7", "%s is %s: %s", gk_kind_name(packet->kind),
                    packet->corrupt ? "damaged and accepted" : "right and refused",
                    err ? words.text : "");
    }
    if (heard && packet->to_shard) {
        to_shard(sim, packet, &msg, err, words.text);
        if (!err && msg.h.kind == GK_KIND_PUSH) {
            gk_sim_faults_chunk(sim, packet, msg.h.chunks);
        }
    } else if (heard) {
        to_proc(sim, packet, &msg, err, words.text);
    }
    if (err) {
        check_refusal(sim, packet, heard, bad_before);
    } else {
        gk_msg_clear(&msg);
    }
    gk_sim_packet_free(packet);
    event->packet = NULL;
}

void gk_sim_retry_connect(struct gk_sim *sim, uint32_t proc, uint32_t shard)
{
    struct gk_sim_event event = {
        .kind = GK_SIM_CONNECT,
        .at_us = sim->now_us + gk_sim_between(&sim->rng, RECONNECT_US_MIN, RECONNECT_US_MAX),
        .node = gk_sim_proc_node(proc),
        .other = shard,
        .life = sim->nodes[gk_sim_proc_node(proc)].life,
    };

    gk_sim_queue_push(&sim->queue, &event);
}

void gk_sim_connect(struct gk_sim *sim, uint32_t proc, uint32_t shard)
{
    struct gk_sim_pair *pair = &sim->pairs[proc][shard];
    struct gk_worker_event event = {.kind = GK_WORKER_PEER_UP, .shard = shard};
    bool cut = pair->blocked_us > sim->now_us && pair->block == GK_SIM_BLOCK_CUT;

    if (pair->route != 0) {
        return;
    }
    if (cut || sim->nodes[gk_sim_shard_node(shard)].state != GK_SIM_ALIVE) {
        if (sim->nodes[gk_sim_shard_node(shard)].state != GK_SIM_ENDED) {
            gk_sim_retry_connect(sim, proc, shard);
        }
        return;
    }
    pair->route = ++sim->routes;
    pair->last_us[0] = pair->last_us[1] = sim->now_us;
    for (uint32_t i = 0; i < sim->queue.count; i++) {
        struct gk_sim_packet *packet = sim->queue.events[i].packet;

        /* It waited in the worker's socket, and is the first thing that the new peer hears. */
        if (packet && packet->late && packet->to_shard && packet->proc == proc &&
            packet->shard == shard && packet->requeued &&
            packet->life == sim->nodes[gk_sim_proc_node(proc)].life) {
            packet->route = pair->route;
        }
    }
    gk_sim_proc_step(sim, proc, &event);
}

static bool of_pair(const struct gk_sim_packet *packet, uint32_t proc, uint32_t shard)
{
    return packet && packet->proc == proc && packet->shard == shard && !packet->late;
}

static bool of_the_dead(const struct gk_sim *sim, const struct gk_sim_packet *packet)
{
    uint32_t sender =
        packet->to_shard ? gk_sim_proc_node(packet->proc) : gk_sim_shard_node(packet->shard);

    return sim->nodes[sender].state != GK_SIM_ALIVE;
}

/* What a process had sent before it died may arrive all the same, up to some message. */
static uint64_t draw_last(struct gk_sim *sim, uint32_t proc, uint32_t shard)
{
    uint64_t last_us = 0;
    uint32_t count = 0;

    for (uint32_t i = 0; i < sim->queue.count; i++) {
        const struct gk_sim_event *event = &sim->queue.events[i];

        if (of_pair(event->packet, proc, shard) && of_the_dead(sim, event->packet) &&
            gk_sim_chance(&sim->rng, 1, ++count)) {
            last_us = event->at_us;
        }
    }
    return sim->calm || gk_sim_chance(&sim->rng, 1, 4) ? 0 : last_us;
}

/* What is under way is lost, or becomes late. */
static void cut_packets(struct gk_sim *sim, uint32_t proc, uint32_t shard)
{
    uint64_t last_us = draw_last(sim, proc, shard);

    for (uint32_t i = 0; i < sim->queue.count;) {
        struct gk_sim_packet *packet = sim->queue.events[i].packet;
        struct gk_sim_event event;

        if (!of_pair(packet, proc, shard)) {
            i++;
            continue;
        }
        if ((of_the_dead(sim, packet) && sim->queue.events[i].at_us <= last_us) ||
            (!sim->calm && gk_sim_chance(&sim->rng, sim->options.faults.late, 1000))) {
            packet->late = true;
            packet->requeued = packet->to_shard && gk_sim_chance(&sim->rng, 1, 2);
            sim->stats.late++;
            i++;
            continue;
        }
        sim->pairs[proc][shard].in_flight[direction(packet->to_shard)]--;
        gk_sim_queue_take(&sim->queue, i, &event);
        gk_sim_packet_free(event.packet);
        i = 0; /* the heap has moved */
    }
}

void gk_sim_disconnect(struct gk_sim *sim, uint32_t proc, uint32_t shard)
{
    struct gk_sim_pair *pair = &sim->pairs[proc][shard];
    uint32_t node = gk_sim_proc_node(proc);
    struct gk_sim_event down = {.kind = GK_SIM_DOWN, .at_us = sim->now_us, .node = node};
    struct gk_sim_event gone = {.kind = GK_SIM_GONE, .node = gk_sim_shard_node(shard)};

    if (pair->route == 0) {
        return;
    }
    gone.number = pair->route;
    gone.life = sim->nodes[gone.node].life;
    gone.at_us = sim->now_us + gk_sim_below(&sim->rng, 2 * sim->options.latency_us_max + 1);
    gk_sim_queue_push(&sim->queue, &gone);
    pair->route = 0;
    if (pair->down_us == GK_SIM_NEVER) {
        pair->down_us = sim->now_us;
    }
    cut_packets(sim, proc, shard);
    if (sim->nodes[node].state == GK_SIM_ALIVE) {
        down.other = shard;
        down.life = sim->nodes[node].life;
        gk_sim_queue_push(&sim->queue, &down);
    }
}

/* An old message to this shard comes once more; on the newest route when its process still lives,
 * otherwise on the old one: nobody speaks on another process's connection. */
void gk_sim_replay(struct gk_sim *sim, uint32_t shard)
{
    const struct gk_sim_packet *old = sim->history[gk_sim_below(&sim->rng, GK_SIM_HISTORY)];
    struct gk_sim_packet *packet;

    if (!old || old->shard != shard) {
        return;
    }
    packet = packet_copy(old);
    packet->late = true;
    if (packet->life == sim->nodes[gk_sim_proc_node(packet->proc)].life &&
        sim->pairs[packet->proc][shard].route != 0) {
        packet->route = sim->pairs[packet->proc][shard].route;
    }
    sim->stats.replayed++;
    launch(sim, packet);
}

static void fill_hello(const struct gk_sim *sim, struct gk_msg *msg, bool other_name)
{
    msg->body.hello = (struct gk_hello){
        .protocol_min = GK_PROTOCOL_VERSION,
        .protocol_max = GK_PROTOCOL_VERSION,
        .job_uid = {.hi = msg->h.req_id, .lo = 1},
        .workers = sim->options.workers,
        .servers = sim->options.servers,
        .role = 1,
        .life_nonce = msg->h.req_id | 1,
        .takeover = msg->h.req_id % 2,
    };
    gk_words_set(&msg->words, "%s", other_name ? "another job" : GK_SIM_JOB);
}

/* Messages of another job on the same port, of another run of this one, of a tool, and of a peer
 * that is no worker.  None of them may change anything. */
void gk_sim_stranger(struct gk_sim *sim, uint32_t shard)
{
    static const uint32_t kinds[] = {GK_KIND_HELLO,  GK_KIND_HELLO,      GK_KIND_PING,
                                     GK_KIND_LEAVE,  GK_KIND_PULL_DENSE, GK_KIND_PUSH,
                                     GK_KIND_STATUS, GK_KIND_DRAIN,      GK_KIND_LEAVE_OK};
    const struct gk_sim_shadow *shadow = &sim->ledger.shadows[shard];
    struct gk_sim_packet *packet;
    struct gk_msg msg = {0};
    struct gk_header *h = &msg.h;
    /* As long as a shard may have no job it cannot know that a HELLO is of another run. */
    bool may_tell = shadow->initialised && !sim->options.faults.reinit;
    bool other_name = !may_tell || gk_sim_chance(&sim->rng, 1, 2);

    h->kind = kinds[gk_sim_below(&sim->rng, sizeof(kinds) / sizeof(kinds[0]))];
    h->req_id = gk_sim_next(&sim->rng);
    h->rank = (uint32_t)gk_sim_below(&sim->rng, sim->options.workers);
    h->shard = shard;
    h->incarnation = (uint32_t)gk_sim_below(&sim->rng, 100);
    if (h->kind == GK_KIND_HELLO) {
        fill_hello(sim, &msg, other_name);
    } else if (h->kind != GK_KIND_STATUS && h->kind != GK_KIND_DRAIN) {
        h->session = gk_sim_next(&sim->rng) | 1;
    }
    if (h->kind == GK_KIND_PULL_DENSE || h->kind == GK_KIND_PUSH) {
        h->lo = sim->job.lo[shard];
        h->hi = sim->job.lo[shard + 1];
    }
    if (h->kind == GK_KIND_PULL_DENSE) {
        h->version = shadow->version;
    }
    if (h->kind == GK_KIND_PUSH || h->kind == GK_KIND_LEAVE) {
        h->step = shadow->version;
    }
    if (h->kind == GK_KIND_PUSH) { /* an empty one would do harm enough */
        h->base_version = h->step;
        h->push_id = gk_sim_next(&sim->rng) | 1;
        h->chunks = 1;
    }
    packet = packet_new(&msg);
    packet->shard = shard;
    packet->to_shard = true;
    packet->late = true;
    packet->route = (UINT64_C(1) << 62) + gk_sim_below(&sim->rng, 1000);
    sim->stats.strangers++;
    launch(sim, packet);
}
