/* What may be looked at from outside: for STATUS, logs and tests. */
#include "server/core/state.h"

void gk_server_view(const struct gk_server *server, struct gk_server_view *ret)
{
    const struct gk_server_durable *durable = &server->durable;
    const struct gk_server_live *live = &server->live;
    uint32_t lowest;

    *ret = (struct gk_server_view){
        .state = live->state,
        .round = live->round.state,
        .initialised = server->image->initialised,
        .incarnation = server->image->incarnation,
        .job_uid = server->image->job_uid,
        .init_id = server->image->init_id,
        .version = server->image->version,
        .durable_version = durable->durable_version,
        .optimizer_step = server->image->optimizer_step,
        .lo = durable->lo,
        .hi = durable->hi,
        .hashed = live->hashed,
        .hash = live->hashed ? live->hasher.model : 0,
        .hash_version = live->hashed ? live->hasher.version : 0,
        .disk_full = live->writer.full,
        .disk_full_us = live->writer.full_since_us,
        .disk_full_words = live->writer.full_words.text,
        .reserved_bytes =
            durable->memory.tables ? durable->setup.total_bytes + gk_server_pin_bytes(server) : 0,
        .round_open = gk_server_round_missing(server, &lowest) > 0,
        .round_open_us = live->round.opened_us,
        .present = gk_server_present(server, (struct gk_uid){0}, NULL),
        .ledger =
            {
                .pushes = live->pushes,
                .applied = server->image->applied,
                .returned = server->image->returned,
                .skipped = server->image->skipped,
                .lost = server->image->lost,
                .dropped = live->dropped,
                .duplicates = live->duplicates,
                .nacks = live->nacks,
                .bad_messages = live->bad_messages,
            },
    };
    for (uint32_t r = 0; r < server->config.workers; r++) {
        ret->ledger.pending += live->members[r].push.contributed ? 1 : 0;
    }
}

void gk_server_view_rank(const struct gk_server *server, uint32_t rank, struct gk_rank_view *ret)
{
    const struct gk_rank_row *row = &server->image->rows[rank];
    const struct gk_member *member = &server->live.members[rank];

    *ret = (struct gk_rank_view){
        .present = member->session != 0,
        .left = row->left,
        .contributed = member->push.contributed,
        .missing = server->live.state == GK_SHARD_RUNNING &&
                   server->live.round.state == GK_ROUND_COLLECTING &&
                   gk_server_round_active(server, rank) && !member->push.contributed,
        .incarnation = row->incarnation,
        .heard = member->heard,
        .heard_us = member->heard_us,
        .pushed = row->verdict != GK_VERDICT_NONE || member->push.contributed,
        .last_step = member->push.contributed ? member->push.step : row->verdict_step,
        .ping = member->ping,
    };
}

const float *gk_server_plane(const struct gk_server *server, uint32_t plane)
{
    return plane < 3 ? server->durable.memory.planes[plane] : NULL;
}
