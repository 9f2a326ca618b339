/* The rules of a header, its parts and its body, in the order in which they are judged: what is
 * reserved (so that a newer peer hears "not supported" and not "damaged"), fields that the kind
 * does not use, then the values.  The rules of each kind are data (kinds.c); this file knows what
 * they mean.  No rule looks beyond the one message. */
#include "proto/check.h"

#include "common/assert.h"
#include "common/backend.h"
#include "common/bits.h"
#include "proto/spec.h"

#include <inttypes.h>

#define BIT(field) (UINT64_C(1) << GK_FIELD_##field)

/* Frame CRCs belong to whatever parts there are; they are judged with the parts. */
#define EVERY_KIND (BIT(KIND) | BIT(FRAME_CRC_0) | BIT(FRAME_CRC_1) | BIT(FRAME_CRC_2))

static enum gk_err corrupt(struct gk_words *words, const char *field, uint64_t value,
                           const char *rule)
{
    gk_words_set(words, "%s is %" PRIu64 ", %s", field, value, rule);
    return GK_E_CORRUPT;
}

static enum gk_err beyond(struct gk_words *words, const char *field, uint64_t value, uint64_t max)
{
    gk_words_set(words, "%s is %" PRIu64 ", the limit is %" PRIu64, field, value, max);
    return GK_E_LIMIT;
}

static enum gk_err reserved(struct gk_words *words, const char *what, uint64_t value)
{
    gk_words_set(words, "%s %" PRIu64 " is reserved, this version does not support it", what,
                 value);
    return GK_E_UNSUPPORTED;
}

/* Comes before the unused fields: what is reserved may bring fields that version 1 has no use for.
 */
static enum gk_err check_reserved(const struct gk_header *h, const struct gk_kind_rule *rule,
                                  struct gk_words *words)
{
    const uint32_t later = GK_FLAG_SKIP;

    if (rule->reserved) {
        gk_words_set(words, "kind %s is reserved, this version does not support it", rule->name);
        return GK_E_UNSUPPORTED;
    }
    if (rule->arrays == GK_ARRAYS_PUSH && (h->flags & later)) {
        return reserved(words, "a flag of", h->flags & later);
    }
    if (!(rule->fields & BIT(INDEX_ENCODING))) {
        return GK_OK;
    }
    if (h->index_encoding == GK_INDEX_RICE || h->index_encoding == GK_INDEX_BITMAP) {
        return reserved(words, "index_encoding", h->index_encoding);
    }
    if (h->value_encoding > GK_VALUE_F32 && h->value_encoding <= GK_VALUE_Q2) {
        return reserved(words, "value_encoding", h->value_encoding);
    }
    return GK_OK;
}

static enum gk_err check_unused(const struct gk_header *h, const struct gk_kind_rule *rule,
                                struct gk_words *words)
{
    uint32_t count;
    const struct gk_field *fields = gk_record_fields(GK_RECORD_HEADER, &count);

    for (uint32_t i = 0; i < count; i++) {
        uint64_t value = gk_field_get(&fields[i], h);

        if (value != 0 && !((rule->fields | EVERY_KIND) >> i & 1)) {
            return corrupt(words, fields[i].name, value, "a field that this kind does not use");
        }
    }
    if (h->flags & ~rule->flags) {
        return corrupt(words, "flags", h->flags, "with a flag that this kind does not use");
    }
    return GK_OK;
}

static enum gk_err check_identity(const struct gk_header *h, const struct gk_kind_rule *rule,
                                  struct gk_words *words)
{
    if (rule->session == GK_NEED_ALWAYS && h->session == 0) {
        return corrupt(words, "session", h->session, "but this kind needs one");
    }
    if (h->rank >= GK_WORKERS_MAX && !(rule->rank_any && h->rank == GK_RANK_ANY)) {
        return corrupt(words, "rank", h->rank, "no rank that this kind may carry");
    }
    if (h->kind == GK_KIND_INIT && h->rank != 0) {
        return corrupt(words, "rank", h->rank, "but only rank 0 sends INIT");
    }
    if (h->shard >= GK_SERVERS_MAX) {
        return corrupt(words, "shard", h->shard, "no shard");
    }
    return GK_OK;
}

static enum gk_err check_counters(const struct gk_header *h, struct gk_words *words)
{
    const struct {
        const char *name;
        uint64_t value;
    } counters[] = {
        {"step", h->step},
        {"version", h->version},
        {"base_version", h->base_version},
        {"durable_version", h->durable_version},
        {"verdict_step", h->verdict_step},
    };

    for (size_t i = 0; i < sizeof(counters) / sizeof(counters[0]); i++) {
        if (counters[i].value > GK_VERSION_MAX) {
            return beyond(words, counters[i].name, counters[i].value, GK_VERSION_MAX);
        }
    }
    if (h->verdict > GK_VERDICT_LOST) {
        return corrupt(words, "verdict", h->verdict, "no verdict");
    }
    if (h->verdict == GK_VERDICT_NONE && h->verdict_step != 0) {
        return corrupt(words, "verdict_step", h->verdict_step, "without a verdict");
    }
    if (h->verdict == GK_VERDICT_NONE && h->verdict_incarnation != 0) {
        return corrupt(words, "verdict_incarnation", h->verdict_incarnation, "without a verdict");
    }
    return GK_OK;
}

static enum gk_err check_range(const struct gk_header *h, const struct gk_kind_rule *rule,
                               struct gk_words *words)
{
    if (h->plane > 2) {
        return corrupt(words, "plane", h->plane, "no plane");
    }
    if (rule->range == GK_NEED_NEVER ||
        (rule->range == GK_NEED_MAYBE && h->lo == 0 && h->hi == 0)) {
        return GK_OK;
    }
    if (h->lo >= h->hi) {
        gk_words_set(words, "lo is %" PRIu64 ", not below hi, which is %" PRIu64, h->lo, h->hi);
        return GK_E_CORRUPT;
    }
    if (h->hi > GK_PARAMS_MAX) {
        return beyond(words, "hi", h->hi, GK_PARAMS_MAX);
    }
    if (h->hi - h->lo > UINT32_MAX) {
        return beyond(words, "hi - lo", h->hi - h->lo, UINT32_MAX);
    }
    /* Ranges that travel densely fit one chunk. */
    if ((h->kind == GK_KIND_PULL_DENSE || h->kind == GK_KIND_PULL_PIN ||
         h->index_encoding == GK_INDEX_DENSE) &&
        h->hi - h->lo > GK_CHUNK_FLOATS) {
        return beyond(words, "hi - lo of one chunk", h->hi - h->lo, GK_CHUNK_FLOATS);
    }
    return GK_OK;
}

static enum gk_err check_chunk(const struct gk_header *h, const struct gk_kind_rule *rule,
                               struct gk_words *words)
{
    if (h->chunks > GK_CHUNKS_MAX) {
        return beyond(words, "chunks", h->chunks, GK_CHUNKS_MAX);
    }
    if (h->chunk >= h->chunks &&
        (rule->chunk == GK_NEED_ALWAYS || h->chunks > 0 || h->chunk >= GK_CHUNKS_MAX)) {
        gk_words_set(words, "chunk is %" PRIu32 ", not below chunks, which is %" PRIu32, h->chunk,
                     h->chunks);
        return GK_E_CORRUPT;
    }
    return GK_OK;
}

static enum gk_err check_code(const struct gk_header *h, struct gk_words *words)
{
    bool refuses = h->code >= GK_CODE_PROTOCOL && h->code <= GK_CODE_WRONG_EPOCH;
    bool nacks = h->code >= GK_CODE_NO_SESSION && h->code <= GK_CODE_RATES_DIFFER;

    if (h->kind == GK_KIND_REFUSE && !refuses) {
        return corrupt(words, "code", h->code, "no reason to refuse");
    }
    if (h->kind == GK_KIND_NACK && !nacks && h->code != GK_CODE_DRAINING) {
        return corrupt(words, "code", h->code, "no code of a NACK");
    }
    return GK_OK;
}

static enum gk_err check_arrays(const struct gk_header *h, const struct gk_kind_rule *rule,
                                struct gk_words *words)
{
    bool none = h->index_encoding == GK_INDEX_NONE && rule->arrays == GK_ARRAYS_PUSH;
    bool sparse = h->index_encoding == GK_INDEX_RAW32 && rule->arrays == GK_ARRAYS_PUSH;

    if (rule->arrays == GK_ARRAYS_NONE || rule->arrays == GK_ARRAYS_JSON ||
        rule->arrays == GK_ARRAYS_SPEC) {
        return GK_OK;
    }
    if (!none && !sparse && h->index_encoding != GK_INDEX_DENSE) {
        return corrupt(words, "index_encoding", h->index_encoding,
                       "no encoding that this kind may carry");
    }
    if (h->value_encoding != (none ? 0 : GK_VALUE_F32)) {
        return corrupt(words, "value_encoding", h->value_encoding,
                       none ? "but there are no arrays" : "no encoding of values");
    }
    if (none && h->count != 0) {
        return corrupt(words, "count", h->count, "but there are no arrays");
    }
    if (sparse && (h->count == 0 || h->count > h->hi - h->lo)) {
        return corrupt(words, "count", h->count, "not within 1 and hi - lo");
    }
    if (sparse && h->count > GK_CHUNK_FLOATS) {
        return beyond(words, "count", h->count, GK_CHUNK_FLOATS);
    }
    if (h->index_encoding == GK_INDEX_DENSE && h->count != h->hi - h->lo) {
        return corrupt(words, "count", h->count, "not hi - lo");
    }
    return GK_OK;
}

/* As in a job spec: finite, not negative, -0 has no form. */
static enum gk_err check_rate(const struct gk_header *h, struct gk_words *words)
{
    float lr = gk_bits_float(h->lr_bits);

    if (!(h->flags & GK_FLAG_LR_FROM_CLIENT)) {
        return h->lr_bits == 0 ? GK_OK
                               : corrupt(words, "lr_bits", h->lr_bits, "but the flag is not set");
    }
    if (h->flags & GK_FLAG_LOST) {
        return corrupt(words, "lr_bits", h->lr_bits, "but the push is LOST");
    }
    return gk_rate_good(lr) ? GK_OK
                            : corrupt(words, "lr_bits", h->lr_bits, "no rate from 0 to 1e30");
}

static enum gk_err check_push(const struct gk_header *h, struct gk_words *words)
{
    uint64_t bytes = h->count * (h->index_encoding == GK_INDEX_RAW32 ? 8 : 4);

    if (h->push_id == 0) {
        return corrupt(words, "push_id", h->push_id, "but a push has one");
    }
    if (h->samples > UINT32_MAX) {
        return beyond(words, "samples", h->samples, UINT32_MAX);
    }
    if ((h->flags & GK_FLAG_LOST) && h->samples != 0) {
        return corrupt(words, "samples", h->samples, "but the push is LOST");
    }
    if (h->samples == 0 && (h->push_bytes != 0 || h->chunks != 1)) {
        return corrupt(words, "samples", h->samples, "but the push is not empty");
    }
    if (h->push_bytes < bytes || (h->chunks == 1 && h->push_bytes != bytes)) {
        return corrupt(words, "push_bytes", h->push_bytes,
                       "not what the arrays of the chunks add up to");
    }
    if (h->push_bytes % 4 != 0 || (h->push_bytes == 0 && h->chunks != 1) ||
        h->push_bytes - bytes > (uint64_t)(h->chunks - 1) * 2 * GK_CHUNK_BYTES) {
        return corrupt(words, "push_bytes", h->push_bytes, "no sum that the chunks can have");
    }
    return check_rate(h, words);
}

static enum gk_err check_uid(const struct gk_header *h, struct gk_words *words)
{
    if (h->job_uid.hi == 0 && h->job_uid.lo == 0) {
        return corrupt(words, "job_uid", 0, "but this kind names the job");
    }
    return GK_OK;
}

static enum gk_err check_init(const struct gk_header *h, struct gk_words *words)
{
    if (h->init_id == 0) {
        return corrupt(words, "init_id", h->init_id, "but INIT has one");
    }
    return check_uid(h, words);
}

enum gk_err gk_header_check(const struct gk_header *header, struct gk_words *words)
{
    const struct gk_kind_rule *rule = gk_kind_rule(header->kind);
    enum gk_err err;

    if (!rule) {
        gk_words_set(words, "kind %" PRIu32 " is %s", header->kind,
                     header->kind == 0 ? "invalid" : "unknown");
        return header->kind == 0 ? GK_E_CORRUPT : GK_E_UNSUPPORTED;
    }
    err = check_reserved(header, rule, words);
    err = err ? err : check_unused(header, rule, words);
    err = err ? err : check_identity(header, rule, words);
    err = err ? err : check_counters(header, words);
    err = err ? err : check_range(header, rule, words);
    err = err ? err : check_chunk(header, rule, words);
    err = err ? err : check_code(header, words);
    err = err ? err : check_arrays(header, rule, words);
    if (!err && header->kind == GK_KIND_PUSH) {
        err = check_push(header, words);
    }
    if (!err && header->kind == GK_KIND_PARAMS && header->plane != 1 && header->samples != 0) {
        err = corrupt(words, "samples", header->samples, "but only plane 1 may be of a round");
    }
    if (!err && header->kind == GK_KIND_INIT) {
        err = check_init(header, words);
    }
    if (!err && header->kind == GK_KIND_PIN) {
        err = check_uid(header, words);
    }
    return err;
}

static void add_part(struct gk_parts_rule *parts, enum gk_part part, size_t bytes_min,
                     size_t bytes_max)
{
    GK_ASSERT(parts->count < GK_FRAMES_MAX);
    parts->parts[parts->count++] =
        (struct gk_part_rule){.part = part, .bytes_min = bytes_min, .bytes_max = bytes_max};
}

void gk_parts_of(const struct gk_header *header, struct gk_parts_rule *ret)
{
    const struct gk_kind_rule *rule = gk_kind_rule(header->kind);
    size_t words_bytes = header->count * 4;

    GK_ASSERT(rule && !rule->reserved);
    *ret = (struct gk_parts_rule){0};
    if (rule->body != GK_RECORD_NONE) {
        add_part(ret, GK_PART_BODY, 0, GK_BODY_BYTES_MAX);
    }
    if (rule->text != GK_NEED_NEVER) {
        bool name = header->kind == GK_KIND_HELLO;

        add_part(ret, GK_PART_TEXT, 1, name ? GK_JOB_NAME_BYTES - 1 : GK_TEXT_BYTES_MAX);
        ret->optional = rule->text == GK_NEED_MAYBE;
    }
    if (rule->arrays == GK_ARRAYS_JSON) {
        add_part(ret, GK_PART_JSON, 1, GK_STATUS_BYTES_MAX);
        return;
    }
    if (rule->arrays == GK_ARRAYS_SPEC || (rule->arrays == GK_ARRAYS_INIT && header->chunk == 0)) {
        add_part(ret, GK_PART_SPEC, 1, GK_SPEC_BYTES_MAX);
    }
    if (header->index_encoding == GK_INDEX_RAW32) {
        add_part(ret, GK_PART_INDICES, words_bytes, words_bytes);
    }
    if (header->index_encoding != GK_INDEX_NONE) {
        add_part(ret, GK_PART_VALUES, words_bytes, words_bytes);
    }
}

static enum gk_err check_hello(const struct gk_hello *hello, struct gk_words *words)
{
    if (hello->protocol_min == 0 || hello->protocol_min > hello->protocol_max) {
        return corrupt(words, "protocol_min", hello->protocol_min, "not within 1 and protocol_max");
    }
    if (hello->workers == 0 || hello->workers > GK_WORKERS_MAX) {
        return corrupt(words, "workers", hello->workers, "out of range");
    }
    if (hello->servers == 0 || hello->servers > GK_SERVERS_MAX) {
        return corrupt(words, "servers", hello->servers, "out of range");
    }
    if (hello->role != 1) {
        return corrupt(words, "role", hello->role, "no role");
    }
    if (hello->life_nonce == 0) {
        return corrupt(words, "life_nonce", hello->life_nonce, "but a life has one");
    }
    if (hello->slot > GK_SLOT_LEFT) {
        return corrupt(words, "slot", hello->slot, "no state of a slot");
    }
    if (hello->slot == GK_SLOT_NONE && (hello->slot_step || hello->slot_push_id)) {
        return corrupt(words, "slot_step or slot_push_id",
                       hello->slot_step ? hello->slot_step : hello->slot_push_id, "without a slot");
    }
    if (hello->slot != GK_SLOT_LEFT && hello->slot_left_at != 0) {
        return corrupt(words, "slot_left_at", hello->slot_left_at, "but the slot has not left");
    }
    if (hello->slot_step > GK_VERSION_MAX || hello->slot_left_at > GK_VERSION_MAX) {
        return corrupt(words, "slot_step or slot_left_at",
                       gk_max_u64(hello->slot_step, hello->slot_left_at), "beyond every step");
    }
    return GK_OK;
}

static enum gk_err check_welcome(const struct gk_msg *msg, struct gk_words *words)
{
    const struct gk_welcome *welcome = &msg->body.welcome;

    if (welcome->life_nonce == 0) {
        return corrupt(words, "life_nonce", welcome->life_nonce, "but a life has one");
    }
    if (welcome->initialised != (msg->h.init_id != 0)) {
        return corrupt(words, "init_id", msg->h.init_id, "which contradicts initialised");
    }
    if (welcome->initialised && msg->h.hi == 0) {
        return corrupt(words, "hi", msg->h.hi, "but an initialised shard has a range");
    }
    if (!welcome->initialised && msg->h.version != 0) {
        return corrupt(words, "version", msg->h.version, "but no version exists");
    }
    if (welcome->oldest_version > msg->h.version) {
        return corrupt(words, "oldest_version", welcome->oldest_version, "above version");
    }
    if (welcome->workers > GK_WORKERS_MAX || welcome->workers_present > GK_WORKERS_MAX) {
        return corrupt(words, "workers or workers_present",
                       gk_max_u64(welcome->workers, welcome->workers_present), "out of range");
    }
    return GK_OK;
}

static enum gk_err check_ping(const struct gk_msg *msg, struct gk_words *words)
{
    const struct gk_ping *ping = &msg->body.ping;
    static const uint32_t BOUNDS[] = {[GK_WAIT_NONE] = 1,
                                      [GK_WAIT_SHARD] = GK_SERVERS_MAX,
                                      [GK_WAIT_RANK] = GK_WORKERS_MAX,
                                      [GK_WAIT_DISK] = 1};

    if (ping->waits > GK_WAIT_DISK) {
        return corrupt(words, "waits", ping->waits, "nothing to wait for");
    }
    if (ping->waits_for >= BOUNDS[ping->waits]) {
        return corrupt(words, "waits_for", ping->waits_for, "out of range");
    }
    if (ping->waits_count > GK_WORKERS_MAX) {
        return corrupt(words, "waits_count", ping->waits_count, "out of range");
    }
    if (msg->h.kind == GK_KIND_PING && ping->received_us != 0) {
        return corrupt(words, "received_us", ping->received_us, "but only a PONG has it");
    }
    return GK_OK;
}

enum gk_err gk_body_check(const struct gk_msg *msg, struct gk_words *words)
{
    switch (gk_kind_rule(msg->h.kind)->body) {
    case GK_RECORD_HELLO:
        return check_hello(&msg->body.hello, words);
    case GK_RECORD_WELCOME:
        return check_welcome(msg, words);
    case GK_RECORD_PING:
        return check_ping(msg, words);
    case GK_RECORD_HEADER:
    case GK_RECORD_NONE:
        break;
    }
    return GK_OK;
}

const char *gk_part_name(enum gk_part part)
{
    static const char *const NAMES[] = {
        [GK_PART_BODY] = "body", [GK_PART_TEXT] = "text",       [GK_PART_SPEC] = "spec",
        [GK_PART_JSON] = "JSON", [GK_PART_INDICES] = "indices", [GK_PART_VALUES] = "values",
    };

    return NAMES[part];
}
