/* Goal: exactly once, under any sequence of messages, completions, lost routes and restarts.
 * Method: a seeded storm of some thousand random events; invariants and the balance of the ledger
 * after each; what the records say is replayed by the reference table, and must be the planes, bit
 * for bit. */
#include "server_job.h"

enum { WORKERS = 3, EVENTS = 2500, VARIANTS = 3 };

struct storm {
    struct rig *rig;
    struct gk_rng rng;
    uint64_t draws;
    uint32_t life[WORKERS];
    struct rig_model model;
    uint32_t records_seen;
    uint64_t version; /* by the records */
    uint64_t optimizer_step;
    uint32_t rounds, restarts, lives;
};

static uint32_t draw(struct storm *storm, uint32_t bound)
{
    return (uint32_t)gk_rng_below(&storm->rng, storm->draws++, bound);
}

/* Each ROUND record is the next version, names each rank once, in order, and its pushes are what
 * was pushed. */
static void follow_records(struct storm *storm)
{
    struct rig *rig = storm->rig;

    for (; storm->records_seen < rig->records_count; storm->records_seen++) {
        const struct rig_record *kept = &rig->records[storm->records_seen % 256];
        struct rig_push pushes[WORKERS];

        if (kept->record.type != GK_RECORD_ROUND) {
            continue;
        }
        cr_assert(kept->record.version == storm->version + 1 &&
                  kept->record.step == storm->version);
        cr_assert(kept->record.contributions_count == WORKERS);
        for (uint32_t r = 0; r < WORKERS; r++) {
            const struct gk_contribution *c = &kept->contributions[r];
            uint32_t variant = 0;

            cr_assert(c->rank == r && c->step == storm->version);
            do {
                cr_assert(variant < VARIANTS, "a push that nobody sent");
                pushes[r] = rig_make_push(rig, r, c->step, variant++);
            } while (pushes[r].id != c->push_id);
        }
        rig_model_commit(rig, &storm->model, pushes, WORKERS);
        storm->version++;
        storm->rounds++;
    }
}

static void random_push(struct storm *storm)
{
    struct rig *rig = storm->rig;
    uint32_t rank = draw(storm, WORKERS);
    uint64_t version = rig_view(rig).version;
    uint64_t step =
        draw(storm, 3) > 0 ? version : version + 1 - gk_min_u64(draw(storm, 4), version);
    struct rig_push push =
        rig_make_push(rig, rank, step, draw(storm, 4) > 0 ? 0 : draw(storm, VARIANTS));
    uint64_t session = rig->session[rank];
    bool whole = draw(storm, 2) == 0;

    if (draw(storm, 12) == 0) {
        rig->session[rank] ^= draw(storm, 8);
    }
    for (uint32_t i = 0; i < (whole ? 2 * push.chunks : 1); i++) {
        rig_push_chunk(rig, rank, &push,
                       whole && i < push.chunks ? push.chunks - 1 - i : draw(storm, push.chunks));
    }
    rig->session[rank] = session;
}

static void random_hello(struct storm *storm)
{
    struct rig *rig = storm->rig;
    uint32_t rank = draw(storm, WORKERS);
    bool reborn = draw(storm, 8) == 0;
    struct gk_msg msg = rig_hello_msg(rig, rank, storm->life[rank] + (reborn ? 1 : 0));

    if (reborn) {
        msg.body.hello.takeover = draw(storm, 2) == 0;
        if (draw(storm, 2) == 0) {
            struct rig_push push =
                rig_make_push(rig, rank, rig_view(rig).version, draw(storm, VARIANTS));

            msg.body.hello.slot = GK_SLOT_STEP;
            msg.body.hello.slot_step = push.step;
            msg.body.hello.slot_push_id = push.id;
        }
    }
    rig_send(rig, rig_route(rank, storm->life[rank]), &msg);
}

/* Sessions come with WELCOME, whenever the records let it out. */
static void learn_sessions(struct storm *storm)
{
    struct rig *rig = storm->rig;

    for (uint32_t i = 0; i < rig->replies_count; i++) {
        const struct gk_msg *msg = &rig->replies[i].msg;

        if (msg->h.kind == GK_KIND_WELCOME) {
            uint32_t life = (uint32_t)(msg->body.welcome.life_nonce % 1000);

            rig->session[msg->h.rank] = msg->h.session;
            storm->lives += life != storm->life[msg->h.rank];
            storm->life[msg->h.rank] = life;
        }
        if (msg->h.kind == GK_KIND_PARAMS) {
            cr_assert(msg->h.version == storm->version &&
                          memcmp(rig->replies[i].values, storm->model.p + msg->h.lo,
                                 msg->h.count * sizeof(float)) == 0,
                      "parameters of another version");
        }
        if (msg->h.kind == GK_KIND_PUSH_OK && msg->h.verdict != GK_VERDICT_NONE) {
            cr_assert(msg->h.verdict_step < storm->version, "a verdict before its record");
        }
    }
    rig_clear(rig);
}

static void random_event(struct storm *storm)
{
    struct rig *rig = storm->rig;
    uint32_t what = draw(storm, 100);
    uint64_t version = rig_view(rig).version;

    if (what < 30) {
        random_push(storm);
    } else if (what < 60) {
        (void)rig_work(rig, true);
    } else if (what < 72) {
        random_hello(storm);
    } else if (what < 84) {
        uint32_t lo = draw(storm, RIG_PARAMS);

        rig_pull_range(rig, draw(storm, WORKERS), version + 1 - gk_min_u64(version, draw(storm, 3)),
                       lo, lo + 1 + draw(storm, RIG_PARAMS - lo));
    } else if (what < 88) {
        rig_ping(rig, draw(storm, WORKERS), 1);
    } else if (what < 92) {
        rig_tick(rig, draw(storm, 4) == 0 ? 4 * GK_PING_US : draw(storm, 1000));
    } else if (what < 95) {
        rig_init_chunk(rig, draw(storm, rig_chunks(rig)), RIG_INIT_ID + draw(storm, 2));
    } else if (what < 97) {
        rig_event(rig, (struct gk_server_event){
                           .kind = GK_SERVER_BAD_MESSAGE, .route = 3, .err = GK_E_CORRUPT});
    } else if (what < 99) {
        rig_event(rig, (struct gk_server_event){
                           .kind = GK_SERVER_PEER_GONE,
                           .route = rig_route(draw(storm, WORKERS), 1 + draw(storm, 3))});
    } else if (draw(storm, 3) == 0) {
        rig_restart(rig);
        storm->restarts++;
    }
}

static void blow(uint64_t seed, struct storm *storm)
{
    struct rig *rig = rig_running(WORKERS);

    *storm = (struct storm){.rig = rig, .rng = {.seed = seed, .purpose = GK_RNG_BATCH}};
    rig_model_init(rig, &storm->model);
    storm->records_seen = rig->records_count;
    for (uint32_t r = 0; r < WORKERS; r++) {
        storm->life[r] = 1;
    }
    rig_push(rig, 0, 0); /* from here on INIT cannot be replaced */
    rig->held = UINT32_MAX;
    for (uint32_t i = 0; i < EVENTS; i++) {
        random_event(storm);
        cr_assert(!rig->exited, "seed %llu event %u: %s", (unsigned long long)seed, i,
                  rig->exit_words.text);
        follow_records(storm);
        learn_sessions(storm);
    }
    /* The storm is over: the job goes on by itself. */
    rig_release(rig);
    follow_records(storm);
    learn_sessions(storm);
    cr_assert(rig_same(rig, &storm->model), "seed %llu: the planes are not what the records say",
              (unsigned long long)seed);
    for (uint64_t t = storm->version, end = t + 2; t < end; t++) {
        for (uint32_t r = 0; r < WORKERS; r++) {
            struct gk_msg msg = rig_hello_msg(rig, r, storm->life[r]);

            rig_say_hello(rig, r, 1, &msg);
            cr_kind(rig, GK_KIND_WELCOME);
            rig_push(rig, r, t);
        }
    }
    follow_records(storm);
    cr_assert(rig_view(rig).version == storm->version && rig_same(rig, &storm->model));
}

Test(server_storm, exactly_once)
{
    struct storm storm;
    uint32_t rounds = 0, restarts = 0, lives = 0;
    struct gk_ledger all = {0};

    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct gk_ledger ledger;

        blow(seed, &storm);
        ledger = rig_view(storm.rig).ledger;
        cr_assert(ledger.applied == WORKERS * storm.version && ledger.lost == 0);
        all.duplicates += ledger.duplicates;
        all.dropped += ledger.dropped;
        all.nacks += ledger.nacks;
        rounds += storm.rounds;
        restarts += storm.restarts;
        lives += storm.lives;
        rig_free(storm.rig);
    }
    /* A storm in which nothing happened would prove nothing. */
    cr_assert(rounds > 60 && restarts > 10 && lives > 20, "%u rounds, %u restarts, %u lives",
              rounds, restarts, lives);
    cr_assert(all.duplicates > 1000 && all.dropped > 5 && all.nacks > 500);
}

Test(server_storm, same_seed_same_planes)
{
    struct storm first, second;

    blow(3, &first);
    blow(3, &second);
    cr_assert(first.version == second.version && first.draws == second.draws);
    cr_assert(memcmp(&first.model, &second.model, sizeof(first.model)) == 0);
    rig_free(first.rig);
    rig_free(second.rig);
}
