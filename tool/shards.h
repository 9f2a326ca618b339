/* All shards of one job, from their state directories: what a model is taken from, and what is
 * wound back together. */
#ifndef GK_TOOL_SHARDS_H
#define GK_TOOL_SHARDS_H

#include "common/limits.h"
#include "proto/spec.h"
#include "server/store/archive.h"

struct gk_shard_state {
    struct gk_archive *archive;
    char *path;
    uint64_t newest;        /* version */
    struct gk_image *image; /* at the end of its log; owned by `end` */
    struct gk_archived end;
};

struct gk_shards {
    uint32_t count;
    struct gk_shard_state list[GK_SERVERS_MAX]; /* by shard */
    uint64_t common;                            /* the newest version that all have */
    uint32_t epoch;                             /* the highest */
    bool one_epoch;
    struct gk_spec spec;
    bool has_spec;
};

/* Open the directories (of shards or of whole runs; those of workers are passed over), which must
 * be all the shards of one job that has a version.  `lock`: none may be running.  On failure
 * *ret_exit is the exit code and nothing is open. */
enum gk_err gk_shards_open(const char *const *dirs, size_t count, bool lock,
                           struct gk_shards **ret_shards, int *ret_exit, struct gk_words *words);
void gk_shards_close(struct gk_shards *shards); /* accepts NULL */

/* Words for folders of one job's name whose job uids differ. */
void gk_shards_apart(const char *one, const char *other, const char *job, struct gk_words *words);

/* The exit code for what went wrong with a shard's files. */
int gk_shards_exit(enum gk_err err);

#endif
