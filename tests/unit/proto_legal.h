/* Random legal messages of every kind, for the tests of proto/: what gk_msg_to_wire() must accept
 * and gk_msg_from_wire() must give back. */
#ifndef GK_TESTS_UNIT_PROTO_LEGAL_H
#define GK_TESTS_UNIT_PROTO_LEGAL_H

#include "common/backend.h"
#include "common/bits.h"
#include "common/buf.h"
#include "common/limits.h"
#include "common/rng.h"
#include "proto/check.h"
#include "proto/kinds.h"
#include "proto/msg.h"
#include "proto/pack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct draw {
    struct gk_rng rng;
    uint64_t next;
};

static inline uint32_t below(struct draw *draw, uint32_t bound)
{
    return (uint32_t)gk_rng_below(&draw->rng, draw->next++, bound);
}

/* Small and huge values alike: a uniform draw would never give a short varint. */
static inline uint64_t any(struct draw *draw, uint64_t max)
{
    uint32_t bits = below(draw, 65);
    uint64_t x = (uint64_t)gk_rng_u32(&draw->rng, draw->next++) << 32;

    x |= gk_rng_u32(&draw->rng, draw->next++);
    x = bits == 0 ? 0 : x >> (64 - bits);
    return x > max ? x % (max + 1) : x;
}

static inline uint64_t nonzero(struct draw *draw)
{
    return any(draw, UINT64_MAX - 1) + 1;
}

static inline uint32_t any32(struct draw *draw)
{
    return (uint32_t)any(draw, UINT32_MAX);
}

static inline bool uses(const struct gk_kind_rule *rule, enum gk_header_field field)
{
    return rule->fields >> field & 1;
}

static inline bool reserved_kind(uint32_t kind)
{
    return kind == GK_KIND_PULL_UPDATES || kind == GK_KIND_UPDATES;
}

static inline void legal_text(struct draw *draw, struct gk_words *words, uint32_t bytes_max)
{
    static const char *const PIECES[] = {
        "a", "Z", " ", "~", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x99\x82", "\""};
    size_t pieces = 1 + below(draw, bytes_max / 4);

    words->text[0] = 0;
    for (size_t i = 0; i < pieces; i++) {
        strcat(words->text, PIECES[below(draw, sizeof(PIECES) / sizeof(PIECES[0]))]);
    }
}

static inline struct gk_buf *legal_values(struct draw *draw, uint64_t count)
{
    struct gk_buf *buf = gk_buf_new(count * 4);

    for (uint64_t i = 0; i < count; i++) {
        gk_put_u32(buf->data + 4 * i,
                   any32(draw) & ~UINT32_C(0x00800000)); /* no exponent of all ones */
    }
    return buf;
}

static inline struct gk_buf *legal_indices(struct draw *draw, uint64_t count, uint64_t bound)
{
    struct gk_buf *buf = gk_buf_new(count * 4);
    uint64_t next = 0;

    for (uint64_t i = 0; i < count; i++) {
        uint64_t index =
            next + any(draw, bound - next - (count - i)); /* leaves room for the rest */

        gk_put_u32(buf->data + 4 * i, (uint32_t)index);
        next = index + 1;
    }
    return buf;
}

static inline void legal_range(struct draw *draw, struct gk_header *h, uint64_t length_max)
{
    uint64_t length = 1 + any(draw, length_max - 1);

    h->lo = any(draw, GK_PARAMS_MAX - length);
    h->hi = h->lo + length;
}

static inline void legal_push(struct draw *draw, struct gk_msg *msg)
{
    struct gk_header *h = &msg->h;
    uint64_t bytes = 0;

    h->push_id = nonzero(draw);
    h->base_version = any(draw, GK_VERSION_MAX);
    h->lr_bits = 0;
    if (below(draw, 3) == 0) {
        h->flags = GK_FLAG_LR_FROM_CLIENT;
        h->lr_bits = gk_float_bits(gk_rng_float(&draw->rng, draw->next++));
    }
    legal_range(draw, h, UINT32_MAX);
    switch (below(draw, 4)) {
    case 0:
        h->flags = h->flags || below(draw, 2) ? h->flags : GK_FLAG_LOST;
        h->chunks = 1;
        h->chunk = 0;
        return; /* empty */
    case 1:
        break; /* an empty chunk of a larger push */
    case 2:
        h->hi = h->lo + 1 + below(draw, 40);
        h->hi = h->hi > GK_PARAMS_MAX ? GK_PARAMS_MAX : h->hi;
        h->index_encoding = GK_INDEX_DENSE;
        h->count = h->hi - h->lo;
        msg->frame[msg->frames_count++] = legal_values(draw, h->count);
        break;
    default:
        h->index_encoding = GK_INDEX_RAW32;
        h->count = 1 + below(draw, 40);
        h->count = h->count > h->hi - h->lo ? h->hi - h->lo : h->count;
        msg->frame[msg->frames_count++] = legal_indices(draw, h->count, h->hi - h->lo);
        msg->frame[msg->frames_count++] = legal_values(draw, h->count);
    }
    for (uint32_t i = 0; i < msg->frames_count; i++) {
        bytes += msg->frame[i]->size;
    }
    h->value_encoding = h->count ? GK_VALUE_F32 : 0;
    h->samples = 1 + any(draw, UINT32_MAX - 1);
    h->chunks = (h->count ? 1 : 2) + below(draw, 100);
    h->chunk = below(draw, h->chunks);
    h->push_bytes = bytes + (h->chunks > 1 ? 4 * (1 + below(draw, GK_CHUNK_FLOATS)) : 0);
}

static inline void legal_arrays(struct draw *draw, struct gk_msg *msg)
{
    struct gk_header *h = &msg->h;

    legal_range(draw, h, 40);
    if (h->kind == GK_KIND_INIT) {
        h->rank = 0;
        h->init_id = nonzero(draw);
        h->job_uid.hi = nonzero(draw);
        h->job_uid.lo = any(draw, UINT64_MAX);
        if (h->chunk == 0) {
            uint32_t spec_bytes = 1 + below(draw, 200);

            msg->frame[msg->frames_count++] = legal_values(draw, spec_bytes);
        }
    }
    h->index_encoding = GK_INDEX_DENSE;
    h->value_encoding = GK_VALUE_F32;
    h->count = h->hi - h->lo;
    msg->frame[msg->frames_count++] = legal_values(draw, h->count);
}

static inline void legal_hello(struct draw *draw, struct gk_hello *hello)
{
    hello->protocol_min = 1 + below(draw, 99);
    hello->protocol_max = hello->protocol_min + below(draw, 1000);
    hello->job_uid.hi = any(draw, UINT64_MAX);
    hello->job_uid.lo = any(draw, UINT64_MAX);
    hello->spec_hash = any(draw, UINT64_MAX);
    hello->model_signature = any(draw, UINT64_MAX);
    hello->workers = 1 + below(draw, GK_WORKERS_MAX);
    hello->servers = 1 + below(draw, GK_SERVERS_MAX);
    hello->role = 1;
    hello->life_nonce = nonzero(draw);
    hello->takeover = below(draw, 2);
    hello->slot = below(draw, 4);
    if (hello->slot != GK_SLOT_NONE) {
        hello->slot_step = any(draw, GK_VERSION_MAX);
        hello->slot_push_id = any(draw, UINT64_MAX);
    }
    if (hello->slot == GK_SLOT_LEFT) {
        hello->slot_left_at = any(draw, GK_VERSION_MAX);
    }
}

static inline void legal_welcome(struct draw *draw, struct gk_msg *msg)
{
    struct gk_welcome *welcome = &msg->body.welcome;

    welcome->life_nonce = nonzero(draw);
    welcome->job_uid.hi = any(draw, UINT64_MAX);
    welcome->job_uid.lo = any(draw, UINT64_MAX);
    welcome->initialised = below(draw, 2);
    welcome->spec_hash = any(draw, UINT64_MAX);
    welcome->highest_incarnation = any32(draw);
    welcome->credit_bytes = any(draw, UINT64_MAX);
    welcome->finished = below(draw, 2);
    welcome->workers = below(draw, GK_WORKERS_MAX + 1);
    welcome->workers_present = below(draw, GK_WORKERS_MAX + 1);
    if (welcome->initialised) {
        msg->h.init_id = nonzero(draw);
        legal_range(draw, &msg->h, UINT32_MAX);
        welcome->oldest_version = any(draw, msg->h.version);
    } else {
        msg->h.init_id = 0;
        msg->h.version = 0;
    }
}

static inline void legal_ping(struct draw *draw, struct gk_msg *msg)
{
    struct gk_ping *ping = &msg->body.ping;
    bool pong = msg->h.kind == GK_KIND_PONG;

    ping->sent_us = any(draw, UINT64_MAX);
    ping->received_us = pong ? any(draw, UINT64_MAX) : 0;
    ping->waits = below(draw, 3);
    ping->waits_for = ping->waits == GK_WAIT_NONE    ? 0
                      : ping->waits == GK_WAIT_SHARD ? below(draw, GK_SERVERS_MAX)
                                                     : below(draw, GK_WORKERS_MAX);
    ping->waits_count = pong ? below(draw, GK_WORKERS_MAX + 1) : 0;
    ping->waits_version = any(draw, UINT64_MAX);
    ping->waits_us = any(draw, UINT64_MAX);
}

static inline void legal_header(struct draw *draw, const struct gk_kind_rule *rule,
                                struct gk_header *h)
{
    h->session = rule->session == GK_NEED_NEVER ? 0 : nonzero(draw);
    h->req_id = any(draw, UINT64_MAX);
    h->epoch = any32(draw);
    h->rank = rule->rank_any && below(draw, 4) == 0 ? GK_RANK_ANY : below(draw, GK_WORKERS_MAX);
    h->shard = below(draw, GK_SERVERS_MAX);
    h->incarnation = any32(draw);
    h->step = uses(rule, GK_FIELD_STEP) ? any(draw, GK_VERSION_MAX) : 0;
    h->version = uses(rule, GK_FIELD_VERSION) ? any(draw, GK_VERSION_MAX) : 0;
    h->durable_version = uses(rule, GK_FIELD_DURABLE_VERSION) ? any(draw, GK_VERSION_MAX) : 0;
    h->plane = uses(rule, GK_FIELD_PLANE) ? below(draw, 3) : 0;
    h->push_id = uses(rule, GK_FIELD_PUSH_ID) ? any(draw, UINT64_MAX) : 0;
    h->init_id = uses(rule, GK_FIELD_INIT_ID) ? any(draw, UINT64_MAX) : 0;
    h->state_hash = uses(rule, GK_FIELD_STATE_HASH) ? any(draw, UINT64_MAX) : 0;
    h->flags = below(draw, 2) ? rule->flags & ~(uint32_t)GK_FLAG_LOST : 0;
    if (rule->chunk != GK_NEED_NEVER) {
        h->chunks = 1 + below(draw, 4);
        h->chunk = below(draw, h->chunks);
    }
    if (uses(rule, GK_FIELD_VERDICT) && below(draw, 2)) {
        h->verdict = 1 + below(draw, GK_VERDICT_LOST);
        h->verdict_step = any(draw, GK_VERSION_MAX);
        h->verdict_incarnation = any32(draw);
    }
    if (rule->range != GK_NEED_NEVER) {
        legal_range(draw, h, GK_CHUNK_FLOATS);
    }
    h->code = h->kind == GK_KIND_REFUSE ? GK_CODE_PROTOCOL + below(draw, 9)
              : h->kind == GK_KIND_NACK ? GK_CODE_NO_SESSION + below(draw, 11)
                                        : 0;
}

/* `msg` holds nothing before. */
static inline void legal_message(struct draw *draw, uint32_t kind, struct gk_msg *msg)
{
    const struct gk_kind_rule *rule = gk_kind_rule(kind);

    memset(msg, 0, sizeof(*msg));
    msg->h.kind = kind;
    legal_header(draw, rule, &msg->h);
    if (kind == GK_KIND_PIN) {
        msg->h.job_uid.hi = any(draw, UINT64_MAX);
        msg->h.job_uid.lo = nonzero(draw);
    }
    if (rule->text == GK_NEED_ALWAYS || (rule->text == GK_NEED_MAYBE && below(draw, 2))) {
        legal_text(draw, &msg->words,
                   kind == GK_KIND_HELLO ? GK_JOB_NAME_BYTES - 1 : GK_TEXT_BYTES_MAX);
    }
    if (rule->body == GK_RECORD_HELLO) {
        legal_hello(draw, &msg->body.hello);
    } else if (rule->body == GK_RECORD_WELCOME) {
        legal_welcome(draw, msg);
    } else if (rule->body == GK_RECORD_PING) {
        legal_ping(draw, msg);
    }
    if (rule->arrays == GK_ARRAYS_PUSH) {
        msg->h.flags = 0;
        legal_push(draw, msg);
    } else if (rule->arrays == GK_ARRAYS_PARAMS || rule->arrays == GK_ARRAYS_INIT) {
        legal_arrays(draw, msg);
        msg->h.samples = msg->h.plane == 1 ? any(draw, UINT64_MAX) : 0;
    } else if (rule->arrays == GK_ARRAYS_SPEC) {
        msg->frame[msg->frames_count++] = legal_values(draw, 1 + below(draw, 200));
    } else if (rule->arrays == GK_ARRAYS_JSON) {
        msg->frame[msg->frames_count++] = gk_buf_copy("{\n  \"version\": 7\n}\n", 19);
    }
}

static inline void drop_parts(struct gk_buf **parts, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        gk_buf_unref(parts[i]);
    }
}

/* "" when the messages are equal in every field, else the first difference. */
static inline const char *difference(const struct gk_msg *a, const struct gk_msg *b)
{
    static char text[160];
    static const enum gk_record RECORDS[] = {GK_RECORD_HEADER, GK_RECORD_NONE};
    enum gk_record body = gk_kind_rule(a->h.kind)->body;

    for (uint32_t r = 0; r < 2; r++) {
        enum gk_record record = r == 0 ? RECORDS[0] : body;
        const struct gk_field *fields;
        uint32_t count;

        if (record == GK_RECORD_NONE) {
            continue;
        }
        fields = gk_record_fields(record, &count);
        for (uint32_t i = 0; i < count; i++) {
            uint64_t x = gk_field_get(&fields[i], r == 0 ? (const void *)&a->h : &a->body);
            uint64_t y = gk_field_get(&fields[i], r == 0 ? (const void *)&b->h : &b->body);

            if (x != y && strncmp(fields[i].name, "frame_crc", 9) != 0) {
                snprintf(text, sizeof(text), "%s: %llu and %llu", fields[i].name,
                         (unsigned long long)x, (unsigned long long)y);
                return text;
            }
        }
    }
    if (strcmp(a->words.text, b->words.text) != 0) {
        return "words";
    }
    if (a->frames_count != b->frames_count) {
        return "number of frames";
    }
    for (uint32_t i = 0; i < a->frames_count; i++) {
        if (a->frame[i]->size != b->frame[i]->size ||
            memcmp(a->frame[i]->data, b->frame[i]->data, a->frame[i]->size) != 0) {
            return "frame";
        }
    }
    return "";
}

#endif
