/* What the records say, checked against what was pushed, and computed a second time.
 *
 * Every push that a worker makes is kept here as decoded from its chunks.  Every record that a
 * shard makes durable must name exactly the pushes of its step, one an active rank; its sums must
 * be theirs in rank order; and the planes after APPLY must be what the same arithmetic gives here.
 * So the history of each shard is verified link by link, also where workers lost their memory and
 * the job as a whole is not the undisturbed one. */
#include "common/assert.h"
#include "common/hash.h"
#include "tests/sim/sim.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void gk_sim_ledger_init(struct gk_sim *sim)
{
    const struct gk_sim_options *o = &sim->options;
    struct gk_sim_ledger *ledger = &sim->ledger;

    ledger->pushes = calloc(o->steps * o->workers, sizeof(struct gk_sim_push *));
    ledger->params = calloc((o->steps + 1) * o->params_count, sizeof(float));
    ledger->sum = calloc(o->params_count, sizeof(float));
    ledger->union_there = calloc(o->params_count, sizeof(bool));
    GK_ASSERT(ledger->pushes && ledger->params && ledger->sum && ledger->union_there);
    for (uint32_t s = 0; s < o->servers; s++) {
        ledger->shadows[s].moments = calloc(2 * o->params_count, sizeof(float));
        GK_ASSERT(ledger->shadows[s].moments);
    }
}

void gk_sim_ledger_fini(struct gk_sim *sim)
{
    struct gk_sim_ledger *ledger = &sim->ledger;
    uint64_t count = sim->options.steps * sim->options.workers;

    for (uint64_t i = 0; ledger->pushes && i < count; i++) {
        while (ledger->pushes[i]) {
            struct gk_sim_push *push = ledger->pushes[i];

            ledger->pushes[i] = push->older;
            free(push->values);
            free(push->there);
            free(push);
        }
    }
    for (uint32_t s = 0; s < sim->options.servers; s++) {
        free(ledger->shadows[s].moments);
        gk_sim_history_free(&ledger->histories[s]);
    }
    free(ledger->pushes);
    free(ledger->params);
    free(ledger->sum);
    free(ledger->union_there);
    memset(ledger, 0, sizeof(*ledger));
}

void gk_sim_ledger_forget(struct gk_sim *sim, uint32_t shard)
{
    struct gk_sim_shadow *shadow = &sim->ledger.shadows[shard];
    float *moments = shadow->moments;

    memset(moments, 0, 2 * sim->options.params_count * sizeof(*moments));
    *shadow = (struct gk_sim_shadow){.moments = moments};
    if (sim->shards[shard].disk) {
        gk_sim_history_begin(sim, shard);
    }
}

/* Initial parameters that nobody has sent before. */
uint32_t gk_sim_ledger_new_init(struct gk_sim *sim)
{
    struct gk_sim_ledger *ledger = &sim->ledger;
    float *initial = calloc(sim->options.params_count, sizeof(*initial));

    GK_ASSERT(initial && ledger->inits_count < GK_SIM_INITS_MAX);
    gk_sim_toy_initial(&sim->job, ledger->inits_count, initial);
    ledger->inits[ledger->inits_count] = gk_sim_toy_init_id(&sim->job, initial);
    free(initial);
    return ledger->inits_count++;
}

uint32_t gk_sim_ledger_lineage(struct gk_sim *sim)
{
    GK_ASSERT(sim->ledger.lineages < GK_SIM_LINEAGES_MAX);
    return sim->ledger.lineages++;
}

void gk_sim_ledger_lose(struct gk_sim *sim, uint32_t lineage)
{
    sim->ledger.lineage_lost[lineage] = true;
}

static struct gk_sim_push **place_of(struct gk_sim *sim, uint32_t rank, uint64_t step)
{
    return &sim->ledger.pushes[step * sim->options.workers + rank];
}

/* Pushes. */

static void decode_chunk(const struct gk_push_chunk *chunk, struct gk_sim_push *made)
{
    const uint32_t *idx = NULL;
    const float *val;

    if (chunk->index_encoding == GK_INDEX_NONE) {
        return;
    }
    if (chunk->index_encoding == GK_INDEX_RAW32) {
        idx = (const uint32_t *)(const void *)chunk->frame[0]->data;
    }
    val = (const float *)(const void *)chunk->frame[idx ? 1 : 0]->data;
    for (uint64_t i = 0; i < chunk->count; i++) {
        uint64_t at = chunk->lo + (idx ? idx[i] : i);

        GK_ASSERT(at < chunk->hi);
        made->values[at] = val[i];
        made->there[at] = true;
    }
}

static struct gk_sim_push *decode(const struct gk_sim *sim, const struct gk_sim_proc *proc,
                                  const struct gk_push *push)
{
    uint64_t d = sim->options.params_count;
    struct gk_sim_push *made = calloc(1, sizeof(*made));

    GK_ASSERT(made);
    made->rank = proc->rank;
    made->lineage = proc->lineage;
    made->step = push->step;
    made->samples = push->samples;
    made->values = calloc(d, sizeof(*made->values));
    made->there = calloc(d, sizeof(*made->there));
    GK_ASSERT(made->values && made->there);
    for (uint32_t s = 0; s < push->slices_count; s++) {
        const struct gk_push_slice *slice = &push->slices[s];

        made->ids[s] = slice->id;
        made->dense[s] = slice->chunks[0].index_encoding == GK_INDEX_DENSE;
        for (uint32_t c = 0; c < slice->chunks_count; c++) {
            decode_chunk(&slice->chunks[c], made);
        }
    }
    return made;
}

/* The same push made again after a restart is the same entry. */
struct gk_sim_push *gk_sim_ledger_push(struct gk_sim *sim, const struct gk_sim_proc *proc,
                                       const struct gk_push *push)
{
    struct gk_sim_push **place = place_of(sim, proc->rank, push->step);
    struct gk_sim_push *made = decode(sim, proc, push);

    for (struct gk_sim_push *known = *place; known; known = known->older) {
        if (known->lineage == made->lineage) {
            if (memcmp(known->ids, made->ids, sizeof(made->ids)) != 0) {
                gk_sim_fail(sim, "P3",
                            "rank %u makes another push of step %" PRIu64
                            " than before its restart",
                            proc->rank, push->step);
            }
            free(made->values);
            free(made->there);
            free(made);
            return known;
        }
    }
    made->older = *place;
    *place = made;
    return made;
}

void gk_sim_ledger_persisted(struct gk_sim *sim, const struct gk_sim_proc *proc, uint64_t step)
{
    for (struct gk_sim_push *p = *place_of(sim, proc->rank, step); p; p = p->older) {
        p->persisted = p->persisted || p->lineage == proc->lineage;
    }
}

void gk_sim_ledger_named(struct gk_sim *sim, const struct gk_sim_proc *proc, uint32_t shard,
                         uint64_t step)
{
    for (struct gk_sim_push *p = *place_of(sim, proc->rank, step); p; p = p->older) {
        p->named[shard] = p->named[shard] || p->lineage == proc->lineage;
    }
}

/* Records. */

/* Field by field: padding is nobody's. */
uint64_t gk_sim_ledger_digest(const struct gk_record *record)
{
    uint64_t head[] = {record->type, record->version, record->samples, record->init_id};
    uint64_t hash = gk_hash64(head, sizeof(head));

    for (uint32_t i = 0; i < record->contributions_count; i++) {
        const struct gk_contribution *c = &record->contributions[i];
        uint64_t fields[] = {c->rank, c->incarnation, c->step, c->samples, c->push_id, c->verdict};

        hash = gk_hash64_more(hash, fields, sizeof(fields));
    }
    for (uint32_t i = 0; i < record->members_count; i++) {
        const struct gk_member_entry *m = &record->members[i];
        uint64_t fields[] = {m->rank, m->row.incarnation, m->row.left, m->row.left_at};

        hash = gk_hash64_more(hash, fields, sizeof(fields));
    }
    if (record->idx) {
        hash = gk_hash64_more(hash, record->idx, record->count * sizeof(*record->idx));
    }
    if (record->val) {
        hash = gk_hash64_more(hash, record->val, record->count * sizeof(*record->val));
    }
    if (record->params) {
        hash = gk_hash64_more(hash, record->params,
                              (record->hi - record->lo) * sizeof(*record->params));
    }
    return hash;
}

static void commit_init(struct gk_sim *sim, uint32_t shard, const struct gk_record *record)
{
    struct gk_sim_shadow *shadow = &sim->ledger.shadows[shard];
    const struct gk_sim_job *job = &sim->job;
    float *initial = calloc(job->spec.params_count, sizeof(*initial));
    uint32_t init = 0;

    GK_ASSERT(initial);
    while (init < sim->ledger.inits_count && sim->ledger.inits[init] != record->init_id) {
        init++;
    }
    gk_sim_toy_initial(job, init, initial);
    if (shadow->version > 0 || init == sim->ledger.inits_count) {
        gk_sim_fail(sim, "P2", "shard %u at version %" PRIu64 " accepts init %016" PRIx64, shard,
                    shadow->version, record->init_id);
    } else if (record->lo != job->lo[shard] || record->hi != job->lo[shard + 1] ||
               memcmp(record->params, initial + record->lo,
                      (record->hi - record->lo) * sizeof(float)) != 0) {
        gk_sim_fail(sim, "P2", "shard %u: version 0 is not what init %u sent", shard, init);
    }
    memcpy(sim->ledger.params + job->lo[shard], initial + job->lo[shard],
           (job->lo[shard + 1] - job->lo[shard]) * sizeof(float));
    shadow->initialised = true;
    shadow->init_id = record->init_id;
    free(initial);
}

static void commit_members(struct gk_sim *sim, uint32_t shard, const struct gk_record *record)
{
    struct gk_sim_shadow *shadow = &sim->ledger.shadows[shard];

    for (uint32_t i = 0; i < record->members_count; i++) {
        const struct gk_member_entry *entry = &record->members[i];
        uint32_t rank = entry->rank;

        if (entry->row.incarnation < shadow->incarnation[rank] ||
            (shadow->left[rank] && !entry->row.left)) {
            gk_sim_fail(sim, "P2", "shard %u: a record takes back what rank %u was", shard, rank);
        }
        shadow->incarnation[rank] = entry->row.incarnation;
        shadow->left[rank] = entry->row.left;
        shadow->left_at[rank] = entry->row.left_at;
    }
}

/* The push that a contribution names; NULL after a failure. */
static struct gk_sim_push *named_push(struct gk_sim *sim, uint32_t shard,
                                      const struct gk_contribution *c)
{
    for (struct gk_sim_push *p = *place_of(sim, c->rank, c->step); p; p = p->older) {
        if (p->ids[shard] == c->push_id && p->persisted) {
            return p;
        }
    }
    gk_sim_fail(sim, "P2",
                "shard %u commits push %016" PRIx64 " as step %" PRIu64
                " of rank %u, which made no such push",
                shard, c->push_id, c->step, c->rank);
    return NULL;
}

static bool check_contribution(struct gk_sim *sim, uint32_t shard, uint64_t step,
                               const struct gk_contribution *c)
{
    const struct gk_sim_shadow *shadow = &sim->ledger.shadows[shard];
    const struct gk_sim_verdict *last = &shadow->verdicts[c->rank];

    if (c->step != step || c->base_version != step) {
        gk_sim_fail(sim, "P2",
                    "shard %u: round %" PRIu64 " counts a push of step %" PRIu64 " (rank %u)",
                    shard, step, c->step, c->rank);
    } else if (last->verdict != GK_VERDICT_NONE && last->step >= step) {
        gk_sim_fail(sim, "P2", "shard %u: step %" PRIu64 " of rank %u is decided twice", shard,
                    step, c->rank);
    } else if (shadow->left[c->rank] && shadow->left_at[c->rank] <= step) {
        gk_sim_fail(sim, "P2", "shard %u: round %" PRIu64 " counts rank %u, which has left", shard,
                    step, c->rank);
    } else if (c->verdict == GK_VERDICT_LOST && sim->losses[c->rank] == 0) {
        gk_sim_fail(sim, "P2",
                    "shard %u: the push of step %" PRIu64
                    " of rank %u is LOST, though it never lost its memory",
                    shard, step, c->rank);
    }
    return !gk_sim_failed(sim);
}

/* Two processes of a rank that begin alike make the same push, and nobody can tell whose it is. */
static void mark_applied(struct gk_sim *sim, uint32_t shard, const struct gk_sim_push *push)
{
    struct gk_sim_push *first = *place_of(sim, push->rank, push->step);
    uint32_t makers = 0;

    for (struct gk_sim_push *p = first; p; p = p->older) {
        makers += p->ids[shard] == push->ids[shard];
    }
    for (struct gk_sim_push *p = first; p; p = p->older) {
        if (p->ids[shard] == push->ids[shard]) {
            p->applied[shard] = true;
            p->twice[shard] = makers > 1;
        }
    }
}

void gk_sim_ledger_take_back(struct gk_sim *sim, uint32_t shard, uint64_t step)
{
    for (uint64_t i = step * sim->options.workers; i < sim->options.steps * sim->options.workers;
         i++) {
        for (struct gk_sim_push *p = sim->ledger.pushes[i]; p; p = p->older) {
            p->applied[shard] = p->twice[shard] = false;
        }
    }
}

void gk_sim_ledger_give(struct gk_sim *sim, uint32_t shard, uint32_t rank, uint64_t step,
                        uint64_t id)
{
    for (struct gk_sim_push *p = *place_of(sim, rank, step); p; p = p->older) {
        if (p->ids[shard] == id && p->persisted) {
            mark_applied(sim, shard, p);
            return;
        }
    }
}

/* Into ledger->sum and ledger->union_there; the number of samples is returned. */
static uint64_t add_push(struct gk_sim *sim, uint32_t shard, struct gk_sim_push *push,
                         bool *ret_dense)
{
    struct gk_sim_ledger *ledger = &sim->ledger;

    for (uint64_t i = sim->job.lo[shard]; i < sim->job.lo[shard + 1]; i++) {
        if (push->there[i]) {
            ledger->sum[i] += push->values[i];
            ledger->union_there[i] = true;
        }
    }
    if (push->applied[shard]) {
        gk_sim_fail(sim, "P2", "shard %u: step %" PRIu64 " of rank %u is applied twice", shard,
                    push->step, push->rank);
    }
    mark_applied(sim, shard, push);
    *ret_dense = *ret_dense || push->dense[shard];
    return push->samples;
}

static void check_sums(struct gk_sim *sim, uint32_t shard, const struct gk_record *record,
                       bool dense)
{
    const struct gk_sim_ledger *ledger = &sim->ledger;
    uint64_t lo = sim->job.lo[shard], length = sim->job.lo[shard + 1] - lo, count = 0, at = 0;

    for (uint64_t i = 0; i < length; i++) {
        count += ledger->union_there[lo + i];
    }
    dense = dense || 2 * count >= length;
    if ((record->idx == NULL) != dense || record->count != (dense ? length : count)) {
        gk_sim_fail(sim, "P2", "shard %u: record of version %" PRIu64 " has %" PRIu64 " entries",
                    shard, record->version, record->count);
        return;
    }
    for (uint64_t i = 0; i < length; i++) {
        if (!dense && !ledger->union_there[lo + i]) {
            continue;
        }
        if ((record->idx && record->idx[at] != i) ||
            gk_float_bits(record->val[at]) != gk_float_bits(ledger->sum[lo + i])) {
            gk_sim_fail(sim, "P3",
                        "shard %u version %" PRIu64 " parameter %" PRIu64
                        ": the sum is %a, in rank order it is %a",
                        shard, record->version, lo + i, (double)record->val[at],
                        (double)ledger->sum[lo + i]);
            return;
        }
        at++;
    }
}

static void advance(struct gk_sim *sim, uint32_t shard, const struct gk_record *record)
{
    struct gk_sim_ledger *ledger = &sim->ledger;
    struct gk_sim_shadow *shadow = &ledger->shadows[shard];
    uint64_t d = sim->options.params_count, lo = sim->job.lo[shard], hi = sim->job.lo[shard + 1];
    struct gk_sim_vector vector = {.step = record->step,
                                   .lo = lo,
                                   .hi = hi,
                                   .params = ledger->params + record->version * d,
                                   .moments = shadow->moments,
                                   .sum = ledger->sum};

    memcpy(vector.params + lo, ledger->params + (record->version - 1) * d + lo,
           (hi - lo) * sizeof(float));
    gk_sim_oracle_apply(sim, shadow->optimizer_step, record->samples, &vector);
    shadow->optimizer_step += record->samples > 0;
    shadow->version = record->version;
    shadow->samples = record->samples;
    if (sim->losses_count == 0 &&
        gk_sim_oracle_hash(vector.params, lo, hi) !=
            sim->oracle.hashes[record->version * sim->options.servers + shard]) {
        gk_sim_fail(sim, "P2", "shard %u version %" PRIu64 " is not that of the undisturbed job",
                    shard, record->version);
    }
}

static void commit_round(struct gk_sim *sim, uint32_t shard, const struct gk_record *record)
{
    struct gk_sim_ledger *ledger = &sim->ledger;
    struct gk_sim_shadow *shadow = &ledger->shadows[shard];
    uint64_t samples = 0;
    uint32_t active = 0;
    bool dense = false;

    if (record->version != shadow->version + 1 || record->version > sim->options.steps ||
        record->step != shadow->version || record->optimizer_step != shadow->optimizer_step) {
        gk_sim_fail(sim, "P2", "shard %u at version %" PRIu64 " commits version %" PRIu64, shard,
                    shadow->version, record->version);
        return;
    }
    memset(ledger->sum, 0, sim->options.params_count * sizeof(*ledger->sum));
    memset(ledger->union_there, 0, sim->options.params_count * sizeof(*ledger->union_there));
    for (uint32_t r = 0; r < sim->options.workers; r++) {
        active += !(shadow->left[r] && shadow->left_at[r] <= record->step);
    }
    for (uint32_t i = 0; i < record->contributions_count; i++) {
        const struct gk_contribution *c = &record->contributions[i];
        struct gk_sim_push *push = NULL;

        if (!check_contribution(sim, shard, record->step, c)) {
            return;
        }
        if (c->verdict == GK_VERDICT_LOST) {
            shadow->lost++;
        } else {
            push = named_push(sim, shard, c);
            if (!push) {
                return;
            }
            samples += add_push(sim, shard, push, &dense);
        }
        shadow->verdicts[c->rank] = (struct gk_sim_verdict){
            .verdict = c->verdict, .incarnation = c->incarnation, .step = c->step};
    }
    if (record->contributions_count != active || samples != record->samples) {
        gk_sim_fail(sim, "P2",
                    "shard %u version %" PRIu64 ": %" PRIu32 " pushes of %" PRIu32
                    " ranks, %" PRIu64 " samples of %" PRIu64,
                    shard, record->version, record->contributions_count, active, record->samples,
                    samples);
        return;
    }
    if (sim->options.rates && samples > 0 &&
        gk_float_bits(record->hyper.lr) != gk_float_bits(gk_sim_toy_rate(sim, record->step))) {
        gk_sim_fail(sim, "P3", "shard %u version %" PRIu64 " is made with rate %g, not %g", shard,
                    record->version, (double)record->hyper.lr,
                    (double)gk_sim_toy_rate(sim, record->step));
    }
    check_sums(sim, shard, record, dense);
    advance(sim, shard, record);
}

void gk_sim_ledger_commit(struct gk_sim *sim, uint32_t shard, const struct gk_record *record)
{
    struct gk_sim_shadow *shadow = &sim->ledger.shadows[shard];

    gk_sim_note(sim, record->type, gk_sim_ledger_digest(record));
    switch ((enum gk_record_type)record->type) {
    case GK_RECORD_INIT:
        commit_init(sim, shard, record);
        break;
    case GK_RECORD_MEMBER:
        commit_members(sim, shard, record);
        break;
    case GK_RECORD_ROUND:
        commit_round(sim, shard, record);
        break;
    case GK_RECORD_FINISHED:
        shadow->finished = true;
        for (uint32_t r = 0; r < sim->options.workers; r++) {
            if (!shadow->left[r]) {
                gk_sim_fail(sim, "P2", "shard %u is finished before rank %u has left", shard, r);
            }
        }
        if (record->version != shadow->version) {
            gk_sim_fail(sim, "P2", "shard %u is finished at another version", shard);
        }
        break;
    case GK_RECORD_LIFE:
        gk_sim_fail(sim, "P2", "the core of shard %u writes the record of a life", shard);
        break;
    }
}

/* After APPLY: the planes are those of the shadow. */
void gk_sim_ledger_applied(struct gk_sim *sim, uint32_t shard)
{
    const struct gk_sim_shadow *shadow = &sim->ledger.shadows[shard];
    uint64_t lo = sim->job.lo[shard], bytes = (sim->job.lo[shard + 1] - lo) * sizeof(float);
    const float *params = gk_server_plane(sim->shards[shard].core, 0);
    const float *first = gk_server_plane(sim->shards[shard].core, 1);
    const float *second = gk_server_plane(sim->shards[shard].core, 2);

    if (memcmp(params, sim->ledger.params + shadow->version * sim->options.params_count + lo,
               bytes) != 0 ||
        (first && memcmp(first, shadow->moments + lo, bytes) != 0) ||
        (second && memcmp(second, shadow->moments + sim->options.params_count + lo, bytes) != 0)) {
        gk_sim_fail(sim, "P2", "shard %u: the planes of version %" PRIu64 " are wrong", shard,
                    shadow->version);
    }
}

/* At the end of a job: what was pushed is in the model, whole, unless its maker's memory was lost.
 */
void gk_sim_ledger_check_pushes(struct gk_sim *sim)
{
    uint64_t count = sim->options.steps * sim->options.workers;

    for (uint64_t i = 0; i < count; i++) {
        for (const struct gk_sim_push *p = sim->ledger.pushes[i]; p; p = p->older) {
            for (uint32_t s = 0; s < sim->options.servers; s++) {
                if (p->named[s] && p->applied[s] && !p->twice[s]) {
                    gk_sim_fail(sim, "P2",
                                "step %" PRIu64
                                " of rank %u is in the model of shard %u, and called lost",
                                p->step, p->rank, s);
                    return;
                }
                if (p->persisted && !p->applied[s] && !p->named[s] &&
                    !sim->ledger.lineage_lost[p->lineage]) {
                    gk_sim_fail(sim, "P1",
                                "step %" PRIu64 " of rank %u never reached the model of shard %u, "
                                "its worker lives and does not know",
                                p->step, p->rank, s);
                    return;
                }
            }
        }
    }
}
