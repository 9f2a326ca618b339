/* Whose a directory is: which shard of which job.  The file JOB says so; it is written once, before
 * anything else, and the header of every other file says the same. */
#ifndef GK_SERVER_STORE_OWNER_H
#define GK_SERVER_STORE_OWNER_H

#include "server/core/wal.h"
#include "server/store/files.h"

/* What JOB says.  GK_E_NOTFOUND: there is no such file; GK_E_CORRUPT, GK_E_IO; words name it. */
enum gk_err gk_owner_read(const struct gk_place *place, struct gk_wal_segment *ret_owner,
                          struct gk_words *words);

/* There is no JOB, and no log that says the same: GK_OK when no snapshot is there either, so that
 * nothing was lost; else GK_E_REFUSED, and words name what is missing. */
enum gk_err gk_owner_none(const struct gk_place *place, const struct gk_known_list *snapshots,
                          struct gk_words *words);

#endif
