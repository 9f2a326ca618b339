/* Hashes of a version: of the parameters alone (the model hash), and of all planes (the state hash,
 * which goes into the log so that a replay can be compared with what was served).
 *
 * One plane after the other, while the version is served and the next round collects; only its
 * record waits for the result. */
#include "common/assert.h"
#include "common/exit.h"
#include "server/core/state.h"

#include <inttypes.h>

static void next_plane(struct gk_server *server)
{
    const struct gk_server_durable *durable = &server->durable;
    struct gk_hasher *hasher = &server->live.hasher;
    struct gk_server_action *action = gk_server_emit(server, GK_SERVER_HASH);

    hasher->args = (struct gk_hash_args){
        .x = durable->memory.planes[hasher->plane],
        .n = durable->hi - durable->lo,
        .index0 = durable->lo,
        .plane = hasher->plane,
        .hash = &hasher->plane_hash,
    };
    action->u.hash = &hasher->args;
    hasher->op = gk_server_emit_op(server, action);
}

static bool is_current(const struct gk_server *server)
{
    return server->live.hasher.begun && server->live.hasher.version == server->image->version;
}

/* True when the hashes of the current version are known. */
bool gk_server_hash_ready(const struct gk_server *server)
{
    return is_current(server) && server->live.hasher.op == 0;
}

static void tell_finished(struct gk_server *server)
{
    const struct gk_hasher *hasher = &server->live.hasher;

    server->live.hashed = true;
    gk_server_trace(server, GK_LOG_INFO, "SERVER-FINISHED",
                    "finished at version %" PRIu64 ", model hash of this shard %016" PRIx64,
                    hasher->version, hasher->model);
}

/* Of the current version; once. */
void gk_server_hash_begin(struct gk_server *server)
{
    struct gk_hasher *hasher = &server->live.hasher;

    if (is_current(server)) {
        if (hasher->op == 0 && server->image->finished && !server->live.hashed) {
            tell_finished(server);
        }
        return;
    }
    GK_ASSERT(hasher->op == 0);
    *hasher = (struct gk_hasher){.begun = true, .version = server->image->version};
    next_plane(server);
}

void gk_server_hash_done(struct gk_server *server, enum gk_err err, const char *words)
{
    struct gk_hasher *hasher = &server->live.hasher;

    hasher->op = 0;
    if (err != GK_OK) {
        gk_server_exit(server, GK_EXIT_INTERNAL, "SERVER-HASH-FAILED",
                       words ? words : gk_err_text(err));
        return;
    }
    hasher->state += hasher->plane_hash;
    if (hasher->plane == 0) {
        hasher->model = hasher->plane_hash;
    }
    if (++hasher->plane < server->durable.setup.planes_count) {
        next_plane(server);
        return;
    }
    if (server->image->finished) {
        tell_finished(server);
    }
    gk_server_write_next(server); /* a round's record may have waited */
    gk_server_drained(server);
}
