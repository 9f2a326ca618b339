/* The invariants, in one place. */
#include "common/assert.h"
#include "server/core/state.h"

static void check_member(const struct gk_server *server, uint32_t rank)
{
    const struct gk_member *member = &server->live.members[rank];
    const struct gk_rank_row *row = &server->image->rows[rank];
    const struct gk_push_slot *push = &member->push;

    GK_ASSERT(member->session == 0 ||
              (member->life_nonce == row->life_nonce && row->incarnation > 0));
    GK_ASSERT(member->pulls_count <= GK_SERVER_PULLS_MAX);
    GK_ASSERT(push->contributed == gk_assembly_complete(&push->assembly));
    GK_ASSERT(push->assembly.chunks == 0 || push->step == server->image->version);
    GK_ASSERT(push->assembly.chunks == 0 || server->image->initialised);
    GK_ASSERT(push->assembly.bytes <= push->push_bytes ||
              (server->config.plant & GK_SERVER_PLANT_MIXED_CHUNKS) != 0);
    GK_ASSERT(row->verdict == GK_VERDICT_NONE || row->verdict_step < server->image->version);
    GK_ASSERT(!member->change.wanted || member->change.hello || member->change.leave);
}

/* Who owns a push: nobody, its slot, or a verdict.  The sum of all is what came in. */
static void check_ledger(const struct gk_server *server)
{
    struct gk_server_view view;
    const struct gk_ledger *l = &view.ledger;

    gk_server_view(server, &view);
    GK_ASSERT(l->pushes ==
              l->applied + l->returned + l->skipped + l->lost + l->pending + l->dropped);
}

static void check_round(const struct gk_server *server)
{
    const struct gk_server_durable *durable = &server->durable;
    const struct gk_round *round = &server->live.round;
    uint32_t lowest, contributed = 0;

    GK_ASSERT(durable->durable_version <= server->image->version);
    GK_ASSERT(server->image->optimizer_step <= server->image->version);
    GK_ASSERT(round->state == GK_ROUND_COLLECTING || server->image->initialised);
    GK_ASSERT((round->op != 0) ==
              (round->state == GK_ROUND_SUMMING || round->state == GK_ROUND_APPLYING));
    GK_ASSERT(round->state != GK_ROUND_WRITING || server->live.writer.op != 0 ||
              server->live.writer.full || server->live.hasher.op != 0);
    GK_ASSERT(durable->unapplied == (round->state == GK_ROUND_APPLYING));
    /* An open round waits for somebody: otherwise it would have closed. */
    GK_ASSERT(server->live.state != GK_SHARD_RUNNING || round->state != GK_ROUND_COLLECTING ||
              gk_server_round_missing(server, &lowest) > 0 || server->live.finish_wanted ||
              server->live.writer.op != 0 || server->live.writer.full ||
              server->live.dispute.begun);
    for (uint32_t r = 0; r < server->config.workers; r++) {
        contributed += server->live.members[r].push.contributed ? 1 : 0;
    }
    GK_ASSERT(contributed == round->contributed);
    for (uint32_t i = 0; i + 1 < round->contributions_count; i++) {
        GK_ASSERT(round->contributions[i].rank < round->contributions[i + 1].rank);
    }
}

void gk_server_check(const struct gk_server *server)
{
    const struct gk_server_durable *durable = &server->durable;
    enum gk_shard_state state = server->live.state;

    if (state == GK_SHARD_EXITED) {
        return; /* frozen in the middle of whatever made it exit */
    }
    GK_ASSERT(state != GK_SHARD_RUNNING ||
              (server->image->initialised && !server->image->finished));
    GK_ASSERT(state != GK_SHARD_FINISHED || server->image->finished);
    GK_ASSERT(!server->image->initialised || durable->memory.tables);
    GK_ASSERT(server->live.init.setup_op == 0 || state == GK_SHARD_SETUP ||
              state == GK_SHARD_DRAINING); /* when a record of members was in flight at STOP */
    GK_ASSERT(!server->live.init.writing || state == GK_SHARD_INIT || state == GK_SHARD_DRAINING);
    for (uint32_t r = 0; r < server->config.workers; r++) {
        check_member(server, r);
    }
    check_round(server);
    gk_server_pin_check(server);
    check_ledger(server);
}
