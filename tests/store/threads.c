/* Goal: the log thread, the fold thread and whoever asks for numbers may go on at the same time.
 * Method: one thread appends a drawn history to a store on real files, one folds whenever a fold is
 * due, one asks; at the end a restart must equal the live side.  Under ThreadSanitizer this shows
 * races; in every build it shows wrong states. */
#include "tests/unit/store_rig.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

enum { VERSIONS = 700 };

struct shared {
    struct gk_store *store;
    atomic_bool done;
    atomic_uint folds;
};

static char directory[] = "/tmp/gk-store-XXXXXX";

static void *fold(void *context)
{
    struct shared *shared = context;

    while (!atomic_load(&shared->done)) {
        if (gk_store_fold_due(shared->store)) {
            struct gk_words words = {""};
            uint64_t version;

            GK_ASSERT(gk_store_fold(shared->store, &version, &words) == GK_OK);
            (void)atomic_fetch_add(&shared->folds, 1);
        }
        (void)sched_yield();
    }
    return NULL;
}

static void *ask(void *context)
{
    struct shared *shared = context;
    uint64_t records = 0;

    while (!atomic_load(&shared->done)) {
        struct gk_store_stats stats;

        gk_store_stats(shared->store, &stats);
        GK_ASSERT(stats.records >= records && stats.log_first_version <= stats.snapshot_version);
        records = stats.records;
        (void)sched_yield();
    }
    return NULL;
}

static struct gk_store_setup setup_of(const struct job *job)
{
    struct gk_store_setup setup = rig_setup(job, NULL);
    int number;

    setup.disk_ops = gk_disk_system();
    setup.directory = directory;
    setup.sync = GK_SYNC_NEVER; /* rounds fast enough to meet folds */
    GK_ASSERT(gk_disk_open(directory, true, &setup.disk, &number) == GK_OK);
    return setup;
}

static bool remove_one(void *context, const char *name)
{
    char path[512];

    (void)context;
    (void)snprintf(path, sizeof(path), "%s/%s", directory, name);
    if (name[0] != '.') {
        (void)unlink(path);
    }
    return true;
}

static void remove_directory(void)
{
    struct gk_disk *disk;
    int number;

    GK_ASSERT(gk_disk_open(directory, false, &disk, &number) == GK_OK);
    GK_ASSERT(gk_disk_system()->list(disk, remove_one, NULL, &number) == GK_OK);
    gk_disk_system()->close(disk);
    (void)rmdir(directory);
}

int main(void)
{
    struct job *job = job_new(&(struct job_options){GK_OPTIMIZER_MOMENTUM, 4000, 3, 1, 0, 77});
    struct shared shared = {0};
    pthread_t threads[2];
    struct rig_open open;

    GK_ASSERT(mkdtemp(directory));
    rig_open(&open, setup_of(job));
    GK_ASSERT(open.err == GK_OK);
    rig_lived(job);
    rig_append(&open, job, job_init(job));
    shared.store = open.store;
    GK_ASSERT(pthread_create(&threads[0], NULL, fold, &shared) == 0);
    GK_ASSERT(pthread_create(&threads[1], NULL, ask, &shared) == 0);
    while (job->image->version < VERSIONS) {
        rig_append(&open, job, job_next(job));
        while (job->image->version % 50 == 49 && gk_store_fold_due(open.store)) {
            (void)sched_yield(); /* or a slow fold would never be met again */
        }
    }
    atomic_store(&shared.done, true);
    for (int i = 0; i < 2; i++) {
        GK_ASSERT(pthread_join(threads[i], NULL) == 0);
    }
    rig_close(&open);
    rig_open(&open, setup_of(job));
    GK_ASSERT(rig_equals(&open, job) && open.recovered.cut.text[0] == 0);
    GK_ASSERT(atomic_load(&shared.folds) > 3);
    (void)printf("%d versions, %u folds beside them\n", (int)VERSIONS, atomic_load(&shared.folds));
    rig_close(&open);
    remove_directory();
    job_free(job);
    return 0;
}
