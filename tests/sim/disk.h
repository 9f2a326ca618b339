/* A simulated disk behind the table of server/store/disk.h.  It belongs to a host, so it outlives
 * the processes of a shard; what they wrote and did not sync outlives a kill, and not a power
 * failure.
 *
 * What the power takes is drawn: of each page that was not synced the old bytes, the new ones, or
 * new ones up to some byte; of the names some prefix of what was done to them, or any part of it.
 * A sync that fails forgets which pages it should have written, as Linux does: the next one
 * succeeds, and they are lost with the power. */
#ifndef GK_TESTS_SIM_DISK_H
#define GK_TESTS_SIM_DISK_H

#include "server/store/disk.h"
#include "tests/sim/rng.h"

enum { GK_SIM_DISK_NAMES_MAX = 64, GK_SIM_DISK_NAME_BYTES = 64, GK_SIM_PAGE = 512 };

enum gk_sim_loss {
    GK_SIM_LOSS_ALL,  /* of what was not synced */
    GK_SIM_LOSS_NONE, /* it had all been written back */
    GK_SIM_LOSS_SOME,
};

struct gk_sim_inode;
struct gk_sim_change;

struct gk_sim_name {
    char text[GK_SIM_DISK_NAME_BYTES];
    struct gk_sim_inode *inode; /* NULL: free */
};

struct gk_disk {
    struct gk_sim_name names[GK_SIM_DISK_NAMES_MAX];
    struct gk_sim_name safe_names[GK_SIM_DISK_NAMES_MAX]; /* as of the last sync of the directory */
    struct gk_sim_change *changes;                        /* since then */
    uint32_t changes_count, changes_room;
    bool locked;

    uint64_t calls;                 /* that change something, so far */
    uint64_t die_at;                /* in this one the process dies; 0: in none */
    uint64_t die_again;             /* in this call of the next life; 0: in none */
    bool dead;                      /* the process: no call has any effect any more */
    uint64_t syncs;                 /* so far */
    uint64_t fail_at;               /* this one of them fails; 0: none */
    uint64_t writes, fail_write_at; /* the same of writes, and a part is written */
    bool full;                      /* nothing may grow */
    bool no_sync;                   /* planted bug: confirms and does nothing */
    bool unordered;                 /* names are written back in any order */
    uint64_t refused;               /* calls that a full disk refused */
    struct gk_sim_rng rng;
};

const struct gk_disk_ops *gk_sim_disk_ops(void);

struct gk_disk *gk_sim_disk_new(uint64_t seed);
void gk_sim_disk_free(struct gk_disk *disk); /* accepts NULL */

/* The process has ended, and its store is closed: the next one finds all that was written. */
void gk_sim_disk_next_life(struct gk_disk *disk);

/* The machine has lost its power while no process had the disk open. */
void gk_sim_disk_power_off(struct gk_disk *disk, enum gk_sim_loss loss);

/* All files are gone, for good. */
void gk_sim_disk_wipe(struct gk_disk *disk);

/* Bytes of a file that were not synced; 0 when there is no such file. */
uint64_t gk_sim_disk_unsynced(const struct gk_disk *disk);

#endif
