/* A state directory with anything in it.  The first byte says: bit 0, the checksums are made right
 * again after the edits.  Then come edits of the files that a short job has left: which file, where
 * (two bytes), how, and a value (four bytes).
 *
 * What must hold: an open ends with one line of words, or with a state that can be written on and
 * that the next open finds again. */
#include "common/bits.h"
#include "common/hash.h"
#include "server/core/snapshot.h"
#include "server/core/wal.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/wire.h"
#include "tests/unit/store_rig.h"

static struct job *job;
static struct gk_disk *base;

enum { MEND = 1 << 0, EDITS_MAX = 64, VERSIONS = 30 };

static const char *const files[] = {"wal-0-0.log", "wal-0-25.log", "snap-0-0", "snap-0-25", "JOB"};

/* Version 0 and 25 as snapshots, a segment each. */
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    struct rig_open open;

    (void)argc;
    (void)argv;
    job = job_new(&(struct job_options){GK_OPTIMIZER_MOMENTUM, 96, 2, 1, 0, 5});
    base = disk_new();
    rig_open(&open, rig_setup(job, base));
    FUZZ_CHECK(open.err == GK_OK);
    rig_lived(job);
    rig_append(&open, job, job_init(job));
    while (job->image->version < VERSIONS) {
        rig_append(&open, job, job_next(job));
        if (gk_store_fold_due(open.store)) {
            rig_fold(&open);
        }
    }
    rig_close(&open);
    return 0;
}

static void mend_crc(uint8_t *bytes, uint64_t size)
{
    gk_put_u32(bytes + size, gk_crc32c(bytes, size));
}

/* Chain, payload and header of every record, as far as their lengths lead. */
static void mend_log(struct disk_inode *file)
{
    uint64_t at = GK_WAL_SEGMENT_BYTES;
    uint32_t previous;

    if (file->now_size < GK_WAL_SEGMENT_BYTES) {
        return;
    }
    mend_crc(file->now, GK_WAL_SEGMENT_BYTES - 4);
    previous = gk_get_u32(file->now + GK_WAL_SEGMENT_BYTES - 4);
    while (file->now_size - at >= GK_WAL_HEADER_BYTES) {
        uint8_t *record = file->now + at;
        uint64_t bytes = gk_get_u64(record + 8);

        if (bytes < GK_WAL_HEADER_BYTES || bytes > file->now_size - at) {
            return;
        }
        gk_put_u32(record + 64, previous);
        gk_put_u32(record + 184,
                   gk_crc32c(record + GK_WAL_HEADER_BYTES, (size_t)(bytes - GK_WAL_HEADER_BYTES)));
        mend_crc(record, GK_WAL_HEADER_BYTES - 4);
        previous = gk_get_u32(record + GK_WAL_HEADER_BYTES - 4);
        at += bytes;
    }
}

static void mend_snapshot(struct disk_inode *file)
{
    struct gk_snapshot_head head;

    if (file->now_size < GK_SNAPSHOT_HEADER_BYTES) {
        return;
    }
    mend_crc(file->now, GK_SNAPSHOT_HEADER_BYTES - 4);
    if (gk_snapshot_head_decode(file->now, &head, NULL) != GK_OK ||
        head.layout.bytes != file->now_size) {
        return;
    }
    for (uint64_t i = 0; i < head.layout.planes * head.layout.blocks; i++) {
        uint64_t count;
        uint64_t at = gk_snapshot_block(&head.layout, (uint32_t)(i / head.layout.blocks),
                                        i % head.layout.blocks, &count);

        gk_put_u32(file->now + head.layout.sums_at + 4 * i,
                   gk_crc32c(file->now + at, (size_t)count * sizeof(float)));
    }
    gk_put_u32(file->now + 216,
               gk_crc32c(file->now + GK_SNAPSHOT_HEADER_BYTES,
                         (size_t)head.layout.planes_at - GK_SNAPSHOT_HEADER_BYTES));
    mend_crc(file->now, GK_SNAPSHOT_HEADER_BYTES - 4);
}

static void edit(struct gk_disk *disk, struct fuzz_bytes *in)
{
    struct disk_name *name =
        disk_find(disk->names, files[fuzz_take_u8(in) % (sizeof(files) / sizeof(files[0]))]);
    uint64_t at = fuzz_take_u8(in);
    uint8_t how;
    uint32_t value;

    at |= (uint64_t)fuzz_take_u8(in) << 8;
    how = fuzz_take_u8(in);
    value = fuzz_take_u32(in);
    if (!name || at + 4 > name->inode->now_size) {
        return;
    }
    switch (how % 5) {
    case 0:
        gk_put_u32(name->inode->now + at, gk_get_u32(name->inode->now + at) ^ value);
        break;
    case 1:
        gk_put_u32(name->inode->now + at, value);
        break;
    case 2:
        gk_put_u32(name->inode->now + at, gk_get_u32(name->inode->now + at) + 1);
        break;
    case 3:
        disk_resize(name->inode, at);
        break;
    default:
        disk_unlink_inode(name->inode);
        name->inode = NULL;
        break;
    }
}

static void mend(struct gk_disk *disk)
{
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        struct disk_name *name = disk_find(disk->names, files[i]);

        if (name && i < 2) {
            mend_log(name->inode);
        } else if (name && i < 4) {
            mend_snapshot(name->inode);
        } else if (name && name->inode->now_size >= GK_WAL_SEGMENT_BYTES) {
            mend_crc(name->inode->now, GK_WAL_SEGMENT_BYTES - 4);
        }
    }
}

static void check_refused(const struct rig_open *open)
{
    fuzz_check_words(open->words.text);
    FUZZ_CHECK(open->err == GK_E_CORRUPT || open->err == GK_E_REFUSED ||
               open->err == GK_E_UNSUPPORTED || open->err == GK_E_IO);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_bytes in = {.at = data, .left = size};
    uint8_t how = fuzz_take_u8(&in);
    struct gk_disk *disk = disk_crash(base, DISK_KILLED, 1);
    struct rig_open open, again;

    for (int i = 0; i < EDITS_MAX && in.left > 0; i++) {
        edit(disk, &in);
    }
    if (how & MEND) {
        mend(disk);
    }
    rig_open(&open, rig_setup(job, disk));
    if (open.err) {
        check_refused(&open);
        rig_close(&open);
        disk_free(disk);
        return 0;
    }
    /* The new life is written down already. */
    gk_store_close(open.store);
    open.store = NULL;
    rig_open(&again, rig_setup(job, disk));
    FUZZ_CHECK(again.err == GK_OK && again.recovered.cut.text[0] == 0);
    rig_close(&again);
    for (int p = 0; p < 3; p++) {
        free(open.memory.memory.planes[p]);
    }
    disk_free(disk);
    return 0;
}
