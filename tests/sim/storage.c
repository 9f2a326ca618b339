/* The state directory of a shard: the real store over a simulated disk, as the daemon uses it.
 *
 * A call of the store happens whole when its work ends, or as far as the process lives: a disk can
 * be told in which of its calls that dies.  A new life opens the store and begins with an empty
 * core and fresh memory. */
#include "common/assert.h"
#include "server/store/rewind.h"
#include "tests/sim/sim.h"

#include <inttypes.h>
#include <string.h>

enum { AGAIN_US = 1000 * 1000 };

struct allocation {
    struct gk_sim *sim;
    uint32_t shard;
};

void gk_sim_storage_new(struct gk_sim *sim, uint32_t shard)
{
    struct gk_sim_shard *s = &sim->shards[shard];

    s->disk = gk_sim_disk_new(gk_sim_next(&sim->rng));
    s->disk->unordered = sim->options.store.unordered;
    s->disk->no_sync = (sim->options.plants.shell & GK_SIM_PLANT_NO_SYNC) != 0;
    gk_sim_history_begin(sim, shard);
}

void gk_sim_storage_free(struct gk_sim *sim, uint32_t shard)
{
    struct gk_sim_shard *s = &sim->shards[shard];

    gk_store_close(s->store);
    s->store = NULL;
    gk_sim_disk_free(s->disk);
    s->disk = NULL;
}

static enum gk_err allocate(void *context, const struct gk_image *image,
                            struct gk_server_memory *ret_memory, struct gk_words *words)
{
    const struct allocation *allocation = context;
    struct gk_sim_shard *s = &allocation->sim->shards[allocation->shard];
    struct gk_server_setup setup;
    enum gk_err err = gk_server_size(s->core, image, &setup, words);

    if (!err) {
        gk_sim_shard_memory(&setup, &s->memory);
        *ret_memory = s->memory;
    }
    return err;
}

/* Before any call of the store. */
static void look_at_room(struct gk_sim *sim, uint32_t shard)
{
    struct gk_sim_shard *s = &sim->shards[shard];

    s->disk->full = s->full_until_us > sim->now_us && !sim->calm;
}

/* The next life is tried by whoever starts processes. */
static void start_later(struct gk_sim *sim, uint32_t shard, uint64_t within_us)
{
    struct gk_sim_event start = {.kind = GK_SIM_START,
                                 .node = gk_sim_shard_node(shard),
                                 .at_us = sim->now_us + gk_sim_below(&sim->rng, within_us + 1),
                                 .life = sim->nodes[gk_sim_shard_node(shard)].life};

    gk_sim_queue_push(&sim->queue, &start);
}

/* It would say so and exit, with everything as it was. */
static bool not_now(struct gk_sim *sim, uint32_t shard, enum gk_err err,
                    const struct gk_words *words)
{
    struct gk_sim_shard *s = &sim->shards[shard];
    bool allowed = s->disk->dead || (err == GK_E_LIMIT && s->disk->full) ||
                   (err == GK_E_IO && sim->ledger.histories[shard].failed);

    gk_sim_say(sim, gk_sim_shard_node(shard), "cannot open its state: %s%s", words->text,
               s->disk->dead ? " (it dies there)" : "");
    if (!allowed) {
        gk_sim_fail(sim, "P4", "shard %u cannot open its state: %s", shard, words->text);
    }
    gk_sim_shard_memory_free(&s->memory);
    gk_sim_storage_close(sim, shard, NULL);
    start_later(sim, shard, AGAIN_US);
    return false;
}

/* Behind each call of the store: whether the disk has failed in it. */
static void look_for_failure(struct gk_sim *sim, uint32_t shard)
{
    struct gk_disk *disk = sim->shards[shard].disk;
    bool sync = disk->fail_at > 0 && disk->fail_at <= disk->syncs;
    bool write = disk->fail_write_at > 0 && disk->fail_write_at <= disk->writes;

    if (sync || write) {
        sim->ledger.histories[shard].failed = true;
        sim->stats.syncs_failed += sync;
        sim->stats.writes_failed += write;
        disk->fail_at = sync ? 0 : disk->fail_at;
        disk->fail_write_at = write ? 0 : disk->fail_write_at;
        gk_sim_say(sim, gk_sim_shard_node(shard), "a %s fails", sync ? "sync" : "write");
    }
}

bool gk_sim_storage_open(struct gk_sim *sim, uint32_t shard)
{
    const struct gk_sim_store_options *o = &sim->options.store;
    struct gk_sim_shard *s = &sim->shards[shard];
    struct allocation allocation = {sim, shard};
    struct gk_store_setup setup = {
        .disk_ops = gk_sim_disk_ops(),
        .disk = s->disk,
        .directory = "state",
        .job = GK_SIM_JOB,
        .shard = shard,
        .servers = sim->options.servers,
        .workers = sim->options.workers,
        .sync = o->sync,
        .fold_every = o->fold_every,
        .log_bytes_max = o->log_bytes_max,
        .keep_versions = o->keep_versions,
        .block_floats = o->block_floats,
        .batch_bytes = o->batch_bytes,
        .ops = sim->ops,
        .allocate = allocate,
        .context = &allocation,
    };
    struct gk_recovered recovered;
    struct gk_words words = {.text = ""};
    enum gk_err err;

    gk_sim_shard_core(sim, shard);
    gk_sim_shard_memory_free(&s->memory);
    look_at_room(sim, shard);
    err = gk_store_open(&setup, &s->store, &recovered, &words);
    look_for_failure(sim, shard);
    if (err) {
        s->store = NULL;
        return not_now(sim, shard, err, &words);
    }
    sim->stats.opens++;
    if (recovered.cut_bytes > 0) {
        gk_sim_say(sim, gk_sim_shard_node(shard), "%s", recovered.cut.text);
    }
    gk_sim_history_recover(sim, shard, recovered.image);
    sim->ledger.histories[shard].lives = recovered.image->incarnation + 1;
    err = gk_server_resume(s->core, recovered.image, &recovered.memory, &words);
    if (err) {
        gk_sim_fail(sim, "P4", "shard %u does not take what it had: %s", shard, words.text);
    } else if (recovered.image->initialised && !gk_sim_failed(sim)) {
        gk_sim_ledger_applied(sim, shard);
    }
    s->written = s->durable = recovered.image->version;
    return true;
}

/* The log thread writes a record; nobody has heard of it yet. */
static enum gk_err append(struct gk_sim *sim, const struct gk_sim_event *event,
                          struct gk_words *words)
{
    const struct gk_record *record = event->args;
    uint32_t shard = event->node;
    struct gk_sim_shard *s = &sim->shards[shard];
    uint64_t durable = 0;
    enum gk_err err;

    if (gk_sim_ledger_digest(record) != event->digest) {
        gk_sim_fail(sim, "P4", "shard %u: a record changed while it was written", shard);
    }
    look_at_room(sim, shard);
    gk_sim_history_offer(sim, shard, record);
    err = gk_store_append(s->store, record, &durable, words);
    look_for_failure(sim, shard);
    if (err) {
        gk_sim_history_refused(sim, shard);
        sim->stats.full_refusals += err == GK_E_LIMIT;
        gk_sim_say(sim, gk_sim_shard_node(shard), "record %" PRIu32 " is not written: %s",
                   record->type, s->disk->dead ? "the process dies" : words->text);
        return err;
    }
    s->written = record->version;
    s->durable = durable;
    gk_sim_history_taken(
        sim, shard,
        record->type == GK_RECORD_INIT ||
            (durable >= record->version && sim->options.store.sync != GK_SYNC_NEVER));
    gk_sim_say(sim, gk_sim_shard_node(shard),
               "record %" PRIu32 " of version %" PRIu64 " is written, durable %" PRIu64,
               record->type, record->version, durable);
    return GK_OK;
}

void gk_sim_storage_close(struct gk_sim *sim, uint32_t shard, const struct gk_sim_event *writing)
{
    struct gk_sim_shard *s = &sim->shards[shard];
    struct gk_words words;

    if (s->store && writing && !s->disk->dead && gk_sim_chance(&sim->rng, 1, 2)) {
        (void)append(sim, writing, &words); /* whatever comes of it */
    }
    gk_store_close(s->store);
    s->store = NULL;
    s->syncing = s->folding = false;
    gk_sim_disk_next_life(s->disk);
    if (s->power_off) {
        s->power_off = s->disk->die_at > 0; /* a second one is like the first */
        gk_sim_say(sim, gk_sim_shard_node(shard),
                   "its host loses power, %" PRIu64 " bytes unsynced",
                   gk_sim_disk_unsynced(s->disk));
        gk_sim_disk_power_off(s->disk, sim->options.store.loss);
        sim->ledger.histories[shard].powered_off = true;
        sim->stats.power_failures++;
    }
}

/* The process has died in a call of its disk. */
static bool died(struct gk_sim *sim, uint32_t shard)
{
    if (!sim->shards[shard].disk->dead) {
        return false;
    }
    gk_sim_shard_kill(sim, shard, gk_sim_below(&sim->rng, sim->options.faults.down_us_max + 1));
    return true;
}

/* The daemon ends when a sync has failed, and somebody starts it again. */
static bool ends_in_failure(struct gk_sim *sim, uint32_t shard, enum gk_err err,
                            const struct gk_words *words)
{
    if (err == GK_E_IO && sim->ledger.histories[shard].failed) {
        gk_sim_say(sim, gk_sim_shard_node(shard), "ends: %s", words->text);
        gk_sim_shard_kill(sim, shard, gk_sim_below(&sim->rng, sim->options.faults.down_us_max + 1));
    } else {
        gk_sim_fail(sim, "P4", "shard %u: %s", shard, words->text);
    }
    return false;
}

bool gk_sim_storage_write(struct gk_sim *sim, const struct gk_sim_event *event,
                          struct gk_server_event *done)
{
    uint32_t shard = event->node;
    struct gk_sim_shard *s = &sim->shards[shard];
    struct gk_words words = {.text = ""};

    done->err = append(sim, event, &words);
    done->unsynced = !done->err && s->durable < s->written;
    if (died(sim, shard)) {
        return false;
    }
    if (done->err && done->err != GK_E_LIMIT &&
        !(done->err == GK_E_IO && sim->ledger.histories[shard].failed)) {
        gk_sim_fail(sim, "P4", "shard %u cannot write: %s", shard, words.text);
    }
    return true;
}

bool gk_sim_storage_sync(struct gk_sim *sim, uint32_t shard, struct gk_server_event *synced)
{
    struct gk_sim_shard *s = &sim->shards[shard];
    struct gk_words words = {.text = ""};
    enum gk_err err;

    s->syncing = false;
    look_at_room(sim, shard);
    err = gk_store_sync(s->store, &s->durable, &words);
    look_for_failure(sim, shard);
    if (died(sim, shard)) {
        return false;
    }
    if (err) {
        return ends_in_failure(sim, shard, err, &words);
    }
    gk_sim_history_synced(sim, shard);
    synced->version = gk_min_u64(s->durable, s->written);
    gk_sim_say(sim, gk_sim_shard_node(shard), "is synced up to version %" PRIu64, synced->version);
    return true;
}

bool gk_sim_storage_fold(struct gk_sim *sim, uint32_t shard)
{
    struct gk_sim_shard *s = &sim->shards[shard];
    uint64_t version = 0;
    struct gk_words words = {.text = ""};
    enum gk_err err;

    s->folding = false;
    look_at_room(sim, shard);
    err = gk_store_fold(s->store, &version, &words);
    look_for_failure(sim, shard);
    if (died(sim, shard)) {
        return false;
    }
    if (err && err != GK_E_LIMIT) {
        return ends_in_failure(sim, shard, err, &words);
    }
    sim->stats.folds += !err;
    gk_sim_say(sim, gk_sim_shard_node(shard), "folds up to version %" PRIu64 "%s", version,
               err ? ": no room" : "");
    return !err;
}

void gk_sim_storage_look(struct gk_sim *sim, uint32_t shard)
{
    struct gk_sim_shard *s = &sim->shards[shard];

    if (!s->store) {
        return;
    }
    if (sim->options.store.sync == GK_SYNC_INTERVAL && !s->syncing && s->durable < s->written) {
        s->syncing = true;
        gk_sim_shard_put(sim, shard, GK_SIM_SYNC);
    }
    if (!s->folding && gk_store_fold_due(s->store)) {
        s->folding = true;
        gk_sim_shard_put(sim, shard, GK_SIM_FOLD);
    }
}

void gk_sim_storage_die(struct gk_sim *sim, uint32_t shard, uint64_t calls, bool power_off)
{
    struct gk_sim_shard *s = &sim->shards[shard];

    s->disk->die_at = s->disk->calls + calls;
    s->power_off = power_off;
}

void gk_sim_storage_rewind(struct gk_sim *sim, uint32_t shard, uint64_t version)
{
    const struct gk_place place = {gk_sim_disk_ops(), sim->shards[shard].disk, "state"};
    const struct gk_archive_wish newest = {.version = GK_ARCHIVE_NEWEST, .without_planes = true};
    const struct gk_archive_wish wish = {.version = version};
    struct gk_archived end, state;
    struct gk_archive *archive;
    struct gk_words words;
    uint32_t files;
    enum gk_err err = gk_archive_open_place(&place, true, sim->ops, &archive, &words);

    if (err) {
        gk_sim_fail(sim, "story", "shard %u cannot be rewound: %s", shard, words.text);
        return;
    }
    err = gk_archive_read(archive, &newest, &end, &words);
    if (!err) {
        err = gk_archive_read(archive, &wish, &state, &words);
        if (!err) {
            uint32_t epoch = archive->epoch + 1;

            err = gk_rewind_write(archive, &state, &end, epoch, &words);
            err = err ? err : gk_rewind_cut(archive, epoch, false, &files, &words);
            gk_archived_fini(archive, &state);
        }
        gk_archived_fini(archive, &end);
    }
    gk_archive_close(archive);
    if (err) {
        gk_sim_fail(sim, "story", "shard %u cannot be rewound: %s", shard, words.text);
    } else {
        gk_sim_history_rewound(sim, shard, version);
    }
}
