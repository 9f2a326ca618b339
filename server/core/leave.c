/* LEAVE: a rank that pushes no more.  It is logged before it is answered, or a restarted shard
 * would wait for the departed for ever.  When all have left the job is finished: one record, the
 * hash of the parameters, a bounded time for those whose last answer was lost, exit 0. */
#include "common/exit.h"
#include "server/core/state.h"

#include <inttypes.h>

static void leave_ok(struct gk_server *server, uint32_t rank, uint64_t req_id)
{
    struct gk_msg *msg = gk_server_reply(server, GK_KIND_LEAVE_OK, rank, req_id);

    msg->h.step = server->image->rows[rank].left_at;
}

/* From left_at on the rank has no say; what it pushed of such a step and is not being committed is
 * void. */
static void forget(struct gk_server *server, uint32_t rank)
{
    struct gk_member *member = &server->live.members[rank];

    member->change.leave = false;
    if (!gk_server_round_active(server, rank) && member->push.assembly.chunks > 0) {
        gk_server_push_drop(server, rank);
    }
    gk_server_trace(server, GK_LOG_INFO, "SERVER-LEFT",
                    "worker %" PRIu32 " leaves at step %" PRIu64, rank,
                    server->image->rows[rank].left_at);
}

void gk_server_leave_recorded(struct gk_server *server, uint32_t rank)
{
    uint64_t req_id = server->live.members[rank].change.leave_req_id;

    forget(server, rank);
    leave_ok(server, rank, req_id);
}

void gk_server_leave(struct gk_server *server, uint32_t rank, const struct gk_msg *msg)
{
    struct gk_rank_row *row = &server->image->rows[rank];
    struct gk_change *change = &server->live.members[rank].change;

    if (row->left) {
        leave_ok(server, rank, msg->h.req_id);
        return;
    }
    if (server->config.plant & GK_SERVER_PLANT_FORGET_LEAVE) {
        row->left = true;
        row->left_at = msg->h.step;
        server->live.members[rank].left_unlogged = true;
        forget(server, rank);
        leave_ok(server, rank, msg->h.req_id);
        gk_server_round_close(server);
        return;
    }
    change->leave_req_id = msg->h.req_id;
    if (!change->leave) { /* a repeated one does not move the step */
        change->leave = true;
        change->wanted = true;
        change->left_at = msg->h.step;
        gk_server_write_next(server);
    }
}

void gk_server_finish_written(struct gk_server *server)
{
    struct gk_server_live *live = &server->live;

    live->finish_wanted = false;
    if (live->state == GK_SHARD_DRAINING) {
        live->exit_code =
            GK_EXIT_OK; /* told to stop, but the job was done: it exits when the hash is known */
    } else if (live->state != GK_SHARD_FINISHED) {
        gk_server_set_shard(server, GK_SHARD_FINISHED);
    }
    live->linger_until_us = server->now_us + GK_LINGER_US;
    gk_server_hash_begin(server);
}
