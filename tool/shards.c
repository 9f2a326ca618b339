#include "tool/shards.h"

#include "common/exit.h"
#include "tool/state_dir.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int gk_shards_exit(enum gk_err err)
{
    switch ((int)err) {
    case GK_E_NOMEM:
        return GK_EXIT_INTERNAL;
    case GK_E_CORRUPT:
        return GK_EXIT_DATA;
    case GK_E_BUSY:
        return GK_EXIT_RETRY;
    default:
        return GK_EXIT_CONFIG;
    }
}

void gk_shards_apart(const char *one, const char *other, const char *job, struct gk_words *words)
{
    gk_words_set(words,
                 "%.150s and %.150s are of two runs of the job '%s' that do not belong together",
                 one, other, job);
}

/* An opened archive takes its place. */
static enum gk_err place_shard(struct gk_shards *shards, struct gk_archive *archive,
                               const char *path, struct gk_words *words)
{
    const struct gk_wal_segment *owner = &archive->owner;
    const struct gk_archive *first = NULL;
    struct gk_shard_state *state = &shards->list[owner->shard];

    for (uint32_t i = 0; i < GK_SERVERS_MAX && !first; i++) {
        first = shards->list[i].archive;
    }
    if (first &&
        (first->owner.servers != owner->servers || first->owner.workers != owner->workers ||
         strcmp(first->owner.job, owner->job) != 0)) {
        gk_words_set(words,
                     "%.150s is of the job '%s' with %" PRIu32 " servers, %.150s of '%s' with "
                     "%" PRIu32,
                     path, owner->job, owner->servers, first->place.directory, first->owner.job,
                     first->owner.servers);
        return GK_E_REFUSED;
    }
    if (state->archive) {
        gk_words_set(words, "%.150s and %.150s are both shard %" PRIu32, state->path, path,
                     owner->shard);
        return GK_E_REFUSED;
    }
    state->path = strdup(path);
    if (!state->path) {
        gk_words_set(words, "%s", gk_err_text(GK_E_NOMEM));
        return GK_E_NOMEM;
    }
    state->archive = archive;
    shards->count = owner->servers;
    return GK_OK;
}

/* Named twice, a folder would be locked by ourselves. */
static enum gk_err expect_new(const struct gk_state_folders *folders, size_t index,
                              struct gk_words *words)
{
    const char *path = folders->list[index].path;
    struct stat one, other;

    for (size_t i = 0; i < index && stat(path, &one) == 0; i++) {
        if (stat(folders->list[i].path, &other) == 0 && one.st_dev == other.st_dev &&
            one.st_ino == other.st_ino) {
            gk_words_set(words, "%.150s and %.150s are the same folder", folders->list[i].path,
                         path);
            return GK_E_REFUSED;
        }
    }
    return GK_OK;
}

static enum gk_err open_folders(struct gk_shards *shards, const struct gk_state_folders *folders,
                                bool lock, struct gk_words *words)
{
    const struct gk_vector_ops *ops;
    enum gk_err err = gk_vector_cpu(GK_CPU_AUTO, &ops, words);

    for (size_t i = 0; i < folders->count && !err; i++) {
        struct gk_archive *archive;

        if (!folders->list[i].server) {
            continue;
        }
        err = lock ? expect_new(folders, i, words) : GK_OK;
        err = err ? err : gk_archive_open(folders->list[i].path, lock, ops, &archive, words);
        if (!err && lock && archive->jobless) {
            /* A rewind removes the log that says whose this is. */
            gk_words_set(words,
                         "%.200s: the file JOB is missing; the next start of its server (gkps run) "
                         "writes it anew",
                         folders->list[i].path);
            gk_archive_close(archive);
            err = GK_E_REFUSED;
        }
        if (!err) {
            err = place_shard(shards, archive, folders->list[i].path, words);
            if (err) {
                gk_archive_close(archive);
            }
        }
    }
    for (uint32_t i = 0; i < shards->count && !err; i++) {
        if (!shards->list[i].archive) {
            gk_words_set(words, "the folder of shard %" PRIu32 " of %" PRIu32 " is missing", i,
                         shards->count);
            err = GK_E_REFUSED;
        }
    }
    if (!err && shards->count == 0) {
        gk_words_set(words, "no folder of a server was named");
        err = GK_E_REFUSED;
    }
    return err;
}

/* One job uid, one spec, and ranges that follow each other. */
static enum gk_err check_images(struct gk_shards *shards, struct gk_words *words)
{
    const struct gk_image *first = shards->list[0].image;
    enum gk_err err;

    shards->common = UINT64_MAX;
    shards->one_epoch = true;
    for (uint32_t i = 0; i < shards->count; i++) {
        const struct gk_shard_state *state = &shards->list[i];
        const struct gk_image *image = state->image;

        if (!image->initialised) {
            gk_words_set(words, "%.200s holds no version yet", state->path);
            return GK_E_NOTFOUND;
        }
        if (memcmp(&image->job_uid, &first->job_uid, sizeof(image->job_uid)) != 0 ||
            image->spec_bytes != first->spec_bytes ||
            memcmp(image->spec, first->spec, first->spec_bytes) != 0) {
            gk_shards_apart(shards->list[0].path, state->path, state->archive->owner.job, words);
            return GK_E_REFUSED;
        }
        shards->common = state->newest < shards->common ? state->newest : shards->common;
        shards->one_epoch =
            shards->one_epoch && state->archive->epoch == shards->list[0].archive->epoch;
        shards->epoch =
            state->archive->epoch > shards->epoch ? state->archive->epoch : shards->epoch;
    }
    err = gk_spec_decode(first->spec, first->spec_bytes, &shards->spec, words);
    shards->has_spec = !err;
    return err;
}

static enum gk_err read_ends(struct gk_shards *shards, struct gk_words *words)
{
    const struct gk_archive_wish wish = {.version = GK_ARCHIVE_NEWEST, .without_planes = true};

    for (uint32_t i = 0; i < shards->count; i++) {
        struct gk_shard_state *state = &shards->list[i];
        enum gk_err err = gk_archive_read(state->archive, &wish, &state->end, words);

        if (err) {
            return err;
        }
        state->image = state->end.image;
        state->newest = state->image->version;
    }
    return check_images(shards, words);
}

enum gk_err gk_shards_open(const char *const *dirs, size_t count, bool lock,
                           struct gk_shards **ret_shards, int *ret_exit, struct gk_words *words)
{
    struct gk_shards *shards = calloc(1, sizeof(*shards));
    struct gk_state_folders folders = {0};
    enum gk_err err = GK_OK;

    if (!shards) {
        gk_words_set(words, "%s", gk_err_text(GK_E_NOMEM));
        *ret_exit = GK_EXIT_INTERNAL;
        return GK_E_NOMEM;
    }
    for (size_t i = 0; i < count && !err; i++) {
        err = gk_state_find(dirs[i], &folders, words);
    }
    err = err ? err : open_folders(shards, &folders, lock, words);
    err = err ? err : read_ends(shards, words);
    gk_state_folders_fini(&folders);
    if (err) {
        gk_shards_close(shards);
        *ret_exit = gk_shards_exit(err);
        return err;
    }
    *ret_shards = shards;
    return GK_OK;
}

void gk_shards_close(struct gk_shards *shards)
{
    if (!shards) {
        return;
    }
    for (uint32_t i = 0; i < GK_SERVERS_MAX; i++) {
        struct gk_shard_state *state = &shards->list[i];

        if (state->archive) {
            gk_archived_fini(state->archive, &state->end);
        }
        gk_archive_close(state->archive);
        free(state->path);
    }
    if (shards->has_spec) {
        gk_spec_clear(&shards->spec);
    }
    free(shards);
}
