/* PUSH: judged, put together in memory as received, counted into the round when it is whole.
 *
 * Order of judgement (proto/README.md, "The conversation"): session and life (message.c),
 * duplicate, step, shape, assembly. Duplicates come before staleness: a push that was applied but
 * whose answer was lost must hear APPLIED, or its sender would apply it again. While the round sums
 * and writes, its pushes are locked: whatever arrives for it then is silently left to the retry,
 * which will hear the verdict.
 */
#include "common/assert.h"
#include "server/core/state.h"

#include <inttypes.h>
#include <string.h>

static bool is_locked(const struct gk_server *server)
{
    enum gk_round_state state = server->live.round.state;

    return state == GK_ROUND_SUMMING || state == GK_ROUND_WRITING;
}

static void clear(struct gk_server *server, uint32_t rank)
{
    struct gk_push_slot *push = &server->live.members[rank].push;
    struct gk_assembly assembly;

    server->live.round.contributed -= push->contributed ? 1 : 0;
    gk_assembly_clear(&push->assembly);
    assembly = push->assembly;
    memset(push, 0, sizeof(*push));
    push->assembly = assembly;
}

void gk_server_push_forget(struct gk_server *server, uint32_t rank)
{
    clear(server, rank);
}

/* Not yet committed and never to be: its sender has it still, or is replaced.  A locked push is on
 * its way into the model. */
void gk_server_push_drop(struct gk_server *server, uint32_t rank)
{
    struct gk_push_slot *push = &server->live.members[rank].push;

    if (is_locked(server)) {
        return;
    }
    if (push->contributed) {
        server->live.dropped++;
    }
    clear(server, rank);
}

static void push_ok(struct gk_server *server, uint32_t rank, const struct gk_header *h)
{
    struct gk_msg *msg = gk_server_reply(server, GK_KIND_PUSH_OK, rank, h->req_id);

    msg->h.step = h->step;
    msg->h.push_id = h->push_id;
    msg->h.chunk = h->chunk;
    msg->h.chunks = h->chunks;
}

static bool is_duplicate(const struct gk_server *server, uint32_t rank, uint64_t step)
{
    const struct gk_rank_row *row = &server->image->rows[rank];

    return (row->verdict != GK_VERDICT_NONE && step <= row->verdict_step) ||
           step < server->image->version;
}

/* Planted bug: what was applied is called stale and goes back to its sender. */
static void planted_stale(struct gk_server *server, uint32_t rank, const struct gk_header *h)
{
    struct gk_msg *msg = gk_server_reply(server, GK_KIND_PUSH_OK, rank, h->req_id);

    msg->h.step = h->step;
    msg->h.push_id = h->push_id;
    msg->h.chunk = h->chunk;
    msg->h.chunks = h->chunks;
    msg->h.verdict = GK_VERDICT_RETURNED;
    msg->h.verdict_step = h->step;
}

/* What this job's shard expects of any push.  What a push is by itself was checked by proto/. */
static bool shape_ok(const struct gk_server *server, const struct gk_header *h,
                     struct gk_words *words)
{
    uint64_t bytes_max = server->durable.setup.push_bytes;
    uint32_t chunks_max = server->live.init.assembly.chunks_max;

    if (h->base_version != h->step) {
        gk_words_set(words,
                     "step %" PRIu64 " on base version %" PRIu64
                     ": they are equal in synchronous mode",
                     h->step, h->base_version);
        return false;
    }
    if (h->chunks > chunks_max) {
        gk_words_set(words, "%" PRIu32 " chunks, at most %" PRIu32 " fit this shard", h->chunks,
                     chunks_max);
        return false;
    }
    if (h->push_bytes > bytes_max) {
        gk_words_set(words, "a push of %" PRIu64 " bytes, the job's largest is %" PRIu64,
                     h->push_bytes, bytes_max);
        return false;
    }
    return true;
}

/* The chunks of one push agree with each other. */
static bool same_push(const struct gk_push_slot *push, const struct gk_header *h,
                      struct gk_words *words)
{
    if (push->assembly.chunks == h->chunks && push->samples == h->samples &&
        push->push_bytes == h->push_bytes && push->lost == ((h->flags & GK_FLAG_LOST) != 0) &&
        push->has_rate == ((h->flags & GK_FLAG_LR_FROM_CLIENT) != 0) &&
        push->lr_bits == h->lr_bits) {
        return true;
    }
    gk_words_set(words, "chunk %" PRIu32 " of push %016" PRIx64 " contradicts the chunks before it",
                 h->chunk, h->push_id);
    return false;
}

/* What was said about the size of the whole is not exceeded, and met in the end. */
static bool bytes_ok(const struct gk_push_slot *push, struct gk_words *words)
{
    uint64_t bytes = push->assembly.bytes;

    if (gk_assembly_complete(&push->assembly) ? bytes == push->push_bytes
                                              : bytes <= push->push_bytes) {
        return true;
    }
    gk_words_set(words, "push %016" PRIx64 " has %" PRIu64 " bytes and said %" PRIu64,
                 push->push_id, bytes, push->push_bytes);
    return false;
}

static void begin(struct gk_server *server, uint32_t rank, const struct gk_header *h)
{
    struct gk_push_slot *push = &server->live.members[rank].push;

    gk_server_push_drop(server, rank);
    gk_assembly_begin(&push->assembly, h->chunks, server->durable.lo, server->durable.hi);
    push->push_id = h->push_id;
    push->step = server->image->version;
    push->base_version = h->base_version;
    push->samples = h->samples;
    push->push_bytes = h->push_bytes;
    push->incarnation = server->image->rows[rank].incarnation;
    push->lost = (h->flags & GK_FLAG_LOST) != 0;
    push->has_rate = (h->flags & GK_FLAG_LR_FROM_CLIENT) != 0;
    push->lr_bits = h->lr_bits;
}

static struct gk_piece piece_of(const struct gk_msg *msg)
{
    struct gk_piece piece = {.lo = msg->h.lo, .hi = msg->h.hi, .count = msg->h.count};

    if (msg->frames_count == 2) {
        piece.idx = msg->frame[0];
        piece.val = msg->frame[1];
    } else if (msg->frames_count == 1) {
        piece.val = msg->frame[0];
    }
    return piece;
}

/* A push of the open step.  False: a shape that cannot be; words say what. */
static bool assemble(struct gk_server *server, uint32_t rank, const struct gk_msg *msg,
                     struct gk_words *words)
{
    struct gk_push_slot *push = &server->live.members[rank].push;
    const struct gk_header *h = &msg->h;
    struct gk_piece piece = piece_of(msg);
    bool mixed = (server->config.plant & GK_SERVER_PLANT_MIXED_CHUNKS) != 0 &&
                 push->assembly.chunks == h->chunks;

    if (push->assembly.chunks == 0 || (push->push_id != h->push_id && !mixed)) {
        begin(server, rank, h);
    } else if (!mixed && !same_push(push, h, words)) {
        return false;
    }
    if (gk_assembly_has(&push->assembly, h->chunk)) {
        server->live.duplicates++;
        return true;
    }
    if (gk_assembly_put(&push->assembly, h->chunk, &piece, words) != GK_OK) {
        gk_server_push_drop(server, rank);
        return false;
    }
    if (!mixed && !bytes_ok(push, words)) {
        gk_server_push_drop(server, rank);
        return false;
    }
    if (gk_assembly_complete(&push->assembly)) {
        push->contributed = true;
        server->live.round.contributed++;
        push->arrival = ++server->live.round.arrivals;
        server->live.pushes++;
    }
    server->live.pushed = true;
    return true;
}

/* While the round is being committed only what it already holds is acknowledged. */
static void on_locked(struct gk_server *server, uint32_t rank, const struct gk_header *h)
{
    const struct gk_push_slot *push = &server->live.members[rank].push;

    if (push->contributed && push->push_id == h->push_id &&
        gk_assembly_has(&push->assembly, h->chunk)) {
        server->live.duplicates++;
        push_ok(server, rank, h);
    }
}

void gk_server_push(struct gk_server *server, uint32_t rank, const struct gk_msg *msg)
{
    const struct gk_header *h = &msg->h;
    const struct gk_rank_row *row = &server->image->rows[rank];
    bool counts_again = (server->config.plant & GK_SERVER_PLANT_NO_DEDUP) != 0 &&
                        h->step < server->image->version &&
                        !server->live.members[rank].push.contributed;
    struct gk_words words;

    if (h->step < server->image->version &&
        (server->config.plant & GK_SERVER_PLANT_STALE_FIRST) != 0) {
        planted_stale(server, rank, h);
    } else if (is_duplicate(server, rank, h->step) && !counts_again) {
        server->live.duplicates++;
        push_ok(server, rank, h);
    } else if (server->live.state == GK_SHARD_DRAINING) {
        gk_server_nack(server, rank, h->req_id, GK_CODE_DRAINING, true,
                       "this server is going away");
    } else if (server->live.state == GK_SHARD_FINISHED) {
        gk_server_nack(server, rank, h->req_id, GK_CODE_FINISHED, false, "the job has finished");
    } else if (gk_server_rates_refuse(server, rank, h->req_id)) {
        return;
    } else if (row->left && h->step >= row->left_at) {
        gk_words_set(&words, "step %" PRIu64 " of rank %" PRIu32 ", which left at step %" PRIu64,
                     h->step, rank, row->left_at);
        gk_server_nack(server, rank, h->req_id, GK_CODE_BAD_STEP, false, words.text);
    } else if (h->step != server->image->version && !counts_again) {
        gk_words_set(&words, "step %" PRIu64 ", but shard %" PRIu32 " is at version %" PRIu64,
                     h->step, server->config.shard, server->image->version);
        gk_server_nack(server, rank, h->req_id, GK_CODE_BAD_STEP, false, words.text);
    } else if (is_locked(server)) {
        on_locked(server, rank, h);
    } else if (!shape_ok(server, h, &words) || !assemble(server, rank, msg, &words)) {
        gk_server_nack(server, rank, h->req_id, GK_CODE_BAD_SHAPE, false, words.text);
    } else {
        push_ok(server, rank, h);
        gk_server_round_close(server);
    }
}
