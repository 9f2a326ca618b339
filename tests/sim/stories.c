#include "tests/sim/stories.h"

#include "common/assert.h"
#include "tests/sim/story.h"

#include <string.h>

enum { STORY_S_MAX = 120 };

static struct gk_story told; /* of the one story that is being told */

static bool fits(const struct gk_story_rule *rule, const struct gk_sim_packet *packet)
{
    return rule->kind == packet->kind && rule->to_shard == packet->to_shard &&
           (rule->proc == GK_STORY_ANY || rule->proc == packet->proc) &&
           (rule->shard == GK_STORY_ANY || rule->shard == packet->shard) &&
           (rule->step == GK_STORY_ANY || rule->step == packet->step) &&
           (rule->chunk == GK_STORY_ANY || rule->chunk == packet->chunk);
}

static enum gk_sim_fate filter(struct gk_sim *sim, const struct gk_sim_packet *packet)
{
    (void)sim;
    for (uint32_t i = 0; i < told.rules_count; i++) {
        if (fits(&told.rules[i], packet)) {
            told.rules[i].seen++;
            return told.rules[i].fate;
        }
    }
    return GK_SIM_PASS;
}

void gk_story_rules_clear(struct gk_sim *sim)
{
    memset(&told, 0, sizeof(told));
    sim->filter = filter;
}

struct gk_story_rule *gk_story_rule(struct gk_sim *sim, const struct gk_story_rule *rule)
{
    struct gk_story_rule *added = &told.rules[told.rules_count++];

    GK_ASSERT(told.rules_count <= GK_STORY_RULES_MAX);
    *added = *rule;
    sim->filter = filter;
    return added;
}

bool gk_story_turn(struct gk_sim *sim)
{
    if (sim->now_us > STORY_S_MAX * GK_SIM_SECOND) {
        gk_sim_fail(sim, "story", "it does not go on");
    }
    return !gk_sim_failed(sim) && gk_sim_turn(sim);
}

void gk_story_pass_us(struct gk_sim *sim, uint64_t length_us)
{
    uint64_t until_us = sim->now_us + length_us;

    while (sim->now_us < until_us && gk_story_turn(sim)) {
    }
}

void gk_story_until_version(struct gk_sim *sim, uint32_t shard, uint64_t version)
{
    while (
        (!sim->ledger.shadows[shard].initialised || sim->ledger.shadows[shard].version < version) &&
        gk_story_turn(sim)) {
    }
}

void gk_story_until_kept(struct gk_sim *sim, uint32_t count)
{
    while (sim->kept_count < count && gk_story_turn(sim)) {
    }
}

void gk_story_until_seen(struct gk_sim *sim, const struct gk_story_rule *rule, uint32_t count)
{
    while (rule->seen < count && gk_story_turn(sim)) {
    }
}

void gk_story_until_phase(struct gk_sim *sim, uint32_t proc, enum gk_worker_phase phase,
                          uint64_t version)
{
    while (
        (sim->procs[proc].phase != phase || gk_worker_version(sim->procs[proc].core) < version) &&
        gk_story_turn(sim)) {
    }
}

void gk_story_until_session(struct gk_sim *sim, uint32_t proc, uint32_t shard)
{
    while (sim->pairs[proc][shard].down_us != GK_SIM_NEVER && gk_story_turn(sim)) {
    }
}

void gk_story_until_ended(struct gk_sim *sim, uint32_t proc)
{
    while (sim->nodes[gk_sim_proc_node(proc)].state != GK_SIM_ENDED && gk_story_turn(sim)) {
    }
}

void gk_story_release(struct gk_sim *sim, uint32_t kind)
{
    for (uint32_t i = 0; i < sim->kept_count;) {
        if (sim->kept[i]->kind == kind) {
            gk_sim_release(sim, i);
        } else {
            i++;
        }
    }
}

void gk_story_release_all(struct gk_sim *sim)
{
    while (sim->kept_count > 0) {
        gk_sim_release(sim, 0);
    }
}

void gk_story_drop_all(struct gk_sim *sim)
{
    while (sim->kept_count > 0) {
        gk_sim_packet_free(sim->kept[--sim->kept_count]);
    }
}

bool gk_story_delay(struct gk_sim *sim, uint32_t node, enum gk_sim_work work, uint64_t length_us)
{
    for (uint32_t i = 0; i < sim->queue.count; i++) {
        struct gk_sim_event event = sim->queue.events[i];

        if (event.kind == GK_SIM_WORK && event.node == node && event.work == work) {
            gk_sim_queue_take(&sim->queue, i, &event);
            event.at_us += length_us;
            gk_sim_queue_push(&sim->queue, &event);
            return true;
        }
    }
    return false;
}

void gk_story_end(struct gk_sim *sim)
{
    gk_story_rules_clear(sim);
    gk_story_release_all(sim);
    gk_sim_faults_end(sim);
    if (!gk_sim_failed(sim)) {
        gk_sim_finish(sim);
    }
}

void gk_story_expect(struct gk_sim *sim, bool holds, const char *what)
{
    if (!holds) {
        gk_sim_fail(sim, "story", "it is not true that %s", what);
    }
}

static void one_worker(struct gk_sim_options *options)
{
    options->workers = 1;
    options->servers = 1;
}

static void one_server(struct gk_sim_options *options)
{
    options->servers = 1;
}

static void six_dense(struct gk_sim_options *options)
{
    options->workers = 6;
    options->servers = 1;
    options->params_count = 40;
    options->k = options->params_count;
}

static void other_init(struct gk_sim_options *options)
{
    options->faults.reinit = true;
}

static void short_deadline(struct gk_sim_options *options)
{
    options->deadline_us = 8 * GK_SIM_SECOND;
}

static void long_job(struct gk_sim_options *options)
{
    options->steps = 30;
    for (uint32_t r = 0; r < GK_SIM_RANKS_MAX; r++) {
        options->step_us[r] = 250 * 1000;
    }
}

static const struct gk_sim_story stories[] = {
    {"half-written-residual", "a worker is killed inside the selection pass", NULL,
     gk_story_half_residual},
    {"sent-before-flip", "a worker is killed between the push and its slot", NULL,
     gk_story_before_flip},
    {"ack-from-a-former-life", "PUSH_OK is in the pipe when the shard dies before its commit",
     one_server, gk_story_old_ack},
    {"message-before-hello", "a queued PUSH reaches a restarted server first", one_worker,
     gk_story_before_hello},
    {"another-job", "another job, another run and a tool speak on the same port", NULL,
     gk_story_another_job},
    {"another-epoch", "messages of before a rewind", one_worker, gk_story_another_epoch},
    {"worker-lost-its-directory", "its slice reached one shard only, the other one needs it", NULL,
     gk_story_lost_worker},
    {"shard-lost-its-directory", "it asks for INIT in the middle of the job", NULL,
     gk_story_lost_shard},
    {"shard-and-rank-0-lost", "and rank 0 would answer, because it has lost its memory too", NULL,
     gk_story_lost_shard_and_rank_0},
    {"rank-0-dies-during-init", "one shard has all of init 1, the other half; then comes init 2",
     other_init, gk_story_init_dies},
    {"zombie-of-the-last-run", "same name, same ports, an old worker still lives", other_init,
     gk_story_zombie},
    {"life-without-a-disk", "a new life has incarnation 1, the shards have seen 7", NULL,
     gk_story_no_disk},
    {"leave-not-logged", "LEAVE is confirmed, then the shard restarts", one_server,
     gk_story_leave_logged},
    {"mixed-chunks", "one life sends chunk 0, the next one chunk 1 of another push", one_server,
     gk_story_mixed_chunks},
    {"half-sent-pushes", "all ranks have sent half of a dense push", six_dense, gk_story_half_sent},
    {"torn-pull", "one chunk at v, the next one at v + 1", one_worker, gk_story_torn_pull},
    {"late-verdict", "applied, the answer is lost, the push comes again", one_server,
     gk_story_late_verdict},
    {"fenced", "a paused worker comes back after another process took its rank", long_job,
     gk_story_fenced},
    {"stopped-while-writing", "SIGTERM while a record is being written", NULL, gk_story_stopped},
    {"all-asleep", "all processes stand still for longer than the deadline, at every stage",
     short_deadline, gk_story_all_asleep},
    {"no-server", "one server never comes: the deadline names it", NULL, gk_story_no_server},
    {"rates-differ", "two ranks bring different learning rates for one step", gk_story_with_rates,
     gk_story_rates_differ},
    {"parameters-lost", "optimizer none: a worker comes back without its memory",
     gk_story_with_sums, gk_story_parameters_lost},
    {"full-disk-mid-record", "half a record is written, taken back, and tried again",
     gk_story_with_disks, gk_story_full_disk},
    {"eio-then-success", "a sync fails, the next one would succeed, and the data is gone",
     gk_story_with_disks, gk_story_sync_fails},
    {"eio-at-the-start", "a sync fails in the next life, and the one after that sees no loss",
     gk_story_large_records, gk_story_sync_fails_at_start},
    {"served-from-page-cache", "a kill before the sync; the next life serves it; then no power",
     gk_story_interval, gk_story_page_cache},
    {"torn-tail", "the power fails in the middle of each record", gk_story_with_disks,
     gk_story_torn_tail},
    {"tail-comes-again", "interval: a power failure takes what the workers still hold",
     gk_story_interval, gk_story_tail_again},
    {"lost-tail-of-one-shard", "never: one shard goes back, and all workers say ROLLBACK",
     gk_story_never, gk_story_lost_tail},
    {"killed-without-syncs", "never: a kill at every version takes nothing", gk_story_never,
     gk_story_never_killed},
    {"leave-and-no-power", "LEAVE is confirmed, then the power fails", gk_story_with_disks,
     gk_story_leave_synced},
    {"half-rewind", "the operator rewinds, a paused worker offers its old push",
     gk_story_twelve_steps, gk_story_half_rewind},
    {"fold-dies", "the process dies in each call of a fold", gk_story_long_with_disks,
     gk_story_fold_dies},
};

const struct gk_sim_story *gk_sim_stories(uint32_t *ret_count)
{
    *ret_count = sizeof(stories) / sizeof(stories[0]);
    return stories;
}

bool gk_sim_story_run(struct gk_sim *sim, const struct gk_sim_story *story,
                      const struct gk_sim_setup *setup)
{
    struct gk_sim_options options;

    gk_sim_options_calm(&options, 2, 2, 5);
    if (setup->disks) {
        gk_story_with_disks(&options);
    }
    if (story->setup) {
        story->setup(&options);
    }
    options.plants = setup->plants;
    memset(&told, 0, sizeof(told));
    if (!gk_sim_init(sim, &options)) {
        return false;
    }
    sim->trace = setup->trace;
    story->tell(sim);
    return !gk_sim_failed(sim);
}
