/* Goal: lives of a worker that know of each other only what the file says make each step once.
 * Method: one core a life, the real slot file between them, toy servers; a life ends behind each of
 * the stages of a step. */
#include "worker_slot_rig.h"
#include "worker_toy.h"

#include <criterion/criterion.h>

static const struct rig_options two = {
    .servers = 2, .rank = 1, .workers = 2, .entries = 40, .chunk_floats = 4, .params = 256};

struct lives {
    struct rig rig;
    struct toy toy;
    struct slot_rig state;
    uint64_t counts[GK_WORKER_EXIT + 1]; /* performed, of this life */
};

static void begin(struct lives *l)
{
    struct toy toy = l->toy;

    rig_open(&l->rig, two);
    l->toy = toy;
    l->toy.rig = &l->rig;
    memset(l->counts, 0, sizeof(l->counts));
    cr_assert(slot_rig_open(&l->state) == GK_OK, "%s", l->state.words.text);
    cr_assert_str_empty(l->state.found.damage.text);
    l->rig.identity = l->state.found.slot.identity;
    gk_worker_resume(l->rig.core, &l->state.found.slot);
    rig_start(&l->rig);
}

static void end(struct lives *l)
{
    for (uint32_t i = 0; i < l->toy.replies_count; i++) {
        gk_msg_clear(&l->toy.replies[i].msg);
    }
    l->toy.replies_count = 0;
    slot_rig_close(&l->state);
    rig_close(&l->rig);
}

/* What the daemon's shell would have done by now. */
static void keep(struct lives *l)
{
    struct gk_words *words = &l->state.words;

    if (l->rig.counts[GK_WORKER_REMEMBER] > l->counts[GK_WORKER_REMEMBER]) {
        cr_assert(gk_slot_remember(l->state.slot, &l->rig.identity, words) == GK_OK);
    }
    if (l->rig.counts[GK_WORKER_RESET] > l->counts[GK_WORKER_RESET]) {
        cr_assert(gk_slot_void(l->state.slot, words) == GK_OK);
    }
    memcpy(l->counts, l->rig.counts, sizeof(l->counts));
}

/* Up to the push of a step, and as far behind it as `stage` says: computed, persisted, at shard 0,
 * at both. */
static void work(struct lives *l, uint64_t step, uint32_t stage)
{
    struct gk_push *push = rig_push(&l->rig, step);

    rig_up(&l->rig, 0);
    rig_up(&l->rig, 1);
    toy_serve(&l->toy);
    keep(l);
    cr_assert(rig_in(&l->rig, GK_PHASE_COMPUTING), "step %llu", (unsigned long long)step);
    cr_assert_eq(l->rig.asked[GK_WORKER_STEP], step);
    gk_slot_begin(l->state.slot, step);
    gk_slot_target(l->state.slot)[0] = (float)step;
    cr_assert(gk_slot_put(l->state.slot, push, &l->state.words) == GK_OK);
    gk_push_free(push);
    rig_step_done(&l->rig);
    if (stage == 0) {
        return;
    }
    cr_assert(gk_slot_persist(l->state.slot, &l->rig.memory, &l->state.words) == GK_OK);
    rig_persisted(&l->rig);
    toy_serve_some(&l->toy, stage > 2 ? 3 : stage - 1);
    keep(l);
}

Test(resume_file, lives_that_meet_in_a_file)
{
    struct lives l;
    uint64_t step = 0;

    memset(&l, 0, sizeof(l));
    rig_open(&l.rig, two);
    toy_open(&l.toy, &l.rig);
    toy_begun(&l.toy, 0);
    rig_close(&l.rig);
    slot_rig_init(&l.state);
    for (uint32_t life = 0; life < 16; life++) {
        uint32_t stage = life % 4;

        begin(&l);
        work(&l, step, stage);
        step += stage > 0;
        end(&l);
    }
    begin(&l);
    work(&l, step, 3);
    cr_assert(l.rig.identity.incarnation == 17 && l.rig.identity.joined_incarnation == 17);
    cr_assert_eq(l.rig.counts[GK_WORKER_RESET], 0);
    cr_assert(gk_worker_stats(l.rig.core)->lost == 0 && !rig_said(&l.rig, "WORKER-PUSH-LOST", ""));
    for (uint64_t t = 0; t < step; t++) {
        struct gk_push *push = rig_push(&l.rig, t);

        for (uint32_t s = 0; s < 2; s++) {
            cr_assert_eq(l.toy.shards[s].applied[t], push->slices[s].id);
        }
        gk_push_free(push);
    }
    end(&l);
    toy_close(&l.toy);
    slot_rig_fini(&l.state);
}
