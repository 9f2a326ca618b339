/* The step function: events to handlers, the shard's states, life and restart.
 *
 *   WAITING --INIT--> SETUP --memory--> INIT --last chunk, record--> RUNNING --all left, record-->
 * FINISHED ^                |                ^ |                            | |
 *      +---too small----+                +-+--another init id-----------+ | any --STOP, DRAIN-->
 * DRAINING --nothing in flight--> EXITED <--linger over, a deadline-------------+
 *
 * Handlers judge first and change state last; what a reply relies on is written before the reply is
 * sent. */
#include "server/core/server.h"

#include "common/assert.h"
#include "common/exit.h"
#include "common/pause.h"
#include "server/core/state.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { DRAIN_US = 3 * 1000 * 1000 }; /* a commit in flight may take so long after STOP */

#define TO(state) (1u << GK_SHARD_##state)
static const uint32_t shard_successors[GK_SHARD_STATES_COUNT] = {
    [GK_SHARD_WAITING] = TO(SETUP) | TO(RUNNING) | TO(FINISHED) | TO(DRAINING) | TO(EXITED),
    [GK_SHARD_SETUP] = TO(INIT) | TO(WAITING) | TO(DRAINING) | TO(EXITED),
    [GK_SHARD_INIT] = TO(SETUP) | TO(INIT) | TO(RUNNING) | TO(DRAINING) | TO(EXITED),
    [GK_SHARD_RUNNING] = TO(INIT) | TO(FINISHED) | TO(DRAINING) | TO(EXITED),
    [GK_SHARD_FINISHED] = TO(DRAINING) | TO(EXITED),
    [GK_SHARD_DRAINING] = TO(EXITED),
    [GK_SHARD_EXITED] = 0,
};
#undef TO

bool gk_shard_may_follow(enum gk_shard_state from, enum gk_shard_state to)
{
    return (shard_successors[from] >> to & 1) != 0;
}

const char *gk_shard_state_name(enum gk_shard_state state)
{
    static const char *const names[GK_SHARD_STATES_COUNT] = {
        "waiting", "setup", "init", "running", "finished", "draining", "exited",
    };

    return names[state];
}

void gk_server_set_shard(struct gk_server *server, enum gk_shard_state to)
{
    enum gk_shard_state from = server->live.state;

    GK_ASSERT(gk_shard_may_follow(from, to));
    server->live.state = to;
    gk_server_trace(server, GK_LOG_DEBUG, "SERVER-STATE", "%s -> %s", gk_shard_state_name(from),
                    gk_shard_state_name(to));
}

static void members_clear(struct gk_server *server)
{
    for (uint32_t r = 0; r < server->config.workers; r++) {
        gk_assembly_clear(&server->live.members[r].push.assembly);
    }
}

enum gk_err gk_server_new(const struct gk_server_config *config, struct gk_server **ret_server)
{
    struct gk_server *server;
    uint32_t workers = config->workers;

    GK_ASSERT(workers > 0 && workers <= GK_WORKERS_MAX);
    GK_ASSERT(config->shard < config->servers && config->servers <= GK_SERVERS_MAX);
    server = calloc(1, sizeof(*server));
    if (!server) {
        return GK_E_NOMEM;
    }
    server->config = *config;
    server->chunk_floats = config->chunk_floats > 0 ? config->chunk_floats : GK_CHUNK_FLOATS;
    server->live.members = calloc(workers, sizeof(*server->live.members));
    server->live.round.contributions = calloc(workers, sizeof(*server->live.round.contributions));
    if (gk_image_new(config->shard, config->servers, workers, &server->image) ||
        !server->live.members || !server->live.round.contributions) {
        gk_server_free(server);
        return GK_E_NOMEM;
    }
    *ret_server = server;
    return GK_OK;
}

void gk_server_free(struct gk_server *server)
{
    if (!server) {
        return;
    }
    if (server->live.members) {
        members_clear(server);
    }
    gk_server_init_clear(server);
    gk_spec_clear(&server->durable.spec);
    free(server->live.round.contributions);
    free(server->live.members);
    gk_image_free(server->image);
    free(server);
}

void gk_server_restart(struct gk_server *server)
{
    struct gk_member *members = server->live.members;
    struct gk_contribution *contributions = server->live.round.contributions;
    uint32_t workers = server->config.workers;

    members_clear(server);
    gk_server_init_clear(server);
    for (uint32_t r = 0; r < workers; r++) {
        if (members[r].left_unlogged) {
            server->image->rows[r].left = false;
        }
    }
    memset(members, 0, workers * sizeof(*members));
    memset(contributions, 0, workers * sizeof(*contributions));
    memset(&server->live, 0, sizeof(server->live));
    server->live.members = members;
    server->live.round.contributions = contributions;
    if (server->durable.memory.tables) {
        gk_server_lend_tables(server);
    }
}

/* Begin, or go on where the records end. */
static void on_start(struct gk_server *server)
{
    const struct gk_server_durable *durable = &server->durable;
    struct gk_server_live *live = &server->live;

    GK_ASSERT(live->state == GK_SHARD_WAITING && live->started_us == 0);
    live->started_us = server->now_us;
    server->image->incarnation++;
    live->armed_us = UINT64_MAX;
    live->look_us = server->now_us + GK_PING_US;
    live->stall_us = server->now_us + GK_STALL_US;
    live->pushes = server->image->applied + server->image->returned + server->image->skipped +
                   server->image->lost;
    if (!server->image->initialised) {
        return;
    }
    live->pushed = server->image->version > 0;
    gk_server_set_shard(server, server->image->finished ? GK_SHARD_FINISHED : GK_SHARD_RUNNING);
    gk_server_trace(server, GK_LOG_INFO, "SERVER-RESUMED",
                    "life %" PRIu32 " goes on at version %" PRIu64, server->image->incarnation,
                    server->image->version);
    if (durable->unapplied) {
        gk_server_round_apply(server);
    } else if (server->image->finished) {
        gk_server_finish_written(server);
    } else {
        gk_server_round_resume(server);
    }
}

void gk_server_drain(struct gk_server *server, int exit_code, const char *words)
{
    struct gk_server_live *live = &server->live;

    if (live->state == GK_SHARD_DRAINING) {
        gk_server_exit(server, exit_code, "SERVER-STOPPED", words);
        return;
    }
    live->exit_code = live->state == GK_SHARD_FINISHED ? 0 : exit_code;
    gk_words_set(&live->exit_words, "%s", words);
    live->drain_until_us = server->now_us + DRAIN_US;
    gk_server_set_shard(server, GK_SHARD_DRAINING);
    gk_server_drained(server);
}

void gk_server_drained(struct gk_server *server)
{
    struct gk_server_live *live = &server->live;
    bool busy = live->writer.op != 0 || live->writer.full ||
                live->round.state != GK_ROUND_COLLECTING || live->hasher.op != 0;

    if (live->state != GK_SHARD_DRAINING) {
        return;
    }
    if (!busy) {
        gk_server_exit(server, live->exit_code, "SERVER-STOPPED", live->exit_words.text);
    } else if (server->now_us >= live->drain_until_us) {
        gk_server_trace(server, GK_LOG_WARN, "SERVER-DRAIN-LATE",
                        "the commit in flight did not end in time; its pushes will come again");
        gk_server_exit(server, live->exit_code, "SERVER-STOPPED", live->exit_words.text);
    }
}

static void on_peer_gone(struct gk_server *server, uint64_t route)
{
    for (uint32_t r = 0; r < server->config.workers; r++) {
        if (server->live.members[r].route == route) {
            server->live.members[r].route = 0;
        }
    }
}

static void on_tick(struct gk_server *server)
{
    server->live.armed_us = UINT64_MAX;
    server->live.look_us = server->now_us + GK_PING_US;
    gk_server_watch(server);
    if (server->live.pulls_due && server->live.state != GK_SHARD_EXITED) {
        gk_server_pull_serve(server);
    }
}

/* A computation that was asked for in a former life may end in this one: its number tells. */
static bool awaited(const struct gk_server *server, const struct gk_server_event *ev)
{
    const struct gk_server_live *live = &server->live;

    if (ev->op == 0) {
        return false;
    }
    switch (ev->kind) {
    case GK_SERVER_SETUP_DONE:
        return ev->op == live->init.setup_op;
    case GK_SERVER_SUM_DONE:
        return ev->op == live->round.op && live->round.state == GK_ROUND_SUMMING;
    case GK_SERVER_APPLY_DONE:
        return ev->op == live->round.op && live->round.state == GK_ROUND_APPLYING;
    case GK_SERVER_WRITE_DONE:
        return ev->op == live->writer.op;
    case GK_SERVER_HASH_DONE:
        return ev->op == live->hasher.op;
    case GK_SERVER_PIN_DONE:
        return gk_server_pin_awaits(server, ev->op);
    case GK_SERVER_START:
    case GK_SERVER_SYNCED:
    case GK_SERVER_TICK:
    case GK_SERVER_MESSAGE:
    case GK_SERVER_BAD_MESSAGE:
    case GK_SERVER_PEER_GONE:
    case GK_SERVER_STOP:
    case GK_SERVER_EVENTS_COUNT:
        break;
    }
    return false;
}

static void on_done(struct gk_server *server, const struct gk_server_event *ev)
{
    if (!awaited(server, ev)) {
        return;
    }
    switch (ev->kind) {
    case GK_SERVER_SETUP_DONE:
        gk_server_init_setup_done(server, ev);
        break;
    case GK_SERVER_SUM_DONE:
        gk_server_round_summed(server, ev->err, ev->words);
        break;
    case GK_SERVER_WRITE_DONE:
        gk_server_written(server, ev);
        break;
    case GK_SERVER_APPLY_DONE:
        gk_server_round_applied(server, ev->err, ev->words);
        break;
    case GK_SERVER_HASH_DONE:
        gk_server_hash_done(server, ev->err, ev->words);
        break;
    case GK_SERVER_PIN_DONE:
        gk_server_pin_done(server, ev);
        break;
    case GK_SERVER_START:
    case GK_SERVER_TICK:
    case GK_SERVER_MESSAGE:
    case GK_SERVER_BAD_MESSAGE:
    case GK_SERVER_PEER_GONE:
    case GK_SERVER_STOP:
    case GK_SERVER_SYNCED:
    case GK_SERVER_EVENTS_COUNT:
        GK_ASSERT(false && "not the end of a computation");
        break;
    }
}

static void dispatch(struct gk_server *server, const struct gk_server_event *ev)
{
    switch (ev->kind) {
    case GK_SERVER_START:
        on_start(server);
        break;
    case GK_SERVER_TICK:
        on_tick(server);
        break;
    case GK_SERVER_MESSAGE:
        gk_server_message(server, ev->route, ev->msg);
        break;
    case GK_SERVER_BAD_MESSAGE:
        gk_server_bad_message(server, ev);
        break;
    case GK_SERVER_PEER_GONE:
        on_peer_gone(server, ev->route);
        break;
    case GK_SERVER_SETUP_DONE:
    case GK_SERVER_SUM_DONE:
    case GK_SERVER_WRITE_DONE:
    case GK_SERVER_APPLY_DONE:
    case GK_SERVER_HASH_DONE:
    case GK_SERVER_PIN_DONE:
        on_done(server, ev);
        break;
    case GK_SERVER_SYNCED:
        gk_server_synced(server, ev->version);
        break;
    case GK_SERVER_STOP:
        gk_server_drain(server, ev->exit_code, ev->words ? ev->words : "told to stop");
        break;
    case GK_SERVER_EVENTS_COUNT:
        GK_ASSERT(false && "no event");
        break;
    }
}

/* One timer serves all waits: it is armed for the earliest of them. */
static void rearm(struct gk_server *server)
{
    uint64_t next_us = gk_server_watch_next_us(server);

    if (next_us != server->live.armed_us) {
        gk_server_emit(server, GK_SERVER_ARM_TIMER)->u.at_us = next_us;
        server->live.armed_us = next_us;
    }
}

void gk_server_step(struct gk_server *server, const struct gk_server_event *ev,
                    struct gk_server_actions *out)
{
    uint64_t pause_us;

    if (server->live.state == GK_SHARD_EXITED) {
        return; /* EXIT was the last action; whatever still arrives is too late */
    }
    pause_us = ev->kind == GK_SERVER_START ? 0 : gk_pause_us(server->now_us, ev->now_us);
    server->now_us = ev->now_us > server->now_us ? ev->now_us : server->now_us;
    server->out = out;
    gk_server_watch_paused(server, pause_us);
    dispatch(server, ev);
    if (server->live.state != GK_SHARD_EXITED) {
        rearm(server);
    }
    server->out = NULL;
}
