/* Folders with the state of a job: that of `gkps run --state-dir DIR`
 *
 *   DIR/LOCK         held by the launcher
 *   DIR/job.json     the options of the job (run_job.h)
 *   DIR/server-I/    the state of shard I (server/store)
 *   DIR/worker-R/    the state of rank R
 *
 * and those of single daemons. */
#ifndef GK_TOOL_STATE_DIR_H
#define GK_TOOL_STATE_DIR_H

#include "common/err.h"
#include "common/words.h"
#include "tool/tally.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { GK_STATE_PATH_BYTES = 4096 };

#define GK_STATE_LOCK "LOCK"
#define GK_STATE_JOB "job.json"

/* DIR/server-I or DIR/worker-R, as one may give it to a daemon. */
void gk_state_path(const char *dir, enum gk_role role, uint32_t index, char *ret, size_t ret_bytes);

/* Whether `dir` is a folder, or may become one.  GK_E_REFUSED. */
enum gk_err gk_state_check(const char *dir, struct gk_words *words);

struct gk_state_folder {
    char *path;
    bool server;    /* else of a worker */
    uint32_t index; /* of its name in the run's folder; 0: it was named by itself */
};

struct gk_state_folders { /* ascending: servers, then workers, each by index */
    struct gk_state_folder *list;
    size_t count, room;
};

/* Daemons' folders in `dir`, which may be a daemon's folder itself: then that one.  Appends.
 * GK_E_NOTFOUND: neither, or `dir` is not there; GK_E_IO, GK_E_NOMEM. */
enum gk_err gk_state_find(const char *dir, struct gk_state_folders *folders,
                          struct gk_words *words);
void gk_state_folders_fini(struct gk_state_folders *folders);

/* Whether the file `name` in `dir`, there or not, is part of the state of a job: any in a daemon's
 * folder that holds state, and those that gkps keeps in a run's folder. */
bool gk_state_owns(const char *dir, const char *name);

struct gk_state_content { /* of a run's folder */
    uint64_t files, bytes;
    uint32_t servers, workers;        /* folders */
    bool job;                         /* job.json is there */
    char unknown[GK_WORDS_BYTES / 2]; /* path below `dir` of one that is not ours; "": none */
};

/* Look at everything in `dir`.  GK_E_NOTFOUND, GK_E_IO. */
enum gk_err gk_state_look(const char *dir, struct gk_state_content *ret, struct gk_words *words);

/* Remove what is ours, the lock aside; only after gk_state_look() has found nothing unknown. */
enum gk_err gk_state_remove(const char *dir, struct gk_words *words);

/* The lock of a folder, of the run's or of a daemon's: -1 and GK_E_BUSY when a living process has
 * it.  Held until the descriptor is closed. */
enum gk_err gk_state_lock(const char *dir, int *ret_fd, struct gk_words *words);

/* Whether a living process has the lock of a daemon's folder; one that is not there is free. */
bool gk_state_is_locked(const char *dir);

/* Which process that is; 0: nobody, or the system does not tell. */
long gk_state_locker(const char *dir);

#endif
