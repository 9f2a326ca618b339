/* Goal: with optimizer none a shard serves of each version the sum of its round, divided by its
 * samples, and says of how many; the parameters stay. Method: rounds with pushes, with empty ones
 * and with nothing, before and after a restart; the plane against the pushes, one element at a
 * time. */
#include "server_job.h"

static void pull_plane(struct rig *rig, uint32_t plane, uint64_t version)
{
    struct gk_msg msg = rig_msg(rig, GK_KIND_PULL_DENSE, 0);

    msg.h.version = version;
    msg.h.plane = plane;
    msg.h.lo = rig->lo;
    msg.h.hi = rig->hi;
    rig_send(rig, rig_route(0, 1), &msg);
}

/* In rank order from +0, one division. */
static void expect_sums(const struct rig *rig, const struct rig_push *pushes, uint32_t count,
                        const float *values)
{
    float sums[RIG_PARAMS] = {0};
    uint64_t samples = 0;

    for (uint32_t p = 0; p < count; p++) {
        samples += pushes[p].samples;
        for (uint32_t c = 0; c < pushes[p].chunks; c++) {
            for (uint32_t j = 0; j < pushes[p].counts[c]; j++) {
                sums[c * RIG_CHUNK + pushes[p].idx[c][j]] += pushes[p].val[c][j];
            }
        }
    }
    for (uint64_t i = 0; i < rig->hi - rig->lo; i++) {
        float want = samples > 0 ? sums[i] / (float)samples : 0.0f;

        cr_assert(gk_float_bits(values[i]) == gk_float_bits(want), "%u: %a, want %a", (unsigned)i,
                  (double)values[i], (double)want);
    }
}

Test(server_sums, of_every_version)
{
    struct rig *rig = rig_running_with(2, GK_OPTIMIZER_NONE);

    pull_plane(rig, 1, 0);
    cr_kind(rig, GK_KIND_PARAMS);
    cr_assert(rig_last(rig)->msg.h.samples == 0 && rig_last(rig)->msg.h.plane == 1);
    expect_sums(rig, NULL, 0, rig_last(rig)->values);
    for (uint64_t t = 0; t < 4; t++) {
        struct rig_push pushes[2] = {rig_make_push(rig, 0, t, 0), rig_make_push(rig, 1, t, 0)};
        uint64_t waiting;

        if (t == 1) { /* one rank has nothing */
            pushes[0] = rig_empty_push(0, t, 0);
        } else if (t == 2) { /* nobody has: no trace of the round before is left */
            pushes[0] = rig_empty_push(0, t, 0);
            pushes[1] = rig_empty_push(1, t, 0);
        }
        pull_plane(rig, 1, t + 1);
        waiting = rig->req_ids;
        rig_push_all(rig, 0, &pushes[0]);
        rig_push_all(rig, 1, &pushes[1]);
        cr_assert(rig_view(rig).version == t + 1);
        cr_assert(rig_reply_to(rig, waiting)->msg.h.samples ==
                  pushes[0].samples + pushes[1].samples);
        expect_sums(rig, pushes, 2, rig_reply_to(rig, waiting)->values);
        rig_restart(rig);
        rig_hello(rig, 0, 1);
        rig_hello(rig, 1, 1);
        pull_plane(rig, 1, t + 1);
        cr_assert(rig_last(rig)->msg.h.samples == pushes[0].samples + pushes[1].samples);
        expect_sums(rig, pushes, 2, rig_last(rig)->values);
        pull_plane(rig, 0, t + 1);
        cr_kind(rig, GK_KIND_PARAMS);
        cr_assert(rig_last(rig)->msg.h.samples == 0);
        cr_assert(memcmp(rig_last(rig)->values, rig->initial, sizeof(rig->initial)) == 0);
    }
    rig_free(rig);
}

/* A sum is of one version: a later one is GONE, and there is no third plane. */
Test(server_sums, past_and_beyond)
{
    struct rig *rig = rig_running_with(1, GK_OPTIMIZER_NONE);

    rig_round(rig, 0);
    rig_round(rig, 1);
    pull_plane(rig, 1, 1);
    cr_kind(rig, GK_KIND_GONE);
    cr_assert(rig_last(rig)->msg.h.version == 2 && rig_last(rig)->msg.h.plane == 1);
    pull_plane(rig, 2, 2);
    cr_code(rig, GK_CODE_BAD_SHAPE);
    rig_free(rig);
}

/* Of other optimizers plane 1 is a moment, which is of no round alone; plain SGD has none. */
Test(server_sums, others_have_none)
{
    for (int optimizer = GK_OPTIMIZER_SGD; optimizer <= GK_OPTIMIZER_NESTEROV; optimizer++) {
        struct rig *rig = rig_running_with(1, (enum gk_optimizer)optimizer);

        rig_round(rig, 0);
        pull_plane(rig, 1, 1);
        if (optimizer == GK_OPTIMIZER_SGD) {
            cr_code(rig, GK_CODE_BAD_SHAPE);
        } else {
            cr_kind(rig, GK_KIND_PARAMS);
            cr_assert(rig_last(rig)->msg.h.samples == 0);
        }
        rig_free(rig);
    }
}
