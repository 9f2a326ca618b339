/* Goal: a worker with an optimizer of its own fetches parameters once, and from then on sums of
 * every version, none missing; where one is missing it ends, and says what to do. Method: one core
 * against toy servers that restart, and that are further than its slot. */
#include "worker_toy.h"

#include "common/exit.h"

#include <criterion/criterion.h>

static const struct rig_options two = {.servers = 2, .workers = 2, .sums = true};

static void open_both(struct rig *rig, struct toy *toy, uint64_t version)
{
    rig_open(rig, two);
    toy_open(toy, rig);
    toy_begun(toy, version);
    toy_join(toy);
}

static void close_both(struct rig *rig, struct toy *toy)
{
    toy_close(toy);
    rig_close(rig);
}

static void expect_installs(const struct rig *rig, uint32_t from, uint64_t version)
{
    cr_assert_eq(rig->installs_count, from + 2);
    for (uint32_t i = from; i < rig->installs_count; i++) {
        const struct rig_install *install = &rig->installs[i];

        cr_assert(install->version == version && install->plane == (version > 0 ? 1u : 0u));
        cr_assert(install->samples == (version > 0 ? 100 + version : 0));
    }
}

Test(sums, parameters_once_then_sums)
{
    struct rig rig;
    struct toy toy;

    open_both(&rig, &toy, 0);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
    expect_installs(&rig, 0, 0);
    for (uint32_t v = 1; v < 6; v++) {
        toy_compute(&toy);
        toy_serve(&toy);
        cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
        expect_installs(&rig, 2 * v, v);
    }
    close_both(&rig, &toy);
}

/* Another plane than the one that was asked for. */
Test(sums, only_the_plane_that_was_asked_for)
{
    struct rig rig;
    struct toy toy;

    open_both(&rig, &toy, 0);
    toy_compute(&toy);
    toy_serve_some(&toy, 1);
    for (struct gk_msg *msg; (msg = rig_take(&rig, 1, GK_KIND_PUSH));) {
        toy_handle(&toy, 1, msg);
    }
    toy_deliver(&toy);
    {
        struct gk_msg *pull = rig_take(&rig, 1, GK_KIND_PULL_DENSE);
        uint32_t installs = rig.installs_count;

        cr_assert(pull && pull->h.plane == 1 && pull->h.version == 1);
        pull->h.plane = 0;
        toy_handle(&toy, 1, pull);
        toy_deliver(&toy);
        cr_assert(rig.installs_count == installs && gk_worker_stats(rig.core)->bad_messages == 1);
    }
    rig_wait(&rig, 2 * GK_RETRY_BULK_US_MIN);
    toy_serve(&toy);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
    close_both(&rig, &toy);
}

/* The push of step 1 was on its way when the process died; whether the shards have it or not, the
 * next life goes on with the sums of version 2. */
Test(sums, a_slot_goes_on)
{
    for (int had = 0; had < 2; had++) {
        struct rig rig;
        struct toy toy;

        open_both(&rig, &toy, 0);
        toy_compute(&toy);
        toy_serve(&toy);
        toy_compute(&toy);
        if (had) {
            toy_serve(&toy);
            cr_assert(toy.shards[0].version == 2 && toy.shards[1].version == 2);
        }
        rig_restart(&rig, 2);
        rig.installs_count = 0;
        toy_join(&toy);
        cr_assert(rig_in(&rig, GK_PHASE_COMPUTING) && rig.asked[GK_WORKER_STEP] == 2);
        expect_installs(&rig, 0, 2);
        close_both(&rig, &toy);
    }
}

static void expect_end(struct rig *rig, const char *version)
{
    cr_assert(rig->exited && rig->exit_code == GK_EXIT_PEER, "%s", rig->exit_words.text);
    cr_assert(strstr(rig->exit_words.text, version) && strstr(rig->exit_words.text, "rank 0") &&
                  strstr(rig->exit_words.text, "from a checkpoint"),
              "%s", rig->exit_words.text);
    cr_assert(rig->counts[GK_WORKER_RESET] == 0, "the slot may still help somebody");
}

/* A life without a memory, or with one that is too old, cannot have the parameters. */
Test(sums, a_gap_is_an_end)
{
    struct rig rig;
    struct toy toy;

    open_both(&rig, &toy, 5);
    expect_end(&rig, "version 5");
    cr_assert(rig.installs_count == 0);
    close_both(&rig, &toy);

    open_both(&rig, &toy, 0);
    toy_compute(&toy);
    toy_serve(&toy);
    rig_restart(&rig, 1);
    toy.shards[1].version = toy.shards[1].durable = 3;
    toy_join(&toy);
    expect_end(&rig, "version 3");
    close_both(&rig, &toy);
}

/* Another process took the rank and went on, while this one computed or waited. */
Test(sums, overtaken)
{
    for (int computing = 0; computing < 2; computing++) {
        struct rig rig;
        struct toy toy;

        open_both(&rig, &toy, 0);
        if (!computing) {
            toy.shards[0].closes = toy.shards[1].closes = false;
            toy_compute(&toy);
            toy_serve(&toy);
        }
        toy.shards[1].version = toy.shards[1].durable = 4;
        rig_wait(&rig, 2 * GK_PING_US);
        toy_serve(&toy);
        if (computing) {
            cr_assert(!rig.exited);
            rig_step_done(&rig);
        }
        expect_end(&rig, "version 4");
        close_both(&rig, &toy);
    }
}
