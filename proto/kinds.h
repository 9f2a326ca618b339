/* The protocol as data: the fields of header and bodies in the order of their numbers, and what
 * each kind may carry.  Internal to proto/ and its tests; the tables of README.md are these, and a
 * test compares them. */
#ifndef GK_PROTO_KINDS_H
#define GK_PROTO_KINDS_H

#include "proto/msg.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* X(constant, member of struct gk_header, name); field number = position, from 1.  Frozen: append
 * only. */
#define GK_HEADER_FIELD_MAP(X)                                                                     \
    X(KIND, kind, kind)                                                                            \
    X(SESSION, session, session)                                                                   \
    X(REQ_ID, req_id, req_id)                                                                      \
    X(EPOCH, epoch, epoch)                                                                         \
    X(RANK, rank, rank)                                                                            \
    X(SHARD, shard, shard)                                                                         \
    X(INCARNATION, incarnation, incarnation)                                                       \
    X(STEP, step, step)                                                                            \
    X(VERSION, version, version)                                                                   \
    X(TO_VERSION, to_version, to_version)                                                          \
    X(BASE_VERSION, base_version, base_version)                                                    \
    X(DURABLE_VERSION, durable_version, durable_version)                                           \
    X(LO, lo, lo)                                                                                  \
    X(HI, hi, hi)                                                                                  \
    X(PLANE, plane, plane)                                                                         \
    X(SAMPLES, samples, samples)                                                                   \
    X(LR_BITS, lr_bits, lr_bits)                                                                   \
    X(PUSH_ID, push_id, push_id)                                                                   \
    X(INIT_ID, init_id, init_id)                                                                   \
    X(JOB_UID_HI, job_uid.hi, job_uid_hi)                                                          \
    X(JOB_UID_LO, job_uid.lo, job_uid_lo)                                                          \
    X(CHUNK, chunk, chunk)                                                                         \
    X(CHUNKS, chunks, chunks)                                                                      \
    X(PUSH_BYTES, push_bytes, push_bytes)                                                          \
    X(INDEX_ENCODING, index_encoding, index_encoding)                                              \
    X(INDEX_PARAM, index_param, index_param)                                                       \
    X(VALUE_ENCODING, value_encoding, value_encoding)                                              \
    X(COUNT, count, count)                                                                         \
    X(FRAME_CRC_0, frame_crc[0], frame_crc_0)                                                      \
    X(FRAME_CRC_1, frame_crc[1], frame_crc_1)                                                      \
    X(FRAME_CRC_2, frame_crc[2], frame_crc_2)                                                      \
    X(FLAGS, flags, flags)                                                                         \
    X(VERDICT, verdict, verdict)                                                                   \
    X(VERDICT_STEP, verdict_step, verdict_step)                                                    \
    X(VERDICT_INCARNATION, verdict_incarnation, verdict_incarnation)                               \
    X(STATE_HASH, state_hash, state_hash)                                                          \
    X(CODE, code, code)

enum gk_header_field {
#define GK_HEADER_FIELD_ENUM(constant, member, name) GK_FIELD_##constant,
    GK_HEADER_FIELD_MAP(GK_HEADER_FIELD_ENUM)
#undef GK_HEADER_FIELD_ENUM
        GK_HEADER_FIELDS_COUNT,
};

enum { GK_FIELDS_COUNT_MAX = 40 }; /* of one record */

enum gk_record {
    GK_RECORD_NONE,
    GK_RECORD_HEADER,
    GK_RECORD_HELLO,
    GK_RECORD_WELCOME,
    GK_RECORD_PING
};

struct gk_field {
    const char *name;
    uint16_t offset; /* in our struct */
    uint16_t bytes;  /* 1: bool, 4 or 8: unsigned */
};

/* The fields of one record in the order of their numbers; the struct is gk_header, gk_hello,
 * gk_welcome or gk_ping. */
const struct gk_field *gk_record_fields(enum gk_record record, uint32_t *ret_count);

/* Value of one field of a struct of ours. */
uint64_t gk_field_get(const struct gk_field *field, const void *record);

enum gk_need { GK_NEED_NEVER, GK_NEED_MAYBE, GK_NEED_ALWAYS };

/* What stands behind header, body and text. */
enum gk_arrays {
    GK_ARRAYS_NONE,
    GK_ARRAYS_PUSH,   /* [indices] [values], by index encoding */
    GK_ARRAYS_PARAMS, /* [values] */
    GK_ARRAYS_INIT,   /* chunk 0: [spec] [values], others [values] */
    GK_ARRAYS_JSON,   /* [JSON text] */
    GK_ARRAYS_SPEC,   /* [spec] */
};

struct gk_kind_rule {
    const char *name;
    uint64_t fields;     /* bit 1 << enum gk_header_field; kind and frame CRCs are implied */
    uint32_t flags;      /* GK_FLAG_* */
    enum gk_record body; /* GK_RECORD_NONE: no body */
    enum gk_need text;
    enum gk_need session; /* must it be non-zero */
    enum gk_need range;   /* lo < hi */
    enum gk_need chunk;   /* chunk < chunks */
    enum gk_arrays arrays;
    bool rank_any; /* GK_RANK_ANY is allowed */
    bool reserved; /* no part of this protocol version */
};

/* NULL: no such kind. */
const struct gk_kind_rule *gk_kind_rule(uint32_t kind);

#endif
