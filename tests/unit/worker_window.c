/* Goal: a window sends every chunk, keeps no more requests outstanding than it may, and asks again
 * until each is answered, whichever copy is; and it learns how long a link takes that is slow or
 * loses messages.
 * Method: all numbers of chunks from 1 to 30 under all limits from 1 to 8, with answers in order,
 * in random order, lost and doubled; a model beside it knows what is outstanding.  A link in
 * virtual time carries one chunk after the other, at all speeds. */
#include "worker/core/window.h"

#include "common/bits.h"
#include "common/limits.h"
#include "common/rng.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>

enum { CHUNKS_MAX = 30, QUEUE_MAX = 128 };

struct request { /* outstanding, by the model */
    uint64_t first_id, last_id;
    uint32_t chunk, tries;
};

struct model {
    struct gk_window window;
    uint64_t req_ids;
    uint32_t sent[CHUNKS_MAX]; /* first tries */
    struct request open[GK_PULL_WINDOW];
    uint32_t open_count;
};

static void begin(struct model *model, uint32_t chunks, uint32_t limit)
{
    *model = (struct model){.req_ids = 100};
    gk_window_start(&model->window, chunks, limit);
}

/* Everything that can be sent now; returns how many were retries. */
static uint32_t send_all(struct model *model, uint64_t now_us)
{
    uint32_t retries = 0, chunk;
    uint64_t req_id;
    bool again;

    while (gk_window_send(&model->window, now_us, &model->req_ids, &chunk, &req_id, &again)) {
        struct request *known = NULL;

        for (uint32_t i = 0; i < model->open_count; i++) {
            cr_assert(model->open[i].first_id != req_id, "an id is used twice");
            cr_assert(model->open[i].tries >= GK_WINDOW_TRIES_MAX ||
                          model->open[i].last_id != req_id,
                      "an id is used again");
            if (model->open[i].chunk == chunk) {
                known = &model->open[i];
            }
        }
        cr_assert_eq(known != NULL, again, "chunk %u", chunk);
        cr_assert(gk_window_holds(&model->window, req_id));
        retries += again;
        if (again) {
            known->last_id = req_id;
            known->tries++;
        } else {
            cr_assert_eq(model->sent[chunk]++, 0);
            model->open[model->open_count++] =
                (struct request){.first_id = req_id, .last_id = req_id, .chunk = chunk, .tries = 1};
        }
        cr_assert(model->open_count <= model->window.limit);
    }
    return retries;
}

/* The copy that was sent first or last is answered, and later the other one. */
static void answer(struct model *model, uint32_t which, uint64_t now_us)
{
    struct request request = model->open[which];
    bool first = now_us % 2 == 0;
    uint32_t chunk = 99;

    cr_assert(gk_window_answer(&model->window, first ? request.first_id : request.last_id, now_us,
                               &chunk));
    cr_assert_eq(chunk, request.chunk);
    model->open[which] = model->open[--model->open_count];
    chunk = 99;
    for (int copy = 0; copy < 2; copy++) {
        uint64_t req_id = copy ? request.last_id : request.first_id;

        cr_assert(!gk_window_answer(&model->window, req_id, now_us, &chunk), "a duplicate");
        cr_assert(!gk_window_holds(&model->window, req_id));
    }
    cr_assert_eq(chunk, 99);
}

static void check_complete(const struct model *model, uint32_t chunks)
{
    cr_assert(gk_window_complete(&model->window) && !gk_window_active(&model->window));
    cr_assert_eq(gk_window_due_us(&model->window, 5), UINT64_MAX);
    for (uint32_t c = 0; c < chunks; c++) {
        cr_assert_eq(model->sent[c], 1);
    }
}

Test(window, answers_in_order)
{
    for (uint32_t chunks = 1; chunks <= CHUNKS_MAX; chunks++) {
        for (uint32_t limit = 1; limit <= GK_PULL_WINDOW; limit++) {
            struct model model;
            uint32_t width = limit < chunks ? limit : chunks;

            begin(&model, chunks, limit);
            cr_assert(gk_window_active(&model.window) && !gk_window_complete(&model.window));
            cr_assert_eq(gk_window_due_us(&model.window, 7), 7, "the first chunk is due");
            cr_assert_eq(send_all(&model, 1000), 0);
            cr_assert_eq(model.open_count, width);
            for (uint32_t c = 0; c < chunks; c++) {
                cr_assert(gk_window_active(&model.window));
                answer(&model, 0, 1000 + c);
                cr_assert_eq(send_all(&model, 1000 + c), 0);
            }
            check_complete(&model, chunks);
        }
    }
}

/* Answers in random order, some requests lost: time moves to what is due, and the end is reached.
 */
Test(window, losses_and_reordering)
{
    struct gk_rng rng = {.seed = 4, .purpose = GK_RNG_RANDK};
    uint64_t draws = 0;

    for (uint32_t chunks = 1; chunks <= CHUNKS_MAX; chunks++) {
        for (uint32_t limit = 1; limit <= GK_PULL_WINDOW; limit++) {
            struct model model;
            uint64_t now_us = 0;
            uint32_t turns = 0;

            begin(&model, chunks, limit);
            while (!gk_window_complete(&model.window)) {
                uint64_t due_us = gk_window_due_us(&model.window, now_us);

                cr_assert(due_us < UINT64_MAX && ++turns < 2000);
                now_us = due_us > now_us ? due_us : now_us;
                cr_assert(send_all(&model, now_us) > 0 || due_us <= now_us);
                cr_assert(gk_window_due_us(&model.window, now_us) > now_us, "all due is sent");
                while (model.open_count > 0 && gk_rng_below(&rng, draws++, 3) > 0) {
                    answer(&model, (uint32_t)gk_rng_below(&rng, draws++, model.open_count), now_us);
                }
            }
            check_complete(&model, chunks);
        }
    }
}

Test(window, retries_back_off_and_never_stop)
{
    uint64_t longest_us = GK_RETRY_BULK_US_MAX;

    for (uint32_t chunks = 1; chunks <= CHUNKS_MAX; chunks++) {
        uint32_t width = chunks < 8 ? chunks : 8;
        uint64_t now_us = 50;
        struct model model;

        begin(&model, chunks, 8);
        cr_assert_eq(send_all(&model, now_us), 0);
        for (uint32_t i = 0; i < 100; i++) {
            uint64_t doubled_us = (uint64_t)GK_RETRY_BULK_US_MIN << (i < 20 ? i : 20);
            uint64_t wait_us = doubled_us < longest_us ? doubled_us : longest_us;

            cr_assert_eq(gk_window_due_us(&model.window, now_us), now_us + wait_us);
            cr_assert_eq(send_all(&model, now_us + wait_us - 1), 0);
            now_us += wait_us;
            cr_assert_eq(send_all(&model, now_us), width);
            cr_assert_eq(send_all(&model, now_us), 0, "once a time");
        }
    }
}

/* An answer says that the shard is at work: what is left is not asked for before its backoff. */
Test(window, answer_moves_the_others_back)
{
    struct model model;
    uint64_t late_us = GK_RETRY_BULK_US_MIN - 1;

    begin(&model, 3, 8);
    send_all(&model, 0);
    answer(&model, 1, late_us);
    cr_assert_eq(gk_window_due_us(&model.window, late_us), late_us + GK_RETRY_BULK_US_MIN);
    cr_assert_eq(send_all(&model, late_us + GK_RETRY_BULK_US_MIN), 2);
    answer(&model, 0, late_us + GK_RETRY_BULK_US_MIN + 1);
    cr_assert_eq(gk_window_due_us(&model.window, 0), late_us + 3 * GK_RETRY_BULK_US_MIN + 1,
                 "the second wait is twice as long");
}

/* A link that carries one chunk after the other, also those that nobody waits for any more. */
struct link {
    uint64_t chunk_us, free_us;
    uint64_t answers_us[QUEUE_MAX], ids[QUEUE_MAX];
    uint32_t queued, taken;
};

/* One use of the window over the link; returns how many copies were asked for. */
static uint32_t cross(struct gk_window *window, struct link *link, uint64_t *now_us,
                      uint64_t *req_ids)
{
    uint32_t copies = 0, chunk;

    while (gk_window_active(window)) {
        uint64_t due_us, id;
        bool again;

        while (gk_window_send(window, *now_us, req_ids, &chunk, &id, &again)) {
            cr_assert_lt(link->queued, QUEUE_MAX, "copies make copies");
            copies += again;
            link->free_us = gk_max_u64(link->free_us, *now_us) + link->chunk_us;
            link->answers_us[link->queued] = link->free_us;
            link->ids[link->queued++] = id;
        }
        due_us = gk_window_due_us(window, *now_us);
        if (link->taken < link->queued && link->answers_us[link->taken] <= due_us) {
            *now_us = link->answers_us[link->taken];
            (void)gk_window_answer(window, link->ids[link->taken++], *now_us, &chunk);
        } else {
            *now_us = due_us;
        }
    }
    return copies;
}

/* Chunks that take longer than the first retries of a request that knows nothing of the link: the
 * first use asks again, which delays what follows; behind it nobody does, however slow the link. */
Test(window, a_slow_link_gets_no_copies)
{
    for (uint32_t chunks = 1; chunks <= GK_PULL_WINDOW; chunks *= 2) {
        for (uint64_t ms = 100; ms < 7500; ms += 50) {
            struct link link = {.chunk_us = 1000 * ms};
            struct gk_window window = {0};
            uint64_t now_us = 0, req_ids = 0;
            uint32_t copies;

            gk_window_start(&window, chunks, GK_PULL_WINDOW);
            copies = cross(&window, &link, &now_us, &req_ids);
            cr_assert_leq(copies, 4 * chunks, "%u copies of %u", copies, chunks);
            for (int step = 1; step < 6; step++) {
                gk_window_start(&window, chunks, GK_PULL_WINDOW);
                copies = cross(&window, &link, &now_us, &req_ids);
                cr_assert_eq(copies, 0, "%u chunks of %u ms: %u copies in step %d", chunks,
                             (unsigned)ms, copies, step);
            }
        }
    }
}

/* One answer that took long, because the first was lost, does not make the next requests slow. */
Test(window, one_loss_is_forgotten)
{
    struct gk_window window = {0};
    uint64_t req_ids = 0, id, now_us = 0;
    uint32_t chunk;
    bool again;

    for (int i = 0; i < 8; i++) {
        uint64_t wait_us = i % 2 == 0 ? 5 * GK_RETRY_BULK_US_MIN : 1000;

        gk_window_start(&window, 1, 1);
        cr_assert(gk_window_send(&window, now_us, &req_ids, &chunk, &id, &again));
        cr_assert(i % 2 == 1 || gk_window_due_us(&window, now_us) - now_us == GK_RETRY_BULK_US_MIN,
                  "behind a fast answer the first wait is the shortest");
        now_us += wait_us;
        cr_assert(gk_window_answer(&window, id, now_us, &chunk));
    }
}

/* Where every first copy is lost, the answers still tell how long the link takes: the waits do not
 * grow from request to request. */
Test(window, losses_teach_no_slowness)
{
    struct gk_window window = {0};
    uint64_t req_ids = 0, id, now_us = 0;
    uint32_t chunk;
    bool again;

    for (int i = 0; i < 8; i++) {
        gk_window_start(&window, 1, 1);
        cr_assert(gk_window_send(&window, now_us, &req_ids, &chunk, &id, &again) && !again);
        cr_assert_eq(gk_window_due_us(&window, now_us) - now_us, GK_RETRY_BULK_US_MIN);
        for (int copy = 0; copy < 3; copy++) {
            now_us = gk_window_due_us(&window, now_us);
            cr_assert(gk_window_send(&window, now_us, &req_ids, &chunk, &id, &again) && again);
        }
        now_us += 1000;
        cr_assert(gk_window_answer(&window, id, now_us, &chunk));
    }
}

Test(window, resend_after_a_new_connection)
{
    for (uint32_t chunks = 1; chunks <= CHUNKS_MAX; chunks++) {
        uint32_t width = chunks < 8 ? chunks : 8;
        uint64_t now_us = 0;
        struct model model;

        begin(&model, chunks, 8);
        send_all(&model, now_us);
        for (uint32_t i = 0; i < 5; i++) { /* the backoff grows */
            now_us = gk_window_due_us(&model.window, now_us);
            send_all(&model, now_us);
        }
        gk_window_resend(&model.window, now_us + 1);
        cr_assert_eq(gk_window_due_us(&model.window, now_us + 1), now_us + 1);
        cr_assert_eq(send_all(&model, now_us + 1), width);
        cr_assert_eq(gk_window_due_us(&model.window, now_us + 1), now_us + 1 + GK_RETRY_BULK_US_MIN,
                     "the backoff starts again");
        while (model.open_count > 0) {
            answer(&model, 0, now_us);
            send_all(&model, now_us);
        }
        check_complete(&model, chunks);
    }
}

/* What was asked before the connection was lost and is answered behind it tells nothing of the
 * link. */
Test(window, an_outage_teaches_no_slowness)
{
    struct gk_window window = {0};
    uint64_t req_ids = 0, before, after;
    uint32_t chunk;
    bool again;

    gk_window_start(&window, 1, 1);
    cr_assert(gk_window_send(&window, 0, &req_ids, &chunk, &before, &again) && !again);
    gk_window_resend(&window, 60 * 1000000);
    cr_assert(gk_window_send(&window, 60 * 1000000, &req_ids, &chunk, &after, &again) && again);
    cr_assert(gk_window_answer(&window, before, 60 * 1000000 + 100, &chunk));
    cr_assert_eq(window.answer_us, 100);
}

/* The number of a copy that was not made, and the one that all late copies share. */
Test(window, only_tries_that_were_made)
{
    struct gk_window window = {0};
    uint64_t req_ids = 0, id, first, now_us = 0;
    uint32_t chunk;
    bool again;

    gk_window_start(&window, 1, 1);
    cr_assert(gk_window_send(&window, now_us, &req_ids, &chunk, &first, &again));
    for (uint64_t tries = 1; tries < 12; tries++) {
        for (uint64_t number = tries; number < GK_WINDOW_TRIES_MAX; number++) {
            id = first | number << GK_WINDOW_TRY_SHIFT;
            cr_assert(!gk_window_holds(&window, id));
            cr_assert(!gk_window_answer(&window, id, now_us, &chunk));
        }
        now_us = gk_window_due_us(&window, now_us);
        cr_assert(gk_window_send(&window, now_us, &req_ids, &chunk, &id, &again) && again);
        cr_assert_eq(id, first | gk_min_u64(tries, GK_WINDOW_TRIES_MAX - 1) << GK_WINDOW_TRY_SHIFT);
    }
    cr_assert(gk_window_answer(&window, id, now_us + 7, &chunk));
    cr_assert_eq(window.answer_us, 7, "of the last one");
}

/* INIT sends chunk 0 alone and then opens the window. */
Test(window, limit_may_grow)
{
    struct model model;

    begin(&model, 12, 1);
    send_all(&model, 0);
    cr_assert_eq(model.open_count, 1);
    cr_assert_eq(gk_window_due_us(&model.window, 10), GK_RETRY_BULK_US_MIN,
                 "a full window is due when its retry is");
    answer(&model, 0, 10);
    model.window.limit = 8;
    cr_assert_eq(gk_window_due_us(&model.window, 10), 10);
    send_all(&model, 10);
    cr_assert_eq(model.open_count, 8);
}

Test(window, stopped_window_is_idle)
{
    struct model model;
    uint32_t chunk;
    uint64_t req_id;
    bool again;

    begin(&model, 5, 3);
    send_all(&model, 0);
    gk_window_stop(&model.window);
    cr_assert(!gk_window_active(&model.window) && !gk_window_complete(&model.window));
    cr_assert(!gk_window_holds(&model.window, model.req_ids));
    cr_assert(!gk_window_answer(&model.window, model.req_ids, 0, &chunk));
    cr_assert(!gk_window_send(&model.window, 1u << 30, &model.req_ids, &chunk, &req_id, &again));
    gk_window_resend(&model.window, 0);
    cr_assert_eq(gk_window_due_us(&model.window, 0), UINT64_MAX);
}

Test(window, no_chunks, .signal = SIGABRT)
{
    struct gk_window window = {0};

    gk_window_start(&window, 0, 1);
}

Test(window, limit_above_the_slots, .signal = SIGABRT)
{
    struct gk_window window = {0};

    gk_window_start(&window, 1, GK_PULL_WINDOW + 1);
}
