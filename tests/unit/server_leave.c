/* Goal: the job ends when all have left, no wait is endless or nameless, and a stop loses nothing.
 * Method: LEAVE before, during and after rounds and over restarts; the clock moves by hand; STOP in
 * every stage of a commit. */
#include "server_job.h"

Test(server_leave, rounds_from_its_step_on_do_not_wait)
{
    struct rig *rig = rig_running(3);
    struct rig_push pushes[3];
    struct rig_model model;

    rig_leave(rig, 1, 1); /* early: round 0 still waits for it */
    cr_kind(rig, GK_KIND_LEAVE_OK);
    cr_assert(rig_last(rig)->msg.h.step == 1);
    rig_push(rig, 0, 0);
    rig_push(rig, 2, 0);
    cr_assert(rig_view(rig).version == 0);
    rig_push(rig, 1, 0);
    cr_assert(rig_view(rig).version == 1);
    rig_push(rig, 0, 1);
    rig_push(rig, 2, 1);
    cr_assert(rig_view(rig).version == 2);
    rig_model_run(rig, &model, 1);
    pushes[0] = rig_make_push(rig, 0, 1, 0);
    pushes[1] = rig_make_push(rig, 2, 1, 0);
    rig_model_commit(rig, &model, pushes, 2);
    cr_assert(rig_same(rig, &model));
    rig_push(rig, 1, 2);
    cr_code(rig, GK_CODE_BAD_STEP);
    rig_leave(rig, 1, 5); /* again, whatever it says now */
    cr_kind(rig, GK_KIND_LEAVE_OK);
    cr_assert(rig_last(rig)->msg.h.step == 1);
    rig_free(rig);
}

Test(server_leave, closes_the_round_that_waited_for_it)
{
    struct rig *rig = rig_running(2);

    rig_push(rig, 0, 0);
    rig_leave(rig, 1, 0);
    cr_kind(rig, GK_KIND_LEAVE_OK);
    cr_assert(rig_view(rig).version == 1 &&
              rig->records[rig->records_count - 1].record.contributions_count == 1);
    rig_free(rig);
}

Test(server_leave, written_before_it_is_answered_and_kept)
{
    struct rig *rig = rig_running(2);

    rig->held = 1u << GK_SERVER_WRITE;
    rig_leave(rig, 1, 0);
    rig_leave(rig, 1, 0);
    cr_assert(rig_kind(rig) == 0 && rig->ops_count == 1);
    rig_release(rig);
    cr_kind(rig, GK_KIND_LEAVE_OK);
    rig_restart(rig);
    rig_hello(rig, 0, 1);
    rig_push(rig, 0, 0);
    cr_assert(rig_view(rig).version == 1, "a restarted shard does not wait for the departed");
    rig_free(rig);
}

Test(server_leave, waits_behind_the_commit_in_flight)
{
    struct rig *rig = rig_running(2);

    rig->held = 1u << GK_SERVER_WRITE;
    rig_round(rig, 0);
    rig_leave(rig, 0, 1);
    rig_leave(rig, 1, 1);
    cr_assert(rig->ops_count == 1);
    rig_release(rig);
    cr_assert(rig_view(rig).version == 1 && rig_view(rig).state == GK_SHARD_FINISHED);
    cr_assert(rig->records[rig->records_count - 1].record.type == GK_RECORD_FINISHED);
    cr_assert(rig->records[rig->records_count - 2].record.members_count == 2);
    rig_free(rig);
}

static struct rig *finished(void)
{
    struct rig *rig = rig_running(2);

    rig_round(rig, 0);
    rig_leave(rig, 0, 1);
    rig_leave(rig, 1, 1);
    cr_assert(rig_view(rig).state == GK_SHARD_FINISHED);
    return rig;
}

Test(server_leave, finished_answers_duplicates_and_exits)
{
    struct rig *rig = finished();
    uint64_t hash = 0;

    for (uint32_t i = 0; i < RIG_PARAMS; i++) {
        hash += gk_hash_term(0, i, gk_float_bits(gk_server_plane(rig->core, 0)[i]));
    }
    cr_assert(rig_view(rig).hashed && rig_view(rig).hash == hash &&
              rig_view(rig).hash_version == 1);
    rig_leave(rig, 0, 1);
    cr_kind(rig, GK_KIND_LEAVE_OK);
    rig_push(rig, 1, 0);
    cr_kind(rig, GK_KIND_PUSH_OK);
    rig_push(rig, 1, 1);
    cr_code(rig, GK_CODE_FINISHED);
    rig_pull(rig, 1, 1);
    cr_kind(rig, GK_KIND_PARAMS);
    rig_pull(rig, 1, 2);
    cr_code(rig, GK_CODE_FINISHED);
    rig_init_chunk(rig, 0, RIG_INIT_ID);
    cr_kind(rig, GK_KIND_INIT_OK);
    rig_hello(rig, 1, 1);
    cr_kind(rig, GK_KIND_WELCOME);
    cr_assert(rig_last(rig)->msg.body.welcome.finished);
    rig_tick(rig, GK_LINGER_US - 1);
    cr_assert(!rig->exited);
    rig_tick(rig, 1);
    cr_assert(rig->exited && rig->exit_code == 0);
    rig_clear(rig);
    rig_ping(rig, 0, 1);
    cr_assert(rig->replies_count == 0, "EXIT was the last action");
    rig_free(rig);
}

Test(server_leave, finished_is_kept_over_a_restart)
{
    struct rig *rig = finished();

    rig_restart(rig);
    cr_assert(rig_view(rig).state == GK_SHARD_FINISHED && rig_view(rig).hashed);
    rig_hello(rig, 0, 1);
    cr_assert(rig_last(rig)->msg.body.welcome.finished);
    rig_free(rig);
    /* All left, killed before FINISHED was written: the restart writes it. */
    rig = rig_running(1);
    rig_round(rig, 0);
    rig_leave(rig, 0, 1);
    cr_assert(rig_view(rig).state == GK_SHARD_FINISHED);
    rig_free(rig);
    rig = rig_running(1);
    rig->held = 1u << GK_SERVER_WRITE;
    rig_leave(rig, 0, 0);
    cr_assert(rig_work(rig, true)); /* the MEMBER record */
    rig->held = 0;
    rig_restart(rig);
    cr_assert(rig_view(rig).state == GK_SHARD_FINISHED);
    rig_free(rig);
}

Test(server_leave, stop_ends_the_commit_in_flight)
{
    static const uint32_t stages[] = {GK_SERVER_SUM, GK_SERVER_WRITE, GK_SERVER_APPLY};

    for (size_t i = 0; i < 3; i++) {
        struct rig *rig = rig_running(2);
        struct rig_model model;
        struct rig_push push = rig_make_push(rig, 0, 1, 0);

        rig_pull(rig, 1, 1);
        rig->held = 1u << stages[i];
        rig_round(rig, 0);
        rig_event(rig, (struct gk_server_event){
                           .kind = GK_SERVER_STOP, .exit_code = 143, .words = "SIGTERM"});
        cr_assert(!rig->exited && rig_view(rig).state == GK_SHARD_DRAINING);
        rig_hello(rig, 0, 1);
        cr_code(rig, GK_CODE_DRAINING);
        cr_assert(rig_retryable(rig));
        if (stages[i] == GK_SERVER_APPLY) {
            rig_push_chunk(rig, 0, &push, 0);
            cr_code(rig, GK_CODE_DRAINING);
        }
        rig_leave(rig, 0, 1);
        cr_code(rig, GK_CODE_DRAINING);
        rig_release(rig);
        cr_assert(rig->exited && rig->exit_code == 143);
        rig_model_run(rig, &model, 1);
        cr_assert(rig_view(rig).version == 1 && rig_same(rig, &model));
        rig_free(rig);
    }
}

Test(server_leave, stop_is_bounded)
{
    struct rig *rig = rig_running(1);

    rig->held = 1u << GK_SERVER_WRITE;
    rig_round(rig, 0);
    rig_event(rig, (struct gk_server_event){.kind = GK_SERVER_STOP, .exit_code = 130});
    rig_tick(rig, 10 * 1000 * 1000);
    cr_assert(rig->exited && rig->exit_code == 130);
    rig_free(rig);
    rig = rig_running(1); /* a second signal does not wait */
    rig->held = 1u << GK_SERVER_WRITE;
    rig_round(rig, 0);
    for (int i = 0; i < 2; i++) {
        rig_event(rig, (struct gk_server_event){.kind = GK_SERVER_STOP, .exit_code = 130});
    }
    cr_assert(rig->exited);
    rig_free(rig);
    rig = rig_new(1, 1, 0); /* nothing to end */
    rig_start(rig);
    rig_event(rig, (struct gk_server_event){.kind = GK_SERVER_STOP, .exit_code = 143});
    cr_assert(rig->exited && rig->exit_code == 143);
    rig_free(rig);
    rig = finished();
    rig_event(rig, (struct gk_server_event){.kind = GK_SERVER_STOP, .exit_code = 143});
    cr_assert(rig->exited && rig->exit_code == 0, "the job was done");
    rig_free(rig);
}

/* The record that ends the job is on its way when the signal comes. */
/* Memory comes while the record of a member is still being written. */
Test(server_leave, stop_while_memory_is_set_up)
{
    struct rig *rig = rig_new(2, 1, 0);
    struct gk_msg msg;

    rig_start(rig);
    rig_hello(rig, 0, 1);
    rig_hello(rig, 1, 1);
    rig->held = 1u << GK_SERVER_SETUP | 1u << GK_SERVER_WRITE;
    msg = rig_init_msg(rig, 0, RIG_INIT_ID);
    rig_send(rig, rig_route(0, 1), &msg);
    gk_msg_clear(&msg);
    cr_assert_eq(rig_view(rig).state, GK_SHARD_SETUP);
    msg = rig_hello_msg(rig, 1, 2);
    msg.body.hello.takeover = true;
    rig_send(rig, rig_route(1, 2), &msg);
    rig_event(rig, (struct gk_server_event){.kind = GK_SERVER_STOP, .exit_code = 143});
    cr_assert_eq(rig_view(rig).state, GK_SHARD_DRAINING);
    rig_release(rig);
    cr_assert(rig->exited && rig->exit_code == 143);
    rig_free(rig);
}

Test(server_leave, stop_while_it_finishes)
{
    struct rig *rig = rig_running(1);

    rig->held = 1u << GK_SERVER_WRITE;
    rig_leave(rig, 0, 0);
    cr_assert(rig_work(rig, true) && rig->ops_count == 1);
    rig_event(rig, (struct gk_server_event){.kind = GK_SERVER_STOP, .exit_code = 143});
    cr_assert(!rig->exited);
    rig_release(rig);
    cr_assert(rig->exited && rig->exit_code == 0 && rig_view(rig).hashed);
    rig_free(rig);
}

/* Without its hash nobody can tell what the shard ended with. */
Test(server_leave, hash_that_fails)
{
    struct rig *rig = rig_running(1);

    rig_round(rig, 0); /* the hash of version 0 is known already */
    rig->held = 1u << GK_SERVER_HASH;
    rig_leave(rig, 0, 1);
    cr_assert(rig_view(rig).state == GK_SHARD_FINISHED && rig->ops_count == 1);
    rig_event(rig, (struct gk_server_event){.kind = GK_SERVER_HASH_DONE,
                                            .op = rig->ops_queued[0].op,
                                            .err = GK_E_NOMEM,
                                            .words = "no scratch"});
    cr_assert(rig->exited && rig->exit_code == 70 && !rig_view(rig).hashed);
    cr_assert(strcmp(rig->exit_id, "SERVER-HASH-FAILED") == 0);
    cr_assert(strstr(rig->exit_words.text, "no scratch"), "%s", rig->exit_words.text);
    rig_free(rig);
}

Test(server_leave, drain_request)
{
    struct rig *rig = rig_running(1);
    struct gk_msg msg = rig_msg(rig, GK_KIND_DRAIN, GK_RANK_ANY);

    rig_send(rig, 7, &msg);
    cr_kind(rig, GK_KIND_DRAIN_OK);
    cr_assert(rig_last(rig)->route == 7 && rig->exited && rig->exit_code == 0);
    rig_free(rig);
    rig = rig_new(1, 1, 0);
    rig->config.local = false;
    rig_again(rig);
    rig_start(rig);
    msg = rig_msg(rig, GK_KIND_DRAIN, GK_RANK_ANY);
    rig_send(rig, 7, &msg);
    cr_code(rig, GK_CODE_UNSUPPORTED);
    cr_assert(!rig->exited);
    rig_free(rig);
}

Test(server_leave, deadline_names_the_missing)
{
    struct rig *rig = rig_new(3, 1, 0);

    rig->config.deadline_us = 30 * 1000 * 1000;
    rig_again(rig);
    rig_start(rig);
    rig_hello(rig, 1, 1);
    while (!rig->exited) {
        cr_assert(rig->timer_us > rig->now_us);
        rig_tick(rig, rig->timer_us - rig->now_us);
    }
    cr_assert(rig->exit_code == 69 && rig->now_us == 31 * 1000 * 1000);
    cr_assert(strstr(rig->exit_words.text, "rank 0 (never seen), rank 2 (never seen)"), "%s",
              rig->exit_words.text);
    rig_free(rig);
    rig = rig_new(1, 1, 0); /* all there, no model */
    rig->config.deadline_us = 30 * 1000 * 1000;
    rig_again(rig);
    rig_start(rig);
    rig_hello(rig, 0, 1);
    rig_tick(rig, 30 * 1000 * 1000);
    cr_assert(rig->exit_code == 69 && strstr(rig->exit_words.text, "rank 0 to send the model"),
              "%s", rig->exit_words.text);
    rig_free(rig);
    rig = rig_running(1); /* no deadline: it waits for ever */
    rig_tick(rig, UINT64_C(1000) * 1000 * 1000);
    cr_assert(!rig->exited);
    rig_free(rig);
}

/* A running job waits for any rank as long as some other one is heard; when nobody is heard any
 * more, it is over. */
Test(server_leave, deadline_when_all_are_silent)
{
    struct rig *rig = rig_new(2, 1, 0);

    rig->config.deadline_us = 30 * 1000 * 1000;
    rig_again(rig);
    rig_start(rig);
    rig_hello(rig, 0, 1);
    rig_hello(rig, 1, 1);
    rig_init(rig);
    for (int i = 0; i < 10; i++) {
        rig_tick(rig, 20 * 1000 * 1000);
        rig_ping(rig, 1, 1);
        cr_assert(!rig->exited, "rank 1 is alive");
    }
    rig_tick(rig, 29 * 1000 * 1000);
    cr_assert(!rig->exited);
    cr_assert(rig->timer_us - rig->now_us <= 1000 * 1000);
    rig_tick(rig, rig->timer_us - rig->now_us);
    cr_assert(rig->exited && rig->exit_code == 69);
    cr_assert(strstr(rig->exit_words.text, "no worker has been heard for 30 s"), "%s",
              rig->exit_words.text);
    rig_free(rig);
}

/* A shard that goes on with its state waits for ranks that it has heard; one that never comes is
 * missing as at the start, however alive the others are. */
Test(server_leave, deadline_of_a_rank_that_never_comes_back)
{
    enum { NEVER, LATE, LEFT, CASES };

    for (int kind = NEVER; kind < CASES; kind++) {
        struct rig *rig = rig_new(2, 1, 0);
        uint64_t begun_us;

        rig->config.deadline_us = 30 * 1000 * 1000;
        rig_again(rig);
        rig_start(rig);
        rig_hello(rig, 0, 1);
        rig_hello(rig, 1, 1);
        rig_init(rig);
        if (kind == LEFT) {
            rig_leave(rig, 1, 0);
        }
        rig_tick(rig, 25 * 1000 * 1000);
        rig_restart(rig);
        begun_us = rig->now_us;
        rig_hello(rig, 0, 1);
        for (int i = 0; i < 100 && !rig->exited; i++) {
            if (kind == LATE && i == 33) {
                rig_hello(rig, 1, 1);
            }
            rig_ping(rig, 0, 1);
            rig_tick(rig, 1000 * 1000);
        }
        if (kind == NEVER) {
            cr_assert(rig->exited && rig->exit_code == 69);
            cr_assert(rig->now_us - begun_us == 30 * 1000 * 1000 + GK_LINGER_US);
            cr_assert(strstr(rig->exit_words.text,
                             "round 0 waits for rank 1 (never seen); gave up after 35 s"),
                      "%s", rig->exit_words.text);
        } else {
            cr_assert(!rig->exited, "%d: %s", kind, rig->exit_words.text);
        }
        rig_free(rig);
    }
}

/* SIGSTOP of everybody, or of a virtual machine: the gap is this process's own. */
Test(server_leave, a_pause_counts_against_nobody)
{
    for (int running = 0; running < 2; running++) {
        struct rig *rig = rig_new(2, 1, 0);

        rig->config.deadline_us = 30 * 1000 * 1000;
        rig_again(rig);
        rig_start(rig);
        rig_hello(rig, 0, 1);
        if (running) {
            rig_hello(rig, 1, 1);
            rig_init(rig);
        }
        rig_pause(rig, 100 * 1000 * 1000);
        cr_assert(!rig->exited && strstr(rig->traces, "stood still for about 99.0 s"));
        /* Whoever held a rank before is not pushed out for it. */
        rig_hello(rig, 0, 2);
        cr_code(rig, GK_CODE_HELD);
        rig_tick(rig, 28 * 1000 * 1000); /* of 30, and one that the pause counts for */
        cr_assert(!rig->exited);
        rig_tick(rig, 2 * 1000 * 1000);
        cr_assert(rig->exited && rig->exit_code == 69);
        rig_free(rig);
    }
}

Test(server_leave, a_pause_does_not_end_the_linger)
{
    struct rig *rig = finished();

    rig_pause(rig, 100 * 1000 * 1000);
    cr_assert(!rig->exited);
    rig_leave(rig, 1, 1);
    cr_kind(rig, GK_KIND_LEAVE_OK);
    rig_tick(rig, GK_LINGER_US);
    cr_assert(rig->exited && rig->exit_code == 0);
    rig_free(rig);
}

/* Always late is not always paused: waits stay bounded. */
Test(server_leave, a_machine_that_is_always_late)
{
    struct rig *rig = rig_new(2, 1, 0);
    uint32_t ticks = 0;

    rig->config.deadline_us = 30 * 1000 * 1000;
    rig_again(rig);
    rig_start(rig);
    while (!rig->exited && ticks < 100) {
        rig_pause(rig, 10 * 1000 * 1000);
        ticks++;
    }
    cr_assert(ticks == 30 && rig->exit_code == 69, "%u", ticks);
    rig_free(rig);
}

static uint32_t count_lines(const struct rig *rig, const char *id)
{
    uint32_t count = 0;

    for (const char *at = strstr(rig->traces, id); at; at = strstr(at + 1, id)) {
        count++;
    }
    return count;
}

Test(server_leave, stall_lines)
{
    struct rig *rig = rig_running(4);
    struct gk_msg msg;

    rig_push(rig, 1, 0);
    rig_tick(rig, 4999 * 1000);
    cr_assert(count_lines(rig, "SERVER-ROUND-WAITS") == 0);
    msg = rig_msg(rig, GK_KIND_PING, 2);
    msg.body.ping.waits = GK_WAIT_SHARD;
    msg.body.ping.waits_for = 1;
    rig_send(rig, rig_route(2, 1), &msg);
    rig_tick(rig, 1000);
    cr_assert(count_lines(rig, "SERVER-ROUND-WAITS") == 1);
    cr_assert(
        strstr(
            rig->traces,
            "round 0 waits for rank 0 (last heard 5.0 s ago), rank 2 (last heard 0.0 s ago, waits "
            "for shard 1), rank 3 (last heard 5.0 s ago), open for 5.0 s"),
        "%s", rig->traces);
    for (int i = 0; i < 20; i++) {
        rig_tick(rig, 1000 * 1000);
    }
    cr_assert(count_lines(rig, "SERVER-ROUND-WAITS") == 3, "every 10 s: %s", rig->traces);
    rig_restart(rig);
    rig_tick(rig, 5000 * 1000);
    cr_assert(strstr(rig->traces, "rank 0 (never seen)"), "%s", rig->traces);
    rig_free(rig);
    rig = rig_new(4, 1, 0);
    rig_start(rig);
    rig_hello(rig, 0, 1);
    rig_hello(rig, 1, 1);
    rig_hello(rig, 3, 1);
    rig_tick(rig, 5000 * 1000);
    cr_assert(
        strstr(rig->traces, "waiting for worker 4 of 4: missing rank 2 (never seen), for 5.0 s"),
        "%s", rig->traces);
    rig_free(rig);
}
