/* INIT: how a shard gets version 0.
 *
 * The first chunk carries the spec: sizes become known, the shell allocates (SETUP), and nothing
 * grows afterwards.  The chunks are copied into the parameter plane as they come; when they tile it
 * the INIT record is written, and only then the last chunk is acknowledged and version 0 exists.
 * Another init id starts over as long as no push has come: rank 0 may have died half-way and come
 * back with other parameters. */
#include "common/assert.h"
#include "common/bits.h"
#include "server/core/state.h"

#include <inttypes.h>
#include <string.h>

void gk_server_init_clear(struct gk_server *server)
{
    struct gk_init *init = &server->live.init;

    gk_buf_unref(init->held_values);
    init->held_values = NULL;
    gk_assembly_clear(&init->assembly);
    init->init_id = 0;
    init->writing = false;
}

static void no_memory(struct gk_server *server, uint64_t req_id, const char *words)
{
    gk_server_trace(server, GK_LOG_ERROR, "SERVER-NO-MEMORY", "%s", words);
    gk_server_nack(server, 0, req_id, GK_CODE_NO_MEMORY, false, words);
}

/* INIT_OK, or what stands against it. */
static void answer(struct gk_server *server, const struct gk_header *h)
{
    struct gk_msg *msg = gk_server_reply(server, GK_KIND_INIT_OK, 0, h->req_id);

    msg->h.init_id = h->init_id;
    msg->h.chunk = h->chunk;
    msg->h.chunks = h->chunks;
}

/* Everybody has joined, and none of them has seen a later version of this job. */
static bool all_ready(struct gk_server *server, const struct gk_header *h)
{
    struct gk_words words;
    uint32_t missing;
    uint32_t present = gk_server_present(server, h->job_uid, &missing);

    for (uint32_t r = 0; r < server->config.workers; r++) {
        const struct gk_member *member = &server->live.members[r];
        const struct gk_hello *hello = &member->hello;
        bool same_job = hello->job_uid.hi == h->job_uid.hi && hello->job_uid.lo == h->job_uid.lo;
        bool beyond = (hello->slot == GK_SLOT_STEP && hello->slot_step > 0) ||
                      (hello->slot == GK_SLOT_LEFT && hello->slot_left_at > 0);

        if (member->session != 0 && same_job && beyond) {
            gk_words_set(&words,
                         "shard %" PRIu32 " has no version, but worker %" PRIu32
                         " knows this job beyond version 0: the shard's state is lost",
                         server->config.shard, r);
            gk_server_nack(server, 0, h->req_id, GK_CODE_LOST_SHARD, false, words.text);
            return false;
        }
    }
    if (present < server->config.workers) {
        gk_words_set(&words,
                     "waiting for worker %" PRIu32 " of %" PRIu32 ": rank %" PRIu32 " is missing",
                     present + 1, server->config.workers, missing);
        gk_server_nack(server, 0, h->req_id, GK_CODE_NOT_READY, true, words.text);
        return false;
    }
    return true;
}

/* Parse the spec that came with the first chunk, and compare it with what is known. */
static bool take_spec(struct gk_server *server, const struct gk_msg *msg, struct gk_spec *ret_spec,
                      struct gk_words *words)
{
    const struct gk_server_config *config = &server->config;
    uint64_t hash = gk_spec_hash(msg->frame[0]->data, msg->frame[0]->size);
    uint64_t promised = server->live.members[0].hello.spec_hash;

    if (promised != 0 && hash != promised) {
        gk_words_set(words, "the spec's hash is %016" PRIx64 ", rank 0 said %016" PRIx64, hash,
                     promised);
        return false;
    }
    if (server->image->initialised && hash != server->durable.spec_hash) {
        gk_words_set(words, "another spec (%016" PRIx64 ") than that of version 0 (%016" PRIx64 ")",
                     hash, server->durable.spec_hash);
        return false;
    }
    if (gk_spec_decode(msg->frame[0]->data, msg->frame[0]->size, ret_spec, words) != GK_OK) {
        return false;
    }
    if (ret_spec->workers != config->workers || ret_spec->servers != config->servers) {
        gk_words_set(words,
                     "the spec is for %" PRIu32 " workers and %" PRIu32
                     " servers, this is for %" PRIu32 " and %" PRIu32,
                     ret_spec->workers, ret_spec->servers, config->workers, config->servers);
        gk_spec_clear(ret_spec);
        return false;
    }
    return true;
}

static void adopt_spec(struct gk_server *server, const struct gk_buf *bytes, struct gk_spec *spec,
                       const struct gk_server_setup *setup)
{
    struct gk_server_durable *durable = &server->durable;

    GK_ASSERT(bytes->size <= sizeof(durable->spec_bytes));
    gk_spec_clear(&durable->spec);
    durable->spec = *spec; /* takes the tensors */
    memcpy(durable->spec_bytes, bytes->data, bytes->size);
    durable->spec_bytes_count = bytes->size;
    durable->spec_hash = gk_spec_hash(bytes->data, bytes->size);
    durable->model_signature = gk_spec_model_signature(spec);
    durable->setup = *setup;
    durable->lo = setup->lo;
    durable->hi = setup->hi;
    server->decay_count = gk_spec_decay_ranges(spec, setup->lo, setup->hi, server->decay);
}

/* What an earlier SETUP gave is void from here on: nothing may point into it. */
static void ask_memory(struct gk_server *server)
{
    struct gk_server_action *action;

    memset(&server->durable.memory, 0, sizeof(server->durable.memory));
    for (uint32_t r = 0; r < server->config.workers; r++) {
        server->live.members[r].push.assembly = (struct gk_assembly){0};
    }
    server->live.init.assembly = (struct gk_assembly){0};
    gk_server_set_shard(server, GK_SHARD_SETUP);
    action = gk_server_emit(server, GK_SERVER_SETUP);
    action->u.setup = server->durable.setup;
    server->live.init.setup_op = gk_server_emit_op(server, action);
}

static void store(struct gk_server *server, const struct gk_header *h, const struct gk_buf *values);

/* It is looked at before anything of a former init is given up. */
static bool first_chunk_ok(const struct gk_server *server, const struct gk_header *h,
                           const struct gk_server_setup *setup, struct gk_words *words)
{
    uint32_t most = gk_server_chunks_max(server, setup->hi - setup->lo);

    if (h->chunks <= most && h->lo == setup->lo &&
        (h->chunks == 1 ? h->hi == setup->hi : h->hi < setup->hi)) {
        return true;
    }
    gk_words_set(words,
                 "INIT chunk 0 of %" PRIu32 " is [%" PRIu64 ", %" PRIu64
                 "), this shard is [%" PRIu64 ", %" PRIu64 ") in at most %" PRIu32 " chunks",
                 h->chunks, h->lo, h->hi, setup->lo, setup->hi, most);
    return false;
}

/* The first chunk of an init id that is not the current one. */
static void begin(struct gk_server *server, const struct gk_msg *msg)
{
    struct gk_init *init = &server->live.init;
    struct gk_server_setup setup;
    struct gk_spec spec;
    struct gk_words words;
    bool again =
        server->live.state != GK_SHARD_WAITING &&
        gk_spec_hash(msg->frame[0]->data, msg->frame[0]->size) == server->durable.spec_hash;

    if (!take_spec(server, msg, &spec, &words)) {
        gk_server_nack(server, 0, msg->h.req_id, GK_CODE_BAD_SHAPE, false, words.text);
        return;
    }
    gk_server_size_setup(server, &spec, &setup);
    if (!first_chunk_ok(server, &msg->h, &setup, &words)) {
        gk_spec_clear(&spec);
        gk_server_nack(server, 0, msg->h.req_id, GK_CODE_BAD_SHAPE, false, words.text);
        return;
    }
    if (!gk_server_fits_budget(server, &setup, &words)) {
        gk_spec_clear(&spec);
        no_memory(server, msg->h.req_id, words.text);
        return;
    }
    gk_server_init_clear(server);
    server->live.hasher = (struct gk_hasher){0};
    for (uint32_t r = 0; r < server->config.workers; r++) {
        struct gk_member *member = &server->live.members[r];

        member->pulls_count = 0; /* they waited for a version of the former init */
        if (r > 0 && server->image->initialised) {
            member->session = 0; /* it may have begun with that one, and must see this one first */
        }
    }
    server->image->initialised = false;
    server->image->job_uid = (struct gk_uid){0};
    adopt_spec(server, msg->frame[0], &spec, &setup);
    init->init_id = msg->h.init_id;
    init->job_uid = msg->h.job_uid;
    if (again) { /* the same sizes; RUNNING goes back to INIT, INIT stays there */
        gk_server_set_shard(server, GK_SHARD_INIT);
        store(server, &msg->h, msg->frame[1]);
        return;
    }
    init->held = msg->h;
    init->held_values = gk_buf_ref(msg->frame[1]);
    ask_memory(server);
}

void gk_server_init_setup_done(struct gk_server *server, const struct gk_server_event *ev)
{
    struct gk_init *init = &server->live.init;
    struct gk_buf *values = init->held_values;
    struct gk_words words;

    init->setup_op = 0;
    if (server->live.state != GK_SHARD_SETUP) {
        return; /* draining, with a record in flight; the memory is the shell's anyway */
    }
    if (ev->err != GK_OK) {
        gk_words_set(&words, "%s", ev->words ? ev->words : gk_err_text(ev->err));
        gk_server_init_clear(server);
        memset(&server->durable.setup, 0, sizeof(server->durable.setup));
        gk_server_set_shard(server, GK_SHARD_WAITING);
        no_memory(server, init->held.req_id, words.text);
        return;
    }
    server->durable.memory = ev->memory;
    gk_server_lend_tables(server);
    gk_server_set_shard(server, GK_SHARD_INIT);
    gk_server_trace(server, GK_LOG_INFO, "SERVER-MEMORY",
                    "parameters [%" PRIu64 ", %" PRIu64 "): %" PRIu32 " planes of %" PRIu64
                    " bytes, sums %" PRIu64 ", tables %" PRIu64 ", pushes %" PRIu32 " x %" PRIu64
                    ", in all %" PRIu64,
                    server->durable.lo, server->durable.hi, server->durable.setup.planes_count,
                    server->durable.setup.plane_bytes, 2 * server->durable.setup.sum_bytes,
                    server->durable.setup.tables_bytes, server->config.workers,
                    server->durable.setup.push_bytes, server->durable.setup.total_bytes);
    init->held_values = NULL;
    store(server, &init->held, values);
    gk_buf_unref(values);
}

static void store(struct gk_server *server, const struct gk_header *h, const struct gk_buf *values)
{
    struct gk_init *init = &server->live.init;
    const struct gk_server_durable *durable = &server->durable;
    struct gk_piece piece = {.lo = h->lo, .hi = h->hi, .count = h->count};
    struct gk_words words;

    if (init->assembly.chunks == 0) {
        gk_assembly_begin(&init->assembly, h->chunks, durable->lo, durable->hi);
    }
    if (h->chunks != init->assembly.chunks) {
        gk_words_set(&words, "INIT in %" PRIu32 " chunks, the first one said %" PRIu32, h->chunks,
                     init->assembly.chunks);
        gk_server_nack(server, 0, h->req_id, GK_CODE_BAD_SHAPE, false, words.text);
        return;
    }
    if (gk_assembly_has(&init->assembly, h->chunk)) {
        if (!init->writing) {
            answer(server, h);
        }
        return;
    }
    if (gk_assembly_put(&init->assembly, h->chunk, &piece, &words) != GK_OK) {
        gk_server_nack(server, 0, h->req_id, GK_CODE_BAD_SHAPE, false, words.text);
        return;
    }
    GK_ASSERT(values->size == (h->hi - h->lo) * sizeof(float)); /* proto/ has checked it */
    memcpy(durable->memory.planes[0] + (h->lo - durable->lo), values->data, values->size);
    if (!gk_assembly_complete(&init->assembly)) {
        answer(server, h);
        return;
    }
    init->writing = true;
    init->held = *h;
    gk_server_write_next(server);
}

void gk_server_init_written(struct gk_server *server)
{
    struct gk_init *init = &server->live.init;

    server->durable.durable_version = 0;
    init->writing = false;
    if (server->live.state != GK_SHARD_INIT) {
        return; /* draining: the next life has version 0 */
    }
    gk_server_set_shard(server, GK_SHARD_RUNNING);
    gk_server_trace(server, GK_LOG_INFO, "SERVER-VERSION-0",
                    "version 0 is here (init %016" PRIx64 ")", server->image->init_id);
    gk_server_round_resume(server);
    answer(server, &init->held);
}

static bool anybody_left(const struct gk_server *server)
{
    for (uint32_t r = 0; r < server->config.workers; r++) {
        if (server->image->rows[r].left) {
            return true;
        }
    }
    return false;
}

/* An init id that is not the one this shard has or assembles. */
static void other(struct gk_server *server, const struct gk_msg *msg)
{
    bool replaceable =
        !server->image->initialised ||
        (server->image->version == 0 && !server->live.pushed && !anybody_left(server));
    struct gk_words words;

    if (!replaceable) {
        gk_words_set(&words,
                     "shard %" PRIu32 " is at version %" PRIu64 " of init %016" PRIx64 " already",
                     server->config.shard, server->image->version, server->image->init_id);
        gk_server_nack(server, 0, msg->h.req_id, GK_CODE_BAD_SHAPE, false, words.text);
    } else if (server->live.init.writing || server->live.hasher.op != 0) {
        gk_server_nack(server, 0, msg->h.req_id, GK_CODE_NOT_READY, true,
                       "another init is being written");
    } else if (msg->h.chunk != 0) {
        gk_server_nack(server, 0, msg->h.req_id, GK_CODE_NOT_READY, true,
                       "the first chunk is missing");
    } else {
        if (server->live.members[0].hello.spec_hash == 0) { /* else its HELLO has told */
            gk_server_spec_known(server, gk_spec_hash(msg->frame[0]->data, msg->frame[0]->size), 0);
        }
        if (all_ready(server, &msg->h)) {
            begin(server, msg);
        }
    }
}

void gk_server_init_chunk(struct gk_server *server, const struct gk_msg *msg)
{
    const struct gk_header *h = &msg->h;
    const struct gk_init *init = &server->live.init;
    uint64_t id = server->image->initialised ? server->image->init_id : init->init_id;
    struct gk_uid uid = server->image->initialised ? server->image->job_uid : init->job_uid;
    bool same = h->init_id == id && h->job_uid.hi == uid.hi && h->job_uid.lo == uid.lo;

    GK_ASSERT(h->rank == 0); /* proto/ lets no other rank say INIT */
    switch (server->live.state) {
    case GK_SHARD_WAITING:
        other(server, msg);
        break;
    case GK_SHARD_SETUP:
        gk_server_nack(server, 0, h->req_id, GK_CODE_NOT_READY, true, "memory is being set up");
        break;
    case GK_SHARD_INIT:
        if (same) {
            store(server, h, msg->frame[msg->frames_count - 1]);
        } else {
            other(server, msg);
        }
        break;
    case GK_SHARD_RUNNING:
    case GK_SHARD_FINISHED:
        if (same) {
            answer(server, h); /* a repeated chunk of what is version 0 already */
        } else {
            other(server, msg);
        }
        break;
    case GK_SHARD_DRAINING:
    case GK_SHARD_EXITED:
    case GK_SHARD_STATES_COUNT:
        break; /* admission lets none through */
    }
}
