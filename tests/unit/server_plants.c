/* Goal: each planted bug does the harm that it is named after, so that a simulator which does not
 * notice it is broken. Method: the shortest story for each, with and without the plant. */
#include "server_job.h"

static struct rig *planted(uint32_t workers, uint32_t plant)
{
    struct rig *rig = rig_new(workers, 1, 0);

    rig->config.plant = plant;
    rig_again(rig);
    rig_start(rig);
    for (uint32_t r = 0; r < workers; r++) {
        rig_hello(rig, r, 1);
    }
    rig_init(rig);
    return rig;
}

/* A retry of step 0 arrives in round 1, before the push of step 1. */
static bool retry_counts_twice(uint32_t plant)
{
    struct rig *rig = planted(2, plant);
    struct rig_model model;
    bool same;

    rig_round(rig, 0);
    rig_push(rig, 0, 0);
    rig_push(rig, 1, 1);
    if (rig_view(rig).version == 1) {
        rig_push(rig, 0, 1);
    }
    rig_model_run(rig, &model, 2);
    same = rig_view(rig).version == 2 && rig_same(rig, &model);
    rig_free(rig);
    return !same;
}

Test(server_plants, no_dedup)
{
    cr_assert(!retry_counts_twice(0));
    cr_assert(retry_counts_twice(GK_SERVER_PLANT_NO_DEDUP));
}

static uint32_t verdict_of_retry(uint32_t plant)
{
    struct rig *rig = planted(1, plant);
    uint32_t verdict;

    rig_push(rig, 0, 0);
    rig_push(rig, 0, 0);
    verdict = rig_last(rig)->msg.h.verdict;
    rig_free(rig);
    return verdict;
}

Test(server_plants, stale_first)
{
    cr_assert(verdict_of_retry(0) == GK_VERDICT_APPLIED);
    cr_assert(verdict_of_retry(GK_SERVER_PLANT_STALE_FIRST) == GK_VERDICT_RETURNED);
}

static bool session_survives(uint32_t plant)
{
    struct rig *rig = planted(1, plant);
    uint64_t session = rig->session[0];

    rig_restart(rig);
    rig_hello(rig, 0, 1);
    session ^= rig->session[0];
    rig_free(rig);
    return session == 0;
}

Test(server_plants, same_session)
{
    cr_assert(!session_survives(0));
    cr_assert(session_survives(GK_SERVER_PLANT_SAME_SESSION));
}

static uint64_t halves_make_a_push(uint32_t plant)
{
    struct rig *rig = planted(2, plant);
    struct rig_push first = rig_make_push(rig, 1, 0, 1), second = rig_make_push(rig, 1, 0, 0);
    uint64_t pending;

    for (uint32_t c = 0; c < first.chunks; c++) {
        rig_push_chunk(rig, 1, c < first.chunks / 2 ? &first : &second, c);
    }
    pending = rig_view(rig).ledger.pending;
    rig_free(rig);
    return pending;
}

Test(server_plants, mixed_chunks)
{
    cr_assert(halves_make_a_push(0) == 0);
    cr_assert(halves_make_a_push(GK_SERVER_PLANT_MIXED_CHUNKS) == 1);
}

static bool waits_for_the_departed(uint32_t plant)
{
    struct rig *rig = planted(2, plant);
    bool waits;

    rig_leave(rig, 1, 0);
    cr_kind(rig, GK_KIND_LEAVE_OK);
    rig_restart(rig);
    rig_hello(rig, 0, 1);
    rig_push(rig, 0, 0);
    waits = rig_view(rig).version == 0;
    rig_free(rig);
    return waits;
}

Test(server_plants, forget_leave)
{
    cr_assert(!waits_for_the_departed(0));
    cr_assert(waits_for_the_departed(GK_SERVER_PLANT_FORGET_LEAVE));
}
