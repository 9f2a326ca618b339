/* Goal: whenever a process dies or the power fails, the next life finds what was confirmed, and
 * nothing but what was written.
 * Method: one history (two inits, rotations, folds), stopped at every single change of its disk;
 * what is left is opened by a second life, which is stopped at every change, too, and by a third.
 */
#include "store_script.h"

static const enum disk_loss losses[] = {DISK_KILLED, DISK_POWER, DISK_POWER_MIX};

/* The next life opens what is left, goes on, and the one after it finds that. */
static void goes_on(struct script *script, struct gk_disk *disk, uint64_t at)
{
    struct gk_store_setup setup = script->setup;
    struct rig_open open;

    setup.disk = disk;
    rig_open(&open, setup);
    cr_assert(open.err == GK_OK, "stopped at %llu: %s", (unsigned long long)at, open.words.text);
    cr_assert(script_before_or_after(script, &open), "stopped at %llu: version %llu for %llu",
              (unsigned long long)at, (unsigned long long)open.recovered.image->version,
              (unsigned long long)script->job->image->version);
    rig_lived(script->job);
    for (int i = 0; i < 3; i++) {
        bool initialised = script->job->image->initialised;

        rig_append(&open, script->job,
                   initialised ? job_next(script->job) : job_member(script->job));
        if (gk_store_fold_due(open.store)) {
            rig_fold(&open);
        }
    }
    rig_close(&open);
    rig_open(&open, setup);
    cr_assert(rig_equals(&open, script->job), "stopped at %llu: %s", (unsigned long long)at,
              open.words.text);
    cr_assert(open.recovered.cut.text[0] == 0, "cut twice");
    rig_close(&open);
}

/* Die at change `at`; what `loss` leaves is in the returned disk. */
static struct gk_disk *die(struct script *script, uint64_t at, enum disk_loss loss, uint64_t seed)
{
    struct gk_disk *disk = disk_new();
    struct gk_disk *left;

    disk->freeze_at = at;
    disk->draws = at * 1000 + seed;
    script_begin(script, disk, seed);
    cr_assert(!script_run(script));
    if (loss == DISK_KILLED) {
        rig_close(&script->open);
        disk_thaw(disk);
        return disk;
    }
    left = disk_crash(disk, loss, at * 31 + seed);
    rig_close(&script->open);
    disk_free(disk);
    return left;
}

static void stopped_everywhere(uint64_t seed, enum disk_loss loss)
{
    uint64_t changes, syncs;

    script_count(NULL, seed, &changes, &syncs);
    cr_assert(changes > 150);
    for (uint64_t at = 1 + seed % STRIDE; at <= changes; at += STRIDE) {
        struct script script;
        struct gk_disk *left = die(&script, at, loss, seed);

        goes_on(&script, left, at);
        script_end(&script);
        disk_free(left);
    }
}

Test(store_crash, process_dies_at_every_change)
{
    for (uint64_t seed = 1; seed <= 2; seed++) {
        stopped_everywhere(seed, DISK_KILLED);
    }
}

Test(store_crash, power_fails_at_every_change)
{
    for (uint64_t seed = 3; seed <= 4; seed++) {
        stopped_everywhere(seed, DISK_POWER);
    }
}

Test(store_crash, power_fails_and_some_pages_stay)
{
    for (uint64_t seed = 5; seed <= 8; seed++) {
        stopped_everywhere(seed, DISK_POWER_MIX);
    }
}

/* The second life dies as well, at every change of its start; the first one at every `step`th of
 * its changes, since all of them would be thousands of pairs. */
static void twice(enum disk_loss first, uint64_t step)
{
    uint64_t changes, syncs;

    script_count(NULL, 9, &changes, &syncs);
    for (uint64_t at = 1; at <= changes; at += step * STRIDE) {
        for (uint64_t again = 1;; again++) {
            struct script script;
            struct gk_disk *left = die(&script, at, first, 9), *last;
            struct gk_store_setup setup = script.setup;
            struct rig_open open;
            bool reached;

            left->freeze_at = left->changes + again;
            setup.disk = left;
            rig_open(&open, setup);
            reached = open.err != GK_OK;
            if (!reached) { /* what it found, and its own life, stay whatever comes */
                cr_assert(script_before_or_after(&script, &open));
                rig_lived(script.job);
            }
            last = disk_crash(left, reached ? losses[(at + again) % 3] : DISK_POWER, at + again);
            rig_close(&open);
            disk_free(left);
            setup.disk = last;
            rig_open(&open, setup);
            cr_assert(open.err == GK_OK, "stopped at %llu and %llu: %s", (unsigned long long)at,
                      (unsigned long long)again, open.words.text);
            if (reached) {
                /* The second life may have been written down. */
                open.recovered.image->incarnation = script.job->image->incarnation;
                if (script.pending && script.pending->type == GK_RECORD_LIFE) {
                    script.pending = NULL;
                }
            }
            cr_assert(
                reached ? script_before_or_after(&script, &open) : rig_equals(&open, script.job),
                "stopped at %llu and %llu", (unsigned long long)at, (unsigned long long)again);
            rig_close(&open);
            script_end(&script);
            disk_free(last);
            if (!reached) {
                cr_assert(again > 4);
                break;
            }
        }
    }
}

Test(store_crash, recovery_after_a_kill_is_stopped_everywhere)
{
    twice(DISK_KILLED, 5);
}

Test(store_crash, recovery_after_a_power_failure_is_stopped_everywhere)
{
    twice(DISK_POWER_MIX, 7);
}

static struct gk_store_setup interval(struct gk_store_setup setup)
{
    setup.sync = GK_SYNC_INTERVAL;
    return setup;
}

static struct gk_store_setup never(struct gk_store_setup setup)
{
    setup.sync = GK_SYNC_NEVER;
    return setup;
}

/* Some state of the same history, with at least so many versions. */
static void is_of_history(const struct rig_open *open, uint64_t seed, uint64_t version,
                          uint64_t most_steps)
{
    struct job *job = script_job(seed);
    bool found = false;

    for (uint64_t step = 0; step <= most_steps && !found; step++) {
        found = rig_equals(open, job);
        if (!found) {
            const struct gk_record *record = script_record(job, step);

            cr_assert(record, "no state of the history");
            job_take(job, record);
        }
    }
    cr_assert(found && job->image->version >= version, "version %llu of %llu",
              (unsigned long long)job->image->version, (unsigned long long)version);
    job_free(job);
}

/* With other policies a power failure may take versions, but none that was said to be durable. */
Test(store_crash, what_is_durable_stays)
{
    uint64_t changes, syncs, fewer = 0;

    script_count(interval, 11, &changes, &syncs);
    for (uint64_t at = 1; at <= changes; at++) {
        struct gk_disk *disk = disk_new(), *left;
        struct script script;
        struct rig_open open;

        disk->freeze_at = at;
        script_begin(&script, disk, 11);
        script.setup = interval(script.setup);
        cr_assert(!script_run(&script));
        left = disk_crash(disk, losses[1 + at % 2], at);
        script.setup.disk = left;
        rig_open(&open, script.setup);
        cr_assert(open.err == GK_OK, "%s", open.words.text);
        is_of_history(&open, 11, script.durable_version, script.confirmed + 1);
        fewer += open.recovered.image->version < script.job->image->version;
        rig_close(&open);
        script_end(&script);
        disk_free(disk);
        disk_free(left);
    }
    cr_assert(fewer > 0, "the disk has lost nothing");
}

/* Without any sync a dead process loses nothing; what the power takes leaves a state of before. */
Test(store_crash, never_is_safe_against_kill)
{
    uint64_t changes, syncs;

    script_count(never, 12, &changes, &syncs);
    for (uint64_t at = 1; at <= changes; at++) {
        for (int power = 0; power < 2; power++) {
            struct gk_disk *disk = disk_new(), *left;
            struct script script;
            struct rig_open open;

            disk->freeze_at = at;
            script_begin(&script, disk, 12);
            script.setup = never(script.setup);
            cr_assert(!script_run(&script));
            left = disk_crash(disk, power ? DISK_POWER : DISK_KILLED, at);
            script.setup.disk = left;
            rig_open(&open, script.setup);
            cr_assert(open.err == GK_OK, "%s", open.words.text);
            if (power) {
                is_of_history(&open, 12, 0, script.confirmed + 1);
            } else {
                cr_assert(script_before_or_after(&script, &open));
            }
            rig_close(&open);
            script_end(&script);
            disk_free(disk);
            disk_free(left);
        }
    }
}
