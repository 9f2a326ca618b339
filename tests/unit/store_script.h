/* One short life of a store as a list of steps, run until something stops it: for tests of what is
 * left then. */
#ifndef GK_TESTS_UNIT_STORE_SCRIPT_H
#define GK_TESTS_UNIT_STORE_SCRIPT_H

#include "store_rig.h"

enum { SCRIPT_VERSIONS = 54 };

struct script {
    struct job *job;
    struct rig_open open;
    struct gk_store_setup setup;
    enum gk_err err;                 /* of the step that stopped it */
    const struct gk_record *pending; /* the record that it was about; NULL: it changes nothing */
    uint64_t confirmed;              /* steps that were confirmed, of script_record() */
    uint64_t durable_version;
    struct gk_words words;
};

static inline struct job *script_job(uint64_t seed)
{
    return job_new(&(struct job_options){
        .optimizer = seed % 2 ? GK_OPTIMIZER_MOMENTUM : GK_OPTIMIZER_SGD,
        .params = 96,
        .workers = 2,
        .servers = 1,
        .shard = 0,
        .seed = seed,
    });
}

/* The record of step i of the history, made of the state of its job; the first is the store's own.
 * NULL: the end. */
static inline const struct gk_record *script_record(struct job *job, uint64_t step)
{
    switch (step) {
    case 0:
        return job_life(job);
    case 1:
    case 3:
        return job_member(job);
    case 2:
    case 4:
        return job_init(job);
    default:
        return job->image->version < SCRIPT_VERSIONS ? job_next(job) : NULL;
    }
}

static inline void script_begin(struct script *script, struct gk_disk *disk, uint64_t seed)
{
    memset(script, 0, sizeof(*script));
    script->job = script_job(seed);
    script->setup = rig_setup(script->job, disk);
}

/* Open, then records and folds, until a call fails.  True: it came to the end. */
static inline bool script_run(struct script *script)
{
    const struct gk_record *record = script_record(script->job, 0);

    script->pending = record;
    rig_open(&script->open, script->setup);
    script->err = script->open.err;
    script->words = script->open.words;
    for (uint64_t step = 0; script->err == GK_OK && record; step++) {
        if (step > 0) {
            script->pending = record;
            script->err = gk_store_append(script->open.store, record, &script->durable_version,
                                          &script->words);
        }
        if (script->err == GK_OK) {
            job_take(script->job, record);
            script->confirmed = step + 1;
            script->pending = NULL;
            if (gk_store_fold_due(script->open.store)) {
                uint64_t version;

                script->err = gk_store_fold(script->open.store, &version, &script->words);
            }
            record = script_record(script->job, step + 1);
        }
    }
    return script->err == GK_OK;
}

static inline void script_end(struct script *script)
{
    rig_close(&script->open);
    job_free(script->job);
}

/* Number of changes that an undisturbed run makes to its disk, of syncs, of writes. */
static inline void script_count(struct gk_store_setup (*change)(struct gk_store_setup),
                                uint64_t seed, uint64_t *ret_changes, uint64_t *ret_syncs)
{
    struct gk_disk *disk = disk_new();
    struct script script;

    script_begin(&script, disk, seed);
    script.setup = change ? change(script.setup) : script.setup;
    cr_assert(script_run(&script), "%s", script.words.text);
    *ret_changes = disk->changes;
    *ret_syncs = disk->syncs;
    script_end(&script);
    disk_free(disk);
}

/* The recovered state is the one before or after the record that was stopped; the job then is
 * there. */
static inline bool script_before_or_after(struct script *script, const struct rig_open *open)
{
    if (rig_equals(open, script->job)) {
        return true;
    }
    if (!script->pending) {
        return false;
    }
    job_take(script->job, script->pending);
    return rig_equals(open, script->job);
}

#endif
