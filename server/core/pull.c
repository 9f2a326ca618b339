/* PULL_DENSE: parameters of exactly one version, now or when it exists.
 *
 * A pull of a version that is still to come waits in a slot of its rank, once per range: a repeated
 * one replaces the request id of the first.  The planes are read only while no APPLY is in flight,
 * so a chunk is never torn. */
#include "common/assert.h"
#include "server/core/state.h"

#include <inttypes.h>

static bool readable(const struct gk_server *server)
{
    return server->image->initialised && server->live.round.state != GK_ROUND_APPLYING;
}

/* PARAMS or GONE; false: not yet. */
static bool answer(struct gk_server *server, uint32_t rank, const struct gk_pull *pull)
{
    const struct gk_server_durable *durable = &server->durable;
    const struct gk_member *member = &server->live.members[rank];
    struct gk_server_action *action;

    if (gk_server_rates_refuse(server, rank, pull->req_id)) {
        return true;
    }
    if (!readable(server) || pull->version > server->image->version) {
        return false;
    }
    if (pull->version < server->image->version && !pull->at_least) {
        struct gk_msg *gone = gk_server_reply(server, GK_KIND_GONE, rank, pull->req_id);

        gone->h.plane = pull->plane;
        gone->h.lo = pull->lo;
        gone->h.hi = pull->hi;
        return true;
    }
    if (member->route == 0) {
        return true; /* the worker asks again when it is back */
    }
    action = gk_server_emit(server, GK_SERVER_PARAMS);
    action->route = member->route;
    action->u.params.values = durable->memory.planes[pull->plane] + (pull->lo - durable->lo);
    action->u.params.count = pull->hi - pull->lo;
    gk_server_fill(server, &action->msg.h, GK_KIND_PARAMS, rank, pull->req_id);
    action->msg.h.plane = pull->plane;
    if (pull->plane == 1 && durable->spec.optimizer == GK_OPTIMIZER_NONE) {
        action->msg.h.samples = server->image->samples;
    }
    action->msg.h.lo = pull->lo;
    action->msg.h.hi = pull->hi;
    action->msg.h.count = pull->hi - pull->lo;
    action->msg.h.index_encoding = GK_INDEX_DENSE;
    action->msg.h.value_encoding = GK_VALUE_F32;
    return true;
}

static bool shape_ok(const struct gk_server *server, const struct gk_header *h,
                     struct gk_words *words)
{
    const struct gk_server_durable *durable = &server->durable;

    if (h->plane >= durable->setup.planes_count) {
        gk_words_set(words, "plane %" PRIu32 ", this optimizer has %" PRIu32, h->plane,
                     durable->setup.planes_count);
        return false;
    }
    if (h->lo < durable->lo || h->hi > durable->hi) {
        gk_words_set(words, "a pull of [%" PRIu64 ", %" PRIu64 ") from [%" PRIu64 ", %" PRIu64 ")",
                     h->lo, h->hi, durable->lo, durable->hi);
        return false;
    }
    return true;
}

static struct gk_pull *slot_for(struct gk_member *member, const struct gk_pull *pull)
{
    for (uint32_t i = 0; i < member->pulls_count; i++) {
        struct gk_pull *slot = &member->pulls[i];

        if (slot->plane == pull->plane && slot->lo == pull->lo && slot->hi == pull->hi) {
            return slot;
        }
    }
    return member->pulls_count < GK_SERVER_PULLS_MAX ? &member->pulls[member->pulls_count++] : NULL;
}

void gk_server_pull(struct gk_server *server, uint32_t rank, const struct gk_msg *msg)
{
    const struct gk_header *h = &msg->h;
    struct gk_pull pull = {
        .req_id = h->req_id,
        .version = h->version,
        .plane = h->plane,
        .at_least = (h->flags & GK_FLAG_AT_LEAST) != 0,
        .lo = h->lo,
        .hi = h->hi,
    };
    struct gk_pull *slot;
    struct gk_words words;

    if (!shape_ok(server, h, &words)) {
        gk_server_nack(server, rank, h->req_id, GK_CODE_BAD_SHAPE, false, words.text);
        return;
    }
    if (answer(server, rank, &pull)) {
        return;
    }
    if (server->live.state == GK_SHARD_FINISHED && readable(server)) {
        gk_words_set(&words, "the job finished at version %" PRIu64, server->image->version);
        gk_server_nack(server, rank, h->req_id, GK_CODE_FINISHED, false, words.text);
        return;
    }
    slot = slot_for(&server->live.members[rank], &pull);
    if (!slot) {
        gk_server_nack(server, rank, h->req_id, GK_CODE_NOT_READY, true,
                       "too many pulls of this rank are waiting");
        return;
    }
    *slot = pull;
}

void gk_server_pull_serve(struct gk_server *server)
{
    uint32_t room = GK_SERVER_SERVE_MAX;

    server->live.pulls_due = false;
    for (uint32_t r = 0; r < server->config.workers; r++) {
        struct gk_member *member = &server->live.members[r];

        for (uint32_t i = 0; i < member->pulls_count;) {
            if (room == 0) {
                server->live.pulls_due = readable(server);
                return;
            }
            if (answer(server, r, &member->pulls[i])) {
                member->pulls[i] = member->pulls[--member->pulls_count];
                room--;
            } else {
                i++;
            }
        }
    }
}
