/* Goal: a learning rate that all ranks bring is the one of the round and of its record; ranks that
 * bring different ones all hear so, nothing is committed, and the shard ends. Method: rounds of
 * three ranks with equal, different and missing rates, with empty and LOST pushes, over a restart.
 */
#include "server_job.h"

#include "common/exit.h"

#include <math.h>

static struct rig_push bring(struct rig *rig, uint32_t rank, uint64_t step, float lr)
{
    struct rig_push push = rig_make_push(rig, rank, step, 0);

    if (lr >= 0) {
        rig_bring_rate(&push, lr);
    }
    return push;
}

static float rate_of_record(const struct rig *rig)
{
    const struct rig_record *kept = &rig->records[rig->records_count - 1];

    cr_assert(kept->record.type == GK_RECORD_ROUND);
    return kept->record.hyper.lr;
}

Test(server_rates, all_the_same)
{
    static const float rates[] = {0.25f, 0.0f, 1e-30f, 1e30f, 0.1f};
    struct rig *rig = rig_running_with(2, GK_OPTIMIZER_SGD);

    for (uint64_t t = 0; t < 5; t++) {
        for (uint32_t r = 0; r < 2; r++) {
            struct rig_push push = bring(rig, r, t, rates[t]);

            rig_push_all(rig, r, &push);
        }
        cr_assert(rig_view(rig).version == t + 1);
        cr_assert(gk_float_bits(rate_of_record(rig)) == gk_float_bits(rates[t]));
    }
    rig_round(rig, 5); /* without one: the schedule's */
    cr_assert(gk_float_bits(rate_of_record(rig)) == gk_float_bits(gk_spec_lr(&rig->spec, 5)));
    rig_free(rig);
}

/* One step as it is computed by hand, with the rate that was brought. */
Test(server_rates, it_is_used)
{
    struct rig *rig = rig_running_with(1, GK_OPTIMIZER_SGD);
    struct rig_push push = bring(rig, 0, 0, 0.5f);
    float want[RIG_PARAMS];

    rig_push_all(rig, 0, &push);
    for (uint64_t i = 0; i < RIG_PARAMS; i++) {
        uint32_t c = (uint32_t)(i / RIG_CHUNK);
        float sum = 0;

        for (uint32_t j = 0; j < push.counts[c]; j++) {
            sum = push.idx[c][j] == i % RIG_CHUNK ? push.val[c][j] : sum;
        }
        sum /= (float)push.samples;
        if (i < rig->tensors[0].count) {
            sum = fmaf(rig->spec.weight_decay, rig->initial[i], sum);
        }
        want[i] = fmaf(-0.5f, sum, rig->initial[i]);
    }
    cr_assert(memcmp(gk_server_plane(rig->core, 0), want, sizeof(want)) == 0);
    rig_free(rig);
}

/* LOST pushes have no say; those that are empty for another reason have one. */
Test(server_rates, empty_pushes)
{
    struct rig *rig = rig_running_with(3, GK_OPTIMIZER_SGD);
    struct rig_push push = rig_empty_push(0, 0, 0);

    push.flags = GK_FLAG_LOST;
    rig_push_all(rig, 0, &push);
    push = rig_empty_push(1, 0, 0);
    rig_bring_rate(&push, 0.75f);
    rig_push_all(rig, 1, &push);
    push = bring(rig, 2, 0, 0.75f);
    rig_push_all(rig, 2, &push);
    cr_assert(rig_view(rig).version == 1 && rate_of_record(rig) == 0.75f);
    for (uint32_t r = 0; r < 3; r++) {
        push = rig_empty_push(r, 1, 0);
        push.flags = GK_FLAG_LOST;
        rig_push_all(rig, r, &push);
    }
    cr_assert(rig_view(rig).version == 2 && rig_view(rig).optimizer_step == 1);
    for (uint32_t r = 0; r < 3; r++) {
        push = rig_empty_push(r, 2, 0);
        rig_bring_rate(&push, r < 2 ? 0.75f : 0.5f);
        rig_push_all(rig, r, &push);
    }
    cr_assert(rig_view(rig).version == 2);
    rig_pull(rig, 0, 3);
    cr_code(rig, GK_CODE_RATES_DIFFER);
    rig_free(rig);
}

static void expect_told(const struct rig *rig, uint64_t req_id, const char *first,
                        const char *second)
{
    const struct rig_reply *reply = rig_reply_to(rig, req_id);

    cr_assert(reply && reply->msg.h.kind == GK_KIND_NACK &&
              reply->msg.h.code == GK_CODE_RATES_DIFFER &&
              (reply->msg.h.flags & GK_FLAG_RETRYABLE) == 0);
    cr_assert(strstr(reply->msg.words.text, "step 1") && strstr(reply->msg.words.text, first) &&
                  strstr(reply->msg.words.text, second),
              "%s", reply->msg.words.text);
}

/* The rates of ranks 0 to 2, negative: none; who is named. */
static const struct {
    float lr[3];
    const char *first, *second;
} disputes[] = {
    {{0.5f, 0.25f, 0.5f}, "rank 0 pushes 0.5,", "rank 1 pushes 0.25"},
    {{0.1f, 0.1f, 0.10000001f}, "rank 0 pushes 0.100000001,", "rank 2 pushes 0.100000009"},
    {{-1, -1, 0.5f}, "rank 0 pushes none", "rank 2 pushes 0.5"},
    {{0.5f, -1, 0.5f}, "rank 0 pushes 0.5,", "rank 1 pushes none"},
};

Test(server_rates, everybody_hears_that_they_differ)
{
    for (size_t d = 0; d < sizeof(disputes) / sizeof(disputes[0]); d++) {
        struct rig *rig = rig_running_with(3, GK_OPTIMIZER_SGD);
        uint64_t waiting[3];

        rig_round(rig, 0);
        for (uint32_t turn = 0; turn < 3; turn++) {
            uint32_t r = 2 - turn; /* whoever comes last */
            struct rig_push push = bring(rig, r, 1, disputes[d].lr[r]);

            rig_pull(rig, r, 2);
            waiting[r] = rig->req_ids;
            rig_push_all(rig, r, &push);
        }
        cr_assert(rig_view(rig).version == 1 && !rig->exited);
        for (uint32_t r = 0; r < 3; r++) {
            struct rig_push push = bring(rig, r, 1, disputes[d].lr[r]);

            expect_told(rig, waiting[r], disputes[d].first, disputes[d].second);
            rig_pull(rig, r, 2); /* and again, for those who did not hear it */
            expect_told(rig, rig->req_ids, disputes[d].first, disputes[d].second);
            rig_push_all(rig, r, &push);
            expect_told(rig, rig->req_ids, disputes[d].first, disputes[d].second);
            rig_ping(rig, r, 1);
            cr_kind(rig, GK_KIND_PONG);
        }
        rig_tick(rig, GK_LINGER_US - 1);
        cr_assert(!rig->exited);
        rig_tick(rig, 2);
        cr_assert(rig->exited && rig->exit_code == GK_EXIT_DATA);
        cr_assert(rig_view(rig).version == 1);
        rig_free(rig);
    }
}

/* The next life knows nothing of it, and finds the same; or ranks that agree by then. */
Test(server_rates, a_restart_asks_again)
{
    for (int agree = 0; agree < 2; agree++) {
        struct rig *rig = rig_running_with(2, GK_OPTIMIZER_SGD);

        for (int life = 0; life < 2; life++) {
            for (uint32_t r = 0; r < 2; r++) {
                struct rig_push push = bring(rig, r, 0, r == 0 || (life && agree) ? 0.5f : 0.25f);

                rig_push_all(rig, r, &push);
            }
            if (life && agree) {
                cr_assert(rig_view(rig).version == 1 && rate_of_record(rig) == 0.5f);
                break;
            }
            rig_pull(rig, 0, 1);
            cr_code(rig, GK_CODE_RATES_DIFFER);
            rig_restart(rig);
            rig_hello(rig, 0, 1);
            rig_hello(rig, 1, 1);
        }
        rig_free(rig);
    }
}

/* Chunks of one push have one rate. */
Test(server_rates, of_a_whole_push)
{
    struct rig *rig = rig_running_with(1, GK_OPTIMIZER_SGD);
    struct rig_push push = bring(rig, 0, 0, 0.5f);

    rig_push_chunk(rig, 0, &push, 0);
    rig_bring_rate(&push, 0.25f);
    rig_push_chunk(rig, 0, &push, 1);
    cr_code(rig, GK_CODE_BAD_SHAPE);
    push.flags = 0;
    push.lr_bits = 0;
    rig_push_chunk(rig, 0, &push, 1);
    cr_code(rig, GK_CODE_BAD_SHAPE);
    rig_free(rig);
}
