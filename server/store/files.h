/* The directory of a shard: names, words about files, and what both threads know of its files. */
#ifndef GK_SERVER_STORE_FILES_H
#define GK_SERVER_STORE_FILES_H

#include "common/err.h"
#include "common/words.h"
#include "server/store/disk.h"

#include <stdbool.h>
#include <stdint.h>

enum { GK_STORE_NAME_BYTES = 64, GK_STORE_FILES_MAX = 1024 };

#define GK_STORE_LOCK "LOCK"
#define GK_STORE_JOB "JOB"
#define GK_STORE_JOB_TEMPORARY "JOB.tmp"
#define GK_STORE_INIT_TEMPORARY "init.tmp"
#define GK_STORE_FOLD_TEMPORARY "fold.tmp"

struct gk_place {
    const struct gk_disk_ops *ops;
    struct gk_disk *disk;
    char directory[256]; /* for words */
};

struct gk_name {
    char text[GK_STORE_NAME_BYTES];
};

struct gk_name gk_name_segment(uint32_t epoch, uint64_t version);
struct gk_name gk_name_snapshot(uint32_t epoch, uint64_t version);

/* "DIR/NAME: cannot WHAT: why"; returns err, so that a failed call is one line. */
enum gk_err gk_place_failed(const struct gk_place *place, const char *name, const char *what,
                            enum gk_err err, int number, struct gk_words *words);

/* The same of a file that is to be opened because it was listed.  GK_E_AGAIN in place of
 * GK_E_NOTFOUND: it went away meanwhile, as beside a living server; list again. */
enum gk_err gk_place_unopened(const struct gk_place *place, const char *name, enum gk_err err,
                              int number, struct gk_words *words);

/* Puts "DIR/NAME, offset N: " before the words. */
void gk_place_at(const struct gk_place *place, const char *name, uint64_t offset,
                 struct gk_words *words);

/* Remove a file that may be there. */
enum gk_err gk_place_remove(const struct gk_place *place, const char *name, struct gk_words *words);

enum gk_err gk_place_sync_directory(const struct gk_place *place, struct gk_words *words);

/* temporary -> name, and the directory synced. */
enum gk_err gk_place_publish(const struct gk_place *place, const char *temporary, const char *name,
                             struct gk_words *words);

/* A segment or a snapshot. */
struct gk_known {
    uint32_t epoch;
    uint64_t version; /* first of a segment: that of the records' predecessor */
    uint64_t number;  /* first of a segment; next of a snapshot */
    uint64_t bytes;
    bool hashed; /* segment: the state hash of `version` is known */
    uint64_t hash;
    uint64_t hash_at; /* offset of the record that says so */
};

struct gk_known_list { /* ascending by (epoch, version) */
    uint32_t count;
    struct gk_known list[GK_STORE_FILES_MAX];
};

/* All segments and snapshots by name; the rest of their fields is zero.  GK_E_LIMIT: too many. */
enum gk_err gk_place_list(const struct gk_place *place, struct gk_known_list *ret_segments,
                          struct gk_known_list *ret_snapshots, struct gk_words *words);

void gk_known_drop_first(struct gk_known_list *known);

/* A fold ends where a segment begins, so the newest snapshot (but version 0, or the one that begins
 * an epoch) has a segment of its version: without it versions would be lost in silence.
 * GK_E_CORRUPT: it is missing. */
enum gk_err gk_known_complete(const struct gk_place *place, const struct gk_known_list *segments,
                              const struct gk_known_list *snapshots, struct gk_words *words);

#endif
