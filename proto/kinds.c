/* The protocol as tables: where each field lies in memory, and which fields, body, text and arrays
 * each kind may have.  The code that packs and the code that judges both walk these tables, so that
 * a field cannot be sent without being checked; a test compares them with README.md. */
#include "proto/kinds.h"

#include "common/assert.h"

#include <string.h>

#define BYTES_OF(type, member) sizeof(((type *)0)->member)
#define FIELD(type, member, named)                                                                 \
    {                                                                                              \
        named, offsetof(type, member), BYTES_OF(type, member)                                      \
    }

static const struct gk_field header_fields[] = {
#define HEADER_FIELD(constant, member, name) FIELD(struct gk_header, member, #name),
    GK_HEADER_FIELD_MAP(HEADER_FIELD)
#undef HEADER_FIELD
};

/* The numbers of the bodies' fields are positions too. */
static const struct gk_field hello_fields[] = {
    FIELD(struct gk_hello, protocol_min, "protocol_min"),
    FIELD(struct gk_hello, protocol_max, "protocol_max"),
    FIELD(struct gk_hello, job_uid.hi, "job_uid_hi"),
    FIELD(struct gk_hello, job_uid.lo, "job_uid_lo"),
    FIELD(struct gk_hello, spec_hash, "spec_hash"),
    FIELD(struct gk_hello, model_signature, "model_signature"),
    FIELD(struct gk_hello, workers, "workers"),
    FIELD(struct gk_hello, servers, "servers"),
    FIELD(struct gk_hello, role, "role"),
    FIELD(struct gk_hello, life_nonce, "life_nonce"),
    FIELD(struct gk_hello, takeover, "takeover"),
    FIELD(struct gk_hello, slot, "slot"),
    FIELD(struct gk_hello, slot_step, "slot_step"),
    FIELD(struct gk_hello, slot_push_id, "slot_push_id"),
    FIELD(struct gk_hello, slot_left_at, "slot_left_at"),
};

static const struct gk_field welcome_fields[] = {
    FIELD(struct gk_welcome, life_nonce, "life_nonce"),
    FIELD(struct gk_welcome, job_uid.hi, "job_uid_hi"),
    FIELD(struct gk_welcome, job_uid.lo, "job_uid_lo"),
    FIELD(struct gk_welcome, initialised, "initialised"),
    FIELD(struct gk_welcome, spec_hash, "spec_hash"),
    FIELD(struct gk_welcome, oldest_version, "oldest_version"),
    FIELD(struct gk_welcome, highest_incarnation, "highest_incarnation"),
    FIELD(struct gk_welcome, credit_bytes, "credit_bytes"),
    FIELD(struct gk_welcome, finished, "finished"),
    FIELD(struct gk_welcome, workers_present, "workers_present"),
    FIELD(struct gk_welcome, workers, "workers"),
};

static const struct gk_field ping_fields[] = {
    FIELD(struct gk_ping, sent_us, "sent_us"),
    FIELD(struct gk_ping, received_us, "received_us"),
    FIELD(struct gk_ping, waits, "waits"),
    FIELD(struct gk_ping, waits_for, "waits_for"),
    FIELD(struct gk_ping, waits_count, "waits_count"),
    FIELD(struct gk_ping, waits_version, "waits_version"),
    FIELD(struct gk_ping, waits_us, "waits_us"),
};

#define F(constant) (UINT64_C(1) << GK_FIELD_##constant)
#define ASK (F(REQ_ID) | F(EPOCH) | F(RANK) | F(SHARD) | F(INCARNATION))
#define ANSWER                                                                                     \
    (ASK | F(VERSION) | F(DURABLE_VERSION) | F(VERDICT) | F(VERDICT_STEP) | F(VERDICT_INCARNATION))
#define CHUNK (F(CHUNK) | F(CHUNKS))
#define RANGE (F(LO) | F(HI))
#define ARRAYS (F(INDEX_ENCODING) | F(VALUE_ENCODING) | F(COUNT))

static const struct gk_kind_rule kinds[GK_KIND_MAX + 1] = {
    [GK_KIND_HELLO] = {.name = "HELLO",
                       .fields = ASK,
                       .body = GK_RECORD_HELLO,
                       .text = GK_NEED_ALWAYS,
                       .rank_any = true},
    [GK_KIND_WELCOME] = {.name = "WELCOME",
                         .fields = ANSWER | F(SESSION) | RANGE | F(INIT_ID),
                         .body = GK_RECORD_WELCOME,
                         .session = GK_NEED_ALWAYS,
                         .range = GK_NEED_MAYBE},
    [GK_KIND_REFUSE] = {.name = "REFUSE",
                        .fields = ANSWER | F(FLAGS) | F(CODE),
                        .flags = GK_FLAG_RETRYABLE,
                        .text = GK_NEED_MAYBE,
                        .rank_any = true},
    [GK_KIND_INIT] = {.name = "INIT",
                      .fields = ASK | F(SESSION) | RANGE | F(INIT_ID) | F(JOB_UID_HI) |
                                F(JOB_UID_LO) | CHUNK | ARRAYS,
                      .session = GK_NEED_ALWAYS,
                      .range = GK_NEED_ALWAYS,
                      .chunk = GK_NEED_ALWAYS,
                      .arrays = GK_ARRAYS_INIT},
    [GK_KIND_INIT_OK] = {.name = "INIT_OK",
                         .fields = ANSWER | F(SESSION) | F(INIT_ID) | CHUNK,
                         .session = GK_NEED_ALWAYS,
                         .chunk = GK_NEED_MAYBE},
    [GK_KIND_PUSH] = {.name = "PUSH",
                      .fields = ASK | F(SESSION) | F(STEP) | F(BASE_VERSION) | RANGE | F(SAMPLES) |
                                F(LR_BITS) | F(PUSH_ID) | CHUNK | F(PUSH_BYTES) | ARRAYS | F(FLAGS),
                      .flags = GK_FLAG_LOST | GK_FLAG_LR_FROM_CLIENT,
                      .session = GK_NEED_ALWAYS,
                      .range = GK_NEED_ALWAYS,
                      .chunk = GK_NEED_ALWAYS,
                      .arrays = GK_ARRAYS_PUSH},
    [GK_KIND_PUSH_OK] = {.name = "PUSH_OK",
                         .fields = ANSWER | F(SESSION) | F(STEP) | F(PUSH_ID) | CHUNK,
                         .session = GK_NEED_ALWAYS,
                         .chunk = GK_NEED_MAYBE},
    [GK_KIND_NACK] = {.name = "NACK",
                      .fields = ANSWER | F(SESSION) | F(STEP) | F(PUSH_ID) | F(INIT_ID) | CHUNK |
                                F(FLAGS) | F(CODE),
                      .flags = GK_FLAG_RETRYABLE,
                      .text = GK_NEED_MAYBE,
                      .session = GK_NEED_MAYBE,
                      .chunk = GK_NEED_MAYBE,
                      .rank_any = true},
    [GK_KIND_PULL_DENSE] = {.name = "PULL_DENSE",
                            .fields = ASK | F(SESSION) | F(VERSION) | F(PLANE) | RANGE | F(FLAGS),
                            .flags = GK_FLAG_AT_LEAST,
                            .session = GK_NEED_ALWAYS,
                            .range = GK_NEED_ALWAYS},
    [GK_KIND_PARAMS] = {.name = "PARAMS",
                        .fields = ANSWER | F(SESSION) | F(PLANE) | RANGE | F(SAMPLES) | ARRAYS |
                                  F(STATE_HASH),
                        .session = GK_NEED_ALWAYS,
                        .range = GK_NEED_ALWAYS,
                        .arrays = GK_ARRAYS_PARAMS},
    [GK_KIND_PULL_UPDATES] = {.name = "PULL_UPDATES", .reserved = true},
    [GK_KIND_UPDATES] = {.name = "UPDATES", .reserved = true},
    [GK_KIND_GONE] = {.name = "GONE",
                      .fields = ANSWER | F(SESSION) | F(PLANE) | RANGE,
                      .session = GK_NEED_ALWAYS,
                      .range = GK_NEED_MAYBE},
    [GK_KIND_LEAVE] = {.name = "LEAVE",
                       .fields = ASK | F(SESSION) | F(STEP),
                       .session = GK_NEED_ALWAYS},
    [GK_KIND_LEAVE_OK] = {.name = "LEAVE_OK",
                          .fields = ANSWER | F(SESSION) | F(STEP),
                          .session = GK_NEED_ALWAYS},
    [GK_KIND_PING] = {.name = "PING",
                      .fields = ASK | F(SESSION),
                      .body = GK_RECORD_PING,
                      .session = GK_NEED_ALWAYS},
    [GK_KIND_PONG] = {.name = "PONG",
                      .fields = ANSWER | F(SESSION),
                      .body = GK_RECORD_PING,
                      .session = GK_NEED_ALWAYS},
    [GK_KIND_STATUS] = {.name = "STATUS", .fields = ASK, .rank_any = true},
    [GK_KIND_STATUS_OK] = {.name = "STATUS_OK",
                           .fields = ANSWER,
                           .arrays = GK_ARRAYS_JSON,
                           .rank_any = true},
    [GK_KIND_DRAIN] = {.name = "DRAIN", .fields = ASK, .rank_any = true},
    [GK_KIND_DRAIN_OK] = {.name = "DRAIN_OK", .fields = ANSWER, .rank_any = true},
    [GK_KIND_PIN] = {.name = "PIN",
                     .fields = ASK | F(VERSION) | F(JOB_UID_HI) | F(JOB_UID_LO) | F(FLAGS),
                     .flags = GK_FLAG_RELEASE,
                     .rank_any = true},
    [GK_KIND_PIN_OK] = {.name = "PIN_OK",
                        .fields = ANSWER | RANGE | F(STATE_HASH),
                        .range = GK_NEED_ALWAYS,
                        .arrays = GK_ARRAYS_SPEC,
                        .rank_any = true},
    [GK_KIND_PULL_PIN] = {.name = "PULL_PIN",
                          .fields = ASK | F(VERSION) | RANGE,
                          .range = GK_NEED_ALWAYS,
                          .rank_any = true},
    [GK_KIND_PIN_PARAMS] = {.name = "PIN_PARAMS",
                            .fields = ANSWER | RANGE | ARRAYS,
                            .range = GK_NEED_ALWAYS,
                            .arrays = GK_ARRAYS_PARAMS,
                            .rank_any = true},
};

#define COUNT_OF(array) (uint32_t)(sizeof(array) / sizeof((array)[0]))

const struct gk_field *gk_record_fields(enum gk_record record, uint32_t *ret_count)
{
    switch (record) {
    case GK_RECORD_HEADER:
        *ret_count = COUNT_OF(header_fields);
        return header_fields;
    case GK_RECORD_HELLO:
        *ret_count = COUNT_OF(hello_fields);
        return hello_fields;
    case GK_RECORD_WELCOME:
        *ret_count = COUNT_OF(welcome_fields);
        return welcome_fields;
    case GK_RECORD_PING:
        *ret_count = COUNT_OF(ping_fields);
        return ping_fields;
    case GK_RECORD_NONE:
        break;
    }
    gk_assert_failed("a record", __FILE__, __LINE__);
}

uint64_t gk_field_get(const struct gk_field *field, const void *record)
{
    const uint8_t *at = (const uint8_t *)record + field->offset;
    uint64_t wide;
    uint32_t narrow;
    bool flag;

    switch (field->bytes) {
    case sizeof(flag):
        memcpy(&flag, at, sizeof(flag));
        return flag;
    case sizeof(narrow):
        memcpy(&narrow, at, sizeof(narrow));
        return narrow;
    default:
        GK_ASSERT(field->bytes == sizeof(wide));
        memcpy(&wide, at, sizeof(wide));
        return wide;
    }
}

const struct gk_kind_rule *gk_kind_rule(uint32_t kind)
{
    return kind > 0 && kind <= GK_KIND_MAX ? &kinds[kind] : NULL;
}

const char *gk_kind_name(uint32_t kind)
{
    const struct gk_kind_rule *rule = gk_kind_rule(kind);

    return rule ? rule->name : "?";
}

const char *gk_verdict_name(uint32_t verdict)
{
    static const char *const NAMES[] = {
        [GK_VERDICT_NONE] = "none",         [GK_VERDICT_APPLIED] = "applied",
        [GK_VERDICT_RETURNED] = "returned", [GK_VERDICT_SKIPPED] = "skipped",
        [GK_VERDICT_REJECTED] = "rejected", [GK_VERDICT_LOST] = "lost",
    };

    return verdict < COUNT_OF(NAMES) ? NAMES[verdict] : "?";
}

const char *gk_code_name(uint32_t code)
{
    static const char *const NAMES[] = {
        [GK_CODE_NONE] = "NONE",
        [GK_CODE_PROTOCOL] = "PROTOCOL",
        [GK_CODE_WRONG_JOB] = "WRONG_JOB",
        [GK_CODE_WRONG_SHARD] = "WRONG_SHARD",
        [GK_CODE_WRONG_SPEC] = "WRONG_SPEC",
        [GK_CODE_BAD_RANK] = "BAD_RANK",
        [GK_CODE_HELD] = "HELD",
        [GK_CODE_STALE_LIFE] = "STALE_LIFE",
        [GK_CODE_DRAINING] = "DRAINING",
        [GK_CODE_WRONG_EPOCH] = "WRONG_EPOCH",
        [GK_CODE_NO_SESSION] = "NO_SESSION",
        [GK_CODE_FENCED] = "FENCED",
        [GK_CODE_BAD_MESSAGE] = "BAD_MESSAGE",
        [GK_CODE_UNSUPPORTED] = "UNSUPPORTED",
        [GK_CODE_NOT_READY] = "NOT_READY",
        [GK_CODE_BAD_STEP] = "BAD_STEP",
        [GK_CODE_NO_MEMORY] = "NO_MEMORY",
        [GK_CODE_LOST_SHARD] = "LOST_SHARD",
        [GK_CODE_BAD_SHAPE] = "BAD_SHAPE",
        [GK_CODE_FINISHED] = "FINISHED",
        [GK_CODE_PAST] = "PAST",
        [GK_CODE_RATES_DIFFER] = "RATES_DIFFER",
    };

    return code < COUNT_OF(NAMES) && NAMES[code] ? NAMES[code] : "?";
}
