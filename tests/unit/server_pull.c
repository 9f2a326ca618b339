/* Goal: a chunk of parameters is of exactly the version that was asked for, whenever the request
 * comes. Method: pulls before, during and after a commit whose stages are held; repeated, of the
 * past, of the future, too many. */
#include "server_job.h"

static bool is_plane(const struct rig *rig, const float *values)
{
    return memcmp(values, gk_server_plane(rig->core, 0), (rig->hi - rig->lo) * sizeof(float)) == 0;
}

Test(server_pull, exact_version_now)
{
    struct rig *rig = rig_running(2);
    const struct gk_header *h;

    rig_pull_range(rig, 1, 0, 16, 24);
    cr_kind(rig, GK_KIND_PARAMS);
    h = &rig_last(rig)->msg.h;
    cr_assert(h->version == 0 && h->lo == 16 && h->hi == 24 && h->count == 8 && h->plane == 0);
    cr_assert(memcmp(rig_last(rig)->values, rig->initial + 16, 8 * sizeof(float)) == 0);
    rig_free(rig);
}

Test(server_pull, waits_through_every_stage)
{
    static const uint32_t stages[] = {GK_SERVER_SUM, GK_SERVER_WRITE, GK_SERVER_APPLY};

    for (size_t i = 0; i < 3; i++) {
        struct rig *rig = rig_running(2);
        uint64_t early, late;

        rig_pull(rig, 0, 1);
        early = rig->req_ids;
        cr_assert(rig_kind(rig) == 0);
        rig->held = 1u << stages[i];
        rig_round(rig, 0);
        rig_pull(rig, 1, 1);
        late = rig->req_ids;
        cr_assert(!rig_reply_to(rig, early) && !rig_reply_to(rig, late), "stage %zu", i);
        rig_pull_range(rig, 1, 0, 0, 8); /* the version that is going */
        if (stages[i] == GK_SERVER_APPLY) {
            cr_assert(rig_kind(rig) == 0, "nobody reads planes that are being written");
        } else {
            cr_kind(rig, GK_KIND_PARAMS);
            cr_assert(memcmp(rig_last(rig)->values, rig->initial, 8 * sizeof(float)) == 0);
        }
        rig_release(rig);
        if (stages[i] == GK_SERVER_APPLY) {
            cr_kind(rig, GK_KIND_GONE);
        }
        cr_assert(rig_reply_to(rig, early)->msg.h.kind == GK_KIND_PARAMS &&
                  is_plane(rig, rig_reply_to(rig, early)->values));
        cr_assert(rig_reply_to(rig, late)->msg.h.version == 1 &&
                  is_plane(rig, rig_reply_to(rig, late)->values));
        cr_assert(rig_reply_to(rig, early)->msg.h.verdict == GK_VERDICT_APPLIED);
        rig_free(rig);
    }
}

Test(server_pull, a_repeated_one_replaces_the_first)
{
    struct rig *rig = rig_running(1);
    uint64_t first;

    rig_pull(rig, 0, 1);
    first = rig->req_ids;
    rig_pull(rig, 0, 1);
    rig_round(rig, 0);
    rig->req_ids = first + 1;
    cr_assert(!rig_reply_to(rig, first));
    cr_kind(rig, GK_KIND_PARAMS);
    rig_free(rig);
}

Test(server_pull, past_versions_are_gone)
{
    struct rig *rig = rig_running(1);
    struct gk_msg msg;

    rig_round(rig, 0);
    rig_round(rig, 1);
    rig_pull(rig, 0, 1);
    cr_kind(rig, GK_KIND_GONE);
    cr_assert(rig_last(rig)->msg.h.version == 2);
    msg = rig_msg(rig, GK_KIND_PULL_DENSE, 0);
    msg.h.version = 1;
    msg.h.hi = rig->hi;
    msg.h.flags = GK_FLAG_AT_LEAST;
    rig_send(rig, rig_route(0, 1), &msg);
    cr_kind(rig, GK_KIND_PARAMS);
    cr_assert(rig_last(rig)->msg.h.version == 2 && is_plane(rig, rig_last(rig)->values));
    rig_free(rig);
}

Test(server_pull, shapes)
{
    struct rig *rig = rig_running(1);
    struct gk_msg msg;

    rig_pull_range(rig, 0, 0, 8, RIG_PARAMS + 1);
    cr_code(rig, GK_CODE_BAD_SHAPE);
    msg = rig_msg(rig, GK_KIND_PULL_DENSE, 0);
    msg.h.hi = 8;
    msg.h.plane = 2;
    rig_send(rig, rig_route(0, 1), &msg);
    cr_code(rig, GK_CODE_BAD_SHAPE);
    msg.h.plane = 1; /* momentum */
    msg.h.req_id = ++rig->req_ids;
    rig_send(rig, rig_route(0, 1), &msg);
    cr_kind(rig, GK_KIND_PARAMS);
    cr_assert(rig_last(rig)->values[0] == 0 && rig_last(rig)->msg.h.plane == 1);
    rig_free(rig);
}

Test(server_pull, too_many_wait)
{
    struct rig *rig = rig_running(1);
    uint64_t last;

    for (uint32_t i = 0; i < GK_SERVER_PULLS_MAX; i++) {
        rig_pull_range(rig, 0, 1, i, i + 1);
        cr_assert(rig_kind(rig) == 0);
    }
    rig_pull_range(rig, 0, 1, 40, 48);
    cr_code(rig, GK_CODE_NOT_READY);
    cr_assert(rig_retryable(rig));
    rig_pull_range(rig, 0, 1, 3, 4); /* a repeated one needs no slot */
    cr_assert(rig_kind(rig) == 0);
    last = rig->req_ids;
    rig_round(rig, 0);
    cr_assert(rig_reply_to(rig, last)->msg.h.kind == GK_KIND_PARAMS);
    rig_free(rig);
}

/* More waiting pulls than one step may answer: a timer goes on with the rest, each is answered
 * once. */
Test(server_pull, bounded_per_step)
{
    struct rig *rig = rig_running(RIG_RANKS_MAX);
    uint32_t params = 0, turns = 0;

    for (uint32_t r = 0; r < RIG_RANKS_MAX; r++) {
        for (uint32_t i = 0; i < GK_SERVER_PULLS_MAX; i++) {
            rig_pull_range(rig, r, 1, i, i + 2);
        }
    }
    rig_clear(rig);
    rig_round(rig, 0);
    for (;;) {
        params = 0;
        for (uint32_t i = 0; i < rig->replies_count; i++) {
            params += rig->replies[i].msg.h.kind == GK_KIND_PARAMS;
        }
        if (rig->timer_us > rig->now_us) {
            break;
        }
        turns++;
        rig_tick(rig, 0);
    }
    cr_assert(params == RIG_RANKS_MAX * GK_SERVER_PULLS_MAX && turns == 1, "%u answers, %u turns",
              params, turns);
    rig_free(rig);
}

Test(server_pull, a_new_session_forgets_them)
{
    struct rig *rig = rig_running(2);
    struct gk_msg msg = rig_hello_msg(rig, 1, 2);
    uint64_t pull;

    rig_pull(rig, 1, 1);
    pull = rig->req_ids;
    msg.body.hello.takeover = true;
    msg.h.req_id = ++rig->req_ids;
    rig_say_hello(rig, 1, 2, &msg);
    rig_round(rig, 0);
    cr_assert(rig_view(rig).version == 1 && !rig_reply_to(rig, pull));
    rig_free(rig);
}
