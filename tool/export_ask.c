/* What the tool asks of the servers of a running job, and what their STATUS tells of them. */
#include "tool/export_live_internal.h"

#include "common/bits.h"
#include "common/net/clock.h"

#include <jansson.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void send_request(struct gk_live_peer *peer, struct gk_msg *msg)
{
    struct gk_buf *parts[GK_PARTS_MAX];
    uint32_t parts_count;

    msg->h.rank = GK_RANK_ANY;
    if (!peer->up || gk_msg_to_wire(msg, parts, &parts_count) != GK_OK) {
        return; /* asked again later */
    }
    (void)gk_zsock_send(peer->zsock, 0, parts, parts_count); /* a full outbox: likewise */
    for (uint32_t i = 0; i < parts_count; i++) {
        gk_buf_unref(parts[i]);
    }
}

void gk_live_ask_status(struct gk_live_peer *peer)
{
    struct gk_msg msg = {.h = {.kind = GK_KIND_STATUS, .req_id = peer->live->req_id}};

    send_request(peer, &msg);
}

void gk_live_ask_pin(struct gk_live_peer *peer, uint32_t flags)
{
    const struct gk_live *live = peer->live;
    struct gk_msg msg = {.h = {.kind = GK_KIND_PIN,
                               .req_id = live->export_id,
                               .epoch = peer->epoch,
                               .shard = peer->shard,
                               .version = live->version,
                               .job_uid = peer->uid,
                               .flags = flags}};

    send_request(peer, &msg);
}

void gk_live_ask_chunk(struct gk_live_peer *peer, struct gk_live_chunk *chunk)
{
    struct gk_live *live = peer->live;
    struct gk_msg msg = {.h = {.kind = GK_KIND_PULL_PIN,
                               .req_id = ++live->req_id,
                               .epoch = peer->epoch,
                               .shard = peer->shard,
                               .version = live->version,
                               .lo = chunk->lo,
                               .hi = chunk->hi}};

    chunk->asked_us = gk_now_us();
    chunk->delay_us = gk_min_u64(gk_max_u64(2 * chunk->delay_us, GK_RETRY_BULK_US_MIN),
                                 (uint64_t)GK_RETRY_US_MAX);
    send_request(peer, &msg);
}

/* STATUS. */

static bool read_uid(const char *text, struct gk_uid *ret)
{
    return text && strlen(text) == 32 &&
           sscanf(text, "%16" SCNx64 "%16" SCNx64, &ret->hi, &ret->lo) == 2;
}

static uint64_t number_of(const json_t *json, const char *name)
{
    json_int_t value = json_integer_value(json_object_get(json, name));

    return value > 0 ? (uint64_t)value : 0;
}

bool gk_live_read_status(struct gk_live_peer *peer, const struct gk_msg *msg,
                         struct gk_words *words)
{
    json_t *json = json_loadb((const char *)msg->frame[0]->data, msg->frame[0]->size, 0, NULL);
    const char *job = json_string_value(json_object_get(json, "job"));
    const char *state = json_string_value(json_object_get(json, "state"));
    bool whole = job && state && strlen(job) < sizeof(peer->job) &&
                 read_uid(json_string_value(json_object_get(json, "job_uid")), &peer->uid);
    bool begun = whole && (peer->uid.hi != 0 || peer->uid.lo != 0) && strcmp(state, "init") != 0 &&
                 strcmp(state, "setup") != 0 && strcmp(state, "waiting") != 0;

    peer->servers = (uint32_t)gk_min_u64(number_of(json, "servers"), UINT32_MAX);
    peer->shard = msg->h.shard;
    peer->epoch = msg->h.epoch;
    peer->version = gk_min_u64(number_of(json, "version"), GK_VERSION_MAX);
    if (whole) {
        (void)snprintf(peer->job, sizeof(peer->job), "%s", job);
    }
    if (!begun) {
        gk_words_set(words,
                     whole ? "%s: the job has no version yet: its training has not begun"
                           : "%s answers with a status that cannot be read",
                     peer->address);
    }
    json_decref(json);
    return begun;
}

bool gk_live_one_job(const struct gk_live *live, struct gk_words *words)
{
    const struct gk_live_peer *first = &live->peers[0];
    bool seen[GK_SERVERS_MAX] = {false};

    for (uint32_t i = 0; i < live->peers_count; i++) {
        const struct gk_live_peer *peer = &live->peers[i];

        if (peer->uid.hi != first->uid.hi || peer->uid.lo != first->uid.lo ||
            peer->servers != first->servers || strcmp(peer->job, first->job) != 0) {
            gk_words_set(words, "%s is of another job ('%s') than %s ('%s')", peer->address,
                         peer->job, first->address, first->job);
            return false;
        }
        if (peer->epoch != first->epoch) {
            gk_words_set(words, "%s is in epoch %" PRIu32 ", %s in %" PRIu32, peer->address,
                         peer->epoch, first->address, first->epoch);
            return false;
        }
        if (peer->shard >= peer->servers || peer->shard >= GK_SERVERS_MAX || seen[peer->shard]) {
            gk_words_set(words, "%s is shard %" PRIu32 " of %" PRIu32 ", which we have already",
                         peer->address, peer->shard, peer->servers);
            return false;
        }
        seen[peer->shard] = true;
    }
    for (uint32_t s = 0; s < first->servers; s++) {
        if (s >= GK_SERVERS_MAX || !seen[s]) {
            gk_words_set(words,
                         "shard %" PRIu32 " of %" PRIu32
                         " is missing: --server takes the addresses of all",
                         s, first->servers);
            return false;
        }
    }
    return true;
}
