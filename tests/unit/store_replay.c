/* Goal: what a restart finds is what was there, bit for bit.
 * Method: drawn histories of every optimizer, restarted at drawn moments, folded or not, with small
 * blocks and batches; a restart must equal the live side, and so must the planes of a fold. */
#include "store_rig.h"

static const uint32_t optimizers[] = {GK_OPTIMIZER_SGD, GK_OPTIMIZER_MOMENTUM,
                                      GK_OPTIMIZER_NESTEROV, GK_OPTIMIZER_NONE, GK_OPTIMIZER_ADAMW};

static struct job *any_job(uint64_t seed)
{
    return job_new(&(struct job_options){
        .optimizer = optimizers[seed % 5],
        .params = 96 + 16 * (seed % 7),
        .workers = 1 + (uint32_t)(seed % 4),
        .servers = 1 + (uint32_t)(seed / 4 % 2),
        .shard = (uint32_t)(seed / 4 % 2),
        .seed = seed,
    });
}

static void restart(struct rig_open *open, struct job *job, struct gk_disk *disk, uint64_t seed)
{
    rig_close(open);
    rig_open(open, rig_setup(job, disk));
    cr_assert(open->err == GK_OK, "seed %llu: %s", (unsigned long long)seed, open->words.text);
    cr_assert(rig_equals(open, job), "seed %llu, version %llu", (unsigned long long)seed,
              (unsigned long long)job->image->version);
    cr_assert(open->recovered.cut.text[0] == 0, "%s", open->recovered.cut.text);
    cr_assert(open->memory.calls == (job->image->initialised ? 1 : 0));
    rig_lived(job);
}

static void history(uint64_t seed, bool fold)
{
    struct job *job = any_job(seed);
    struct gk_disk *disk = disk_new();
    struct rig_open open;

    rig_begin(&open, job, disk);
    for (int i = 0; i < 170; i++) {
        rig_append(&open, job, job_next(job));
        if (fold && gk_store_fold_due(open.store)) {
            rig_fold(&open);
        }
        if (job_draw(job, 16) == 0) {
            restart(&open, job, disk, seed);
        }
    }
    if (fold) {
        struct gk_store_stats stats;

        gk_store_stats(open.store, &stats);
        cr_assert(stats.snapshot_version >= 75 && stats.log_first_version >= 50);
    }
    rig_append(&open, job, job_finished(job));
    restart(&open, job, disk, seed);
    restart(&open, job, disk, seed);
    rig_close(&open);
    disk_free(disk);
    job_free(job);
}

Test(store_replay, equals_live)
{
    for (uint64_t seed = 1; seed <= 24; seed++) {
        history(seed, false);
    }
}

Test(store_replay, fold_equals_replay)
{
    for (uint64_t seed = 1; seed <= 24; seed++) {
        history(seed, true);
    }
}

/* A fold in one pass and one in many give the same file. */
Test(store_replay, batches_do_not_matter)
{
    for (uint64_t seed = 1; seed <= 8; seed++) {
        struct gk_disk *disk[2] = {disk_new(), disk_new()};
        struct job *job[2] = {any_job(seed), any_job(seed)};

        for (int i = 0; i < 2; i++) {
            struct gk_store_setup setup = rig_setup(job[i], disk[i]);
            struct rig_open open;

            setup.batch_bytes = i == 0 ? 1 : 1 << 30;
            rig_open(&open, setup);
            rig_lived(job[i]);
            rig_append(&open, job[i], job_init(job[i]));
            while (job[i]->image->version < 26) {
                rig_append(&open, job[i], job_next(job[i]));
            }
            cr_assert(gk_store_fold_due(open.store));
            rig_fold(&open);
            cr_assert(!gk_store_fold_due(open.store));
            rig_close(&open);
        }
        cr_assert(rig_file(disk[0], "snap-0-25")->now_size ==
                  rig_file(disk[1], "snap-0-25")->now_size);
        cr_assert(memcmp(rig_file(disk[0], "snap-0-25")->now, rig_file(disk[1], "snap-0-25")->now,
                         rig_file(disk[0], "snap-0-25")->now_size) == 0);
        for (int i = 0; i < 2; i++) {
            disk_free(disk[i]);
            job_free(job[i]);
        }
    }
}

/* Until the first round another init takes the place of version 0, with records between. */
Test(store_replay, init_again)
{
    struct gk_disk *disk = disk_new();
    struct job *job = any_job(5);
    struct rig_open open;

    rig_begin(&open, job, disk);
    for (int i = 0; i < 5; i++) {
        rig_append(&open, job, job_member(job));
        restart(&open, job, disk, 5);
        rig_append(&open, job, job_init(job));
        restart(&open, job, disk, 5);
    }
    rig_append(&open, job, job_round(job));
    restart(&open, job, disk, 5);
    rig_close(&open);
    disk_free(disk);
    job_free(job);
}

/* Before version 0 there are lives and members only. */
Test(store_replay, before_init)
{
    struct gk_disk *disk = disk_new();
    struct job *job = any_job(6);
    struct rig_open open;

    rig_open(&open, rig_setup(job, disk));
    cr_assert(rig_equals(&open, job) && !open.recovered.memory.planes[0]);
    rig_lived(job);
    for (int i = 0; i < 5; i++) {
        rig_append(&open, job, job_member(job));
        restart(&open, job, disk, 6);
        cr_assert(open.recovered.image->incarnation == (uint32_t)i + 1);
    }
    rig_close(&open);
    disk_free(disk);
    job_free(job);
}
