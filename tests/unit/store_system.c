/* Goal: the store works on the system's files, and the lock is the system's.
 * Method: a history in a temporary directory with restarts and folds; the operations one by one; a
 * second process that holds the directory and is killed; files that are no files.
 */
#include "store_rig.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char directory[] = "/tmp/gk-store-XXXXXX";

static void make_directory(void)
{
    cr_assert(mkdtemp(directory) != NULL);
}

static bool remove_one(void *context, const char *name)
{
    char path[512];

    (void)context;
    (void)snprintf(path, sizeof(path), "%s/%s", directory, name);
    if (name[0] != '.') {
        (void)remove(path);
    }
    return true;
}

static void remove_directory(void)
{
    struct gk_disk *disk;
    int number;

    if (gk_disk_open(directory, false, &disk, &number) == GK_OK) {
        (void)gk_disk_system()->list(disk, remove_one, NULL, &number);
        gk_disk_system()->close(disk);
    }
    (void)rmdir(directory);
}

TestSuite(store_system, .init = make_directory, .fini = remove_directory);

static struct gk_store_setup real_setup(const struct job *job)
{
    struct gk_store_setup setup = rig_setup(job, NULL);
    int number;

    setup.disk_ops = gk_disk_system();
    setup.directory = directory;
    cr_assert(gk_disk_open(directory, true, &setup.disk, &number) == GK_OK);
    return setup;
}

static struct job *any_job(void)
{
    return job_new(&(struct job_options){GK_OPTIMIZER_MOMENTUM, 400, 3, 1, 0, 5});
}

Test(store_system, history)
{
    struct job *job = any_job();
    struct gk_store_stats stats;
    struct rig_open open;

    rig_open(&open, real_setup(job));
    cr_assert(open.err == GK_OK, "%s", open.words.text);
    rig_lived(job);
    rig_append(&open, job, job_init(job));
    for (int i = 0; i < 120; i++) {
        rig_append(&open, job, job_next(job));
        if (gk_store_fold_due(open.store)) {
            rig_fold(&open);
        }
        if (i % 40 == 39) {
            rig_close(&open);
            rig_open(&open, real_setup(job));
            cr_assert(rig_equals(&open, job), "%s", open.words.text);
            rig_lived(job);
        }
    }
    gk_store_stats(open.store, &stats);
    cr_assert(stats.snapshot_version >= 50 && stats.records > 120 && stats.log_bytes > 10000);
    cr_assert(stats.sync_us_median > 0 && stats.sync_us_last > 0);
    rig_close(&open);
    job_free(job);
}

Test(store_system, operations)
{
    const struct gk_disk_ops *ops = gk_disk_system();
    const struct gk_piece_of_file pieces[] = {{"abc", 3}, {"", 0}, {"defg", 4}};
    struct gk_disk *disk;
    struct gk_file *file;
    uint64_t size;
    char text[16] = "";
    int number = 0;

    cr_assert(gk_disk_open("/nonexistent/x", true, &disk, &number) == GK_E_NOTFOUND);
    cr_assert(gk_disk_open("/nonexistent", false, &disk, &number) == GK_E_NOTFOUND);
    cr_assert(gk_disk_open(directory, true, &disk, &number) == GK_OK);
    cr_assert(ops->open(disk, "a", false, true, &file, &number) == GK_E_NOTFOUND);
    cr_assert(ops->open(disk, "a", true, true, &file, &number) == GK_OK);
    cr_assert(ops->write(file, 2, pieces, 3, &number) == GK_OK);
    cr_assert(ops->size(file, &size, &number) == GK_OK && size == 9);
    cr_assert(ops->read(file, 2, text, 7, &number) == GK_OK && strcmp(text, "abcdefg") == 0);
    cr_assert(ops->read(file, 3, text, 7, &number) == GK_E_CORRUPT);
    cr_assert(ops->reserve(file, 5000, &number) == GK_OK);
    cr_assert(ops->size(file, &size, &number) == GK_OK && size == 5000);
    cr_assert(ops->read(file, 8, text, 3, &number) == GK_OK && memcmp(text, "g\0\0", 3) == 0);
    cr_assert(ops->cut(file, 4, &number) == GK_OK && ops->sync(file, &number) == GK_OK);
    cr_assert(ops->size(file, &size, &number) == GK_OK && size == 4);
    ops->close_file(file);
    cr_assert(ops->rename(disk, "a", "b", &number) == GK_OK);
    cr_assert(ops->sync_directory(disk, &number) == GK_OK);
    cr_assert(ops->rename(disk, "a", "b", &number) == GK_E_NOTFOUND);
    cr_assert(ops->remove(disk, "b", &number) == GK_OK);
    cr_assert(ops->remove(disk, "b", &number) == GK_E_NOTFOUND && number != 0);
    ops->close(disk);
}

/* A link is not followed, a fifo is not waited for. */
Test(store_system, files_that_are_none)
{
    struct job *job = any_job();
    char path[512];

    (void)snprintf(path, sizeof(path), "%s/wal-0-0.log", directory);
    for (int i = 0; i < 3; i++) {
        struct rig_open open;

        cr_assert((i == 0   ? symlink("/etc/hostname", path)
                   : i == 1 ? mkfifo(path, 0600)
                            : mkdir(path, 0700)) == 0);
        rig_open(&open, real_setup(job));
        cr_assert(open.err == GK_E_IO && strstr(open.words.text, "wal-0-0.log: cannot open"), "%s",
                  open.words.text);
        rig_close(&open);
        cr_assert(remove(path) == 0);
    }
    job_free(job);
}

/* The lock goes with the process that holds it. */
Test(store_system, lock_of_a_killed_process)
{
    struct job *job = any_job();
    struct rig_open open;
    int ready[2];
    char byte;
    pid_t child;

    cr_assert(pipe(ready) == 0);
    child = fork();
    if (child == 0) {
        rig_open(&open, real_setup(job));
        byte = open.err == GK_OK ? 'y' : 'n';
        (void)!write(ready[1], &byte, 1);
        for (;;) {
            (void)pause();
        }
    }
    cr_assert(read(ready[0], &byte, 1) == 1 && byte == 'y');
    rig_open(&open, real_setup(job));
    cr_assert(open.err == GK_E_BUSY, "%s", open.words.text);
    rig_close(&open);
    cr_assert(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    rig_open(&open, real_setup(job));
    cr_assert(open.err == GK_OK && open.recovered.image->incarnation == 1, "%s", open.words.text);
    rig_close(&open);
    job_free(job);
}
