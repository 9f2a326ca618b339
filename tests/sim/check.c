/* What must hold beside the ledger: what is said on the wire, how long anybody waits without a
 * word, how processes end. */
#include "common/assert.h"
#include "common/exit.h"
#include "common/limits.h"
#include "tests/sim/sim.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The first line of a wait comes after 5 s, the next ones every 10 s; a timer may be a second late.
 */
enum { WAIT_LINE_US = GK_STALL_AGAIN_US + 2 * GK_PING_US };

void gk_sim_fail(struct gk_sim *sim, const char *checker, const char *format, ...)
{
    struct gk_sim_failure *failure = &sim->failure;
    va_list args;

    if (gk_sim_failed(sim)) {
        return;
    }
    (void)snprintf(failure->checker, sizeof(failure->checker), "%s", checker);
    va_start(args, format);
    (void)vsnprintf(failure->words.text, sizeof(failure->words.text), format, args);
    va_end(args);
    failure->at_us = sim->now_us;
    if (sim->trace) {
        printf("%12.6f FAILED %s: %s\n", (double)sim->now_us / 1e6, checker, failure->words.text);
    }
}

void gk_sim_say(struct gk_sim *sim, uint32_t node, const char *format, ...)
{
    va_list args;

    if (!sim->trace) {
        return;
    }
    printf("%12.6f ", (double)sim->now_us / 1e6);
    if (gk_sim_node_is_shard(node)) {
        printf("shard %u   ", node);
    } else {
        const struct gk_sim_proc *proc = &sim->procs[node - GK_SIM_SHARDS_MAX];

        printf("rank %u%s ", proc->rank,
               node - GK_SIM_SHARDS_MAX < sim->options.workers ? "   " : " (2)");
    }
    va_start(args, format);
    (void)vprintf(format, args);
    va_end(args);
    printf("\n");
}

void gk_sim_note(struct gk_sim *sim, uint64_t a, uint64_t b)
{
    sim->digest = gk_mix64(gk_mix64(sim->digest + a) + b);
}

/* By the policy: what is called durable is safe from a power failure; always: what is served. */
static void check_safe(struct gk_sim *sim, uint32_t shard, const struct gk_header *h)
{
    const struct gk_sim_history *history = &sim->ledger.histories[shard];
    uint64_t safe = history->entries[history->safe].shadow.version;
    enum gk_sync_policy sync = sim->options.store.sync;

    if (sync != GK_SYNC_NEVER &&
        (h->durable_version > safe || (sync == GK_SYNC_ALWAYS && h->version > safe))) {
        gk_sim_fail(sim, "P4",
                    "shard %u says version %" PRIu64 ", durable %" PRIu64 ", but only %" PRIu64
                    " is synced",
                    shard, h->version, h->durable_version, safe);
    }
}

/* P4: nothing is said of a version that is not durable; P2: a verdict is what the record says. */
void gk_sim_check_reply(struct gk_sim *sim, uint32_t shard, const struct gk_msg *msg)
{
    const struct gk_sim_shadow *shadow = &sim->ledger.shadows[shard];
    const struct gk_header *h = &msg->h;
    const struct gk_sim_verdict *known;

    if (h->version > shadow->version || h->durable_version > shadow->version) {
        gk_sim_fail(sim, "P4",
                    "shard %u says version %" PRIu64 ", durable %" PRIu64
                    ", but its log ends at %" PRIu64,
                    shard, h->version, h->durable_version, shadow->version);
    }
    if (sim->shards[shard].disk) {
        check_safe(sim, shard, h);
    }
    if (h->kind == GK_KIND_LEAVE_OK && !shadow->left[h->rank]) {
        gk_sim_fail(sim, "P4", "shard %u says LEAVE_OK to rank %u without a record", shard,
                    h->rank);
    }
    if (h->verdict == GK_VERDICT_NONE || h->rank >= sim->options.workers) {
        return;
    }
    known = &shadow->verdicts[h->rank];
    if (h->verdict != known->verdict || h->verdict_step != known->step ||
        h->verdict_incarnation != known->incarnation) {
        gk_sim_fail(sim, "P2",
                    "shard %u tells rank %u: step %" PRIu64 " %s (life %u); its record says step "
                    "%" PRIu64 " %s (life %u)",
                    shard, h->rank, h->verdict_step, gk_verdict_name(h->verdict),
                    h->verdict_incarnation, known->step, gk_verdict_name(known->verdict),
                    known->incarnation);
    }
}

static bool names_somebody(const char *words)
{
    static const char *const names[] = {"shard ", "rank ", "worker ", "server "};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *at = strstr(words, names[i]);

        if (at && at[strlen(names[i])] >= '0' && at[strlen(names[i])] <= '9') {
            return true;
        }
    }
    return false;
}

void gk_sim_check_wait_line(struct gk_sim *sim, uint32_t node, const char *id, const char *words)
{
    bool of_wait = strcmp(id, "WORKER-WAITS") == 0 || strcmp(id, "WORKER-STALL") == 0 ||
                   strcmp(id, "SERVER-WAITS") == 0 || strcmp(id, "SERVER-ROUND-WAITS") == 0;

    if (!of_wait) {
        return;
    }
    sim->nodes[node].said_us = sim->now_us;
    sim->stats.stalls++;
    if (!names_somebody(words)) {
        gk_sim_fail(sim, "P6", "a wait that names nobody: %s", words);
    }
}

static bool waits(const struct gk_sim *sim, uint32_t node, uint64_t *ret_since_us)
{
    *ret_since_us = sim->nodes[node].progress_us;
    if (gk_sim_node_is_shard(node)) {
        struct gk_server_view view;

        gk_server_view(sim->shards[node].core, &view);
        if (view.state == GK_SHARD_RUNNING && view.round_open) {
            *ret_since_us = gk_max_u64(
                *ret_since_us,
                view.round_open_us - gk_min_u64(view.round_open_us, sim->nodes[node].clock_us));
            return true;
        }
        return view.state == GK_SHARD_WAITING;
    }
    switch (gk_worker_phase(sim->procs[node - GK_SIM_SHARDS_MAX].core)) {
    case GK_PHASE_JOINING:
    case GK_PHASE_EXCHANGING:
    case GK_PHASE_LEAVING:
        return true;
    case GK_PHASE_IDLE:
    case GK_PHASE_COMPUTING:
    case GK_PHASE_PERSISTING:
    case GK_PHASE_EVALUATING:
    case GK_PHASE_DONE:
    case GK_PHASE_COUNT:
        break;
    }
    return false;
}

/* P6: every wait that lasts says whom it waits for. */
void gk_sim_check_waits(struct gk_sim *sim)
{
    for (uint32_t n = 0; n < GK_SIM_NODES_MAX; n++) {
        struct gk_sim_node *node = &sim->nodes[n];
        uint64_t since_us;

        if (node->state != GK_SIM_ALIVE || node->paused_us + GK_SIM_SECOND > sim->now_us ||
            !waits(sim, n, &since_us)) {
            node->progress_us = sim->now_us;
            continue;
        }
        since_us = gk_max_u64(since_us, node->said_us);
        if (sim->now_us - gk_min_u64(sim->now_us, since_us) > WAIT_LINE_US) {
            gk_sim_fail(sim, "P6", "%s %u waits for %.1f s without a word",
                        gk_sim_node_is_shard(n) ? "shard" : "worker",
                        gk_sim_node_is_shard(n) ? n : sim->procs[n - GK_SIM_SHARDS_MAX].rank,
                        (double)(sim->now_us - since_us) / 1e6);
        }
    }
}

/* Another process has the rank, and may leave for it; it cannot when the other shards are done. */
static bool has_successor(const struct gk_sim *sim, uint32_t index)
{
    for (uint32_t p = 0; p < sim->procs_count; p++) {
        if (p != index && sim->procs[p].rank == sim->procs[index].rank &&
            sim->nodes[gk_sim_proc_node(p)].state != GK_SIM_ENDED) {
            return true;
        }
    }
    return false;
}

static bool is_early(const struct gk_sim *sim, const struct gk_sim_proc *proc)
{
    return gk_sim_leave_at(&sim->options, proc->rank) < sim->job.spec.steps;
}

/* A worker may go when its leaving is recorded; a shard that it could not reach for the time that a
 * server lingers owes it nothing, unless others go on there. */
static void check_leave(struct gk_sim *sim, uint32_t index)
{
    const struct gk_sim_proc *proc = &sim->procs[index];

    for (uint32_t s = 0; s < sim->options.servers; s++) {
        bool gone = sim->pairs[index][s].down_us != GK_SIM_NEVER;

        if (sim->ledger.shadows[s].version < gk_sim_leave_at(&sim->options, proc->rank)) {
            gk_sim_fail(sim, "P2", "rank %u is done before shard %u is", proc->rank, s);
        } else if (!sim->ledger.shadows[s].left[proc->rank] && (!gone || is_early(sim, proc)) &&
                   !has_successor(sim, index)) {
            gk_sim_fail(sim, "liveness",
                        "rank %u is gone, and shard %u does not know that it has left", proc->rank,
                        s);
        } else if (!sim->ledger.shadows[s].left[proc->rank]) {
            sim->ledger.shadows[s].excused = true;
        }
    }
}

/* It is not alone in its rank, or shard 0 may have just given that to another one. */
bool gk_sim_may_be_fenced(const struct gk_sim *sim, uint32_t index)
{
    for (uint32_t p = 0; p < sim->procs_count; p++) {
        if (p != index && sim->procs[p].rank == GK_RANK_ANY) {
            return true;
        }
    }
    return sim->procs[index].twin;
}

/* A life of this rank that is dead had asked to take over, and its HELLO came late: whoever watches
 * over the process starts it again. */
bool gk_sim_fenced_by_the_dead(const struct gk_sim *sim, uint32_t index)
{
    const struct gk_sim_proc *proc = &sim->procs[index];

    return proc->exit_code == GK_EXIT_FENCED && !gk_sim_may_be_fenced(sim, index) &&
           sim->losses[proc->rank] > 0;
}

/* A rank 0 that comes back with other initial parameters while others begin with the former ones:
 * whoever sees both says so and exits, and the job must be started again. */
static bool saw_two_inits(const struct gk_sim *sim, int exit_code)
{
    for (uint32_t s = 0; s < sim->options.servers; s++) {
        if (sim->ledger.shadows[s].version > 0) {
            return false;
        }
    }
    return exit_code == GK_EXIT_REFUSED && sim->options.faults.reinit && sim->losses[0] > 0;
}

/* A log that nobody syncs has lost versions that its workers rely on: they say so, and only then.
 */
static bool saw_rollback(const struct gk_sim *sim, uint32_t index)
{
    return sim->procs[index].exit_code == GK_EXIT_PEER && sim->tail_lost &&
           strstr(sim->last_words[gk_sim_proc_node(index)], "ROLLBACK: shard ") != NULL;
}

void gk_sim_check_exit(struct gk_sim *sim, uint32_t index)
{
    const struct gk_sim_proc *proc = &sim->procs[index];
    int code = proc->exit_code;
    bool fenced = code == GK_EXIT_FENCED || code == GK_EXIT_REFUSED || code == GK_EXIT_PEER;

    if (code == GK_EXIT_OK) {
        check_leave(sim, index);
    } else if (code == sim->expected_exit) {
        return;
    } else if (saw_rollback(sim, index)) {
        sim->rollback_us = sim->rollback_us > 0 ? sim->rollback_us : sim->now_us;
        sim->stats.rollbacks++;
    } else if (saw_two_inits(sim, code)) {
        sim->given_up = true;
    } else if (gk_sim_fenced_by_the_dead(sim, index)) {
        sim->stats.fenced_by_dead++;
    } else if (!(fenced && gk_sim_may_be_fenced(sim, index))) {
        gk_sim_fail(sim, "exit", "rank %u exits with %d: %s", proc->rank, code,
                    sim->last_words[gk_sim_proc_node(index)]);
    }
}

static void check_shard_end(struct gk_sim *sim, uint32_t shard)
{
    const struct gk_sim_shadow *shadow = &sim->ledger.shadows[shard];
    struct gk_server_view view;
    const struct gk_ledger *l = &view.ledger;
    uint64_t last = gk_sim_last_version(&sim->options), pushes = 0;

    for (uint32_t r = 0; r < sim->options.workers; r++) {
        pushes += shadow->left[r] ? gk_min_u64(shadow->left_at[r], last) : last;
    }
    gk_server_view(sim->shards[shard].core, &view);
    if (l->pushes != l->applied + l->returned + l->skipped + l->lost + l->pending + l->dropped ||
        l->applied + l->lost != pushes || l->lost != shadow->lost || l->returned != 0 ||
        l->skipped != 0) {
        gk_sim_fail(sim, "P2",
                    "shard %u: the ledger does not balance: %" PRIu64 " pushes, %" PRIu64
                    " applied, %" PRIu64 " lost, %" PRIu64 " pending, %" PRIu64 " dropped",
                    shard, l->pushes, l->applied, l->lost, l->pending, l->dropped);
    }
    if (view.version != last || shadow->version != last) {
        gk_sim_fail(sim, "liveness", "shard %u ends at version %" PRIu64, shard, view.version);
    }
    if (view.hashed &&
        view.hash != gk_sim_oracle_hash(sim->ledger.params + last * sim->options.params_count,
                                        sim->job.lo[shard], sim->job.lo[shard + 1])) {
        gk_sim_fail(sim, "P2", "shard %u: its model hash is wrong", shard);
    }
}

void gk_sim_check_end(struct gk_sim *sim)
{
    for (uint32_t s = 0; s < sim->options.servers; s++) {
        check_shard_end(sim, s);
    }
    for (uint32_t p = 0; p < sim->procs_count; p++) {
        if (sim->nodes[gk_sim_proc_node(p)].state != GK_SIM_ENDED || sim->procs[p].exit_code != 0) {
            gk_sim_ledger_lose(sim, sim->procs[p].lineage);
        }
    }
    gk_sim_ledger_check_pushes(sim);
}
