/* Goal: every event in every phase is handled, ignored or taken for the shell's mistake, as the
 * table in worker/README.md says; a step never emits more than the list has room for.
 * Method: a core is brought into each phase and given each event, in a process of its own; the
 * fullest steps are provoked and counted. */
#include "worker_phases.h"

#include <criterion/criterion.h>

enum cell { HANDLED, IGNORED, ASSERTED };

/* Rows: events; columns: phases, in the order of the header. */
/* clang-format off */
static const enum cell table[GK_WORKER_EVENTS_COUNT][GK_PHASE_COUNT] = {
#define A ASSERTED
#define H HANDLED
#define I IGNORED
    /*                         IDLE JOIN EXCH COMP PERS EVAL LEAV DONE */
    [GK_WORKER_START] =       {H,   A,   A,   A,   A,   A,   A,   I},
    [GK_WORKER_TICK] =        {A,   H,   H,   H,   H,   H,   H,   I},
    [GK_WORKER_PEER_UP] =     {A,   H,   H,   H,   H,   H,   H,   I},
    [GK_WORKER_PEER_DOWN] =   {A,   H,   H,   H,   H,   H,   H,   I},
    [GK_WORKER_MESSAGE] =     {A,   H,   H,   H,   H,   H,   H,   I},
    [GK_WORKER_BAD_MESSAGE] = {A,   H,   H,   H,   H,   H,   H,   I},
    [GK_WORKER_INIT_MADE] =   {A,   H,   A,   A,   A,   A,   A,   I}, /* H: MAKE_INIT was asked */
    [GK_WORKER_STEP_DONE] =   {A,   A,   A,   H,   A,   A,   A,   I},
    [GK_WORKER_PERSISTED] =   {A,   A,   A,   A,   H,   A,   A,   I},
    [GK_WORKER_EVALUATED] =   {A,   A,   A,   A,   A,   H,   A,   I},
    [GK_WORKER_LEAVE] =       {A,   A,   A,   H,   A,   A,   A,   I},
    [GK_WORKER_STOP] =        {H,   H,   H,   H,   H,   H,   H,   I},
#undef A
#undef H
#undef I
};
/* clang-format on */

struct probe {
    struct rig *rig;
    struct gk_worker_event event;
    enum cell cell;
};

static void give(void *context)
{
    struct probe *probe = context;
    struct rig *rig = probe->rig;

    probe->event.now_us = rig->now_us;
    if (probe->event.kind == GK_WORKER_STEP_DONE) {
        probe->event.push = rig_push(rig, rig->asked[GK_WORKER_STEP]);
    }
    gk_worker_step(rig->core, &probe->event, rig->actions);
    gk_worker_check(rig->core);
    if (probe->cell == IGNORED && rig->actions->count > 0) {
        _exit(3);
    }
    if (probe->cell == HANDLED && rig->actions->count == 0) {
        _exit(4); /* at least the timer, or EXIT */
    }
}

static void walk(enum gk_worker_phase phase)
{
    struct gk_msg msg = {.h = {.kind = GK_KIND_PONG, .session = 12345}};
    struct rig rig;
    struct toy toy;
    char words[256];

    phases_open(&rig, &toy, phase);
    cr_assert_eq(gk_worker_phase(rig.core), phase);
    for (uint32_t e = 0; e < GK_WORKER_EVENTS_COUNT; e++) {
        struct probe probe = {
            .rig = &rig,
            .event = {.kind = (enum gk_worker_event_kind)e, .msg = &msg, .words = "words"},
            .cell = table[e][phase]};

        cr_assert_eq(phases_aborts(give, &probe, words, sizeof(words)), probe.cell == ASSERTED,
                     "event %u in phase %s: %s", e, gk_worker_phase_name(phase), words);
        cr_assert(probe.cell != ASSERTED || strstr(words, "event_phases[event->kind]") ||
                  strstr(words, "worker->init_asked && !worker->init_made"));
    }
    phases_close(&rig, &toy);
}

Test(table, idle_and_joining)
{
    walk(GK_PHASE_IDLE);
    walk(GK_PHASE_JOINING);
}

Test(table, exchanging_and_computing)
{
    walk(GK_PHASE_EXCHANGING);
    walk(GK_PHASE_COMPUTING);
}

Test(table, persisting_and_evaluating)
{
    walk(GK_PHASE_PERSISTING);
    walk(GK_PHASE_EVALUATING);
}

Test(table, leaving_and_done)
{
    walk(GK_PHASE_LEAVING);
    walk(GK_PHASE_DONE);
}

Test(table, phase_names)
{
    for (uint32_t i = 0; i < GK_PHASE_COUNT; i++) {
        cr_assert(strlen(gk_worker_phase_name((enum gk_worker_phase)i)) > 3);
        for (uint32_t j = 0; j < i; j++) {
            cr_assert_str_neq(gk_worker_phase_name((enum gk_worker_phase)i),
                              gk_worker_phase_name((enum gk_worker_phase)j));
        }
    }
    cr_assert_str_eq(gk_worker_phase_name(GK_PHASE_COUNT), "?");
}

/* What no phase allows. */
Test(table, init_made_twice, .signal = SIGABRT)
{
    struct rig rig;
    struct toy toy;

    phases_open(&rig, &toy, GK_PHASE_JOINING);
    rig_init_made(&rig, 5);
    rig_init_made(&rig, 5);
}

Test(table, time_goes_back, .signal = SIGABRT)
{
    struct rig rig;
    struct toy toy;

    phases_open(&rig, &toy, GK_PHASE_JOINING);
    rig_wait(&rig, 2000 * 1000);
    rig.now_us -= 1000 * 1000;
    rig_up(&rig, 0);
}

Test(table, a_shard_that_is_none, .signal = SIGABRT)
{
    struct rig rig;
    struct toy toy;

    phases_open(&rig, &toy, GK_PHASE_JOINING);
    rig_up(&rig, 2);
}

Test(table, the_push_of_another_step, .signal = SIGABRT)
{
    struct rig rig;
    struct toy toy;

    phases_open(&rig, &toy, GK_PHASE_COMPUTING);
    rig.asked[GK_WORKER_STEP]++;
    rig_step_done(&rig);
}

/* Eight shards, all windows full, all due at once, in one step. */
Test(table, the_fullest_steps)
{
    struct rig rig;
    struct toy toy;

    rig_open(&rig, (struct rig_options){.servers = 8,
                                        .params = UINT64_C(64) * GK_CHUNK_FLOATS,
                                        .entries = 640,
                                        .chunk_floats = 4});
    toy_open(&toy, &rig);
    toy_join(&toy);
    rig_init_made(&rig, 5);
    for (uint32_t s = 0; s < 8; s++) { /* the first chunk everywhere; then it is quiet */
        toy_handle(&toy, s, rig_take(&rig, s, GK_KIND_INIT));
    }
    toy_deliver(&toy);
    rig_forget_sent(&rig);
    rig.most = 0;
    rig.now_us += 7 * GK_STALL_US;
    rig_event(&rig, (struct gk_worker_event){.kind = GK_WORKER_TICK});
    /* Seven chunks are left of INIT; HELLO and PING; lines about the pause and the
     * stall, and the timer. */
    cr_assert_eq(rig.most, 8 * (7 + 2) + 3);
    toy_serve(&toy);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
    rig.most = 0;
    toy_compute(&toy);
    rig_forget_sent(&rig);
    rig.now_us += 7 * GK_STALL_US;
    rig_event(&rig, (struct gk_worker_event){.kind = GK_WORKER_TICK});
    cr_assert_eq(rig.most, 8 * (8 + 8 + 1) + 3);
    cr_assert_gt(rig.actions->room, 8 * (3 * 8 + 4),
                 "all three windows, HELLO, PING, LEAVE, a line");
    toy_close(&toy);
    rig_close(&rig);
}
