/* The records of each shard one by one, and what of them a crash may take.
 *
 * A record that was confirmed as safe must be there after any crash; one that was only written must
 * be there after a kill; one that was refused, or in which the process died, may be there or not.
 * Whatever is there is the shard's history from then on: everything that the ledger knows beyond it
 * is taken back. */
#include "common/assert.h"
#include "tests/sim/sim.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static void copy_shadow(const struct gk_sim *sim, struct gk_sim_shadow *target,
                        const struct gk_sim_shadow *source)
{
    float *moments = target->moments;
    bool excused = target->excused;

    *target = *source;
    target->moments = moments;
    target->excused = excused;
    memcpy(moments, source->moments, 2 * sim->options.params_count * sizeof(*moments));
}

static void entry_new(const struct gk_sim *sim, struct gk_sim_entry *entry)
{
    memset(entry, 0, sizeof(*entry));
    entry->shadow.moments = calloc(2 * sim->options.params_count, sizeof(float));
    GK_ASSERT(entry->shadow.moments);
}

/* A copy of the last offer at the end. */
static void append(struct gk_sim *sim, struct gk_sim_history *history)
{
    struct gk_sim_entry *entry;

    if (history->count == history->room) {
        history->room = history->room ? 2 * history->room : 64;
        history->entries = realloc(history->entries, history->room * sizeof(*history->entries));
        GK_ASSERT(history->entries);
    }
    entry = &history->entries[history->count++];
    entry_new(sim, entry);
    copy_shadow(sim, &entry->shadow, &history->maybe.shadow);
    entry->applied_count = history->maybe.applied_count;
    memcpy(entry->applied, history->maybe.applied, sizeof(entry->applied));
}

static void cut(struct gk_sim_history *history, uint32_t count)
{
    while (history->count > count) {
        free(history->entries[--history->count].shadow.moments);
    }
}

void gk_sim_history_free(struct gk_sim_history *history)
{
    cut(history, 0);
    free(history->entries);
    free(history->maybe.shadow.moments);
    memset(history, 0, sizeof(*history));
}

void gk_sim_history_begin(struct gk_sim *sim, uint32_t shard)
{
    struct gk_sim_history *history = &sim->ledger.histories[shard];

    gk_sim_history_free(history);
    entry_new(sim, &history->maybe);
    append(sim, history);
}

static void note_applied(struct gk_sim_entry *entry, const struct gk_record *record)
{
    entry->applied_count = 0;
    for (uint32_t i = 0; i < record->contributions_count; i++) {
        const struct gk_contribution *c = &record->contributions[i];

        if (c->verdict == GK_VERDICT_APPLIED && entry->applied_count < GK_SIM_RANKS_MAX) {
            entry->applied[entry->applied_count].rank = c->rank;
            entry->applied[entry->applied_count].step = c->step;
            entry->applied[entry->applied_count++].id = c->push_id;
        }
    }
}

void gk_sim_history_offer(struct gk_sim *sim, uint32_t shard, const struct gk_record *record)
{
    struct gk_sim_history *history = &sim->ledger.histories[shard];

    gk_sim_ledger_commit(sim, shard, record);
    copy_shadow(sim, &history->maybe.shadow, &sim->ledger.shadows[shard]);
    note_applied(&history->maybe, record);
    history->may_be = true;
}

void gk_sim_history_taken(struct gk_sim *sim, uint32_t shard, bool safe)
{
    struct gk_sim_history *history = &sim->ledger.histories[shard];

    append(sim, history);
    history->may_be = false;
    history->kept = history->count - 1;
    if (safe) {
        history->safe = history->kept;
    }
}

void gk_sim_history_synced(struct gk_sim *sim, uint32_t shard)
{
    struct gk_sim_history *history = &sim->ledger.histories[shard];

    history->safe = history->count - 1;
}

/* Version 0 is that of the init which the shadow names: another one may have come since. */
static void restore_init(struct gk_sim *sim, uint32_t shard)
{
    struct gk_sim_ledger *ledger = &sim->ledger;
    const struct gk_sim_shadow *shadow = &ledger->shadows[shard];
    uint64_t lo = sim->job.lo[shard], hi = sim->job.lo[shard + 1];
    float *initial;
    uint32_t init = 0;

    if (!shadow->initialised || shadow->version > 0) {
        return;
    }
    initial = calloc(sim->options.params_count, sizeof(*initial));
    GK_ASSERT(initial);
    while (init + 1 < ledger->inits_count && ledger->inits[init] != shadow->init_id) {
        init++;
    }
    gk_sim_toy_initial(&sim->job, init, initial);
    memcpy(ledger->params + lo, initial + lo, (hi - lo) * sizeof(float));
    free(initial);
}

/* The ledger goes back to what this entry says. */
static void go_back(struct gk_sim *sim, uint32_t shard, const struct gk_sim_entry *entry)
{
    struct gk_sim_shadow *shadow = &sim->ledger.shadows[shard];

    copy_shadow(sim, shadow, &entry->shadow);
    gk_sim_ledger_take_back(sim, shard, shadow->version);
    restore_init(sim, shard);
}

void gk_sim_history_refused(struct gk_sim *sim, uint32_t shard)
{
    struct gk_sim_history *history = &sim->ledger.histories[shard];

    go_back(sim, shard, &history->entries[history->count - 1]);
}

/* An operator has taken the shard back to where that version was made. */
void gk_sim_history_rewound(struct gk_sim *sim, uint32_t shard, uint64_t version)
{
    struct gk_sim_history *history = &sim->ledger.histories[shard];
    uint32_t at = history->count;

    while (at > 1 && history->entries[at - 1].shadow.version > version) {
        at--;
    }
    go_back(sim, shard, &history->entries[at - 1]);
    cut(history, at);
    history->may_be = false;
    history->kept = history->safe = at - 1;
}

static bool is_row(const struct gk_sim_shadow *shadow, uint32_t rank, const struct gk_rank_row *row)
{
    const struct gk_sim_verdict *verdict = &shadow->verdicts[rank];

    return row->incarnation == shadow->incarnation[rank] && row->left == shadow->left[rank] &&
           row->left_at == shadow->left_at[rank] && row->verdict == verdict->verdict &&
           row->verdict_step == verdict->step && row->verdict_incarnation == verdict->incarnation;
}

static bool is_image(const struct gk_sim *sim, const struct gk_sim_shadow *shadow,
                     const struct gk_image *image)
{
    bool equal = image->initialised == shadow->initialised && image->finished == shadow->finished &&
                 image->version == shadow->version && image->init_id == shadow->init_id &&
                 image->lost == shadow->lost && image->optimizer_step == shadow->optimizer_step;

    for (uint32_t r = 0; r < sim->options.workers; r++) {
        equal = equal && is_row(shadow, r, &image->rows[r]);
    }
    return equal;
}

static void take_maybe(struct gk_sim *sim, uint32_t shard)
{
    struct gk_sim_history *history = &sim->ledger.histories[shard];

    copy_shadow(sim, &sim->ledger.shadows[shard], &history->maybe.shadow);
    for (uint32_t i = 0; i < history->maybe.applied_count; i++) {
        gk_sim_ledger_give(sim, shard, history->maybe.applied[i].rank,
                           history->maybe.applied[i].step, history->maybe.applied[i].id);
    }
    restore_init(sim, shard);
    append(sim, history);
}

/* Version by version that a power failure has taken: workers must be able to bring them again. */
static void check_tail(struct gk_sim *sim, uint32_t shard, uint64_t from, uint64_t to)
{
    if (sim->options.store.sync == GK_SYNC_NEVER) {
        sim->tail_lost = sim->tail_lost || to < from;
    } else if (from > to + GK_RING_ENTRIES) {
        gk_sim_fail(sim, "P4",
                    "shard %u goes back from version %" PRIu64 " to %" PRIu64
                    ": the rings of the workers do not reach so far",
                    shard, from, to);
    }
}

void gk_sim_history_recover(struct gk_sim *sim, uint32_t shard, const struct gk_image *image)
{
    struct gk_sim_history *history = &sim->ledger.histories[shard];
    bool weak = history->powered_off || history->failed;
    uint32_t must = weak ? history->safe : history->kept, at = history->count;
    uint64_t version = history->entries[history->count - 1].shadow.version;

    if (image->incarnation < history->lives) {
        gk_sim_fail(sim, "P4", "shard %u has forgotten life %u: it would be life %u again", shard,
                    history->lives, image->incarnation + 1);
    }
    if (history->may_be && is_image(sim, &history->maybe.shadow, image)) {
        take_maybe(sim, shard);
    } else {
        while (at > must && !is_image(sim, &history->entries[at - 1].shadow, image)) {
            at--;
        }
        if (at == must) {
            gk_sim_fail(sim, "P4",
                        "shard %u comes back at version %" PRIu64 ", at most %u of %u records: its "
                        "log had promised to keep %u%s",
                        shard, image->version, at, history->count, must + 1,
                        history->powered_off ? " over a power failure" : "");
            return;
        }
        sim->stats.records_lost += history->count - at;
        go_back(sim, shard, &history->entries[at - 1]);
        cut(history, at);
        check_tail(sim, shard, version, image->version);
    }
    history->may_be = history->powered_off = history->failed = false;
    history->kept = history->safe = history->count - 1;
}
