/* The values of pinned shards: by chunks, a window of them outstanding, each shard held to the hash
 * that it has told. */
#include "tool/export_live_internal.h"

#include "common/bits.h"
#include "common/exit.h"
#include "common/hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The spec and the ranges, which every shard must see in the same way. */
enum gk_err gk_live_take_spec(struct gk_live *live, const struct gk_buf *frame,
                              struct gk_words *words)
{
    struct gk_live_model *model = live->model;
    uint64_t hash = gk_spec_hash(frame->data, frame->size);
    enum gk_err err;

    if (model->params && hash == live->spec_hash) {
        return GK_OK;
    }
    if (model->params) {
        gk_words_set(words, "the shards have different specs");
        return GK_E_CORRUPT;
    }
    err = gk_spec_decode(frame->data, frame->size, &model->spec, words);
    if (err) {
        return err;
    }
    live->spec_hash = hash;
    model->params = malloc((size_t)model->spec.params_count * sizeof(float));
    if (!model->params) {
        gk_words_set(words, "no memory for %" PRIu64 " parameters", model->spec.params_count);
        return GK_E_NOMEM;
    }
    return GK_OK;
}

void gk_live_fill_window(struct gk_live_peer *peer)
{
    for (uint32_t i = 0; i < GK_PULL_WINDOW && peer->next < peer->hi; i++) {
        struct gk_live_chunk *chunk = &peer->chunks[i];

        if (chunk->hi == 0) {
            *chunk = (struct gk_live_chunk){
                .lo = peer->next, .hi = gk_min_u64(peer->next + GK_CHUNK_FLOATS, peer->hi)};
            peer->next = chunk->hi;
            gk_live_ask_chunk(peer, chunk);
        }
    }
}

static bool shard_is_right(const struct gk_live_peer *peer, struct gk_words *words)
{
    const struct gk_live *live = peer->live;
    uint64_t hash = 0;

    for (uint64_t i = peer->lo; i < peer->hi; i++) {
        hash += gk_hash_term(0, i, gk_float_bits(live->model->params[i]));
    }
    if (hash != peer->hash) {
        gk_words_set(words,
                     "%s (shard %" PRIu32 "): the hash of its values is %016" PRIx64
                     ", it says %016" PRIx64,
                     peer->address, peer->shard, hash, peer->hash);
    }
    return hash == peer->hash;
}

static void finish(struct gk_live *live)
{
    struct gk_live_model *model = live->model;

    model->model_hash = 0;
    for (uint32_t i = 0; i < live->peers_count; i++) {
        const struct gk_live_peer *peer = &live->peers[i];

        if (peer->taken < peer->hi - peer->lo) {
            return;
        }
    }
    for (uint32_t i = 0; i < live->peers_count; i++) {
        if (!shard_is_right(&live->peers[i], live->words)) {
            gk_live_end(live, GK_EXIT_DATA);
            return;
        }
        model->model_hash += live->peers[i].hash;
    }
    model->version = live->version;
    model->epoch = live->peers[0].epoch;
    (void)snprintf(model->job, sizeof(model->job), "%s", live->peers[0].job);
    gk_live_end(live, GK_EXIT_OK);
}

void gk_live_values(struct gk_live_peer *peer, const struct gk_msg *msg)
{
    struct gk_live *live = peer->live;
    const struct gk_header *h = &msg->h;

    if (live->phase != GK_LIVE_PULLING || h->version != live->version) {
        return;
    }
    for (uint32_t i = 0; i < GK_PULL_WINDOW; i++) {
        struct gk_live_chunk *chunk = &peer->chunks[i];

        if (chunk->hi != 0 && chunk->lo == h->lo && chunk->hi == h->hi) {
            memcpy(live->model->params + h->lo, msg->frame[0]->data, msg->frame[0]->size);
            peer->taken += h->hi - h->lo;
            *chunk = (struct gk_live_chunk){0};
            gk_live_fill_window(peer);
            finish(live);
            return;
        }
    }
}
