/* Goal: a message that breaks any one rule is refused, with the right error and words that name
 * what is wrong, and its header can be answered. Method: legal messages are broken in one place
 * each and sealed again with right checksums, so that the check under test and not the CRC has to
 * notice: a table of fields and values, every field that a kind does not use, every form of bytes
 * that says the same in another way, wrong lengths, contents and numbers of parts. */
#include "tests/unit/proto_legal.h"

#include "common/hash.h"

#include <criterion/criterion.h>

/* The wire form of `h`, whatever it says, with the CRCs of the parts behind it. */
static struct gk_buf *sealed_bytes(const uint8_t *bytes, size_t count)
{
    struct gk_buf *part = gk_buf_new(8 + count);

    memcpy(part->data, "GKP1", 4);
    memcpy(part->data + 8, bytes, count);
    gk_put_u32(part->data + 4, gk_crc32c(bytes, count));
    return part;
}

static struct gk_buf *sealed(const struct gk_header *h, struct gk_buf *const *parts, uint32_t count)
{
    uint8_t bytes[GK_RECORD_BYTES_MAX];
    struct gk_header copy = *h;

    memset(copy.frame_crc, 0, sizeof(copy.frame_crc));
    for (uint32_t i = 1; i < count && i <= GK_FRAMES_MAX; i++) {
        copy.frame_crc[i - 1] = gk_crc32c(parts[i]->data, parts[i]->size);
    }
    return sealed_bytes(bytes, gk_record_pack(GK_RECORD_HEADER, &copy, bytes));
}

static void seal(const struct gk_header *h, struct gk_buf **parts, uint32_t count)
{
    gk_buf_unref(parts[0]);
    parts[0] = sealed(h, parts, count);
}

/* Refused with `err`, words that hold `said`, nothing kept, and a header that an answer may repeat.
 */
static void expect_refused(struct gk_buf *const *parts, uint32_t count, enum gk_err err,
                           const char *said, const char *about)
{
    struct gk_words words = {"(unset)"};
    struct gk_msg msg;
    enum gk_err got;

    memset(&msg, 0xa5, sizeof(msg));
    got = gk_msg_from_wire(parts, count, &msg, &words);
    cr_expect(got == err, "%s: %s, not %s: %s", about, gk_err_name(got), gk_err_name(err),
              words.text);
    cr_expect(strstr(words.text, said), "%s: \"%s\" does not say \"%s\"", about, words.text, said);
    cr_expect(msg.frames_count == 0 && !msg.frame[0] && msg.words.text[0] == 0, "%s", about);
    cr_expect(msg.h.rank < GK_WORKERS_MAX || msg.h.rank == GK_RANK_ANY, "%s", about);
    cr_expect(msg.h.shard < GK_SERVERS_MAX, "%s", about);
    for (uint32_t i = 0; i < count; i++) {
        cr_expect(atomic_load(&parts[i]->refs) == 1, "%s: a reference was kept", about);
    }
    gk_msg_clear(&msg);
}

enum shape { SHAPE_ANY, SHAPE_RAW32, SHAPE_DENSE, SHAPE_EMPTY };

/* A small legal message; `shape` is that of a PUSH. */
static struct gk_msg base_of(uint32_t kind, enum shape shape)
{
    const struct gk_kind_rule *rule = gk_kind_rule(kind);
    struct draw draw = {.rng = {.seed = kind, .purpose = GK_RNG_IDENTITY}};
    static const uint32_t INDICES[] = {0, 5, 9};
    struct gk_msg msg;

    if (kind != GK_KIND_PUSH) {
        legal_message(&draw, kind, &msg);
        if (rule->text == GK_NEED_MAYBE) {
            gk_words_set(&msg.words, "why");
        }
        return msg;
    }
    msg = (struct gk_msg){.h = {.kind = kind,
                                .session = 1,
                                .lo = 100,
                                .hi = shape == SHAPE_DENSE ? 103 : 110,
                                .push_id = 2,
                                .chunks = 1}};
    if (shape != SHAPE_EMPTY) {
        bool sparse = shape == SHAPE_RAW32;

        msg.h.samples = 32;
        msg.h.count = 3;
        msg.h.push_bytes = sparse ? 24 : 12;
        msg.h.index_encoding = sparse ? GK_INDEX_RAW32 : GK_INDEX_DENSE;
        msg.h.value_encoding = GK_VALUE_F32;
        if (sparse) {
            msg.frame[msg.frames_count++] = gk_buf_copy(INDICES, sizeof(INDICES));
        }
        msg.frame[msg.frames_count++] = legal_values(&draw, 3);
    }
    return msg;
}

static uint32_t wire_of(uint32_t kind, enum shape shape, struct gk_header *ret_h,
                        struct gk_buf **ret_parts)
{
    struct gk_msg msg = base_of(kind, shape);
    uint32_t count = 0;

    cr_assert(gk_msg_to_wire(&msg, ret_parts, &count) == GK_OK);
    *ret_h = msg.h;
    gk_msg_clear(&msg);
    /* Parts of our own, so that they may be changed. */
    for (uint32_t i = 0; i < count; i++) {
        struct gk_buf *copy = gk_buf_copy(ret_parts[i]->data, ret_parts[i]->size);

        gk_buf_unref(ret_parts[i]);
        ret_parts[i] = copy;
    }
    return count;
}

static void set_field(struct gk_header *h, enum gk_header_field field, uint64_t value)
{
    uint32_t count;
    const struct gk_field *fields = gk_record_fields(GK_RECORD_HEADER, &count);

    memcpy((uint8_t *)h + fields[field].offset, &value, fields[field].bytes);
}

struct set {
    enum gk_header_field field; /* kind: nothing is set */
    uint64_t value;
};

struct breakage {
    uint32_t kind;
    enum shape shape;
    struct set set[3];
    enum gk_err err;
    const char *said;
};

#define SET(field, value)                                                                          \
    {                                                                                              \
        GK_FIELD_##field, value                                                                    \
    }
#define BREAK_PUSH(shape, error, words, ...)                                                       \
    {                                                                                              \
        GK_KIND_PUSH, SHAPE_##shape, {__VA_ARGS__}, GK_E_##error, words                            \
    }
#define BREAK(kind, error, words, ...)                                                             \
    {                                                                                              \
        GK_KIND_##kind, SHAPE_ANY, {__VA_ARGS__}, GK_E_##error, words                              \
    }

static const struct breakage BREAKAGES[] = {
    BREAK(PING, CORRUPT, "session", SET(SESSION, 0)),
    BREAK(INIT, CORRUPT, "session", SET(SESSION, 0)),
    BREAK(WELCOME, CORRUPT, "session", SET(SESSION, 0)),
    BREAK(PING, CORRUPT, "rank", SET(RANK, GK_RANK_ANY)),
    BREAK(PING, CORRUPT, "rank", SET(RANK, GK_WORKERS_MAX)),
    BREAK(HELLO, CORRUPT, "rank", SET(RANK, GK_WORKERS_MAX)),
    BREAK(NACK, CORRUPT, "rank", SET(RANK, UINT32_MAX)),
    BREAK(INIT, CORRUPT, "rank", SET(RANK, 1)),
    BREAK(PING, CORRUPT, "shard", SET(SHARD, GK_SERVERS_MAX)),
    BREAK(PONG, LIMIT, "version", SET(VERSION, GK_VERSION_MAX + 1)),
    BREAK(PONG, LIMIT, "durable_version", SET(DURABLE_VERSION, GK_VERSION_MAX + 1)),
    BREAK(LEAVE, LIMIT, "step", SET(STEP, GK_VERSION_MAX + 1)),
    BREAK_PUSH(EMPTY, LIMIT, "base_version", SET(BASE_VERSION, GK_VERSION_MAX + 1)),
    BREAK(PONG, LIMIT, "verdict_step", SET(VERDICT, 1), SET(VERDICT_STEP, UINT64_MAX)),
    BREAK(PONG, CORRUPT, "verdict is", SET(VERDICT, 6)),
    BREAK(PONG, CORRUPT, "verdict_step", SET(VERDICT, 0), SET(VERDICT_STEP, 1)),
    BREAK(PONG, CORRUPT, "verdict_incarnation", SET(VERDICT, 0), SET(VERDICT_STEP, 0),
          SET(VERDICT_INCARNATION, 1)),
    BREAK(PULL_DENSE, CORRUPT, "plane", SET(PLANE, 3)),
    BREAK(PARAMS, CORRUPT, "plane", SET(PLANE, 3)),
    BREAK_PUSH(RAW32, CORRUPT, "lr_bits", SET(FLAGS, 0), SET(LR_BITS, 1)),
    BREAK_PUSH(RAW32, CORRUPT, "lr_bits", SET(FLAGS, GK_FLAG_LR_FROM_CLIENT),
               SET(LR_BITS, 0x80000000)),
    BREAK_PUSH(RAW32, CORRUPT, "lr_bits", SET(FLAGS, GK_FLAG_LR_FROM_CLIENT),
               SET(LR_BITS, 0x7fc00000)),
    BREAK_PUSH(RAW32, CORRUPT, "lr_bits", SET(FLAGS, GK_FLAG_LR_FROM_CLIENT),
               SET(LR_BITS, 0x7149f2cb)), /* the float above 1e30 */
    BREAK(PARAMS, CORRUPT, "samples", SET(PLANE, 0), SET(SAMPLES, 1)),
    BREAK(PARAMS, CORRUPT, "samples", SET(PLANE, 2), SET(SAMPLES, 1)),
    BREAK(PULL_DENSE, CORRUPT, "lo is", SET(LO, 10), SET(HI, 10)),
    BREAK(PULL_DENSE, CORRUPT, "lo is", SET(LO, 0), SET(HI, 0)),
    BREAK(WELCOME, CORRUPT, "lo is", SET(LO, 10), SET(HI, 9)),
    BREAK(GONE, CORRUPT, "lo is", SET(LO, 10), SET(HI, 9)),
    BREAK(PULL_DENSE, LIMIT, "hi is", SET(LO, GK_PARAMS_MAX), SET(HI, GK_PARAMS_MAX + 1)),
    BREAK(PULL_DENSE, LIMIT, "one chunk", SET(LO, 0), SET(HI, GK_CHUNK_FLOATS + 1)),
    BREAK(PARAMS, LIMIT, "one chunk", SET(LO, 0), SET(HI, GK_CHUNK_FLOATS + 1),
          SET(COUNT, GK_CHUNK_FLOATS + 1)),
    BREAK_PUSH(RAW32, LIMIT, "hi - lo", SET(LO, 0), SET(HI, UINT64_C(1) << 32)),
    BREAK(INIT, CORRUPT, "chunk is", SET(CHUNK, 3), SET(CHUNKS, 3)),
    BREAK(INIT, CORRUPT, "chunk is", SET(CHUNK, 0), SET(CHUNKS, 0)),
    BREAK(INIT, LIMIT, "chunks", SET(CHUNKS, GK_CHUNKS_MAX + 1)),
    BREAK(PUSH_OK, CORRUPT, "chunk is", SET(CHUNK, 3), SET(CHUNKS, 3)),
    BREAK(PUSH_OK, CORRUPT, "chunk is", SET(CHUNK, GK_CHUNKS_MAX), SET(CHUNKS, 0)),
    BREAK(REFUSE, CORRUPT, "code", SET(CODE, 0)),
    BREAK(REFUSE, CORRUPT, "code", SET(CODE, GK_CODE_FENCED)),
    BREAK(NACK, CORRUPT, "code", SET(CODE, 0)),
    BREAK(NACK, CORRUPT, "code", SET(CODE, GK_CODE_HELD)),
    BREAK(NACK, CORRUPT, "code", SET(CODE, 32)),
    BREAK(NACK, CORRUPT, "flags", SET(FLAGS, GK_FLAG_LOST)),
    BREAK(NACK, CORRUPT, "flags", SET(FLAGS, 32)),
    BREAK_PUSH(RAW32, CORRUPT, "flags", SET(FLAGS, GK_FLAG_AT_LEAST)),
    BREAK_PUSH(RAW32, CORRUPT, "flags", SET(FLAGS, GK_FLAGS_ALL + 1)),
    BREAK_PUSH(RAW32, UNSUPPORTED, "flag", SET(FLAGS, GK_FLAG_SKIP)),
    BREAK_PUSH(RAW32, UNSUPPORTED, "index_encoding", SET(INDEX_ENCODING, GK_INDEX_RICE),
               SET(INDEX_PARAM, 7)),
    BREAK_PUSH(RAW32, UNSUPPORTED, "index_encoding", SET(INDEX_ENCODING, GK_INDEX_BITMAP)),
    BREAK_PUSH(RAW32, UNSUPPORTED, "value_encoding", SET(VALUE_ENCODING, GK_VALUE_F16)),
    BREAK_PUSH(RAW32, UNSUPPORTED, "value_encoding", SET(VALUE_ENCODING, GK_VALUE_Q2)),
    BREAK(PARAMS, UNSUPPORTED, "value_encoding", SET(VALUE_ENCODING, GK_VALUE_BF16)),
    BREAK_PUSH(RAW32, CORRUPT, "value_encoding", SET(VALUE_ENCODING, GK_VALUE_Q2 + 1)),
    BREAK_PUSH(RAW32, CORRUPT, "value_encoding", SET(VALUE_ENCODING, 0)),
    BREAK_PUSH(EMPTY, CORRUPT, "value_encoding", SET(VALUE_ENCODING, GK_VALUE_F32)),
    BREAK_PUSH(RAW32, CORRUPT, "index_encoding", SET(INDEX_ENCODING, 5)),
    BREAK(PARAMS, CORRUPT, "index_encoding", SET(INDEX_ENCODING, GK_INDEX_RAW32)),
    BREAK(INIT, CORRUPT, "index_encoding", SET(INDEX_ENCODING, GK_INDEX_NONE)),
    BREAK_PUSH(EMPTY, CORRUPT, "count", SET(COUNT, 1)),
    BREAK_PUSH(RAW32, CORRUPT, "count", SET(COUNT, 0)),
    BREAK_PUSH(RAW32, CORRUPT, "count", SET(COUNT, 11)),
    BREAK_PUSH(RAW32, CORRUPT, "count", SET(COUNT, UINT64_MAX)),
    BREAK_PUSH(RAW32, LIMIT, "count", SET(LO, 0), SET(HI, UINT32_MAX),
               SET(COUNT, GK_CHUNK_FLOATS + 1)),
    BREAK_PUSH(DENSE, CORRUPT, "count", SET(COUNT, 2)),
    BREAK_PUSH(DENSE, CORRUPT, "count", SET(HI, 104)),
    BREAK(PARAMS, CORRUPT, "count", SET(COUNT, 0)),
    BREAK_PUSH(RAW32, CORRUPT, "bytes, not", SET(COUNT, 4), SET(PUSH_BYTES, 32)),
    BREAK_PUSH(RAW32, CORRUPT, "bytes, not", SET(COUNT, 2), SET(PUSH_BYTES, 16)),
    BREAK_PUSH(DENSE, CORRUPT, "bytes, not", SET(HI, 104), SET(COUNT, 4), SET(PUSH_BYTES, 16)),
    BREAK_PUSH(RAW32, CORRUPT, "push_id", SET(PUSH_ID, 0)),
    BREAK_PUSH(RAW32, LIMIT, "samples", SET(SAMPLES, UINT64_C(1) << 32)),
    BREAK_PUSH(RAW32, CORRUPT, "samples", SET(SAMPLES, 0)),
    BREAK_PUSH(RAW32, CORRUPT, "samples", SET(FLAGS, GK_FLAG_LOST)),
    BREAK_PUSH(EMPTY, CORRUPT, "samples", SET(FLAGS, GK_FLAG_LOST), SET(SAMPLES, 1)),
    BREAK_PUSH(EMPTY, CORRUPT, "lr_bits", SET(FLAGS, GK_FLAG_LOST | GK_FLAG_LR_FROM_CLIENT)),
    BREAK_PUSH(EMPTY, CORRUPT, "samples", SET(CHUNKS, 2)),
    BREAK_PUSH(EMPTY, CORRUPT, "push_bytes", SET(SAMPLES, 1), SET(CHUNKS, 2)),
    BREAK_PUSH(EMPTY, CORRUPT, "push_bytes", SET(SAMPLES, 1), SET(PUSH_BYTES, 4)),
    BREAK_PUSH(RAW32, CORRUPT, "push_bytes", SET(PUSH_BYTES, 20)),
    BREAK_PUSH(RAW32, CORRUPT, "push_bytes", SET(PUSH_BYTES, 28)),
    BREAK_PUSH(RAW32, CORRUPT, "push_bytes", SET(PUSH_BYTES, 30), SET(CHUNKS, 2)),
    BREAK_PUSH(RAW32, CORRUPT, "push_bytes", SET(PUSH_BYTES, 28 + 2 * GK_CHUNK_BYTES),
               SET(CHUNKS, 2)),
    BREAK_PUSH(RAW32, CORRUPT, "push_bytes", SET(PUSH_BYTES, UINT64_MAX - 3), SET(CHUNKS, 2)),
    BREAK(INIT, CORRUPT, "init_id", SET(INIT_ID, 0)),
    BREAK(INIT, CORRUPT, "job_uid", SET(JOB_UID_HI, 0), SET(JOB_UID_LO, 0)),
    BREAK(PIN, CORRUPT, "job_uid", SET(JOB_UID_HI, 0), SET(JOB_UID_LO, 0)),
    BREAK(PIN, CORRUPT, "session", SET(SESSION, 1)),
    BREAK(PIN, CORRUPT, "flags", SET(FLAGS, GK_FLAG_AT_LEAST)),
    BREAK(PIN, LIMIT, "version", SET(VERSION, GK_VERSION_MAX + 1)),
    BREAK(PULL_DENSE, CORRUPT, "flags", SET(FLAGS, GK_FLAG_RELEASE)),
    BREAK(PULL_PIN, CORRUPT, "lo is", SET(LO, 0), SET(HI, 0)),
    BREAK(PULL_PIN, LIMIT, "one chunk", SET(LO, 0), SET(HI, GK_CHUNK_FLOATS + 1)),
    BREAK(PIN_OK, CORRUPT, "lo is", SET(LO, 0), SET(HI, 0)),
    BREAK(PIN_PARAMS, CORRUPT, "count", SET(COUNT, 0)),
    BREAK(PIN_PARAMS, CORRUPT, "index_encoding", SET(INDEX_ENCODING, GK_INDEX_NONE)),
};

Test(proto_reject, header_fields)
{
    for (uint32_t i = 0; i < sizeof(BREAKAGES) / sizeof(BREAKAGES[0]); i++) {
        const struct breakage *b = &BREAKAGES[i];
        struct gk_buf *parts[GK_PARTS_MAX];
        struct gk_header h;
        uint32_t count = wire_of(b->kind, b->shape, &h, parts);
        char about[64];

        snprintf(about, sizeof(about), "breakage %u, %s", i, gk_kind_name(b->kind));
        for (uint32_t s = 0; s < 3; s++) {
            if (b->set[s].field != GK_FIELD_KIND) {
                set_field(&h, b->set[s].field, b->set[s].value);
            }
        }
        seal(&h, parts, count);
        expect_refused(parts, count, b->err, b->said, about);
        drop_parts(parts, count);
    }
}

Test(proto_reject, fields_that_a_kind_does_not_use)
{
    const uint64_t every = UINT64_C(1) << GK_FIELD_KIND | UINT64_C(1) << GK_FIELD_FRAME_CRC_0 |
                           UINT64_C(1) << GK_FIELD_FRAME_CRC_1 |
                           UINT64_C(1) << GK_FIELD_FRAME_CRC_2;
    uint32_t fields_count, tried = 0;
    const struct gk_field *fields = gk_record_fields(GK_RECORD_HEADER, &fields_count);

    for (uint32_t kind = 1; kind <= GK_KIND_MAX; kind++) {
        struct gk_buf *parts[GK_PARTS_MAX];
        struct gk_header h, broken;
        uint32_t count;

        if (reserved_kind(kind)) {
            continue;
        }
        count = wire_of(kind, SHAPE_RAW32, &h, parts);
        for (uint32_t f = 0; f < fields_count; f++) {
            if ((gk_kind_rule(kind)->fields | every) >> f & 1) {
                continue;
            }
            broken = h;
            set_field(&broken, f, 1);
            seal(&broken, parts, count);
            expect_refused(parts, count, GK_E_CORRUPT, fields[f].name, gk_kind_name(kind));
            tried++;
        }
        drop_parts(parts, count);
    }
    cr_expect(tried > 300, "%u", tried);
}

Test(proto_reject, kinds)
{
    for (uint32_t kind = 0; kind < 300; kind++) {
        struct gk_header h = {.kind = kind, .req_id = 9, .session = 8};
        struct gk_buf *part = sealed(&h, NULL, 0);
        struct gk_words words;
        struct gk_msg msg;
        enum gk_err err = gk_msg_from_wire(&part, 1, &msg, &words);

        if (kind == 0) {
            cr_expect(err == GK_E_CORRUPT && strstr(words.text, "kind 0"));
        } else if (kind > GK_KIND_MAX || reserved_kind(kind)) {
            cr_expect(err == GK_E_UNSUPPORTED && strstr(words.text, "kind"), "%u: %s", kind,
                      words.text);
            cr_expect(msg.h.kind == kind && msg.h.req_id == 9 && msg.h.session == 8,
                      "must be answerable");
        }
        gk_buf_unref(part);
    }
}

static void expect_bytes_refused(const uint8_t *bytes, size_t count, enum gk_err err,
                                 const char *said)
{
    struct gk_buf *part = sealed_bytes(bytes, count);

    expect_refused(&part, 1, err, said, said);
    gk_buf_unref(part);
}

/* STATUS with req_id 7 in bytes: 08 12 19 07 00 00 00 00 00 00 00, and other ways to say the same.
 */
Test(proto_reject, other_forms_of_a_header)
{
    static const uint8_t GOOD[] = {0x08, 0x12, 0x19, 7, 0, 0, 0, 0, 0, 0, 0};
    static const uint8_t ZERO[] = {0x08, 0x12, 0x19, 7, 0, 0, 0, 0, 0, 0, 0, 0x20, 0};
    static const uint8_t TWICE[] = {0x08, 0x11, 0x08, 0x12, 0x19, 7, 0, 0, 0, 0, 0, 0, 0};
    static const uint8_t ORDER[] = {0x19, 7, 0, 0, 0, 0, 0, 0, 0, 0x08, 0x12};
    static const uint8_t PADDED[] = {0x08, 0x92, 0x00, 0x19, 7, 0, 0, 0, 0, 0, 0, 0};
    static const uint8_t WIDE[] = {0x08, 0x92, 0x80, 0x80, 0x80, 0x10, 0x19, 7,
                                   0,    0,    0,    0,    0,    0,    0};
    static const uint8_t TYPE[] = {0x0d, 0x12, 0, 0, 0, 0x19, 7, 0, 0, 0, 0, 0, 0, 0};
    static const uint8_t SHORT[] = {0x08, 0x12, 0x19, 7, 0, 0, 0};
    static const uint8_t UNKNOWN[] = {0x08, 0x12, 0x19, 7, 0, 0, 0, 0, 0, 0, 0, 0xb0, 0x02, 1};
    static const uint8_t NESTED[] = {0x08, 0x12, 0x19, 7, 0, 0, 0, 0, 0, 0, 0, 0xb2, 0x02, 1, 0};
    struct gk_buf *part = sealed_bytes(GOOD, sizeof(GOOD));
    struct gk_msg msg;

    cr_assert(gk_msg_from_wire(&part, 1, &msg, NULL) == GK_OK);
    cr_assert(msg.h.kind == GK_KIND_STATUS && msg.h.req_id == 7);
    gk_msg_clear(&msg);
    gk_buf_unref(part);
    expect_bytes_refused(ZERO, sizeof(ZERO), GK_E_CORRUPT, "one form");
    expect_bytes_refused(TWICE, sizeof(TWICE), GK_E_CORRUPT, "one form");
    expect_bytes_refused(ORDER, sizeof(ORDER), GK_E_CORRUPT, "one form");
    expect_bytes_refused(PADDED, sizeof(PADDED), GK_E_CORRUPT, "one form");
    expect_bytes_refused(WIDE, sizeof(WIDE), GK_E_CORRUPT, "one form");
    expect_bytes_refused(TYPE, sizeof(TYPE), GK_E_CORRUPT, "not a protobuf");
    expect_bytes_refused(SHORT, sizeof(SHORT), GK_E_CORRUPT, "not a protobuf");
    expect_bytes_refused(UNKNOWN, sizeof(UNKNOWN), GK_E_UNSUPPORTED, "38");
    expect_bytes_refused(NESTED, sizeof(NESTED), GK_E_UNSUPPORTED, "38");
}

/* A hostile header of the largest size asks for more memory than one message is given. */
Test(proto_reject, header_sizes)
{
    uint8_t bytes[249];
    struct gk_buf *part = gk_buf_new(0);

    expect_refused(&part, 1, GK_E_CORRUPT, "too few", "0 bytes");
    gk_buf_unref(part);
    part = sealed_bytes(bytes, 0);
    expect_refused(&part, 1, GK_E_CORRUPT, "too few", "8 bytes");
    gk_buf_unref(part);
    for (size_t i = 0; i < sizeof(bytes); i++) {
        bytes[i] = i % 2 ? 0x01 : 0x78; /* plane = 1, again and again */
    }
    expect_bytes_refused(bytes, 249, GK_E_LIMIT, "257 bytes");
    expect_bytes_refused(bytes, 248, GK_E_LIMIT, "more fields");
    expect_bytes_refused(bytes, 20, GK_E_CORRUPT, "one form");
    for (size_t i = 0; i < sizeof(bytes); i++) {
        bytes[i] = i % 3 == 0 ? 0xb0 : i % 3 == 1 ? 0x02 : 0x01; /* field 38 = 1, again and again */
    }
    expect_bytes_refused(bytes, 246, GK_E_LIMIT, "more fields");
    expect_bytes_refused(bytes, 30, GK_E_UNSUPPORTED, "38");
    for (size_t i = 0; i < 248; i++) {
        bytes[i] = i % 4 == 0   ? 0xb2
                   : i % 4 == 1 ? 0x02
                                : 0x01; /* field 38 = "\1", again and again */
    }
    expect_bytes_refused(bytes, 248, GK_E_LIMIT, "more fields");
}

Test(proto_reject, numbers_of_parts)
{
    struct gk_words words;
    struct gk_msg msg;

    cr_expect(gk_msg_from_wire(NULL, 0, &msg, &words) == GK_E_CORRUPT);
    cr_expect(msg.h.kind == 0);
    for (uint32_t kind = 1; kind <= GK_KIND_MAX; kind++) {
        struct gk_buf *parts[GK_PARTS_MAX + 2];
        struct gk_header h;
        uint32_t count;

        if (reserved_kind(kind)) {
            continue;
        }
        count = wire_of(kind, SHAPE_RAW32, &h, parts);
        /* One too many, sealed as if it belonged there, and far too many. */
        for (uint32_t i = count; i < GK_PARTS_MAX + 2; i++) {
            parts[i] = gk_buf_copy("x", 1);
        }
        seal(&h, parts, count + 1);
        expect_refused(parts, count + 1, GK_E_CORRUPT, "parts behind the header",
                       gk_kind_name(kind));
        expect_refused(parts, GK_PARTS_MAX + 1, GK_E_LIMIT, "the limit is 4", gk_kind_name(kind));
        seal(&h, parts, count);
        expect_refused(parts, count + 1, GK_E_CORRUPT, "parts behind the header",
                       gk_kind_name(kind));
        if (count > 1) {
            seal(&h, parts, count - 1);
            if (gk_kind_rule(kind)->text != GK_NEED_MAYBE) {
                expect_refused(parts, count - 1, GK_E_CORRUPT, "parts behind the header",
                               gk_kind_name(kind));
            }
            seal(&h, parts, count);
            expect_refused(parts, count - 1, GK_E_CORRUPT,
                           gk_kind_rule(kind)->text == GK_NEED_MAYBE ? "frame_crc_0"
                                                                     : "parts behind",
                           gk_kind_name(kind));
        }
        drop_parts(parts, GK_PARTS_MAX + 2);
    }
}

/* Every part one byte shorter and one longer, sealed again: what has a fixed length says so. */
Test(proto_reject, lengths_of_arrays)
{
    static const struct {
        uint32_t kind;
        enum shape shape;
    } CASES[] = {
        {GK_KIND_PUSH, SHAPE_RAW32}, {GK_KIND_PUSH, SHAPE_DENSE}, {GK_KIND_PARAMS, SHAPE_ANY}};

    for (uint32_t c = 0; c < 3; c++) {
        struct gk_buf *parts[GK_PARTS_MAX];
        struct gk_header h;
        uint32_t count = wire_of(CASES[c].kind, CASES[c].shape, &h, parts);

        for (uint32_t i = 1; i < count; i++) {
            struct gk_buf *whole = parts[i];

            for (int change = -4; change <= 4; change++) {
                parts[i] = gk_buf_new(whole->size + (size_t)(change + 4) - 4);
                seal(&h, parts, count);
                if (change != 0) {
                    expect_refused(parts, count, GK_E_CORRUPT, "bytes, not",
                                   gk_kind_name(CASES[c].kind));
                }
                gk_buf_unref(parts[i]);
            }
            parts[i] = whole;
        }
        drop_parts(parts, count);
    }
}

/* One bit of one byte, without a new seal: some checksum must notice. */
Test(proto_reject, flipped_bits)
{
    for (uint32_t kind = 1; kind <= GK_KIND_MAX; kind++) {
        struct gk_buf *parts[GK_PARTS_MAX];
        struct gk_header h;
        uint32_t count;

        if (reserved_kind(kind)) {
            continue;
        }
        count = wire_of(kind, SHAPE_RAW32, &h, parts);
        for (uint32_t p = 0; p < count; p++) {
            for (size_t bit = 0; bit < 8 * parts[p]->size; bit++) {
                parts[p]->data[bit / 8] ^= (uint8_t)(1u << bit % 8);
                expect_refused(parts, count, GK_E_CORRUPT, p == 0 && bit < 32 ? "magic" : "CRC",
                               gk_kind_name(kind));
                parts[p]->data[bit / 8] ^= (uint8_t)(1u << bit % 8);
            }
        }
        drop_parts(parts, count);
    }
}
