/* A store on a disk in memory, beside the live side of its job. */
#ifndef GK_TESTS_UNIT_STORE_RIG_H
#define GK_TESTS_UNIT_STORE_RIG_H

#include "server/store/store.h"
#include "store_disk.h"
#include "store_job.h"

/* A sanitizer looks at memory, and need not see every place of a crash or a damage. */
#if defined(__SANITIZE_ADDRESS__)
enum { STRIDE = 7 };
#else
enum { STRIDE = 1 };
#endif

struct rig_memory { /* the planes that the store asks for */
    struct gk_server_memory memory;
    uint32_t calls;
};

struct rig_open {
    struct gk_store *store;
    struct gk_recovered recovered;
    struct rig_memory memory;
    struct gk_words words;
    enum gk_err err;
};

static inline enum gk_err rig_allocate(void *context, const struct gk_image *image,
                                       struct gk_server_memory *ret_memory, struct gk_words *words)
{
    struct rig_memory *memory = context;

    (void)words;
    memory->calls++;
    for (uint32_t p = 0; p < gk_image_planes(image); p++) {
        memory->memory.planes[p] = calloc(image->hi - image->lo, sizeof(float));
    }
    *ret_memory = memory->memory;
    return GK_OK;
}

static inline struct gk_store_setup rig_setup(const struct job *job, struct gk_disk *disk)
{
    return (struct gk_store_setup){
        .disk_ops = &disk_ops,
        .disk = disk,
        .directory = "DIR",
        .job = "toy",
        .shard = job->options.shard,
        .servers = job->options.servers,
        .workers = job->options.workers,
        .sync = GK_SYNC_ALWAYS,
        .fold_every = 25,
        .log_bytes_max = 16 << 20,
        .block_floats = 32,
        .batch_bytes = 4096,
        .ops = gk_vector_reference(),
        .allocate = rig_allocate,
    };
}

static inline void rig_open(struct rig_open *open, struct gk_store_setup setup)
{
    memset(open, 0, sizeof(*open));
    setup.context = &open->memory;
    open->err = gk_store_open(&setup, &open->store, &open->recovered, &open->words);
}

static inline void rig_close(struct rig_open *open)
{
    gk_store_close(open->store);
    for (int p = 0; p < 3; p++) {
        free(open->memory.memory.planes[p]);
    }
    memset(open, 0, sizeof(*open));
}

/* Recovered state and live state are the same, bit for bit.  The recovered image is the one before
 * the new life. */
static inline bool rig_equals(const struct rig_open *open, const struct job *job)
{
    bool same = open->err == GK_OK && job_image_equals(open->recovered.image, job->image);

    for (uint32_t p = 0; same && job->image->initialised && p < gk_image_planes(job->image); p++) {
        same = memcmp(open->recovered.memory.planes[p], job->planes[p],
                      (job->hi - job->lo) * sizeof(float)) == 0;
    }
    return same;
}

/* What the store has done by itself: the live side takes the new life, too. */
static inline void rig_lived(struct job *job)
{
    job_take(job, job_life(job));
}

static inline void rig_append(struct rig_open *open, struct job *job,
                              const struct gk_record *record)
{
    struct gk_words words = {""};
    uint64_t durable = UINT64_MAX;
    enum gk_err err = gk_store_append(open->store, record, &durable, &words);

    cr_assert(err == GK_OK, "%s: %s", gk_err_name(err), words.text);
    job_take(job, record);
}

static inline void rig_fold(struct rig_open *open)
{
    struct gk_words words = {""};
    uint64_t version;
    enum gk_err err = gk_store_fold(open->store, &version, &words);

    cr_assert(err == GK_OK, "%s: %s", gk_err_name(err), words.text);
}

/* Life, members, version 0. */
static inline void rig_begin(struct rig_open *open, struct job *job, struct gk_disk *disk)
{
    rig_open(open, rig_setup(job, disk));
    cr_assert(open->err == GK_OK, "%s", open->words.text);
    rig_lived(job);
    rig_append(open, job, job_member(job));
    rig_append(open, job, job_init(job));
}

static inline struct disk_inode *rig_file(struct gk_disk *disk, const char *name)
{
    struct disk_name *found = disk_find(disk->names, name);

    cr_assert(found, "no file %s", name);
    return found->inode;
}

#endif
