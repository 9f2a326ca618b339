/* The directory of a shard that is read and not lived in: for the tools that look at it, take a
 * model out of it or wind it back.
 *
 * Nothing is written here, and without the lock it works beside a living server.  What that server
 * removes meanwhile gives GK_E_AGAIN: open again.  What it is writing just now looks like a torn
 * tail, and is told as one. */
#ifndef GK_SERVER_STORE_ARCHIVE_H
#define GK_SERVER_STORE_ARCHIVE_H

#include "common/backend.h"
#include "server/core/image.h"
#include "server/core/wal.h"
#include "server/store/files.h"

#define GK_ARCHIVE_NEWEST UINT64_MAX

struct gk_archive {
    struct gk_place place;
    bool locked;
    const struct gk_vector_ops *ops;
    struct gk_queue *queue;
    struct gk_wal_segment owner;              /* shard, servers, workers, job */
    uint32_t epoch;                           /* the newest; files of older ones are void */
    struct gk_known_list segments, snapshots; /* of that epoch */
    struct gk_known_list void_segments, void_snapshots;
    bool jobless;             /* its file JOB is gone, which the log stands in for */
    struct gk_words headless; /* why the newest segment was left out; empty: it was not */
};

/* Opens `directory`.  GK_E_NOTFOUND: it is not there, or holds no shard.  GK_E_REFUSED: snapshots,
 * and nothing that says whose they are.  GK_E_BUSY: `lock`, and a living process has it.
 * GK_E_AGAIN: a file that was listed went away.  GK_E_CORRUPT, GK_E_IO, GK_E_LIMIT, GK_E_NOMEM;
 * words name the file. */
enum gk_err gk_archive_open(const char *directory, bool lock, const struct gk_vector_ops *ops,
                            struct gk_archive **ret_archive, struct gk_words *words);
/* The same of a directory that is open: its disk is taken, also on failure. */
enum gk_err gk_archive_open_place(const struct gk_place *place, bool lock,
                                  const struct gk_vector_ops *ops, struct gk_archive **ret_archive,
                                  struct gk_words *words);
void gk_archive_close(struct gk_archive *archive); /* accepts NULL */

struct gk_archive_wish {
    uint64_t version;    /* or GK_ARCHIVE_NEWEST: all records there are */
    bool without_planes; /* the image alone: no arithmetic */
    bool from_oldest;    /* begin at the oldest snapshot, so that the whole log is checked */
};

struct gk_archived {
    struct gk_image *image;
    float *planes[3];      /* of the table's kind DEVICE; NULL: not wished for, or none */
    uint64_t from_version; /* of the snapshot that it began with */
    uint64_t records;      /* replayed behind it */
    uint64_t hashes;       /* state hashes that were compared on the way */
    uint64_t next_number;  /* of the record behind the last one that was replayed */
    uint64_t torn_bytes;
    struct gk_words torn; /* file, offset and why, of a torn tail; empty: none */
};

/* The shard as it was when `version` was made (its image: not yet what came behind that).
 *
 * GK_E_NOTFOUND: that version cannot be reached, words say which can.  Without any version: an
 * image that is not initialised for GK_ARCHIVE_NEWEST, else GK_E_NOTFOUND.  GK_E_CORRUPT: file and
 * offset of what is damaged.  GK_E_AGAIN: a file that was listed went away.  GK_E_IO, GK_E_NOMEM.
 */
enum gk_err gk_archive_read(struct gk_archive *archive, const struct gk_archive_wish *wish,
                            struct gk_archived *ret, struct gk_words *words);

/* One snapshot alone, `known` of archive->snapshots: all its blocks and its hash are checked. */
enum gk_err gk_archive_snapshot(struct gk_archive *archive, const struct gk_known *known,
                                struct gk_archived *ret, struct gk_words *words);
void gk_archived_fini(const struct gk_archive *archive, struct gk_archived *archived);

/* Hash of one plane, or of all. */
enum gk_err gk_archive_hash(const struct gk_archive *archive, const struct gk_archived *archived,
                            bool all_planes, uint64_t *ret_hash, struct gk_words *words);

#endif
