/* Stories of messages that come late, twice, in part, or from somebody else. */
#include "common/assert.h"
#include "common/limits.h"
#include "tests/sim/story.h"

#include <string.h>

static const struct gk_story_rule any = {.proc = GK_STORY_ANY,
                                         .shard = GK_STORY_ANY,
                                         .step = GK_STORY_ANY,
                                         .chunk = GK_STORY_ANY,
                                         .fate = GK_SIM_KEEP};

static struct gk_story_rule *requests(struct gk_sim *sim, uint32_t kind, uint64_t proc,
                                      uint64_t step, uint64_t chunk)
{
    struct gk_story_rule rule = any;

    rule.kind = kind;
    rule.to_shard = true;
    rule.proc = proc;
    rule.step = step;
    rule.chunk = chunk;
    return gk_story_rule(sim, &rule);
}

static struct gk_story_rule *answers(struct gk_sim *sim, uint32_t kind, uint64_t proc,
                                     enum gk_sim_fate fate)
{
    struct gk_story_rule rule = any;

    rule.kind = kind;
    rule.proc = proc;
    rule.fate = fate;
    return gk_story_rule(sim, &rule);
}

static struct gk_server_view view_of(const struct gk_sim *sim, uint32_t shard)
{
    struct gk_server_view view;

    gk_server_view(sim->shards[shard].core, &view);
    return view;
}

/* Rank 1 has not pushed, so nothing is committed; the acknowledgement of rank 0's push survives the
 * shard that gave it. */
void gk_story_old_ack(struct gk_sim *sim)
{
    gk_story_until_version(sim, 0, 1);
    (void)requests(sim, GK_KIND_PUSH, 1, 1, GK_STORY_ANY);
    gk_story_until_seen(sim, answers(sim, GK_KIND_PUSH_OK, 0, GK_SIM_KEEP), 1);
    gk_sim_shard_kill(sim, 0, 2000);
    gk_story_rules_clear(sim);
    requests(sim, GK_KIND_PUSH, 0, GK_STORY_ANY, GK_STORY_ANY)->fate = GK_SIM_LOSE;
    gk_story_until_session(sim, 0, 0);
    gk_story_release(sim, GK_KIND_PUSH_OK);
    gk_story_pass_us(sim, 2000);
    gk_story_end(sim);
    gk_story_expect(sim, sim->ledger.shadows[0].version == sim->options.steps,
                    "rank 0 pushes again");
}

void gk_story_before_hello(struct gk_sim *sim)
{
    gk_story_until_version(sim, 0, 1);
    (void)requests(sim, GK_KIND_PUSH, 0, 1, GK_STORY_ANY);
    gk_story_until_kept(sim, 1);
    gk_sim_shard_kill(sim, 0, 2000);
    (void)requests(sim, GK_KIND_HELLO, 0, GK_STORY_ANY, GK_STORY_ANY);
    while (sim->pairs[0][0].route == 0 && gk_story_turn(sim)) {
    }
    gk_story_release(sim, GK_KIND_PUSH);
    gk_story_pass_us(sim, 2000);
    gk_story_expect(sim, view_of(sim, 0).ledger.nacks > 0, "it is told to say HELLO");
    gk_story_expect(sim, view_of(sim, 0).version == 1 && view_of(sim, 0).ledger.pending == 0,
                    "a push without a session is not counted");
    gk_story_end(sim);
}

void gk_story_another_job(struct gk_sim *sim)
{
    gk_story_until_version(sim, 0, 1);
    for (uint32_t i = 0; i < 300; i++) {
        gk_sim_stranger(sim, i % sim->options.servers);
        gk_story_pass_us(sim, 100);
    }
    gk_story_end(sim);
}

static void say_hello_of_epoch(struct gk_sim *sim, uint32_t epoch)
{
    struct gk_msg msg = {
        .h = {.kind = GK_KIND_HELLO, .req_id = 1, .epoch = epoch, .incarnation = 50},
        .body.hello = {.protocol_min = GK_PROTOCOL_VERSION,
                       .protocol_max = GK_PROTOCOL_VERSION,
                       .workers = sim->options.workers,
                       .servers = sim->options.servers,
                       .role = 1,
                       .life_nonce = 12345,
                       .takeover = true},
    };

    gk_words_set(&msg.words, "%s", GK_SIM_JOB);
    gk_sim_send(sim, 0, 0, true, &msg);
}

void gk_story_another_epoch(struct gk_sim *sim)
{
    struct gk_story_rule *refused;

    gk_story_until_version(sim, 0, 1);
    refused = answers(sim, GK_KIND_REFUSE, 0, GK_SIM_PASS);
    say_hello_of_epoch(sim, 1);
    gk_story_pass_us(sim, 2000);
    gk_story_expect(sim, refused->seen == 1, "a HELLO of another epoch is refused");
    gk_story_end(sim);
}

/* The retry of an applied push must hear that it is applied; nothing else may tell the worker. */
void gk_story_late_verdict(struct gk_sim *sim)
{
    struct gk_story_rule *acks;

    gk_story_until_phase(sim, 0, GK_PHASE_COMPUTING, 1);
    acks = answers(sim, GK_KIND_PUSH_OK, 0, GK_SIM_LOSE);
    (void)answers(sim, GK_KIND_PARAMS, 0, GK_SIM_LOSE);
    (void)answers(sim, GK_KIND_PONG, 0, GK_SIM_LOSE);
    gk_story_until_seen(sim, acks, 1);
    gk_story_until_version(sim, 0, 2);
    gk_story_until_seen(sim, acks, 2 * acks->seen);
    gk_story_expect(sim, view_of(sim, 0).ledger.duplicates > 0, "the retry is a duplicate");
    gk_story_end(sim);
}

/* All chunks but the last of every rank's push are there: that must not be in anybody's way. */
void gk_story_half_sent(struct gk_sim *sim)
{
    uint64_t last = (sim->options.params_count - 1) / sim->options.worker_chunk;

    for (uint32_t r = 0; r < sim->options.workers; r++) {
        (void)requests(sim, GK_KIND_PUSH, r, 0, last);
    }
    gk_story_until_kept(sim, sim->options.workers);
    gk_story_pass_us(sim, 100 * 1000);
    gk_story_expect(sim, view_of(sim, 0).version == 0, "a round waits for the last chunk");
    gk_story_end(sim);
}

/* A life that lost its memory joins while the push of its predecessor is being summed: the version
 * that it pulls ends under its hands. */
void gk_story_torn_pull(struct gk_sim *sim)
{
    struct gk_story_rule *pulls;

    gk_story_until_version(sim, 0, 2);
    while (!gk_story_delay(sim, 0, GK_SIM_SUM, 10 * GK_SIM_SECOND) && gk_story_turn(sim)) {
    }
    gk_sim_proc_kill(sim, 0, true, 1000);
    pulls = requests(sim, GK_KIND_PULL_DENSE, 0, 2, GK_STORY_ANY);
    gk_story_until_seen(sim, pulls, 2);
    gk_sim_release(sim, 0);
    gk_story_pass_us(sim, 2000);
    gk_story_expect(sim,
                    sim->procs[0].versions[0] == 2 && gk_worker_version(sim->procs[0].core) < 2,
                    "one chunk of version 2 is here");
    gk_story_until_version(sim, 0, 3);
    gk_story_end(sim);
}

void gk_story_mixed_chunks(struct gk_sim *sim)
{
    gk_story_until_version(sim, 0, 1);
    (void)requests(sim, GK_KIND_PUSH, 1, 1, 1);
    gk_story_until_kept(sim, 1);
    gk_story_pass_us(sim, 2000);
    gk_sim_proc_kill(sim, 1, true, 1000);
    gk_story_rules_clear(sim);
    gk_story_drop_all(sim);
    (void)requests(sim, GK_KIND_PUSH, 1, 1, 0);
    gk_story_until_kept(sim, 1);
    gk_story_pass_us(sim, 100 * 1000);
    gk_story_expect(sim, view_of(sim, 0).version == 1, "two halves of two pushes are no push");
    gk_story_end(sim);
}

void gk_story_leave_logged(struct gk_sim *sim)
{
    (void)requests(sim, GK_KIND_LEAVE, 1, GK_STORY_ANY, GK_STORY_ANY);
    gk_story_until_ended(sim, 0);
    gk_sim_shard_kill(sim, 0, 2000);
    gk_story_pass_us(sim, 10 * 1000);
    gk_story_end(sim);
}
