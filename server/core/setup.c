/* What a job needs of memory, and a shard that begins where its state directory ends. */
#include "common/assert.h"
#include "common/bits.h"
#include "server/core/state.h"

#include <inttypes.h>
#include <string.h>

/* A full chunk holds chunk_floats values, dense or sparse, so that a slice has no more chunks than
 * this. */
uint32_t gk_server_chunks_max(const struct gk_server *server, uint64_t count)
{
    return (uint32_t)((count + server->chunk_floats - 1) / server->chunk_floats) + 1;
}

/* Pieces of each rank's push and of INIT, then the lists of a round. */
static uint64_t pieces_count(const struct gk_server *server, uint64_t count)
{
    return (uint64_t)gk_server_chunks_max(server, count) * (server->config.workers + 1);
}

void gk_server_lend_tables(struct gk_server *server)
{
    const struct gk_server_durable *durable = &server->durable;
    uint64_t count = durable->setup.hi - durable->setup.lo;
    uint32_t room = gk_server_chunks_max(server, count);
    struct gk_piece *pieces = durable->memory.tables;

    memset(pieces, 0, pieces_count(server, count) * sizeof(*pieces));
    for (uint32_t r = 0; r < server->config.workers; r++) {
        server->live.members[r].push.assembly =
            (struct gk_assembly){.pieces = pieces, .chunks_max = room};
        pieces += room;
    }
    server->live.init.assembly = (struct gk_assembly){.pieces = pieces, .chunks_max = room};
    server->live.round.lists = (struct gk_list *)(void *)(pieces + room);
}

void gk_server_size_setup(const struct gk_server *server, const struct gk_spec *spec,
                          struct gk_server_setup *setup)
{
    const struct gk_server_config *config = &server->config;
    uint64_t count;

    *setup = (struct gk_server_setup){
        .lo = gk_partition_lo(spec->params_count, config->servers, config->shard),
        .hi = gk_partition_lo(spec->params_count, config->servers, config->shard + 1),
        .workers = config->workers,
        .optimizer = spec->optimizer,
        .planes_count = gk_optimizer_planes(spec->optimizer),
    };
    count = setup->hi - setup->lo;
    setup->plane_bytes = count * sizeof(float);
    setup->sum_bytes = count * sizeof(float);
    setup->tables_bytes =
        pieces_count(server, count) * sizeof(struct gk_piece) +
        (uint64_t)gk_server_chunks_max(server, count) * config->workers * sizeof(struct gk_list);
    /* A sparse entry costs 8 bytes, and a slice that would cost more than its dense form is sent
     * dense. */
    setup->push_bytes = gk_min_u64(8 * gk_min_u64(spec->push_max, count), 4 * count);
    setup->total_bytes = setup->planes_count * setup->plane_bytes + 2 * setup->sum_bytes +
                         setup->tables_bytes + config->workers * setup->push_bytes;
}

bool gk_server_fits_budget(const struct gk_server *server, const struct gk_server_setup *setup,
                           struct gk_words *words)
{
    uint64_t budget = server->config.memory_bytes;

    if (budget == 0 || setup->total_bytes <= budget) {
        return true;
    }
    gk_words_set(
        words,
        "shard %" PRIu32 " needs %" PRIu64 " MiB (%" PRIu64
        " for parameters, optimizer and sums, %" PRIu32 " x %" PRIu64
        " for pushes) but may use %" PRIu64 " MiB; more servers, or --memory, would help",
        server->config.shard, setup->total_bytes >> 20,
        (setup->planes_count * setup->plane_bytes + 2 * setup->sum_bytes + setup->tables_bytes) >>
            20,
        server->config.workers, setup->push_bytes >> 20, budget >> 20);
    return false;
}

enum gk_err gk_server_size(const struct gk_server *server, const struct gk_image *image,
                           struct gk_server_setup *ret_setup, struct gk_words *words)
{
    struct gk_server_setup setup;
    struct gk_spec spec = {0};
    enum gk_err err = gk_spec_decode(image->spec, image->spec_bytes, &spec, words);

    if (err) {
        return err;
    }
    gk_server_size_setup(server, &spec, &setup);
    gk_spec_clear(&spec);
    if (!gk_server_fits_budget(server, &setup, words)) {
        return GK_E_LIMIT;
    }
    *ret_setup = setup;
    return GK_OK;
}

enum gk_err gk_server_resume(struct gk_server *server, const struct gk_image *image,
                             const struct gk_server_memory *memory, struct gk_words *words)
{
    struct gk_server_durable *durable = &server->durable;
    enum gk_err err;

    GK_ASSERT(server->live.state == GK_SHARD_WAITING && server->live.started_us == 0);
    GK_ASSERT(image->workers == server->config.workers && image->shard == server->config.shard);
    if (image->initialised) {
        err = gk_server_size(server, image, &durable->setup, words);
        err = err ? err : gk_spec_decode(image->spec, image->spec_bytes, &durable->spec, words);
        if (err) {
            return err;
        }
        memcpy(durable->spec_bytes, image->spec, image->spec_bytes);
        durable->spec_bytes_count = image->spec_bytes;
        durable->spec_hash = gk_spec_hash(image->spec, image->spec_bytes);
        durable->model_signature = gk_spec_model_signature(&durable->spec);
        durable->lo = image->lo;
        durable->hi = image->hi;
        durable->memory = *memory;
        server->decay_count =
            gk_spec_decay_ranges(&durable->spec, image->lo, image->hi, server->decay);
        gk_server_lend_tables(server);
    }
    gk_image_copy(server->image, image);
    durable->durable_version = image->version;
    return GK_OK;
}
