/* A round: the pushes of one step become one version.
 *
 *   COLLECTING --all active ranks--> SUMMING --SUM_DONE--> WRITING --WRITE_DONE--> APPLYING
 *       ^                                                                              |
 *       +----------------------------------APPLY_DONE----------------------------------+
 *
 * SUMMING and WRITING lock the pushes.  WRITE_DONE is the commit: version, verdicts and optimizer
 * step change together, the pushes are forgotten.  The planes follow with APPLY; nobody is served
 * from them in between. */
#include "common/assert.h"
#include "common/bits.h"
#include "common/exit.h"
#include "server/core/state.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#define TO(state) (1u << GK_ROUND_##state)
static const uint32_t successors[GK_ROUND_STATES_COUNT] = {
    [GK_ROUND_COLLECTING] = TO(SUMMING) | TO(APPLYING), /* APPLYING: a restart after the commit */
    [GK_ROUND_SUMMING] = TO(WRITING),
    [GK_ROUND_WRITING] = TO(APPLYING),
    [GK_ROUND_APPLYING] = TO(COLLECTING),
};
#undef TO

bool gk_round_may_follow(enum gk_round_state from, enum gk_round_state to)
{
    return (successors[from] >> to & 1) != 0;
}

const char *gk_round_state_name(enum gk_round_state state)
{
    static const char *const names[GK_ROUND_STATES_COUNT] = {"collecting", "summing", "writing",
                                                             "applying"};

    return names[state];
}

static void set_state(struct gk_server *server, enum gk_round_state to)
{
    enum gk_round_state from = server->live.round.state;

    GK_ASSERT(gk_round_may_follow(from, to));
    server->live.round.state = to;
    gk_server_trace(server, GK_LOG_DEBUG, "SERVER-ROUND", "version %" PRIu64 ": %s -> %s",
                    server->image->version, gk_round_state_name(from), gk_round_state_name(to));
}

bool gk_server_round_active(const struct gk_server *server, uint32_t rank)
{
    const struct gk_rank_row *row = &server->image->rows[rank];

    return !(row->left && row->left_at <= server->image->version);
}

/* Ranks that the open round waits for; 0 when it waits for none, or is not open. */
uint32_t gk_server_round_missing(const struct gk_server *server, uint32_t *ret_lowest)
{
    uint32_t missing = 0;

    if (server->live.state != GK_SHARD_RUNNING || server->live.round.state != GK_ROUND_COLLECTING) {
        return 0;
    }
    for (uint32_t r = server->config.workers; r-- > 0;) {
        if (gk_server_round_active(server, r) && !server->live.members[r].push.contributed) {
            missing++;
            *ret_lowest = r;
        }
    }
    return missing;
}

static uint32_t active_count(const struct gk_server *server)
{
    uint32_t count = 0;

    for (uint32_t r = 0; r < server->config.workers; r++) {
        count += gk_server_round_active(server, r) ? 1 : 0;
    }
    return count;
}

static void open_round(struct gk_server *server)
{
    server->live.round.opened_us = server->now_us;
    server->live.stall_us = server->now_us + GK_STALL_US;
    gk_server_round_close(server); /* everybody may have left already */
}

/* The version that a new round begins with may be one whose hash goes into the log. */
void gk_server_round_resume(struct gk_server *server)
{
    if (server->image->version % GK_HASH_EVERY == 0) {
        gk_server_hash_begin(server);
    }
    open_round(server);
}

static void contribute(struct gk_server *server, uint32_t rank)
{
    const struct gk_push_slot *push = &server->live.members[rank].push;
    struct gk_round *round = &server->live.round;

    GK_ASSERT(push->contributed);
    round->contributions[round->contributions_count++] = (struct gk_contribution){
        .rank = rank,
        .incarnation = push->incarnation,
        .step = push->step,
        .base_version = push->base_version,
        .samples = push->samples,
        .push_id = push->push_id,
        .verdict = push->lost ? GK_VERDICT_LOST : GK_VERDICT_APPLIED,
    };
    round->samples += push->samples;
}

/* Planted bug: as if the network decided in which order floats are added. */
static uint32_t planted_next(const struct gk_server *server, uint64_t after)
{
    uint32_t next = 0;
    uint64_t best = UINT64_MAX;

    for (uint32_t r = 0; r < server->config.workers; r++) {
        const struct gk_push_slot *push = &server->live.members[r].push;

        if (push->contributed && push->arrival > after && push->arrival < best) {
            best = push->arrival;
            next = r;
        }
    }
    return next;
}

static uint32_t add_lists(struct gk_server *server, uint32_t rank, uint32_t count)
{
    const struct gk_assembly *assembly = &server->live.members[rank].push.assembly;

    for (uint32_t c = 0; c < assembly->chunks; c++) {
        const struct gk_piece *piece = &assembly->pieces[c];

        if (piece->count > 0) {
            server->live.round.lists[count++] = (struct gk_list){
                .idx = piece->idx ? (const uint32_t *)(const void *)piece->idx->data : NULL,
                .val = (const float *)(const void *)piece->val->data,
                .n = piece->count,
                .base = piece->lo - server->durable.lo,
            };
        }
    }
    return count;
}

/* Ranks in rank order, the chunks of a rank in order: the sum does not depend on who came first
 * (P3). */
static uint32_t make_lists(struct gk_server *server)
{
    struct gk_round *round = &server->live.round;
    uint64_t after = 0;
    uint32_t count = 0;

    for (uint32_t i = 0; i < round->contributions_count; i++) {
        uint32_t rank = round->contributions[i].rank;

        if (server->config.plant & GK_SERVER_PLANT_ARRIVAL_ORDER) {
            rank = planted_next(server, after);
            after = server->live.members[rank].push.arrival;
        }
        count = add_lists(server, rank, count);
    }
    return count;
}

void gk_server_round_close(struct gk_server *server)
{
    struct gk_round *round = &server->live.round;
    const struct gk_server_durable *durable = &server->durable;
    struct gk_server_action *action;

    if (server->live.state != GK_SHARD_RUNNING || round->state != GK_ROUND_COLLECTING ||
        round->contributed < active_count(server) || server->live.dispute.begun) {
        return;
    }
    round->contributions_count = 0;
    round->samples = 0;
    for (uint32_t r = 0; r < server->config.workers; r++) {
        if (gk_server_round_active(server, r)) {
            contribute(server, r);
        }
    }
    if (round->contributions_count == 0) {
        server->live.finish_wanted = true;
        gk_server_write_next(server);
        return;
    }
    if (!gk_server_rates_agree(server)) {
        return;
    }
    round->sum = (struct gk_sum_args){
        .lists = round->lists,
        .lists_count = make_lists(server),
        .len = durable->hi - durable->lo,
        .idx = durable->memory.sum_idx,
        .val = durable->memory.sum_val,
        .report = &round->report,
    };
    set_state(server, GK_ROUND_SUMMING);
    action = gk_server_emit(server, GK_SERVER_SUM);
    action->u.sum = &round->sum;
    round->op = gk_server_emit_op(server, action);
}

/* A value of the push beyond the limit. */
static bool exceeds(const struct gk_assembly *assembly, float limit, float *ret_value)
{
    for (uint32_t c = 0; c < assembly->chunks; c++) {
        const struct gk_piece *piece = &assembly->pieces[c];
        const float *val;

        if (!piece->val) {
            continue; /* an empty chunk has no values */
        }
        val = (const float *)(const void *)piece->val->data;
        for (uint64_t j = 0; j < piece->count; j++) {
            if (fabsf(val[j]) > limit) {
                *ret_value = val[j];
                return true;
            }
        }
    }
    return false;
}

/* Every pushed value is finite (proto/ checks it), so an overflowing sum needs at least one value
 * above FLT_MAX / N. */
static void name_overflow(const struct gk_server *server, struct gk_words *words)
{
    const struct gk_round *round = &server->live.round;
    float limit = FLT_MAX / (float)(round->contributions_count + 1);

    for (uint32_t i = 0; i < round->contributions_count; i++) {
        uint32_t rank = round->contributions[i].rank;
        float value;

        if (exceeds(&server->live.members[rank].push.assembly, limit, &value)) {
            gk_words_set(words,
                         "the sum of step %" PRIu64 " overflows: rank %" PRIu32
                         " pushed %g; a smaller learning rate or gradient clipping would help",
                         server->image->version, rank, (double)value);
            return;
        }
    }
    gk_words_set(words, "the sum of step %" PRIu64 " is not finite", server->image->version);
}

void gk_server_round_summed(struct gk_server *server, enum gk_err err, const char *words)
{
    struct gk_round *round = &server->live.round;
    struct gk_words reason;

    round->op = 0;
    if (err != GK_OK) {
        gk_server_exit(server, GK_EXIT_INTERNAL, "SERVER-SUM-FAILED",
                       words ? words : gk_err_text(err));
        return;
    }
    if (!round->report.finite) {
        name_overflow(server, &reason);
        gk_server_exit(server, GK_EXIT_DATA, "SERVER-OVERFLOW", reason.text);
        return;
    }
    set_state(server, GK_ROUND_WRITING);
    gk_server_write_next(server);
}

/* The record of the round that waits for the disk. */
void gk_server_round_record(const struct gk_server *server, struct gk_record *record)
{
    const struct gk_server_durable *durable = &server->durable;
    const struct gk_round *round = &server->live.round;
    const struct gk_spec *spec = &durable->spec;

    record->version = server->image->version + 1;
    record->step = server->image->version;
    record->optimizer_step = server->image->optimizer_step;
    record->optimizer = spec->optimizer;
    record->hyper = gk_spec_hyper(spec, server->image->optimizer_step);
    if (round->has_rate) {
        record->hyper.lr = gk_bits_float(round->lr_bits);
    }
    record->samples = round->samples;
    record->hashed = server->image->version % GK_HASH_EVERY == 0;
    record->state_hash = record->hashed ? server->live.hasher.state : 0;
    record->contributions = round->contributions;
    record->contributions_count = round->contributions_count;
    record->idx = round->report.dense ? NULL : durable->memory.sum_idx;
    record->val = durable->memory.sum_val;
    record->count = round->report.n;
}

/* The commit. */
void gk_server_round_written(struct gk_server *server, bool unsynced)
{
    const struct gk_record *record = &server->live.writer.record;
    struct gk_server_durable *durable = &server->durable;

    for (uint32_t i = 0; i < record->contributions_count; i++) {
        gk_server_push_forget(server, record->contributions[i].rank);
    }
    durable->durable_version = unsynced ? durable->durable_version : record->version;
    durable->update = (struct gk_update){
        .idx = record->idx,
        .val = record->val,
        .n = record->count,
        .samples = record->samples,
        .hyper = record->hyper,
    };
    durable->unapplied = true;
    gk_server_round_apply(server);
}

void gk_server_round_apply(struct gk_server *server)
{
    const struct gk_server_durable *durable = &server->durable;
    struct gk_round *round = &server->live.round;
    struct gk_server_action *action;

    round->apply = (struct gk_apply_args){
        .optimizer = (enum gk_optimizer)durable->spec.optimizer,
        .p = durable->memory.planes[0],
        .m = durable->memory.planes[1],
        .v = durable->memory.planes[2],
        .len = durable->hi - durable->lo,
        .decay = server->decay,
        .decay_count = server->decay_count,
        .updates = &durable->update,
        .updates_count = 1,
    };
    set_state(server, GK_ROUND_APPLYING);
    action = gk_server_emit(server, GK_SERVER_APPLY);
    action->u.apply = &round->apply;
    round->op = gk_server_emit_op(server, action);
}

void gk_server_round_applied(struct gk_server *server, enum gk_err err, const char *words)
{
    server->live.round.op = 0;
    if (err != GK_OK) {
        gk_server_exit(server, GK_EXIT_INTERNAL, "SERVER-APPLY-FAILED",
                       words ? words : gk_err_text(err));
        return;
    }
    server->durable.unapplied = false;
    set_state(server, GK_ROUND_COLLECTING);
    gk_server_pin_due(server);
    gk_server_pull_serve(server);
    gk_server_round_resume(server);
    gk_server_write_next(server); /* a FINISHED or MEMBER record may have waited */
    gk_server_drained(server);
}
