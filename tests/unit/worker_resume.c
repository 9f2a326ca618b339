/* Goal: what a life writes down is enough for the next one: who it was, how far it came, which
 * pushes may be needed again; and a slot that does not fit the job is void or ends the process, in
 * words.
 * Method: cores that begin with slots made by hand, against toy servers. */
#include "worker_toy.h"

#include <criterion/criterion.h>

#define SECOND UINT64_C(1000000)

static const struct rig_options two = {
    .servers = 2, .rank = 1, .workers = 2, .entries = 40, .chunk_floats = 4, .params = 256};

static void open_at(struct rig *rig, struct toy *toy, struct rig_options options, uint64_t version)
{
    rig_open(rig, options);
    toy_open(toy, rig);
    toy_begun(toy, version);
}

static void close_both(struct rig *rig, struct toy *toy)
{
    toy_close(toy);
    rig_close(rig);
}

/* Of a life with number 4 that has persisted the steps 4 and 5. */
static struct gk_worker_slot slot_of_5(const struct rig *rig)
{
    return (struct gk_worker_slot){
        .state = GK_SLOT_STEP,
        .identity = {.rank = 1,
                     .incarnation = 4,
                     .joined_incarnation = 4,
                     .job_uid = {.hi = 7, .lo = 8},
                     .init_id = 0x1111},
        .remembers = true,
        .memory = {.step = 5, .first_step = 0, .incarnation = 2},
        .pushes = {rig_push(rig, 5), rig_push(rig, 4)},
        .pushes_count = 2,
    };
}

static void resume(struct rig *rig, struct gk_worker_slot *slot)
{
    rig->identity = slot->identity;
    gk_worker_resume(rig->core, slot);
    cr_assert_eq(slot->pushes_count, 0, "taken");
}

static void start(struct rig *rig)
{
    rig_start(rig);
    for (uint32_t s = 0; s < rig->options.servers; s++) {
        rig_up(rig, s);
    }
}

/* What each stage of a life adds to the identity, before the messages that tell of it. */
Test(resume, what_is_remembered)
{
    struct rig rig;
    struct toy toy;
    struct rig_options options = two;

    options.steps = 1;
    open_at(&rig, &toy, options, 0);
    rig_start(&rig);
    cr_assert(rig.identity.incarnation == 1 && rig.identity.rank == 1);
    cr_assert(rig.identity.joined_incarnation == 0 && rig.identity.job_uid.hi == 0);
    rig_up(&rig, 0);
    rig_up(&rig, 1);
    toy_serve(&toy);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
    cr_assert(rig.identity.joined_incarnation == 1 && rig.identity.init_id == 0x1111);
    cr_assert(rig.identity.job_uid.hi == 7 && rig.identity.job_uid.lo == 8);
    cr_assert_eq(rig.counts[GK_WORKER_REMEMBER], 2, "nothing else has changed");
    toy_compute(&toy);
    cr_assert(rig.memory.step == 0 && rig.memory.first_step == 0 && rig.memory.incarnation == 1);
    toy_serve_some(&toy, 1);
    cr_assert_eq(rig.identity.left_at, 0);
    toy_serve(&toy);
    cr_assert(rig.exited && rig.exit_code == GK_EXIT_OK);
    cr_assert(rig.identity.left_at == 1);
    cr_assert_eq(rig.counts[GK_WORKER_REMEMBER], 3);
    close_both(&rig, &toy);
}

/* A rank that shard 0 assigns, and a number that is raised. */
Test(resume, rank_and_number_are_remembered)
{
    struct rig rig;
    struct toy toy;
    struct rig_options options = two;

    options.rank = GK_RANK_ANY;
    open_at(&rig, &toy, options, 0);
    toy.shards[0].assigns = 1;
    toy.shards[1].rank_incarnation = 6;
    start(&rig);
    cr_assert(rig.identity.rank == GK_RANK_ANY);
    toy_serve(&toy);
    cr_assert(rig.identity.rank == 1 && rig.identity.incarnation == 7);
    cr_assert_eq(rig.identity.joined_incarnation, 7);
    close_both(&rig, &toy);
}

Test(resume, hello_of_a_slot)
{
    for (uint32_t joined = 0; joined < 2; joined++) {
        struct rig rig;
        struct toy toy;
        struct gk_worker_slot slot;

        open_at(&rig, &toy, two, 5);
        slot = slot_of_5(&rig);
        slot.identity.joined_incarnation = joined ? 4 : 3;
        resume(&rig, &slot);
        start(&rig);
        for (uint32_t s = 0; s < 2; s++) {
            const struct gk_msg *msg = rig_take(&rig, s, GK_KIND_HELLO);
            const struct gk_hello *hello = &msg->body.hello;
            struct gk_push *push = rig_push(&rig, 5);

            cr_assert(msg->h.incarnation == 5 && msg->h.rank == 1);
            cr_assert(hello->slot == GK_SLOT_STEP && hello->slot_step == 5);
            cr_assert(hello->slot_push_id == push->slices[s].id);
            cr_assert(hello->job_uid.hi == 7 && hello->job_uid.lo == 8);
            cr_assert_eq(hello->takeover, joined, "the life before is dead, and held the rank");
            gk_push_free(push);
        }
        close_both(&rig, &toy);
    }
}

/* Once somebody else has had the rank nobody is pushed out. */
Test(resume, no_takeover_of_a_stranger)
{
    struct rig rig;
    struct toy toy;
    struct gk_worker_slot slot;

    open_at(&rig, &toy, two, 5);
    slot = slot_of_5(&rig);
    resume(&rig, &slot);
    toy.shards[0].rank_incarnation = 8;
    start(&rig);
    cr_assert(rig_take(&rig, 1, GK_KIND_HELLO)->body.hello.takeover);
    toy_handle(&toy, 0, rig_take(&rig, 0, GK_KIND_HELLO));
    toy_deliver(&toy);
    cr_assert_eq(rig.identity.incarnation, 9);
    for (uint32_t s = 0; s < 2; s++) {
        const struct gk_msg *msg = rig_take(&rig, s, GK_KIND_HELLO);

        cr_assert(msg->h.incarnation == 9 && !msg->body.hello.takeover);
    }
    close_both(&rig, &toy);
}

/* The life before held rank 1; whoever may hold the other ranks is not dead by that. */
Test(resume, no_takeover_of_another_rank)
{
    for (uint32_t assigned = 0; assigned < 2; assigned++) {
        struct rig rig;
        struct toy toy;
        struct rig_options options = two;
        struct gk_worker_slot slot = {
            .state = GK_SLOT_NONE,
            .identity = {.rank = 1, .incarnation = 4, .joined_incarnation = 4}};

        options.rank = GK_RANK_ANY;
        open_at(&rig, &toy, options, 5);
        toy.shards[0].assigns = assigned;
        resume(&rig, &slot);
        start(&rig);
        cr_assert(!rig.sent[0].msg.body.hello.takeover && rig.sent[0].msg.h.rank == GK_RANK_ANY);
        toy_serve_some(&toy, 1);
        cr_assert_eq(rig_take(&rig, 1, GK_KIND_HELLO)->body.hello.takeover, assigned == 1);
        close_both(&rig, &toy);
    }
}

/* Lives that never joined have raised this one's number above that of the process which holds its
 * rank now.  That it is no former life shows in time, unless the shard has yet to write down who
 * it is. */
Test(resume, a_living_holder_is_another_process)
{
    for (uint32_t known = 0; known < 2; known++) {
        struct rig rig;
        struct toy toy;
        struct rig_options options = two;
        struct gk_worker_slot slot;
        uint64_t start_us, until_us;
        uint32_t rank = 1;

        options.rank = GK_RANK_ANY;
        open_at(&rig, &toy, options, 5);
        slot = slot_of_5(&rig);
        resume(&rig, &slot);
        start(&rig);
        toy.shards[0].rank_incarnation = known ? 3 : 0;
        start_us = rig.now_us;
        until_us = start_us + 30 * SECOND;
        while (rank != GK_RANK_ANY && rig.now_us < until_us) {
            for (uint32_t i = 0; i < rig.sent_count; i++) {
                if (rig.sent[i].shard == 0 && rig.sent[i].msg.h.kind == GK_KIND_HELLO) {
                    rank = rig.sent[i].msg.h.rank;
                    toy_refuse(&toy, &toy.shards[0], &rig.sent[i].msg.h, GK_CODE_HELD, true);
                }
            }
            rig_forget_sent(&rig);
            toy_deliver(&toy);
            if (rig.sent_count == 0) {
                rig_tick(&rig);
            }
        }
        cr_assert_eq(rank == GK_RANK_ANY, known == 1);
        cr_assert_eq(rig_said(&rig, "WORKER-LOST", "rank 1 belongs to another process"), known);
        cr_assert(!known ||
                  (rig.now_us - start_us > 6 * SECOND && rig.now_us - start_us < 9 * SECOND));
        close_both(&rig, &toy);
    }
}

/* The shards are at 4 (its disk lagged) and 6: one gets both pushes, the other none. */
Test(resume, pushes_come_again)
{
    struct rig rig;
    struct toy toy;
    struct gk_worker_slot slot;

    open_at(&rig, &toy, two, 6);
    toy.shards[1].version = toy.shards[1].durable = 4;
    slot = slot_of_5(&rig);
    resume(&rig, &slot);
    toy_join(&toy);
    toy_wait(&toy, 2 * SECOND);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING) && rig.asked[GK_WORKER_STEP] == 6);
    for (uint64_t t = 4; t < 6; t++) {
        struct gk_push *push = rig_push(&rig, t);

        cr_assert_eq(toy.shards[1].applied[t], push->slices[1].id);
        gk_push_free(push);
    }
    cr_assert_eq(toy.shards[0].handled[GK_KIND_PUSH], 0);
    cr_assert_eq(rig.counts[GK_WORKER_RESET], 0);
    toy_compute(&toy);
    cr_assert(rig.memory.step == 6 && rig.memory.first_step == 0 && rig.memory.incarnation == 2,
              "the same memory goes on");
    close_both(&rig, &toy);
}

/* The verdict was earned by a former life of this memory (2 to 4), or by a stranger. */
Test(resume, whose_verdict)
{
    for (uint32_t life = 1; life < 6; life++) {
        struct rig rig;
        struct toy toy;
        struct gk_worker_slot slot;
        bool ours = life >= 2 && life <= 4;

        open_at(&rig, &toy, two, 6);
        for (uint32_t s = 0; s < 2; s++) {
            toy.shards[s].verdict = GK_VERDICT_APPLIED;
            toy.shards[s].verdict_step = 5;
            toy.shards[s].verdict_incarnation = life;
        }
        slot = slot_of_5(&rig);
        slot.identity.incarnation = 5; /* a life that never joined has pushed nothing */
        resume(&rig, &slot);
        toy_join(&toy);
        cr_assert(rig_in(&rig, GK_PHASE_COMPUTING));
        cr_assert_eq(gk_worker_stats(rig.core)->lost, ours ? 0 : 2, "life %u", life);
        cr_assert_eq(rig_said(&rig, "WORKER-PUSH-LOST", "committed step 5"), !ours);
        close_both(&rig, &toy);
    }
}

/* Damaged: HELLO says so, and the LOST rule brings the shards that wait for its push on. */
Test(resume, lost)
{
    struct rig rig;
    struct toy toy;
    struct gk_worker_slot slot;
    const struct gk_hello *hello;

    open_at(&rig, &toy, two, 6);
    toy.shards[1].version = toy.shards[1].durable = 5;
    slot = slot_of_5(&rig);
    slot.state = GK_SLOT_LOST;
    slot.remembers = false;
    for (uint32_t i = 0; i < 2; i++) {
        gk_push_free(slot.pushes[i]);
    }
    slot.pushes_count = 0;
    resume(&rig, &slot);
    start(&rig);
    hello = &rig.sent[0].msg.body.hello;
    cr_assert(hello->slot == GK_SLOT_LOST && hello->slot_step == 0 && hello->job_uid.hi == 7);
    toy_serve(&toy);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING) && rig.asked[GK_WORKER_STEP] == 6);
    cr_assert(toy.shards[1].lost[5] && rig.counts[GK_WORKER_RESET] == 1);
    toy_compute(&toy);
    cr_assert(rig.memory.step == 6 && rig.memory.first_step == 6 && rig.memory.incarnation == 5,
              "a memory of its own");
    close_both(&rig, &toy);
}

/* The job went on without it, further than its pushes reach. */
Test(resume, of_the_past)
{
    struct rig rig;
    struct toy toy;
    struct gk_worker_slot slot;

    open_at(&rig, &toy, two, 7);
    slot = slot_of_5(&rig);
    resume(&rig, &slot);
    toy_join(&toy);
    cr_assert(rig_in(&rig, GK_PHASE_COMPUTING) && rig.asked[GK_WORKER_STEP] == 7);
    cr_assert_eq(rig.counts[GK_WORKER_RESET], 1);
    cr_assert(rig_said(&rig, "WORKER-LOST", "the residual of rank 1 is void"));
    close_both(&rig, &toy);
}

static struct gk_worker_slot slot_that_left(const struct rig *rig)
{
    struct gk_worker_slot slot = slot_of_5(rig);

    slot.state = GK_SLOT_LEFT;
    slot.identity.left_at = 6;
    return slot;
}

/* Left, and killed before it heard so: the shards that are there are told again, and one that has
 * lost its last version gets the push again. */
Test(resume, had_left)
{
    for (uint32_t lags = 0; lags < 2; lags++) {
        struct rig rig;
        struct toy toy;
        struct gk_worker_slot slot;
        struct rig_options options = two;

        options.steps = 6;
        open_at(&rig, &toy, options, 6);
        if (lags) {
            toy.shards[1].version = toy.shards[1].durable = 5;
        }
        slot = slot_that_left(&rig);
        resume(&rig, &slot);
        start(&rig);
        cr_assert(rig_in(&rig, GK_PHASE_LEAVING));
        cr_assert(rig.sent[0].msg.body.hello.slot == GK_SLOT_LEFT);
        cr_assert_eq(rig.sent[0].msg.body.hello.slot_left_at, 6);
        toy_serve(&toy);
        toy_wait(&toy, 2 * SECOND);
        cr_assert(rig.exited && rig.exit_code == GK_EXIT_OK);
        cr_assert(strstr(rig.exit_words.text, "had left after 6 steps"));
        cr_assert(gk_worker_left_before(rig.core));
        cr_assert(toy.shards[0].left && toy.shards[1].left);
        cr_assert_eq(toy.shards[1].version, 6);
        cr_assert_eq(toy.shards[1].applied[5] != 0, lags);
        cr_assert(rig.counts[GK_WORKER_STEP] == 0 && rig.counts[GK_WORKER_RESET] == 0);
        close_both(&rig, &toy);
    }
}

/* Nobody is there any more, or all of them have finished. */
Test(resume, had_left_and_all_is_over)
{
    for (uint32_t there = 0; there < 2; there++) {
        struct rig rig;
        struct toy toy;
        struct gk_worker_slot slot;
        struct rig_options options = two;

        options.steps = 6;
        options.deadline_us = 120 * SECOND;
        open_at(&rig, &toy, options, 6);
        slot = slot_that_left(&rig);
        resume(&rig, &slot);
        rig_start(&rig);
        if (there) {
            toy.shards[0].finished = toy.shards[1].finished = true;
            rig_up(&rig, 0);
            rig_up(&rig, 1);
            for (uint32_t s = 0; s < 2; s++) {
                toy_handle(&toy, s, rig_take(&rig, s, GK_KIND_HELLO));
            }
            toy_deliver(&toy);
            cr_assert(rig.exited, "WELCOME is enough");
        } else {
            rig_wait(&rig, GK_LINGER_US + 2 * SECOND);
            cr_assert(rig_said(&rig, "WORKER-LEAVE-UNHEARD", "went away"));
        }
        cr_assert(rig.exited && rig.exit_code == GK_EXIT_OK);
        cr_assert(strstr(rig.exit_words.text, "had left after 6 steps"));
        close_both(&rig, &toy);
    }
}

/* The slot is of another run: servers that answer and refuse have not gone, in whatever order the
 * shards are looked at; WRONG_JOB may pass while they are replaced, anything else is for good. */
Test(resume, had_left_in_another_run)
{
    enum { JOB = 1, SPEC, PASSES, CASES };

    for (uint32_t refusing = 1; refusing < 4; refusing++) {
        for (int kind = JOB; kind < CASES; kind++) {
            struct rig rig;
            struct toy toy;
            struct gk_worker_slot slot;
            struct rig_options options = two;
            enum gk_code code = kind == SPEC ? GK_CODE_WRONG_SPEC : GK_CODE_WRONG_JOB;

            options.steps = 6;
            options.deadline_us = 20 * SECOND;
            open_at(&rig, &toy, options, 6);
            slot = slot_that_left(&rig);
            resume(&rig, &slot);
            start(&rig);
            for (uint64_t s = 0; s < (kind == PASSES ? 19 : 30) && !rig.exited; s++) {
                for (uint32_t i = 0; i < 2; i++) {
                    for (struct gk_msg *hello; (hello = rig_take(&rig, i, GK_KIND_HELLO));) {
                        if (refusing & 1u << i) {
                            toy_refuse(&toy, &toy.shards[i], &hello->h, code, kind != SPEC);
                        } else {
                            toy_handle(&toy, i, hello);
                        }
                    }
                    for (struct gk_msg *leave; (leave = rig_take(&rig, i, GK_KIND_LEAVE));) {
                        toy_handle(&toy, i, leave);
                    }
                }
                toy_deliver(&toy);
                rig_wait(&rig, rig.exited ? 0 : SECOND);
            }
            if (kind == PASSES) {
                cr_assert(!rig.exited);
                toy_wait(&toy, 4 * SECOND);
                cr_assert(rig.exited && rig.exit_code == GK_EXIT_OK);
                cr_assert(toy.shards[0].left && toy.shards[1].left);
            } else {
                cr_assert(rig.exited && rig.exit_code == GK_EXIT_REFUSED, "%u %d: %d", refusing,
                          kind, rig.exit_code);
                cr_assert(strstr(rig.exit_words.text, gk_code_name(code)));
                cr_assert(kind == SPEC || strstr(rig.exit_words.text, "remove it"));
            }
            close_both(&rig, &toy);
        }
    }
}

/* Damage to the memory of a life that had left takes nothing from anybody. */
Test(resume, had_left_and_is_damaged)
{
    struct rig rig;
    struct toy toy;
    struct rig_options options = two;
    struct gk_worker_slot slot = {
        .state = GK_SLOT_LEFT,
        .identity = {.rank = 1, .incarnation = 4, .job_uid = {.hi = 7, .lo = 8}, .left_at = 6}};

    options.steps = 6;
    open_at(&rig, &toy, options, 6);
    resume(&rig, &slot);
    start(&rig);
    toy_serve(&toy);
    cr_assert(rig.exited && rig.exit_code == GK_EXIT_OK);
    cr_assert(toy.shards[0].left && toy.shards[1].left);
    close_both(&rig, &toy);
}

/* Before it has joined and behind that: identity and residual are of one epoch. */
Test(resume, welcome_in_another_epoch)
{
    for (uint32_t joined = 0; joined < 2; joined++) {
        struct rig rig;
        struct toy toy;

        open_at(&rig, &toy, two, 5);
        start(&rig);
        if (joined) {
            toy_serve(&toy);
            rig_down(&rig, 1);
            rig_up(&rig, 1);
        }
        toy_handle(&toy, 1, rig_take(&rig, 1, GK_KIND_HELLO));
        toy.replies[0].msg.h.epoch = 1;
        toy_deliver(&toy);
        cr_assert(rig.exited && rig.exit_code == GK_EXIT_REFUSED);
        cr_assert(strstr(rig.exit_words.text, "welcomes in epoch 1, this worker is in epoch 0"));
        cr_assert_eq(rig.identity.epoch, 0);
        close_both(&rig, &toy);
    }
}

Test(resume, of_another_run)
{
    struct rig rig;
    struct toy toy;
    struct gk_worker_slot slot;

    open_at(&rig, &toy, two, 5);
    slot = slot_of_5(&rig);
    resume(&rig, &slot);
    start(&rig);
    toy_refuse(&toy, &toy.shards[0], &rig_take(&rig, 0, GK_KIND_HELLO)->h, GK_CODE_WRONG_JOB,
               false);
    toy_deliver(&toy);
    cr_assert(rig.exited && rig.exit_code == GK_EXIT_REFUSED);
    cr_assert(strstr(rig.exit_words.text, "WRONG_JOB"));
    close_both(&rig, &toy);
}

/* A rewind raised the epoch: the slot is void; a shard in a lower one was forgotten. */
Test(resume, of_another_epoch)
{
    for (uint32_t epoch = 1; epoch < 4; epoch += 2) {
        struct rig rig;
        struct toy toy;
        struct gk_worker_slot slot;

        open_at(&rig, &toy, two, 5);
        slot = slot_of_5(&rig);
        slot.identity.epoch = slot.memory.epoch = 2;
        resume(&rig, &slot);
        start(&rig);
        toy_refuse(&toy, &toy.shards[1], &rig_take(&rig, 1, GK_KIND_HELLO)->h, GK_CODE_WRONG_EPOCH,
                   false);
        toy.replies[0].msg.h.epoch = epoch;
        toy_deliver(&toy);
        if (epoch < 2) {
            cr_assert(rig.exited && rig.exit_code == GK_EXIT_CONFIG);
            cr_assert(strstr(rig.exit_words.text, "shard 1 at tcp://b:2 is in epoch 1"));
        } else {
            const struct gk_msg *hello = rig_take(&rig, 1, GK_KIND_HELLO);

            cr_assert(!rig.exited && rig.counts[GK_WORKER_RESET] == 1);
            cr_assert(hello->h.epoch == 3 && hello->body.hello.slot == GK_SLOT_NONE);
            cr_assert_eq(rig.identity.epoch, 3);
            cr_assert(rig_said(&rig, "WORKER-LOST", "the slot of epoch 2 is void"));
        }
        close_both(&rig, &toy);
    }
}

/* So does a life that had left: the job that it left is over. */
Test(resume, left_in_another_epoch)
{
    struct rig rig;
    struct toy toy;
    struct gk_worker_slot slot;
    struct rig_options options = two;

    options.steps = 6;
    open_at(&rig, &toy, options, 0);
    slot = slot_that_left(&rig);
    resume(&rig, &slot);
    start(&rig);
    cr_assert(rig_in(&rig, GK_PHASE_LEAVING));
    for (uint32_t s = 0; s < 2; s++) {
        toy_refuse(&toy, &toy.shards[s], &rig_take(&rig, s, GK_KIND_HELLO)->h, GK_CODE_WRONG_EPOCH,
                   false);
        toy.replies[toy.replies_count - 1].msg.h.epoch = 1;
    }
    toy_deliver(&toy);
    cr_assert(!rig.exited && rig_in(&rig, GK_PHASE_JOINING));
    cr_assert_eq(rig.counts[GK_WORKER_RESET], 1);
    cr_assert(rig_said(&rig, "WORKER-LOST", "the slot of epoch 0 is void"));
    cr_assert(rig.identity.epoch == 1 && rig.identity.left_at == 0);
    for (uint32_t s = 0; s < 2; s++) {
        const struct gk_msg *hello = rig_take(&rig, s, GK_KIND_HELLO);

        cr_assert(hello->h.epoch == 1 && hello->body.hello.slot == GK_SLOT_NONE);
    }
    close_both(&rig, &toy);
}

Test(resume, no_number_left)
{
    struct rig rig;
    struct gk_worker_slot slot;

    rig_open(&rig, two);
    slot = slot_of_5(&rig);
    slot.identity.incarnation = UINT32_MAX;
    resume(&rig, &slot);
    rig_start(&rig);
    cr_assert(rig.exited && rig.exit_code == GK_EXIT_CONFIG);
    cr_assert(strstr(rig.exit_words.text, "no higher one is left"));
    rig_close(&rig);
}
