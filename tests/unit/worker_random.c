/* Goal: over a network that drops, doubles and reorders, and with shards that restart, forget what
 * was not durable and commit at their own pace, a worker comes to its end; it has installed every
 * version once and in order, and every shard has counted every push exactly once.  The same with a
 * worker that dies too and finds its slot; one that finds none names what is lost.
 * Method: one core, or one after the other, against toy servers; everything is drawn from a seed,
 * which every failure names. */
#include "worker_toy.h"

#include "common/rng.h"

#include <criterion/criterion.h>

#define MS UINT64_C(1000)

enum { ITEMS_MAX = 4096 };

enum what { TO_SHARD, TO_CORE, LOCK, COMMIT, SYNC, UP, DOWN, COMPUTED, PERSISTED, EVALUATED, INIT };

struct item {
    uint64_t at_us;
    uint64_t order;
    enum what what;
    uint32_t shard;
    uint32_t life; /* of the shard or the worker that it is about */
    struct gk_msg msg;
};

struct faults { /* per cent, or the longest time */
    uint32_t drop, twice, restart, death;
    uint64_t delay_us, work_us;
    bool lags;
};

struct run {
    uint64_t seed;
    struct gk_rng rng;
    uint64_t draws;
    struct faults faults;
    struct rig_options options;
    struct rig rig;
    struct toy toy;
    struct item *items;
    uint32_t items_count;
    uint64_t orders;
    uint32_t life; /* of the worker */
    bool up[RIG_SERVERS_MAX], closing[RIG_SERVERS_MAX];
    uint64_t done[GK_WORKER_EXIT + 1]; /* actions already answered, by kind */
    uint64_t next_step;                /* that STEP must ask for; UINT64_MAX: any */
    bool keeps_slot;
    uint64_t slot; /* pushes below it are persisted; 0: nothing is */
};

static uint64_t below(struct run *run, uint64_t bound)
{
    return bound > 0 ? gk_rng_below(&run->rng, run->draws++, bound) : 0;
}

static bool percent(struct run *run, uint32_t chance)
{
    return below(run, 100) < chance;
}

static struct item *plan(struct run *run, uint64_t in_us, enum what what, uint32_t shard,
                         uint32_t life)
{
    struct item *item = &run->items[run->items_count++];

    cr_assert(run->items_count <= ITEMS_MAX, "seed %llu", (unsigned long long)run->seed);
    *item = (struct item){.at_us = run->rig.now_us + in_us,
                          .order = run->orders++,
                          .what = what,
                          .shard = shard,
                          .life = life};
    return item;
}

static void copy_msg(struct gk_msg *to, const struct gk_msg *from)
{
    *to = *from;
    for (uint32_t i = 0; i < from->frames_count; i++) {
        to->frame[i] = gk_buf_ref(from->frame[i]);
    }
}

/* Onto the wire: lost, once, or twice, each with a delay of its own. */
static void post(struct run *run, enum what what, uint32_t shard, const struct gk_msg *msg)
{
    uint32_t copies = percent(run, run->faults.twice) ? 2 : 1;

    for (uint32_t i = 0; run->up[shard] && i < copies; i++) {
        if (!percent(run, run->faults.drop)) {
            copy_msg(&plan(run, below(run, run->faults.delay_us), what, shard, run->life)->msg,
                     msg);
        }
    }
}

/* A shard dies and is back at once; the worker sees its connection break, or does not. */
static void restart_shard(struct run *run, uint32_t s)
{
    toy_restart(&run->toy, s);
    run->closing[s] = false;
    if (run->up[s] && percent(run, 50)) {
        plan(run, below(run, run->faults.delay_us), DOWN, s, run->life);
    }
}

static void close_rounds(struct run *run)
{
    for (uint32_t s = 0; s < run->options.servers; s++) {
        const struct toy_shard *shard = &run->toy.shards[s];

        if (shard->whole && !run->closing[s]) {
            run->closing[s] = true;
            plan(run, below(run, run->faults.work_us), LOCK, s, shard->incarnation);
        }
    }
}

static void post_all(struct run *run)
{
    struct rig *rig = &run->rig;

    for (uint32_t i = 0; i < rig->sent_count; i++) {
        post(run, TO_SHARD, rig->sent[i].shard, &rig->sent[i].msg);
    }
    rig_forget_sent(rig);
    for (uint32_t i = 0; i < run->toy.replies_count; i++) {
        post(run, TO_CORE, run->toy.replies[i].shard, &run->toy.replies[i].msg);
        gk_msg_clear(&run->toy.replies[i].msg);
    }
    run->toy.replies_count = 0;
    close_rounds(run);
}

static bool asked(struct run *run, enum gk_worker_action_kind kind)
{
    if (run->rig.counts[kind] == run->done[kind]) {
        return false;
    }
    cr_assert_eq(run->rig.counts[kind], ++run->done[kind], "seed %llu",
                 (unsigned long long)run->seed);
    return true;
}

static void begin_life(struct run *run)
{
    uint64_t now_us = run->rig.now_us;

    run->life++;
    if (run->keeps_slot && run->life > 1) {
        rig_restart(&run->rig, run->slot);
        memcpy(run->done, run->rig.counts, sizeof(run->done));
        run->rig.installs_count = 0;
    } else {
        run->options.seed = run->seed * 1000 + run->life;
        rig_open(&run->rig, run->options);
        memset(run->done, 0, sizeof(run->done));
    }
    run->rig.now_us = now_us;
    run->toy.rig = &run->rig;
    run->next_step = UINT64_MAX;
    rig_start(&run->rig);
    for (uint32_t s = 0; s < run->options.servers; s++) {
        run->up[s] = false;
        plan(run, below(run, run->faults.delay_us), UP, s, run->life);
    }
}

/* Answers to what the core asked its shell for, later. */
static void work(struct run *run)
{
    const struct rig *rig = &run->rig;
    uint64_t step = rig->asked[GK_WORKER_STEP];

    if (asked(run, GK_WORKER_STEP)) {
        cr_assert(step == run->next_step || run->next_step == UINT64_MAX ||
                      rig->counts[GK_WORKER_RESET] > 1,
                  "seed %llu", (unsigned long long)run->seed);
        run->next_step = step + 1;
        plan(run, below(run, run->faults.work_us), COMPUTED, 0, run->life);
        for (uint32_t s = 0; s < run->options.servers; s++) {
            if (percent(run, run->faults.restart)) {
                restart_shard(run, s);
            }
        }
    }
    if (asked(run, GK_WORKER_RESET)) {
        run->slot = 0;
    }
    if (asked(run, GK_WORKER_PERSIST)) {
        plan(run, below(run, 5 * MS), PERSISTED, 0, run->life);
    }
    if (asked(run, GK_WORKER_EVALUATE)) {
        plan(run, below(run, run->faults.work_us), EVALUATED, 0, run->life);
    }
    if (asked(run, GK_WORKER_MAKE_INIT)) {
        plan(run, below(run, run->faults.work_us), INIT, 0, run->life);
    }
}

static void happen_to_shard(struct run *run, struct item *item)
{
    struct toy_shard *shard = &run->toy.shards[item->shard];

    if (item->what == TO_SHARD) {
        toy_handle(&run->toy, item->shard, &item->msg);
    } else if (item->life != shard->incarnation) {
        return; /* of a former life of the shard */
    } else if (item->what == LOCK) {
        shard->locked = shard->whole;
        run->closing[item->shard] = shard->whole;
        if (shard->whole) {
            plan(run, below(run, run->faults.work_us), COMMIT, item->shard, shard->incarnation);
        }
    } else if (item->what == COMMIT) {
        toy_commit(&run->toy, item->shard);
        run->closing[item->shard] = false;
        plan(run, below(run, 20 * run->faults.work_us), SYNC, item->shard, shard->incarnation);
    } else {
        shard->durable = shard->version;
    }
}

static void happen_to_core(struct run *run, struct item *item)
{
    struct rig *rig = &run->rig;

    if (item->life != run->life) {
        return; /* of a former life of the worker */
    }
    if (item->what == TO_CORE) {
        rig_give(rig, item->shard, &item->msg);
    } else if (item->what == UP) {
        run->up[item->shard] = true;
        rig_up(rig, item->shard);
    } else if (item->what == DOWN) {
        run->up[item->shard] = false;
        rig_down(rig, item->shard);
        plan(run, below(run, 2 * run->faults.delay_us), UP, item->shard, run->life);
    } else if (item->what == COMPUTED) {
        rig_step_done(rig);
    } else if (item->what == PERSISTED) {
        run->slot = rig->asked[GK_WORKER_PERSIST] + 1;
        rig_persisted(rig);
    } else if (item->what == EVALUATED) {
        rig_evaluated(rig);
    } else {
        rig_init_made(rig, 0xabc);
    }
}

/* The next thing in time: an item, or the core's timer. */
static void turn(struct run *run)
{
    uint32_t first = 0;
    struct item item;

    for (uint32_t i = 1; i < run->items_count; i++) {
        if (run->items[i].at_us < run->items[first].at_us ||
            (run->items[i].at_us == run->items[first].at_us &&
             run->items[i].order < run->items[first].order)) {
            first = i;
        }
    }
    if (run->items_count == 0 || run->rig.armed_us <= run->items[first].at_us) {
        rig_tick(&run->rig);
    } else {
        item = run->items[first];
        run->items[first] = run->items[--run->items_count];
        run->rig.now_us = item.at_us;
        if (item.what <= SYNC && item.what != TO_CORE) {
            happen_to_shard(run, &item);
        } else {
            happen_to_core(run, &item);
        }
        gk_msg_clear(&item.msg);
    }
    work(run);
    post_all(run);
}

/* Of one life: versions rise, and no range comes twice; the number of whole versions. */
static uint64_t check_installs(const struct run *run)
{
    const struct rig *rig = &run->rig;
    uint64_t whole = 0, at = 0;

    for (uint32_t i = 0; i < rig->installs_count;) {
        uint64_t version = rig->installs[i].version, covered = 0;

        cr_assert(i == 0 || version > at, "seed %llu", (unsigned long long)run->seed);
        at = version;
        for (uint32_t j = i; i < rig->installs_count && rig->installs[i].version == version; i++) {
            covered += rig->installs[i].hi - rig->installs[i].lo;
            cr_assert(rig->installs[i].first == (float)version);
            for (uint32_t k = j; k < i; k++) {
                cr_assert(rig->installs[k].lo != rig->installs[i].lo, "seed %llu",
                          (unsigned long long)run->seed);
            }
        }
        whole += covered == run->options.params;
    }
    return whole;
}

static void end_life(struct run *run)
{
    uint64_t now_us = run->rig.now_us;

    (void)check_installs(run);
    if (!run->keeps_slot) {
        rig_close(&run->rig);
    }
    run->rig.now_us = now_us;
}

static void open_run(struct run *run, uint64_t seed, struct rig_options options)
{
    *run = (struct run){.seed = seed,
                        .rng = {.seed = seed, .purpose = GK_RNG_RANDK},
                        .options = options,
                        .items = calloc(ITEMS_MAX, sizeof(*run->items))};
    cr_assert(run->items != NULL);
    run->faults = (struct faults){.drop = percent(run, 50) ? (uint32_t)below(run, 30) : 0,
                                  .twice = percent(run, 50) ? (uint32_t)below(run, 50) : 0,
                                  .restart = percent(run, 50) ? (uint32_t)below(run, 20) : 0,
                                  .delay_us = percent(run, 50) ? 1 + below(run, 800 * MS) : 200,
                                  .work_us = percent(run, 50) ? 1 + below(run, 300 * MS) : 100,
                                  .lags = percent(run, 50)};
    run->options.servers = 1 + (uint32_t)below(run, 3);
    run->options.params = options.params * run->options.servers;
    run->options.rank = (uint32_t)below(run, 2);
    run->options.evaluates = run->options.rank == 0;
    run->options.eval_every = below(run, 4);
    run->rig.options = run->options;
    toy_open(&run->toy, &run->rig);
    if (run->options.rank > 0) {
        toy_begun(&run->toy, 0);
    }
    for (uint32_t s = 0; s < run->options.servers; s++) {
        run->toy.shards[s].closes = false;
        run->toy.shards[s].lags = run->faults.lags;
    }
}

static void close_run(struct run *run)
{
    for (uint32_t i = 0; i < run->items_count; i++) {
        gk_msg_clear(&run->items[i].msg);
    }
    free(run->items);
    toy_close(&run->toy);
    (void)check_installs(run);
    rig_close(&run->rig);
}

/* To the end of the job; in bounded time. */
static void play(struct run *run)
{
    uint64_t until_us = (run->options.steps + 10) * 120 * 1000 * MS;

    begin_life(run);
    post_all(run);
    while (!run->rig.exited) {
        uint64_t steps = run->rig.counts[GK_WORKER_STEP];

        turn(run);
        cr_assert(run->rig.now_us < until_us, "seed %llu hangs in phase %s",
                  (unsigned long long)run->seed,
                  gk_worker_phase_name(gk_worker_phase(run->rig.core)));
        if (run->rig.counts[GK_WORKER_STEP] > steps && percent(run, run->faults.death)) {
            for (uint64_t more = below(run, 60); more > 0 && !run->rig.exited; more--) {
                turn(run);
            }
            if (!run->rig.exited) {
                end_life(run);
                begin_life(run);
            }
        }
    }
    cr_assert_eq(run->rig.exit_code, GK_EXIT_OK, "seed %llu: %s", (unsigned long long)run->seed,
                 run->rig.exit_words.text);
}

/* Every shard has made every version of the push of its step, or, where allowed, of an empty one.
 */
static uint64_t check_applied(struct run *run)
{
    uint64_t lost = 0;

    for (uint64_t t = 0; t < run->options.steps; t++) {
        struct gk_push *push = rig_push(&run->rig, t);

        for (uint32_t s = 0; s < run->options.servers; s++) {
            const struct toy_shard *shard = &run->toy.shards[s];

            lost += shard->lost[t];
            cr_assert(shard->lost[t] || shard->applied[t] == push->slices[s].id,
                      "seed %llu, step %llu", (unsigned long long)run->seed, (unsigned long long)t);
        }
        gk_push_free(push);
    }
    for (uint32_t s = 0; s < run->options.servers; s++) {
        cr_assert_eq(run->toy.shards[s].version, run->options.steps);
        cr_assert(run->toy.shards[s].left);
    }
    return lost;
}

static void undisturbed_worker(uint64_t seed, struct rig_options options)
{
    struct run run;

    open_run(&run, seed, options);
    play(&run);
    cr_assert_eq(check_applied(&run), 0, "seed %llu", (unsigned long long)seed);
    cr_assert_eq(gk_worker_stats(run.rig.core)->lost, 0);
    cr_assert_eq(check_installs(&run), options.steps + 1, "seed %llu", (unsigned long long)seed);
    cr_assert_eq(run.rig.counts[GK_WORKER_STEP], options.steps);
    close_run(&run);
}

static const struct rig_options small = {
    .workers = 2, .params = 72, .steps = 60, .entries = 30, .chunk_floats = 3, .pull_floats = 16};

Test(random, bad_network_and_restarts)
{
    for (uint64_t seed = 1; seed <= 60; seed++) {
        undisturbed_worker(seed, small);
    }
}

Test(random, long_run)
{
    struct rig_options options = small;

    options.steps = 500;
    for (uint64_t seed = 100; seed < 104; seed++) {
        undisturbed_worker(seed, options);
    }
}

Test(random, worker_that_dies)
{
    uint64_t lives = 0, lost = 0;

    for (uint64_t seed = 300; seed < 340; seed++) {
        struct run run;

        open_run(&run, seed, small);
        run.faults.death = 10;
        play(&run);
        lost += check_applied(&run);
        lives += run.life;
        close_run(&run);
    }
    cr_assert_gt(lives, 100, "some did");
    cr_assert_gt(lost, 0, "and some of their pushes were lost");
}

Test(random, worker_that_dies_and_keeps_its_slot)
{
    uint64_t lives = 0;

    for (uint64_t seed = 400; seed < 440; seed++) {
        struct run run;

        open_run(&run, seed, small);
        run.faults.death = 10;
        run.keeps_slot = true;
        play(&run);
        cr_assert_eq(check_applied(&run), 0, "seed %llu", (unsigned long long)seed);
        cr_assert_eq(gk_worker_stats(run.rig.core)->lost, 0);
        lives += run.life;
        close_run(&run);
    }
    cr_assert_gt(lives, 100, "some did");
}
