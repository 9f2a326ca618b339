/* Reading a slot: what does not belong here is refused, what is damaged counts as lost. */
#include "common/bits.h"
#include "common/hash.h"
#include "worker/state/format.h"

#include <inttypes.h>
#include <string.h>

#define ANEW "remove the directory to begin anew, or give another one"

static enum gk_err other(const struct gk_slot *slot, struct gk_words *words, const char *what)
{
    gk_words_set(words, "%s is of another %s than this worker: " ANEW, slot->path, what);
    return GK_E_CONFIG;
}

static enum gk_err damaged(const struct gk_slot *slot, struct gk_words *words, const char *what)
{
    gk_words_set(words, "%s is damaged: %s; " ANEW, slot->path, what);
    return GK_E_CORRUPT;
}

/* In the order in which a person would look for the difference. */
static enum gk_err check_owner(const struct gk_slot *slot, const struct gk_slot_header *want,
                               struct gk_words *words)
{
    const struct gk_slot_header *have = &slot->header;

    if (strcmp(have->job, want->job) != 0) {
        gk_words_set(words, "%s is of job '%s', this is job '%s': " ANEW, slot->path, have->job,
                     want->job);
        return GK_E_CONFIG;
    }
    if (have->workers != want->workers || have->servers != want->servers) {
        gk_words_set(words,
                     "%s is of a job with %" PRIu32 " workers and %" PRIu32 " servers, not %" PRIu32
                     " and %" PRIu32 ": " ANEW,
                     slot->path, have->workers, have->servers, want->workers, want->servers);
        return GK_E_CONFIG;
    }
    if (have->model_signature != want->model_signature ||
        have->params_count != want->params_count) {
        gk_words_set(words,
                     "%s is of another model: %" PRIu64 " parameters, signature %016" PRIx64
                     ", not %" PRIu64 " and %016" PRIx64 ": " ANEW,
                     slot->path, have->params_count, have->model_signature, want->params_count,
                     want->model_signature);
        return GK_E_CONFIG;
    }
    if (have->spec_hash != want->spec_hash) {
        return other(slot, words, "job spec (optimizer, schedule, seed, steps or density)");
    }
    if (have->aux_bytes != want->aux_bytes) {
        gk_words_set(words,
                     "%s holds %" PRIu64 " bytes of the program's own state, this program has "
                     "%" PRIu64 ": " ANEW,
                     slot->path, have->aux_bytes, want->aux_bytes);
        return GK_E_CONFIG;
    }
    if (memcmp(have, want, sizeof(*have)) != 0) {
        return other(slot, words, "layout (chunks, pushes or ring)");
    }
    return GK_OK;
}

enum gk_err gk_slot_header_check(const struct gk_slot *slot, const struct gk_slot_setup *setup,
                                 uint64_t size, struct gk_words *words)
{
    const struct gk_slot_header *have = &slot->header;
    struct gk_slot_header want;
    enum gk_err err;

    gk_slot_layout(setup, &want);
    if (memcmp(have->magic, want.magic, sizeof(have->magic)) != 0) {
        gk_words_set(words, "%s is no slot of a gkps worker: " ANEW, slot->path);
        return GK_E_CONFIG;
    }
    if (have->format != want.format) {
        gk_words_set(words,
                     "%s has format %" PRIu32 ", this version reads %" PRIu32
                     ": use the version that wrote it, or " ANEW,
                     slot->path, have->format, want.format);
        return GK_E_CONFIG;
    }
    if (gk_slot_header_crc(have) != have->crc || !memchr(have->job, '\0', sizeof(have->job))) {
        return damaged(slot, words, "the header's checksum is wrong");
    }
    err = check_owner(slot, &want, words);
    if (!err && size != want.file_bytes) {
        gk_words_set(words, "%s is damaged: %" PRIu64 " bytes, not %" PRIu64 "; " ANEW, slot->path,
                     size, want.file_bytes);
        err = GK_E_CORRUPT;
    }
    return err;
}

/* Of the two copies the newer one that is whole.  An update that was interrupted has left its copy
 * without a seal; one with a seal and a wrong checksum is damage, but the other copy is as good as
 * an update that did not happen. */
static enum gk_err load_identity(struct gk_slot *slot, struct gk_words *damage,
                                 struct gk_words *words)
{
    struct gk_slot_identity record;

    slot->identity.seal.seq = 0;
    for (uint32_t copy = 0; copy < GK_SLOT_COPIES; copy++) {
        bool whole = gk_slot_unsealed(gk_slot_identity_at(slot, copy), GK_SLOT_RECORD_IDENTITY,
                                      &record, sizeof(record));

        if (!whole && record.seal.seq != 0) {
            gk_words_set(damage,
                         "%s: one of two copies of the identity is damaged, going on with "
                         "the other",
                         slot->path);
        }
        if (whole && record.seal.seq > slot->identity.seal.seq) {
            slot->identity = record;
            slot->identity_copy = copy;
        }
    }
    if (slot->identity.seal.seq == 0) {
        return damaged(slot, words, "no copy of the identity is whole");
    }
    return GK_OK;
}

static enum gk_err check_rank(const struct gk_slot *slot, uint32_t rank, struct gk_words *words)
{
    uint32_t have = slot->identity.rank;

    if (have != GK_RANK_ANY && have >= slot->header.workers) {
        return damaged(slot, words, "its rank does not exist");
    }
    if (rank == GK_RANK_ANY || have == GK_RANK_ANY || rank == have) {
        return GK_OK;
    }
    gk_words_set(words, "%s is of rank %" PRIu32 ", this is rank %" PRIu32 ": " ANEW, slot->path,
                 have, rank);
    return GK_E_CONFIG;
}

/* The descriptor that counts; its seq is 0 when there is none.  False: one is damaged, and might be
 * the newer one. */
static bool find_residual(struct gk_slot *slot, struct gk_slot_residual *ret,
                          struct gk_words *damage)
{
    struct gk_slot_residual record;
    bool all_whole = true;

    memset(ret, 0, sizeof(*ret));
    slot->seq = slot->identity.void_seq;
    for (uint32_t copy = 0; copy < GK_SLOT_COPIES; copy++) {
        bool whole = gk_slot_unsealed(gk_slot_residual_at(slot, copy), GK_SLOT_RECORD_RESIDUAL,
                                      &record, sizeof(record));

        if (!whole && record.seal.seq != 0) {
            gk_words_set(damage, "the descriptor of residual %" PRIu32 " is damaged", copy);
            all_whole = false;
        }
        if (whole && record.seal.seq > slot->seq) {
            slot->seq = record.seal.seq;
            slot->current = copy;
            *ret = record;
        }
    }
    return all_whole;
}

static bool check_residual(const struct gk_slot *slot, const struct gk_slot_residual *memory,
                           struct gk_words *damage)
{
    const struct gk_slot_identity *identity = &slot->identity;
    const float *floats = gk_slot_floats_at(slot, slot->current);
    uint64_t bytes = slot->header.params_count * sizeof(float) + slot->header.aux_bytes;

    if (memory->step < memory->first_step || memory->step > GK_VERSION_MAX ||
        (identity->job_uid_hi == 0 && identity->job_uid_lo == 0) ||
        identity->joined_incarnation == 0 || identity->rank == GK_RANK_ANY ||
        memory->epoch != identity->epoch) {
        gk_words_set(damage, "residual and identity do not belong together");
        return false;
    }
    if (gk_crc32c(floats, bytes) != memory->residual_crc) {
        gk_words_set(damage, "the residual of step %" PRIu64 " is damaged", memory->step);
        return false;
    }
    return true;
}

/* The oldest place of the ring may already hold the beginning of the next push: that is written
 * only when every shard has decided the one before it there. */
static enum gk_err load_pushes(const struct gk_slot *slot, const struct gk_slot_residual *memory,
                               struct gk_worker_slot *ret, struct gk_words *damage)
{
    uint64_t made = memory->step - memory->first_step + 1;

    for (uint64_t behind = 0; behind < gk_min_u64(made, GK_RING_ENTRIES); behind++) {
        uint64_t step = memory->step - behind;
        enum gk_err err =
            gk_slot_push_read(slot, memory, step, &ret->pushes[ret->pushes_count], damage);

        if (err == GK_E_NOTFOUND && behind == GK_RING_ENTRIES - 1) {
            return GK_OK;
        }
        if (err == GK_E_NOTFOUND) {
            gk_words_set(damage, "the push of step %" PRIu64 " is not there", step);
            return GK_E_CORRUPT;
        }
        if (err) {
            return err;
        }
        ret->pushes_count++;
    }
    return GK_OK;
}

static void drop_pushes(struct gk_worker_slot *slot)
{
    for (uint32_t i = 0; i < slot->pushes_count; i++) {
        gk_push_free(slot->pushes[i]);
        slot->pushes[i] = NULL;
    }
    slot->pushes_count = 0;
}

static void fill_identity(const struct gk_slot_identity *record, struct gk_worker_identity *ret)
{
    ret->rank = record->rank;
    ret->incarnation = record->incarnation;
    ret->joined_incarnation = record->joined_incarnation;
    ret->epoch = record->epoch;
    ret->job_uid.hi = record->job_uid_hi;
    ret->job_uid.lo = record->job_uid_lo;
    ret->init_id = record->init_id;
    ret->left_at = record->left_at;
}

/* GK_E_CORRUPT: there was a memory, and it is lost; damage says why. */
static enum gk_err load_memory(struct gk_slot *slot, struct gk_worker_slot *ret,
                               struct gk_words *damage)
{
    struct gk_slot_residual memory;
    enum gk_err err;

    if (!find_residual(slot, &memory, damage)) {
        return GK_E_CORRUPT;
    }
    if (memory.seal.seq == 0) {
        return GK_OK;
    }
    if (!check_residual(slot, &memory, damage)) {
        return GK_E_CORRUPT;
    }
    err = load_pushes(slot, &memory, ret, damage);
    if (err) {
        drop_pushes(ret);
        return err;
    }
    slot->remembers = ret->remembers = true;
    slot->step = memory.step;
    ret->memory.step = memory.step;
    ret->memory.first_step = memory.first_step;
    ret->memory.incarnation = memory.memory_incarnation;
    ret->memory.epoch = memory.epoch;
    return GK_OK;
}

enum gk_err gk_slot_load(struct gk_slot *slot, const struct gk_slot_setup *setup,
                         struct gk_slot_found *found, struct gk_words *words)
{
    enum gk_err err = load_identity(slot, &found->damage, words);
    struct gk_words damage = {.text = ""};

    err = err ? err : check_rank(slot, setup->rank, words);
    if (err) {
        return err;
    }
    fill_identity(&slot->identity, &found->slot.identity);
    err = load_memory(slot, &found->slot, &damage);
    if (err == GK_E_NOMEM) {
        gk_words_set(words, "no memory for the pushes in %s", slot->path);
        return err;
    }
    found->slot.state = slot->remembers ? GK_SLOT_STEP : GK_SLOT_NONE;
    if (err) {
        found->slot.state = GK_SLOT_LOST;
        gk_words_set(&found->damage, "%s: %s: residual and pushes are lost", slot->path,
                     damage.text);
    }
    if (slot->identity.left_at > 0) {
        found->slot.state = GK_SLOT_LEFT;
    }
    return GK_OK;
}
