#include "server/store/rewind.h"

#include "common/assert.h"
#include "server/store/snapfile.h"

#include <stdlib.h>
#include <string.h>

static enum gk_err no_memory(struct gk_words *words)
{
    gk_words_set(words, "%s", gk_err_text(GK_E_NOMEM));
    return GK_E_NOMEM;
}

static enum gk_err put_planes(const struct gk_archive *archive, const struct gk_archived *state,
                              struct gk_snapwriter *writer, struct gk_words *words)
{
    const struct gk_snapshot_layout *layout = &writer->layout;
    float *block = archive->ops->alloc(archive->queue, GK_MEMORY_PINNED,
                                       (size_t)layout->block_floats * sizeof(float));
    enum gk_err err = block ? GK_OK : no_memory(words);

    for (uint32_t p = 0; p < layout->planes && !err; p++) {
        for (uint64_t b = 0; b < layout->blocks && !err; b++) {
            const float *source = state->planes[p] + b * layout->block_floats;
            uint64_t count;

            (void)gk_snapshot_block(layout, p, b, &count);
            err = archive->ops->wait(
                archive->queue,
                archive->ops->copy(archive->queue, block, source, (size_t)count * sizeof(float)));
            err = err ? err : gk_snapwriter_put(&archive->place, writer, p, b, block, words);
        }
    }
    archive->ops->free(archive->queue, GK_MEMORY_PINNED, block);
    return err;
}

/* What was fenced since stays so. */
static void keep_lives(struct gk_image *image, const struct gk_image *end)
{
    image->incarnation = end->incarnation;
    for (uint32_t r = 0; r < image->workers; r++) {
        image->rows[r].incarnation = end->rows[r].incarnation;
        image->rows[r].life_nonce = end->rows[r].life_nonce;
    }
}

enum gk_err gk_rewind_write(const struct gk_archive *archive, const struct gk_archived *state,
                            const struct gk_archived *end, uint32_t epoch, struct gk_words *words)
{
    struct gk_snapshot_facts facts = {.next_number = end->next_number};
    struct gk_snapshot_layout layout;
    struct gk_snapwriter writer = {0};
    struct gk_image *image;
    enum gk_err err = gk_archive_hash(archive, state, true, &facts.state_hash, words);

    GK_ASSERT(archive->locked && epoch > archive->epoch);
    if (!err && gk_image_new(state->image->shard, state->image->servers, state->image->workers,
                             &image) != GK_OK) {
        err = no_memory(words);
    }
    if (err) {
        return err;
    }
    gk_image_copy(image, state->image);
    keep_lives(image, end->image);
    image->epoch = epoch;
    image->finished = false;
    memcpy(facts.job, archive->owner.job, sizeof(facts.job));
    gk_snapshot_layout(image, GK_SNAPSHOT_BLOCK_FLOATS, &layout);
    err = gk_snapwriter_open(&archive->place, GK_STORE_FOLD_TEMPORARY, &layout, &writer, words);
    if (!err) {
        err = put_planes(archive, state, &writer, words);
        err = err ? err : gk_snapwriter_publish(&archive->place, &writer, image, &facts, words);
        gk_snapwriter_close(&archive->place, &writer);
    }
    gk_image_free(image);
    return err;
}

enum gk_err gk_rewind_cut(const struct gk_archive *archive, uint32_t epoch, bool dry,
                          uint32_t *ret_files, struct gk_words *words)
{
    struct gk_known_list *lists = calloc(2, sizeof(*lists)); /* segments, snapshots */
    enum gk_err err = lists ? GK_OK : no_memory(words);

    *ret_files = 0;
    err = err ? err : gk_place_list(&archive->place, &lists[0], &lists[1], words);
    for (int l = 0; l < 2 && !err; l++) {
        /* The newest first: what is left of a log that was cut in between is still one. */
        for (uint32_t i = lists[l].count; i-- > 0 && !err;) {
            const struct gk_known *known = &lists[l].list[i];
            struct gk_name name = l == 0 ? gk_name_segment(known->epoch, known->version)
                                         : gk_name_snapshot(known->epoch, known->version);

            if (known->epoch >= epoch) {
                continue;
            }
            (*ret_files)++;
            err = dry ? GK_OK : gk_place_remove(&archive->place, name.text, words);
        }
    }
    free(lists);
    return err || dry ? err : gk_place_sync_directory(&archive->place, words);
}
