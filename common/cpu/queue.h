/* The queue of the CPU tables: everything completes inline, so a queue is its scratch memory and
 * its sticky error.
 *
 * Both tables share the control code of the slots; they differ in the hot loops alone
 * (common/cpu/loops.h). */
#ifndef GK_COMMON_CPU_QUEUE_H
#define GK_COMMON_CPU_QUEUE_H

#include "common/backend.h"
#include "common/cpu/loops.h"
#include "common/cpu/radix.h"
#include "common/err.h"
#include "common/words.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Who uses a piece of scratch memory. */
enum gk_cpu_scratch {
    GK_CPU_SCRATCH_CANDIDATES,
    GK_CPU_SCRATCH_RESCUE,
    GK_CPU_SCRATCH_PILOT,
    GK_CPU_SCRATCH_KEYS,
    GK_CPU_SCRATCH_STATES,
    GK_CPU_SCRATCH_TILE,
    GK_CPU_SCRATCH_CURSORS,
    GK_CPU_SCRATCH_COUNT,
};

struct gk_queue {
    const struct gk_cpu_loops *loops;
    struct gk_caps caps;
    enum gk_err err; /* sticky */
    struct {
        void *memory;
        size_t bytes;
    } scratch[GK_CPU_SCRATCH_COUNT];
    struct gk_cpu_radix radix;
};

enum gk_err gk_cpu_queue_open(const struct gk_cpu_loops *loops, struct gk_queue **ret_queue,
                              struct gk_words *words);

/* At least `bytes` of memory that lasts until the next call for the same use; the content is not
 * kept.  NULL: out of memory, and GK_E_NOMEM sticks to the queue. */
void *gk_cpu_scratch(struct gk_queue *queue, enum gk_cpu_scratch use, size_t bytes);

/* The service slots. */
void gk_cpu_close(struct gk_queue *queue);
const struct gk_caps *gk_cpu_caps(const struct gk_queue *queue);
void *gk_cpu_alloc(struct gk_queue *queue, enum gk_memory kind, size_t bytes);
void gk_cpu_free(struct gk_queue *queue, enum gk_memory kind, void *memory);
struct gk_ticket gk_cpu_copy(struct gk_queue *queue, void *target, const void *source,
                             size_t bytes);
void gk_cpu_settle(struct gk_queue *queue, void *stream);
enum gk_err gk_cpu_wait(struct gk_queue *queue, struct gk_ticket ticket);
bool gk_cpu_poll(struct gk_queue *queue, struct gk_ticket ticket);

/* The other slots, in the files of their names. */
struct gk_ticket gk_cpu_accumulate(struct gk_queue *queue, const struct gk_accumulate_args *args);
struct gk_ticket gk_cpu_select(struct gk_queue *queue, const struct gk_select_args *args);
struct gk_ticket gk_cpu_select_ge(struct gk_queue *queue, const struct gk_select_ge_args *args);
struct gk_ticket gk_cpu_stats(struct gk_queue *queue, const struct gk_stats_args *args);
struct gk_ticket gk_cpu_sample(struct gk_queue *queue, const struct gk_sample_args *args);
struct gk_ticket gk_cpu_take(struct gk_queue *queue, const struct gk_take_args *args);
struct gk_ticket gk_cpu_give(struct gk_queue *queue, const struct gk_give_args *args);
struct gk_ticket gk_cpu_sum(struct gk_queue *queue, const struct gk_sum_args *args);
struct gk_ticket gk_cpu_apply(struct gk_queue *queue, const struct gk_apply_args *args);
struct gk_ticket gk_cpu_hash(struct gk_queue *queue, const struct gk_hash_args *args);

#endif
