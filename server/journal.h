/* The state directory beside the loop: records are written on a thread of their own, snapshots on
 * another one, and what became of them is told on the loop thread. */
#ifndef GK_SERVER_JOURNAL_H
#define GK_SERVER_JOURNAL_H

#include "server/core/server.h"
#include "server/options.h"
#include "server/store/store.h"

struct uv_loop_s;
struct gk_journal;

struct gk_journal_setup { /* borrowed, all but `options` until gk_journal_free() */
    const struct gk_server_options *options;
    const struct gk_vector_ops *ops;
    const struct gk_disk_ops *disk_ops; /* both NULL: the system's files in --state-dir; else the */
    struct gk_disk *disk;               /* disk is taken, also on failure, and the folder a name */
    enum gk_err (*allocate)(void *context, const struct gk_image *image,
                            struct gk_server_memory *ret_memory, struct gk_words *words);
    /* WRITE_DONE and SYNCED, as events for the core; words live during the call. */
    void (*event)(void *context, const struct gk_server_event *event);
    /* The directory cannot be relied on any more: end the process, with this code. */
    void (*failed)(void *context, int exit_code, const char *words);
    void (*closed)(void *context); /* both threads have ended */
    void *context;
};

/* Open --state-dir and recover; blocks for as long as that takes.  Errors of gk_store_open(), and
 * GK_E_NOTFOUND or GK_E_IO for the directory itself; words name it. */
enum gk_err gk_journal_open(const struct gk_journal_setup *setup, struct gk_journal **ret_journal,
                            struct gk_recovered *ret_recovered, struct gk_words *words);

/* Start the threads.  GK_E_NOMEM, GK_E_LIMIT. */
enum gk_err gk_journal_start(struct gk_journal *journal, struct uv_loop_s *loop,
                             struct gk_words *words);

/* Write one record; the event of `op` follows.  One at a time. */
void gk_journal_write(struct gk_journal *journal, uint64_t op, const struct gk_record *record);

/* End the threads after what they are at, once; `closed` follows.  Accepts NULL. */
void gk_journal_close(struct gk_journal *journal);

/* When the loop has ended.  Accepts NULL. */
void gk_journal_free(struct gk_journal *journal);

/* Under a fault script: the disk is full, or has room again.  Only with --allow-faults; accepts
 * NULL. */
void gk_journal_fill(struct gk_journal *journal, bool full);

void gk_journal_stats(const struct gk_journal *journal, struct gk_store_stats *ret);

#endif
