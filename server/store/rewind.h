/* Taking a shard back to an earlier version: a snapshot of it that begins a new epoch, and then the
 * end of all files of older ones.  Offline; the archive holds the lock.
 *
 * A crash in between leaves both epochs, of which the newer one counts, complete. */
#ifndef GK_SERVER_STORE_REWIND_H
#define GK_SERVER_STORE_REWIND_H

#include "server/store/archive.h"

/* Write `state`, with the lives and sessions of `end` (the end of the log: nobody who was fenced
 * comes back), as the first snapshot of `epoch`, which is above the archive's.  Durable on return.
 * GK_E_LIMIT: no room; GK_E_IO, GK_E_NOMEM. */
enum gk_err gk_rewind_write(const struct gk_archive *archive, const struct gk_archived *state,
                            const struct gk_archived *end, uint32_t epoch, struct gk_words *words);

/* Remove segments and snapshots of epochs below `epoch`.  *ret_files: how many; with `dry` only
 * counted. */
enum gk_err gk_rewind_cut(const struct gk_archive *archive, uint32_t epoch, bool dry,
                          uint32_t *ret_files, struct gk_words *words);

#endif
