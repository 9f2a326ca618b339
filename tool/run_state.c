/* The order matters: a folder that is not ours is left before the lock is put there; the daemons of
 * a former run, which hold locks of their own, are waited for before anything is removed or read;
 * job.json is written last, so that it is of a folder that was found good. */
#include "tool/run_state.h"

#include "common/exit.h"
#include "common/log.h"
#include "common/net/clock.h"
#include "server/store/archive.h"
#include "tool/inspect.h"
#include "tool/run_job.h"
#include "tool/shards.h"
#include "tool/state_dir.h"
#include "tool/units.h"
#include "worker/core/slot.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    WAIT_US = 20 * 1000 * 1000, /* for the daemons of a former run: more than they may linger */
    WAIT_STEP_MS = 50,
};

struct shard {
    bool there;
    uint64_t version;
    bool begun, finished;
    struct gk_uid job_uid;
    uint32_t epoch;
};

static enum gk_err make_folder(const char *dir, struct gk_words *words)
{
    if (mkdir(dir, 0700) != 0 && errno != EEXIST) {
        gk_words_set(words, "--state-dir: cannot make %.200s: %s", dir, strerror(errno));
        return GK_E_IO;
    }
    return GK_OK;
}

/* A job that is begun anew takes nothing with it that might be somebody else's. */
static enum gk_err remove_all(const struct gk_run_config *run,
                              const struct gk_state_content *content, FILE *out,
                              struct gk_words *words)
{
    const char *dir = run->options.state_dir;
    const char *why = run->options.fresh ? "--fresh" : "nothing had begun";
    enum gk_err err;

    if (content->unknown[0]) {
        gk_words_set(words,
                     "%s: %.100s/%s is not of gkps; nothing was removed: take it away, or use "
                     "another --state-dir",
                     why, dir, content->unknown);
        return GK_E_REFUSED;
    }
    if (content->files == 0) {
        return GK_OK;
    }
    err = gk_state_remove(dir, words);
    if (!err && out) {
        (void)fprintf(
            out, "%s: removed the job in %s (%" PRIu32 " servers, %" PRIu32 " workers, %s)\n", why,
            dir, content->servers, content->workers, gk_unit_bytes(content->bytes).text);
        (void)fflush(out);
    }
    return err;
}

/* A folder of the user's own must not fill with ours. */
static enum gk_err check_content(const char *dir, const struct gk_state_content *content,
                                 struct gk_words *words)
{
    if (content->unknown[0] && !content->job && content->servers == 0) {
        gk_words_set(words,
                     "--state-dir: %.100s holds no job but other files (%s): name a folder that is "
                     "empty or not there yet",
                     dir, content->unknown);
        return GK_E_REFUSED;
    }
    return GK_OK;
}

static enum gk_err still_alive(const char *path, struct gk_words *words)
{
    long pid = gk_state_locker(path);

    if (pid > 0) {
        gk_words_set(words,
                     "%.200s is in use: the daemon of a former run is still alive, process %ld: "
                     "wait, or end it (kill %ld)",
                     path, pid, pid);
    } else {
        gk_words_set(words,
                     "%.200s is in use: the daemon of a former run is still alive, perhaps on "
                     "another machine: wait, or end it",
                     path);
    }
    return GK_E_BUSY;
}

/* The daemons of a launcher that was killed end by themselves, soon. */
static enum gk_err wait_for_former(const char *dir, FILE *out, struct gk_words *words)
{
    const struct timespec step = {.tv_nsec = WAIT_STEP_MS * 1000000L};
    struct gk_state_folders folders = {0};
    uint64_t from_us = gk_now_us();
    bool told = out == NULL;
    enum gk_err err = GK_OK;

    if (gk_state_find(dir, &folders, words) != GK_OK) {
        gk_state_folders_fini(&folders); /* none is there yet */
        return GK_OK;
    }
    for (size_t i = 0; i < folders.count && !err; i++) {
        while (!err && gk_state_is_locked(folders.list[i].path)) {
            if (gk_now_us() - from_us > WAIT_US) {
                err = still_alive(folders.list[i].path, words);
            } else if (!told) {
                (void)fprintf(out, "waiting for the daemons of the last run to end\n");
                (void)fflush(out);
                told = true;
            }
            (void)nanosleep(&step, NULL); /* sooner does no harm */
        }
    }
    gk_state_folders_fini(&folders);
    return err;
}

static enum gk_err open_shard(const struct gk_run_config *run, uint32_t index,
                              struct gk_archive **ret_archive, struct gk_words *words)
{
    const struct gk_run_options *options = &run->options;
    const struct gk_wal_segment *owner;
    const struct gk_vector_ops *ops;
    char path[GK_STATE_PATH_BYTES];
    struct gk_archive *archive;
    enum gk_err err = gk_vector_cpu(GK_CPU_AUTO, &ops, words);

    gk_state_path(options->state_dir, GK_ROLE_SERVER, index, path, sizeof(path));
    err = err ? err : gk_archive_open(path, false, ops, &archive, words);
    if (err) {
        return err;
    }
    owner = &archive->owner;
    if (owner->shard != index && owner->servers == options->servers &&
        owner->workers == options->workers && strcmp(owner->job, options->job) == 0) {
        gk_words_set(words,
                     "%.100s is shard %" PRIu32 " of this job: rename the folders back, this one "
                     "to server-%" PRIu32,
                     path, owner->shard, owner->shard);
        gk_archive_close(archive);
        return GK_E_REFUSED;
    }
    if (owner->shard != index || owner->servers != options->servers ||
        owner->workers != options->workers || strcmp(owner->job, options->job) != 0) {
        gk_words_set(words,
                     "%.100s is shard %" PRIu32 " of %" PRIu32 " of the job '%s' with %" PRIu32
                     " workers, not shard %" PRIu32 " of %" PRIu64 " of '%s' with %" PRIu64
                     ": another --state-dir would help, or --fresh, which removes it",
                     path, owner->shard, owner->servers, owner->job, owner->workers, index,
                     options->servers, options->job, options->workers);
        gk_archive_close(archive);
        return GK_E_REFUSED;
    }
    *ret_archive = archive;
    return GK_OK;
}

static enum gk_err look_at_shard(const struct gk_run_config *run, uint32_t index, struct shard *ret,
                                 struct gk_words *words)
{
    const struct gk_archive_wish wish = {.version = GK_ARCHIVE_NEWEST, .without_planes = true};
    struct gk_archive *archive;
    struct gk_archived state;
    enum gk_err err = open_shard(run, index, &archive, words);

    *ret = (struct shard){0};
    if (err == GK_E_NOTFOUND) {
        return GK_OK;
    }
    if (err) {
        return err;
    }
    err = gk_archive_read(archive, &wish, &state, words);
    if (!err) {
        if (archive->jobless) {
            gk_log(GK_LOG_WARN, "RUN-STATE",
                   "%.200s: the file " GK_STORE_JOB
                   " is missing beside log and snapshots; its server writes it anew",
                   archive->place.directory);
        }
        *ret = (struct shard){.there = true,
                              .version = state.image->version,
                              .begun = state.image->initialised,
                              .finished = state.image->finished,
                              .job_uid = state.image->job_uid,
                              .epoch = archive->epoch};
        gk_archived_fini(archive, &state);
    }
    gk_archive_close(archive);
    return err;
}

/* A shard that lost its disk while the others have gone on. */
static enum gk_err lost(const struct gk_run_config *run, uint32_t index, uint64_t version,
                        struct gk_words *words)
{
    gk_words_set(words,
                 "LOST_SHARD: %.100s/server-%" PRIu32
                 " is gone while the job is at version %" PRIu64
                 ": put a copy of it back and wind all shards back to its version (gkps rewind), "
                 "or begin anew (--fresh); gkps repair says what else there is",
                 run->options.state_dir, index, version);
    return GK_E_LOST;
}

struct kin { /* the first of what must be of one run */
    uint32_t index;
    struct shard shard;
};

static bool same_uid(struct gk_uid a, struct gk_uid b)
{
    return a.hi == b.hi && a.lo == b.lo;
}

/* Each shard is good by itself; together they would only wait for each other. */
static enum gk_err apart(const struct gk_run_config *run, const struct kin *first,
                         enum gk_role role, uint32_t index, struct gk_words *words)
{
    char one[GK_STATE_PATH_BYTES], other[GK_STATE_PATH_BYTES];

    gk_state_path(run->options.state_dir, GK_ROLE_SERVER, first->index, one, sizeof(one));
    gk_state_path(run->options.state_dir, role, index, other, sizeof(other));
    gk_shards_apart(one, other, run->options.job, words);
    return GK_E_REFUSED;
}

static enum gk_err check_kin(const struct gk_run_config *run, const struct kin *first,
                             const struct kin *other, struct gk_words *words)
{
    if (!same_uid(first->shard.job_uid, other->shard.job_uid)) {
        return apart(run, first, GK_ROLE_SERVER, other->index, words);
    }
    if (first->shard.epoch != other->shard.epoch) {
        gk_words_set(words,
                     "%.150s: server-%" PRIu32 " is of epoch %" PRIu32 ", server-%" PRIu32
                     " of %" PRIu32 ": a rewind was interrupted; do it again (gkps rewind)",
                     run->options.state_dir, first->index, first->shard.epoch, other->index,
                     other->shard.epoch);
        return GK_E_REFUSED;
    }
    return GK_OK;
}

/* A slot that cannot be read, or that no life has joined with, is the worker's own matter. */
static enum gk_err check_workers(const struct gk_run_config *run, const struct kin *first,
                                 struct gk_words *words)
{
    for (uint32_t rank = 0; rank < run->options.workers; rank++) {
        struct gk_worker_identity identity;
        char path[GK_STATE_PATH_BYTES];

        gk_state_path(run->options.state_dir, GK_ROLE_WORKER, rank, path, sizeof(path));
        if (gk_inspect_identity(path, &identity) &&
            !same_uid(identity.job_uid, (struct gk_uid){0}) &&
            !same_uid(identity.job_uid, first->shard.job_uid)) {
            return apart(run, first, GK_ROLE_WORKER, rank, words);
        }
    }
    return GK_OK;
}

static enum gk_err look_at_shards(const struct gk_run_config *run, struct gk_run_state *state,
                                  struct gk_words *words)
{
    uint32_t missing = UINT32_MAX;
    uint64_t highest = 0;
    struct kin first = {0}, stranger = {0};
    enum gk_err err = GK_OK;

    state->finished = true;
    state->version = UINT64_MAX;
    for (uint32_t i = 0; i < run->options.servers; i++) {
        struct shard shard;

        err = look_at_shard(run, i, &shard, words);
        if (err) {
            return err;
        }
        if (shard.begun && !first.shard.begun) {
            first = (struct kin){i, shard};
        } else if (shard.begun && !stranger.shard.begun &&
                   (!same_uid(shard.job_uid, first.shard.job_uid) ||
                    shard.epoch != first.shard.epoch)) {
            stranger = (struct kin){i, shard};
        }
        if (!shard.begun && missing == UINT32_MAX) {
            missing = i;
        }
        state->begun = state->begun || shard.begun;
        state->finished = state->finished && shard.finished;
        state->version = shard.version < state->version ? shard.version : state->version;
        highest = shard.version > highest ? shard.version : highest;
    }
    state->whole = missing == UINT32_MAX;
    if (highest == 0) {
        return GK_OK; /* the workers begin the job again, whatever there is */
    }
    err = stranger.shard.begun ? check_kin(run, &first, &stranger, words) : GK_OK;
    err = err ? err : check_workers(run, &first, words);
    return err || missing == UINT32_MAX ? err : lost(run, missing, highest, words);
}

static bool shard_begun(const char *path, const struct gk_vector_ops *ops)
{
    const struct gk_archive_wish wish = {.version = GK_ARCHIVE_NEWEST, .without_planes = true};
    struct gk_archive *archive;
    struct gk_archived state;
    struct gk_words words;
    bool begun = true;
    enum gk_err err = gk_archive_open(path, false, ops, &archive, &words);

    if (err) {
        return err != GK_E_NOTFOUND;
    }
    if (gk_archive_read(archive, &wish, &state, &words) == GK_OK) {
        begun = state.image->initialised;
        gk_archived_fini(archive, &state);
    }
    gk_archive_close(archive);
    return begun;
}

bool gk_run_state_begun(const char *dir)
{
    struct gk_state_folders folders = {0};
    const struct gk_vector_ops *ops;
    struct gk_words words;
    enum gk_err err = gk_state_find(dir, &folders, &words);
    bool begun = err && err != GK_E_NOTFOUND;

    if (gk_vector_cpu(GK_CPU_AUTO, &ops, &words) != GK_OK) {
        ops = gk_vector_reference();
    }
    for (size_t i = 0; i < folders.count && !begun; i++) {
        struct gk_worker_identity identity;

        /* What is left of a job may be a residual alone. */
        begun = folders.list[i].server ? shard_begun(folders.list[i].path, ops)
                                       : gk_inspect_identity(folders.list[i].path, &identity) &&
                                             !same_uid(identity.job_uid, (struct gk_uid){0});
    }
    gk_state_folders_fini(&folders);
    return begun;
}

static int exit_of(enum gk_err err)
{
    switch ((int)err) {
    case GK_E_NOMEM:
        return GK_EXIT_INTERNAL;
    case GK_E_BUSY:
        return GK_EXIT_RETRY;
    case GK_E_LOST:
        return GK_EXIT_PEER;
    default:
        return GK_EXIT_CONFIG;
    }
}

static enum gk_err prepare(const struct gk_run_config *run, FILE *out, struct gk_run_state *state,
                           struct gk_words *words)
{
    const char *dir = run->options.state_dir;
    struct gk_state_content content;
    enum gk_err err = wait_for_former(dir, out, words);

    err = err ? err : gk_state_look(dir, &content, words);
    if (err) {
        return err;
    }
    if (run->replace && gk_run_state_begun(dir)) {
        gk_words_set(words, "the job in %.200s has begun meanwhile", dir);
        return GK_E_BUSY;
    }
    if (run->options.fresh || run->replace) {
        err = remove_all(run, &content, out, words);
        content.job = false;
    } else {
        err = check_content(dir, &content, words);
    }
    err = err ? err : look_at_shards(run, state, words);
    return err || content.job ? err : gk_run_job_write(run, words);
}

enum gk_err gk_run_state_open(const struct gk_run_config *run, FILE *out, struct gk_run_state *ret,
                              int *ret_exit, struct gk_words *words)
{
    const char *dir = run->options.state_dir;
    struct gk_run_state state = {.lock = -1};
    struct gk_state_content content;
    enum gk_err err = make_folder(dir, words);

    /* Before the lock is put there: a folder that is not ours stays as it is. */
    err = err ? err : gk_state_look(dir, &content, words);
    err = err ? err : check_content(dir, &content, words);
    err = err ? err : gk_state_lock(dir, &state.lock, words);
    err = err ? err : prepare(run, out, &state, words);
    if (err) {
        gk_run_state_close(&state);
        *ret_exit = exit_of(err);
        return err;
    }
    *ret = state;
    return GK_OK;
}

void gk_run_state_close(struct gk_run_state *state)
{
    if (state->lock >= 0) {
        (void)close(state->lock); /* nothing was written to it */
    }
    state->lock = -1;
}

static enum gk_err tally_shard(const struct gk_run_config *run, uint32_t index,
                               struct gk_tally_server *server, struct gk_words *words)
{
    const struct gk_archive_wish wish = {.version = GK_ARCHIVE_NEWEST};
    struct gk_archive *archive;
    struct gk_archived state;
    enum gk_err err = open_shard(run, index, &archive, words);

    if (err) {
        return err;
    }
    err = gk_archive_read(archive, &wish, &state, words);
    if (!err) {
        const struct gk_image *image = state.image;

        err = gk_archive_hash(archive, &state, false, &server->model_hash, words);
        server->summed = server->hashed = !err;
        server->version = image->version;
        server->applied = image->applied;
        server->returned = image->returned;
        server->skipped = image->skipped;
        server->lost = image->lost;
        server->pushes = image->applied + image->returned + image->skipped + image->lost;
        gk_archived_fini(archive, &state);
    }
    gk_archive_close(archive);
    return err;
}

enum gk_err gk_run_state_tally(const struct gk_run_config *run, struct gk_tally *tally,
                               struct gk_words *words)
{
    enum gk_err err = GK_OK;

    for (uint32_t i = 0; i < tally->servers_count && !err; i++) {
        err = tally_shard(run, i, &tally->servers[i], words);
    }
    tally->from_state = true;
    for (uint32_t i = 0; i < tally->workers_count && !err; i++) {
        tally->workers[i].step = tally->servers[0].version;
    }
    return err;
}
