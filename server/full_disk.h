/* A disk that is full when somebody says so: for fault scripts (gkps run --faults).  It stands
 * between the store and another disk; while it is full a write leaves a part of itself, as on a
 * real one, and no room can be reserved. */
#ifndef GK_SERVER_FULL_DISK_H
#define GK_SERVER_FULL_DISK_H

#include "server/store/disk.h"

/* For disks that gk_full_disk_new() made. */
const struct gk_disk_ops *gk_full_disk_ops(void);

/* Takes `inner`, also on failure.  Not full at first.  NULL: out of memory. */
struct gk_disk *gk_full_disk_new(const struct gk_disk_ops *ops, struct gk_disk *inner);

/* Any thread, while the disk is open. */
void gk_full_disk_set(struct gk_disk *disk, bool full);

#endif
