/* A slot in a directory of its own, for the tests of worker/state: residuals and pushes are
 * functions of the step, so that what is found can be judged. */
#ifndef GK_TESTS_UNIT_WORKER_SLOT_RIG_H
#define GK_TESTS_UNIT_WORKER_SLOT_RIG_H

#include "worker/state/slot.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SLOT_PARAMS = 256, SLOT_ENTRIES = 40, SLOT_RANK = 1, SLOT_PATH_BYTES = 128 };

struct slot_rig {
    char directory[SLOT_PATH_BYTES];
    struct gk_slot_setup setup;
    struct gk_slot *slot;
    struct gk_slot_found found;
    struct gk_words words;
};

static inline void slot_path(const struct slot_rig *rig, const char *name, char *ret)
{
    (void)snprintf(ret, 2 * SLOT_PATH_BYTES, "%s/%s", rig->directory, name);
}

/* A directory that does not exist yet. */
static inline void slot_rig_init(struct slot_rig *rig)
{
    memset(rig, 0, sizeof(*rig));
    (void)snprintf(rig->directory, sizeof(rig->directory), "/tmp/gkps-slot-XXXXXX");
    cr_assert(mkdtemp(rig->directory) != NULL);
    rig->setup = (struct gk_slot_setup){.directory = rig->directory,
                                        .job = "slots",
                                        .workers = 4,
                                        .servers = 2,
                                        .rank = SLOT_RANK,
                                        .params_count = SLOT_PARAMS,
                                        .push_max = SLOT_ENTRIES,
                                        .spec_hash = 0x5bec,
                                        .model_signature = 0x30de1,
                                        .chunk_floats = 4};
}

static inline void slot_drop_pushes(struct slot_rig *rig)
{
    for (uint32_t i = 0; i < rig->found.slot.pushes_count; i++) {
        gk_push_free(rig->found.slot.pushes[i]);
    }
    rig->found.slot.pushes_count = 0;
}

static inline void slot_rig_close(struct slot_rig *rig)
{
    gk_slot_close(rig->slot);
    rig->slot = NULL;
    slot_drop_pushes(rig);
}

static inline void slot_rig_fini(struct slot_rig *rig)
{
    static const char *const names[] = {"LOCK", "slot", "slot.tmp"};
    char path[2 * SLOT_PATH_BYTES];

    slot_rig_close(rig);
    for (size_t i = 0; i < 3; i++) {
        slot_path(rig, names[i], path);
        (void)unlink(path);
    }
    cr_assert(rmdir(rig->directory) == 0);
}

static inline enum gk_err slot_rig_open(struct slot_rig *rig)
{
    return gk_slot_open(&rig->setup, &rig->slot, &rig->found, &rig->words);
}

static inline float slot_value(uint64_t step, uint64_t i)
{
    return (float)(step + 1) * 1024 + (float)i;
}

static inline struct gk_push *slot_push(uint64_t step)
{
    uint32_t idx[SLOT_ENTRIES];
    float val[SLOT_ENTRIES];
    /* From shard 0 few entries, from shard 1 so many that its slice is dense. */
    uint32_t sparse = step % 2 ? 10 : 0;
    struct gk_push_source source = {.step = step,
                                    .samples = 32,
                                    .has_rate = step % 3 > 0,
                                    .lr = 0.125f * (float)(step % 3),
                                    .rank = SLOT_RANK,
                                    .servers = 2,
                                    .params_count = SLOT_PARAMS,
                                    .idx = idx,
                                    .val = val,
                                    .n = SLOT_ENTRIES,
                                    .chunk_floats = 4};
    struct gk_push *push;
    struct gk_words words;

    for (uint32_t i = 0; i < SLOT_ENTRIES; i++) {
        idx[i] = i < sparse ? i * 7 : 128 + (i - sparse) * 3;
        val[i] = slot_value(step, i) / 3;
    }
    cr_assert(gk_push_encode(&source, &push, &words) == GK_OK);
    return push;
}

static inline bool slot_same_push(const struct gk_push *a, const struct gk_push *b)
{
    if (a->step != b->step || a->samples != b->samples || a->slices_count != b->slices_count ||
        a->has_rate != b->has_rate || a->lr_bits != b->lr_bits) {
        return false;
    }
    for (uint32_t s = 0; s < a->slices_count; s++) {
        const struct gk_push_slice *x = &a->slices[s], *y = &b->slices[s];

        if (x->id != y->id || x->bytes != y->bytes || x->chunks_count != y->chunks_count) {
            return false;
        }
        for (uint32_t c = 0; c < x->chunks_count; c++) {
            if (x->chunks[c].frames_count != y->chunks[c].frames_count ||
                x->chunks[c].lo != y->chunks[c].lo || x->chunks[c].hi != y->chunks[c].hi ||
                x->chunks[c].index_encoding != y->chunks[c].index_encoding) {
                return false;
            }
        }
    }
    return true;
}

static inline struct gk_worker_identity slot_identity(uint32_t incarnation)
{
    return (struct gk_worker_identity){.rank = SLOT_RANK,
                                       .incarnation = incarnation,
                                       .joined_incarnation = incarnation,
                                       .job_uid = {.hi = 7, .lo = 8},
                                       .init_id = 0x1111};
}

static inline void slot_remember(struct slot_rig *rig, uint32_t incarnation)
{
    struct gk_worker_identity identity = slot_identity(incarnation);

    cr_assert(gk_slot_remember(rig->slot, &identity, &rig->words) == GK_OK);
}

/* One step as the trainer makes it; `hook` falls in the middle of the residual. */
static inline void slot_step(struct slot_rig *rig, uint64_t step, uint64_t first_step)
{
    struct gk_worker_memory memory = {.step = step, .first_step = first_step, .incarnation = 1};
    struct gk_push *push = slot_push(step);
    float *target;

    gk_slot_begin(rig->slot, step);
    target = gk_slot_target(rig->slot);
    for (uint64_t i = 0; i < SLOT_PARAMS; i++) {
        if (i == SLOT_PARAMS / 2 && rig->setup.hook) {
            rig->setup.hook(rig->setup.hook_context, "half a residual");
        }
        target[i] = slot_value(step, i);
    }
    cr_assert(gk_slot_put(rig->slot, push, &rig->words) == GK_OK, "%s", rig->words.text);
    cr_assert(gk_slot_persist(rig->slot, &memory, &rig->words) == GK_OK);
    gk_push_free(push);
}

/* What was found is the state behind `memory.step`, whole. */
static inline void slot_judge(struct slot_rig *rig)
{
    const struct gk_worker_slot *slot = &rig->found.slot;
    const float *residual = gk_slot_residual(rig->slot);
    uint64_t step = slot->memory.step, made = step - slot->memory.first_step + 1;
    uint64_t least = made < GK_RING_ENTRIES - 1 ? made : GK_RING_ENTRIES - 1;

    if (!slot->remembers) {
        cr_assert(slot->pushes_count == 0);
        for (uint64_t i = 0; i < SLOT_PARAMS; i++) {
            cr_assert(residual[i] == 0.0f);
        }
        return;
    }
    for (uint64_t i = 0; i < SLOT_PARAMS; i++) {
        cr_assert(residual[i] == slot_value(step, i), "step %llu", (unsigned long long)step);
    }
    cr_assert(slot->pushes_count >= least && slot->pushes_count <= made);
    for (uint32_t p = 0; p < slot->pushes_count; p++) {
        struct gk_push *push = slot_push(step - p);

        cr_assert(slot_same_push(push, slot->pushes[p]), "step %llu, push %u",
                  (unsigned long long)step, p);
        gk_push_free(push);
    }
}

#endif
