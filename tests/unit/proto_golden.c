/* Goal: proto/README.md is the specification, to the byte.
 * Method: one message of every kind is encoded and compared with the golden bytes printed there,
 * and those bytes are read and give the message again; the tables of fields and kinds are compared
 * with the code's own and with gkps.proto; the largest header and body of each kind, with every
 * field at the top of its type, keep to 256 bytes. */
#include "tests/unit/proto_legal.h"
#include "tests/unit/proto_sample.h"

#include "common/hash.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

enum { TEXT_BYTES_MAX = 256 * 1024, BLOCK_BYTES_MAX = 4096 };

#define COMMON                                                                                     \
    .session = UINT64_C(0x1122334455667788), .req_id = 7, .epoch = 1, .rank = 2, .shard = 1,       \
    .incarnation = 3
#define ASKING .req_id = 7, .epoch = 1, .rank = 2, .shard = 1, .incarnation = 3
#define ANSWERING                                                                                  \
    .version = 41, .durable_version = 40, .verdict = GK_VERDICT_APPLIED, .verdict_step = 40,       \
    .verdict_incarnation = 3

struct golden {
    const char *name;
    struct gk_msg msg;
    uint32_t floats; /* of the values frame: 0.5, -1, 1.5, -2 ... */
    uint32_t indices[4];
    bool spec; /* a spec frame comes first */
    const char *json;
};

static const struct golden GOLDEN[] = {
    {.name = "HELLO",
     .msg = {.h = {.kind = GK_KIND_HELLO, ASKING},
             .body.hello = {.protocol_min = 1,
                            .protocol_max = 1,
                            .job_uid = {UINT64_C(0x0123456789abcdef), UINT64_C(0xfedcba9876543210)},
                            .spec_hash = UINT64_C(0x1111111111111111),
                            .model_signature = UINT64_C(0x2222222222222222),
                            .workers = 4,
                            .servers = 2,
                            .role = 1,
                            .life_nonce = UINT64_C(0x3333333333333333),
                            .takeover = true,
                            .slot = GK_SLOT_STEP,
                            .slot_step = 41,
                            .slot_push_id = UINT64_C(0x4444444444444444)},
             .words = {"digits"}}},
    {.name = "WELCOME",
     .msg = {.h = {.kind = GK_KIND_WELCOME,
                   COMMON,
                   ANSWERING,
                   .lo = 320,
                   .hi = 650,
                   .init_id = UINT64_C(0x5555555555555555)},
             .body.welcome = {.life_nonce = UINT64_C(0x3333333333333333),
                              .job_uid = {UINT64_C(0x0123456789abcdef),
                                          UINT64_C(0xfedcba9876543210)},
                              .initialised = true,
                              .spec_hash = UINT64_C(0x1111111111111111),
                              .oldest_version = 41,
                              .highest_incarnation = 3,
                              .credit_bytes = 1320,
                              .workers_present = 3,
                              .workers = 4}}},
    {.name = "REFUSE",
     .msg =
         {.h = {.kind = GK_KIND_REFUSE, ASKING, .flags = GK_FLAG_RETRYABLE, .code = GK_CODE_HELD},
          .words = {"rank 2 is held"}}},
    {.name = "INIT-FIRST",
     .msg = {.h = {.kind = GK_KIND_INIT,
                   .session = UINT64_C(0x1122334455667788),
                   .req_id = 7,
                   .epoch = 1,
                   .shard = 1,
                   .incarnation = 3,
                   .lo = 320,
                   .hi = 323,
                   .init_id = UINT64_C(0x5555555555555555),
                   .job_uid = {UINT64_C(0x0123456789abcdef), UINT64_C(0xfedcba9876543210)},
                   .chunks = 2,
                   .index_encoding = GK_INDEX_DENSE,
                   .value_encoding = GK_VALUE_F32,
                   .count = 3}},
     .spec = true,
     .floats = 3},
    {.name = "INIT-NEXT",
     .msg = {.h = {.kind = GK_KIND_INIT,
                   .session = UINT64_C(0x1122334455667788),
                   .req_id = 8,
                   .epoch = 1,
                   .shard = 1,
                   .incarnation = 3,
                   .lo = 323,
                   .hi = 325,
                   .init_id = UINT64_C(0x5555555555555555),
                   .job_uid = {UINT64_C(0x0123456789abcdef), UINT64_C(0xfedcba9876543210)},
                   .chunk = 1,
                   .chunks = 2,
                   .index_encoding = GK_INDEX_DENSE,
                   .value_encoding = GK_VALUE_F32,
                   .count = 2}},
     .floats = 2},
    {.name = "INIT_OK",
     .msg = {.h = {.kind = GK_KIND_INIT_OK,
                   COMMON,
                   .init_id = UINT64_C(0x5555555555555555),
                   .chunk = 1,
                   .chunks = 2}}},
    {.name = "PUSH-RAW32",
     .msg = {.h = {.kind = GK_KIND_PUSH,
                   COMMON,
                   .step = 41,
                   .base_version = 41,
                   .lo = 320,
                   .hi = 650,
                   .samples = 32,
                   .push_id = UINT64_C(0x4444444444444444),
                   .chunks = 1,
                   .push_bytes = 24,
                   .index_encoding = GK_INDEX_RAW32,
                   .value_encoding = GK_VALUE_F32,
                   .count = 3}},
     .indices = {0, 5, 329},
     .floats = 3},
    {.name = "PUSH-DENSE",
     .msg = {.h = {.kind = GK_KIND_PUSH,
                   COMMON,
                   .step = 41,
                   .base_version = 41,
                   .lo = 320,
                   .hi = 322,
                   .samples = 32,
                   .push_id = UINT64_C(0x4444444444444444),
                   .chunks = 165,
                   .push_bytes = 1320,
                   .index_encoding = GK_INDEX_DENSE,
                   .value_encoding = GK_VALUE_F32,
                   .count = 2}},
     .floats = 2},
    {.name = "PUSH-RATE",
     .msg = {.h = {.kind = GK_KIND_PUSH,
                   COMMON,
                   .step = 41,
                   .base_version = 41,
                   .lo = 320,
                   .hi = 650,
                   .lr_bits = 0x3a83126f,
                   .push_id = UINT64_C(0x4444444444444444),
                   .chunks = 1,
                   .flags = GK_FLAG_LR_FROM_CLIENT}}},
    {.name = "PUSH-LOST",
     .msg = {.h = {.kind = GK_KIND_PUSH,
                   COMMON,
                   .step = 41,
                   .base_version = 41,
                   .lo = 320,
                   .hi = 650,
                   .push_id = UINT64_C(0x4444444444444444),
                   .chunks = 1,
                   .flags = GK_FLAG_LOST}}},
    {.name = "PUSH_OK",
     .msg = {.h = {.kind = GK_KIND_PUSH_OK,
                   COMMON,
                   ANSWERING,
                   .step = 41,
                   .push_id = UINT64_C(0x4444444444444444),
                   .chunks = 1}}},
    {.name = "NACK",
     .msg = {.h = {.kind = GK_KIND_NACK,
                   COMMON,
                   ANSWERING,
                   .flags = GK_FLAG_RETRYABLE,
                   .code = GK_CODE_NOT_READY},
             .words = {"waiting for worker 3 of 4"}}},
    {.name = "PULL_DENSE",
     .msg = {.h = {.kind = GK_KIND_PULL_DENSE,
                   COMMON,
                   .version = 42,
                   .lo = 320,
                   .hi = 650,
                   .flags = GK_FLAG_AT_LEAST}}},
    {.name = "PARAMS",
     .msg = {.h = {.kind = GK_KIND_PARAMS,
                   COMMON,
                   ANSWERING,
                   .lo = 320,
                   .hi = 324,
                   .index_encoding = GK_INDEX_DENSE,
                   .value_encoding = GK_VALUE_F32,
                   .count = 4,
                   .state_hash = UINT64_C(0x6666666666666666)}},
     .floats = 4},
    {.name = "PARAMS-SUM",
     .msg = {.h = {.kind = GK_KIND_PARAMS,
                   COMMON,
                   ANSWERING,
                   .lo = 320,
                   .hi = 324,
                   .plane = 1,
                   .samples = 128,
                   .index_encoding = GK_INDEX_DENSE,
                   .value_encoding = GK_VALUE_F32,
                   .count = 4}},
     .floats = 4},
    {.name = "GONE", .msg = {.h = {.kind = GK_KIND_GONE, COMMON, ANSWERING}}},
    {.name = "LEAVE", .msg = {.h = {.kind = GK_KIND_LEAVE, COMMON, .step = 1000}}},
    {.name = "LEAVE_OK", .msg = {.h = {.kind = GK_KIND_LEAVE_OK, COMMON, ANSWERING, .step = 1000}}},
    {.name = "PING",
     .msg = {.h = {.kind = GK_KIND_PING, COMMON},
             .body.ping = {.sent_us = 123456789,
                           .waits = GK_WAIT_SHARD,
                           .waits_for = 0,
                           .waits_version = 42,
                           .waits_us = 5000000}}},
    {.name = "PONG",
     .msg = {.h = {.kind = GK_KIND_PONG, COMMON, ANSWERING},
             .body.ping = {.sent_us = 123456789,
                           .received_us = 987654321,
                           .waits = GK_WAIT_RANK,
                           .waits_for = 3,
                           .waits_count = 1,
                           .waits_version = 42,
                           .waits_us = 5000000}}},
    {.name = "STATUS", .msg = {.h = {.kind = GK_KIND_STATUS, .req_id = 7, .rank = GK_RANK_ANY}}},
    {.name = "STATUS_OK",
     .msg = {.h = {.kind = GK_KIND_STATUS_OK,
                   .req_id = 7,
                   .epoch = 1,
                   .rank = GK_RANK_ANY,
                   .shard = 1}},
     .json = "{\"version\": 41}"},
    {.name = "DRAIN", .msg = {.h = {.kind = GK_KIND_DRAIN, .req_id = 7, .rank = GK_RANK_ANY}}},
    {.name = "DRAIN_OK",
     .msg = {.h = {.kind = GK_KIND_DRAIN_OK,
                   .req_id = 7,
                   .epoch = 1,
                   .rank = GK_RANK_ANY,
                   .shard = 1}}},
    {.name = "PIN",
     .msg = {.h = {.kind = GK_KIND_PIN,
                   .req_id = 7,
                   .epoch = 1,
                   .rank = GK_RANK_ANY,
                   .shard = 1,
                   .version = 42,
                   .job_uid = {UINT64_C(0x0123456789abcdef), UINT64_C(0xfedcba9876543210)}}}},
    {.name = "PIN-RELEASE",
     .msg = {.h = {.kind = GK_KIND_PIN,
                   .req_id = 7,
                   .epoch = 1,
                   .rank = GK_RANK_ANY,
                   .shard = 1,
                   .version = 42,
                   .job_uid = {UINT64_C(0x0123456789abcdef), UINT64_C(0xfedcba9876543210)},
                   .flags = GK_FLAG_RELEASE}}},
    {.name = "PIN_OK",
     .msg = {.h = {.kind = GK_KIND_PIN_OK,
                   .req_id = 7,
                   .epoch = 1,
                   .rank = GK_RANK_ANY,
                   .shard = 1,
                   .incarnation = 3,
                   .version = 42,
                   .durable_version = 42,
                   .lo = 320,
                   .hi = 650,
                   .state_hash = UINT64_C(0x6666666666666666)}},
     .spec = true},
    {.name = "PULL_PIN",
     .msg = {.h = {.kind = GK_KIND_PULL_PIN,
                   .req_id = 8,
                   .epoch = 1,
                   .rank = GK_RANK_ANY,
                   .shard = 1,
                   .version = 42,
                   .lo = 320,
                   .hi = 324}}},
    {.name = "PIN_PARAMS",
     .msg = {.h = {.kind = GK_KIND_PIN_PARAMS,
                   .req_id = 8,
                   .epoch = 1,
                   .rank = GK_RANK_ANY,
                   .shard = 1,
                   .incarnation = 3,
                   .version = 42,
                   .durable_version = 42,
                   .lo = 320,
                   .hi = 324,
                   .index_encoding = GK_INDEX_DENSE,
                   .value_encoding = GK_VALUE_F32,
                   .count = 4}},
     .floats = 4},
};

enum { GOLDEN_COUNT = sizeof(GOLDEN) / sizeof(GOLDEN[0]) };

/* Text of a file of proto/, found from this file's own name.  The caller frees. */
static char *read_beside(const char *name)
{
    char *path = malloc(4096), *text = calloc(1, TEXT_BYTES_MAX);
    char *here;
    FILE *file;

    snprintf(path, 4096, "%s", __FILE__);
    here = strstr(path, "tests/unit/");
    cr_assert_not_null(here);
    snprintf(here, 1024, "proto/%s", name);
    file = fopen(path, "r");
    cr_assert_not_null(file, "%s", path);
    cr_assert(fread(text, 1, TEXT_BYTES_MAX - 1, file) > 0);
    fclose(file);
    free(path);
    return text;
}

/* One part in the form of the README: its name, then groups of four bytes, eight a line. */
static void show(char *block, const char *name, const uint8_t *bytes, size_t count)
{
    size_t at = strlen(block);

    at += (size_t)snprintf(block + at, BLOCK_BYTES_MAX - at, "  %-8s", name);
    for (size_t i = 0; i < count; i++) {
        const char *gap = i == 0 || i % 4 ? "" : i % 32 ? " " : "\n          ";

        at += (size_t)snprintf(block + at, BLOCK_BYTES_MAX - at, "%s%02x", gap, bytes[i]);
    }
    snprintf(block + at, BLOCK_BYTES_MAX - at, "%s", count ? "\n" : "(empty)\n");
}

static struct gk_buf *spec_frame(void)
{
    struct gk_tensor tensors[SAMPLE_TENSORS];
    struct gk_spec spec = sample_spec(tensors);
    uint8_t *bytes = malloc(GK_SPEC_BYTES_MAX);
    size_t count = 0;
    struct gk_buf *buf;

    cr_assert(gk_spec_encode(&spec, bytes, &count, NULL) == GK_OK);
    buf = gk_buf_copy(bytes, count);
    free(bytes);
    return buf;
}

static struct gk_msg make(const struct golden *golden)
{
    struct gk_msg msg = golden->msg;

    if (golden->spec) {
        msg.frame[msg.frames_count++] = spec_frame();
    }
    if (msg.h.index_encoding == GK_INDEX_RAW32) {
        msg.frame[msg.frames_count++] =
            gk_buf_copy(golden->indices, golden->floats * sizeof(uint32_t));
    }
    if (golden->floats) {
        struct gk_buf *values = gk_buf_new(golden->floats * sizeof(float));

        for (uint32_t i = 0; i < golden->floats; i++) {
            float x = (i % 2 ? -0.5f : 0.5f) * (float)(i + 1);

            gk_put_u32(values->data + 4 * i, gk_float_bits(x));
        }
        msg.frame[msg.frames_count++] = values;
    }
    if (golden->json) {
        msg.frame[msg.frames_count++] = gk_buf_copy(golden->json, strlen(golden->json));
    }
    return msg;
}

Test(proto_golden, messages)
{
    char *readme = read_beside("README.md");

    for (uint32_t i = 0; i < GOLDEN_COUNT; i++) {
        struct gk_msg msg = make(&GOLDEN[i]), back;
        struct gk_buf *parts[GK_PARTS_MAX];
        char block[BLOCK_BYTES_MAX];
        struct gk_parts_rule rule;
        uint32_t count = 0;

        cr_assert(gk_msg_to_wire(&msg, parts, &count) == GK_OK);
        gk_parts_of(&msg.h, &rule);
        snprintf(block, sizeof(block), "%s\n", GOLDEN[i].name);
        for (uint32_t p = 0; p < count; p++) {
            show(block, p == 0 ? "header" : gk_part_name(rule.parts[p - 1].part), parts[p]->data,
                 parts[p]->size);
        }
        cr_expect(strstr(readme, block), "not in README.md:\n%s", block);
        cr_assert(gk_msg_from_wire(parts, count, &back, NULL) == GK_OK);
        cr_expect_str_eq(difference(&msg, &back), "", "%s", GOLDEN[i].name);
        drop_parts(parts, count);
        gk_msg_clear(&msg);
        gk_msg_clear(&back);
    }
    free(readme);
}

Test(proto_golden, every_kind_is_there)
{
    for (uint32_t kind = 1; kind <= GK_KIND_MAX; kind++) {
        bool found = reserved_kind(kind);

        for (uint32_t i = 0; i < GOLDEN_COUNT; i++) {
            found = found || GOLDEN[i].msg.h.kind == kind;
        }
        cr_expect(found, "%s", gk_kind_name(kind));
    }
}

/* Fields that every request carries, and those that every answer carries besides. */
#define BIT(field) (UINT64_C(1) << GK_FIELD_##field)
#define ASK (BIT(REQ_ID) | BIT(EPOCH) | BIT(RANK) | BIT(SHARD) | BIT(INCARNATION))
#define ANSWER                                                                                     \
    (ASK | BIT(VERSION) | BIT(DURABLE_VERSION) | BIT(VERDICT) | BIT(VERDICT_STEP) |                \
     BIT(VERDICT_INCARNATION))

static void kind_row(char *row, size_t bytes, uint32_t kind)
{
    static const char *const NEEDS[] = {"0", "any", "yes"};
    static const char *const ARRAYS[] = {
        "", " [indices] [values]", " values", " [spec] values", " JSON", " spec"};
    const struct gk_kind_rule *rule = gk_kind_rule(kind);
    bool answer = (rule->fields & ANSWER) == ANSWER;
    uint64_t more = rule->fields & ~(answer ? ANSWER : ASK) & ~BIT(SESSION);
    const struct gk_field *fields;
    uint32_t count;
    size_t at;

    at = (size_t)snprintf(row, bytes, "| %u | %s | %s | %s", kind, rule->name, NEEDS[rule->session],
                          answer ? "answer" : "ask");
    fields = gk_record_fields(GK_RECORD_HEADER, &count);
    for (uint32_t i = 0; i < count; i++) {
        if (more >> i & 1) {
            at += (size_t)snprintf(row + at, bytes - at, ", %s", fields[i].name);
        }
    }
    at += (size_t)snprintf(row + at, bytes - at, " | %s |%s%s%s%s |\n",
                           rule->rank_any ? "yes" : "no", rule->body ? " body" : "",
                           rule->text == GK_NEED_ALWAYS  ? " text"
                           : rule->text == GK_NEED_MAYBE ? " [text]"
                                                         : "",
                           ARRAYS[rule->arrays],
                           !rule->body && !rule->text && !rule->arrays ? " nothing" : "");
    cr_assert(at < bytes);
}

Test(proto_golden, kinds_table)
{
    char *readme = read_beside("README.md");

    for (uint32_t kind = 1; kind <= GK_KIND_MAX; kind++) {
        char row[512];

        if (!reserved_kind(kind)) {
            kind_row(row, sizeof(row), kind);
            cr_expect(strstr(readme, row), "not in README.md:\n%s", row);
        }
    }
    free(readme);
}

/* "    uint64 step = 8;" of gkps.proto is row "| 8 | step | uint64 |" of the README and field 8 of
 * the code's table. */
Test(proto_golden, fields_tables)
{
    static const char *const NAMES[] = {"message Header", "message Hello", "message Welcome",
                                        "message Ping"};
    char *readme = read_beside("README.md"), *proto = read_beside("gkps.proto");
    uint32_t seen = 0;

    for (uint32_t r = 0; r < 4; r++) {
        enum gk_record record = GK_RECORD_HEADER + r;
        uint32_t count;
        const struct gk_field *fields = gk_record_fields(record, &count);
        char *line = strstr(proto, NAMES[r]);

        cr_assert(count <= GK_FIELDS_COUNT_MAX);
        for (uint32_t i = 0; i < count; i++) {
            char type[16], name[32], row[96];
            unsigned number;

            line = strchr(line, '\n') + 1;
            cr_assert(sscanf(line, " %15s %31s = %u;", type, name, &number) == 3, "%.40s", line);
            cr_expect_str_eq(name, fields[i].name);
            cr_expect(number == i + 1);
            cr_expect((fields[i].bytes == 8) == (strstr(type, "64") != NULL), "%s", name);
            snprintf(row, sizeof(row), "\n| %u | %s | %s |", number, name, type);
            cr_expect(strstr(readme, row), "not in README.md:%s", row);
            seen++;
        }
        cr_expect(strncmp(strchr(line, '\n') + 1, "}", 1) == 0, "%s has more fields", NAMES[r]);
    }
    cr_expect(seen == GK_HEADER_FIELDS_COUNT + 15 + 11 + 7);
    free(proto);
    free(readme);
}

static void fill_field(const struct gk_field *field, void *record)
{
    memset((uint8_t *)record + field->offset, field->bytes == 1 ? 1 : 0xff, field->bytes);
}

/* At the top of its type, not of its range: the caps must hold whatever a later rule allows. */
Test(proto_golden, largest)
{
    const uint64_t crcs = BIT(KIND) | BIT(FRAME_CRC_0) | BIT(FRAME_CRC_1) | BIT(FRAME_CRC_2);
    const uint64_t later = BIT(INDEX_PARAM) | BIT(TO_VERSION); /* reserved, of PUSH and pulls */
    uint8_t bytes[GK_RECORD_BYTES_MAX];
    size_t largest = 0;
    uint32_t count;

    for (uint32_t kind = 1; kind <= GK_KIND_MAX; kind++) {
        const struct gk_field *fields = gk_record_fields(GK_RECORD_HEADER, &count);
        struct gk_header h = {0};
        size_t size;

        for (uint32_t i = 0; i < count; i++) {
            if ((gk_kind_rule(kind)->fields | crcs | later) >> i & 1) {
                fill_field(&fields[i], &h);
            }
        }
        size = 8 + gk_record_pack(GK_RECORD_HEADER, &h, bytes);
        largest = size > largest ? size : largest;
        cr_expect(size <= GK_HEADER_BYTES_MAX, "%s: %zu bytes", gk_kind_name(kind), size);
    }
    cr_expect(largest > 200, "%zu: the fields are not at their largest", largest);
    for (enum gk_record record = GK_RECORD_HELLO; record <= GK_RECORD_PING; record++) {
        const struct gk_field *fields = gk_record_fields(record, &count);
        struct gk_msg msg = {0};
        size_t size;

        for (uint32_t i = 0; i < count; i++) {
            fill_field(&fields[i], &msg.body);
        }
        size = gk_record_pack(record, &msg.body, bytes);
        cr_expect(size <= GK_BODY_BYTES_MAX && size > 50, "%zu bytes", size);
    }
}

Test(proto_golden, hashes)
{
    char *readme = read_beside("README.md");
    char row[160];
    struct gk_buf *spec = spec_frame();
    struct gk_tensor tensors[SAMPLE_TENSORS];
    struct gk_spec sample = sample_spec(tensors);

    snprintf(row, sizeof(row), "| CRC-32C of \"123456789\" | %08x |", gk_crc32c("123456789", 9));
    cr_expect(strstr(readme, row), "%s", row);
    snprintf(row, sizeof(row), "| XXH3-64 of \"gkps\" | %016llx |",
             (unsigned long long)gk_hash64("gkps", 4));
    cr_expect(strstr(readme, row), "%s", row);
    snprintf(row, sizeof(row), "| mix(1) | %016llx |", (unsigned long long)gk_mix64(1));
    cr_expect(strstr(readme, row), "%s", row);
    snprintf(row, sizeof(row), "| term of plane 1, index 1000, value 0.5 | %016llx |",
             (unsigned long long)gk_hash_term(1, 1000, gk_float_bits(0.5f)));
    cr_expect(strstr(readme, row), "%s", row);
    snprintf(row, sizeof(row), "| hash of the spec below | %016llx |",
             (unsigned long long)gk_spec_hash(spec->data, spec->size));
    cr_expect(strstr(readme, row), "%s", row);
    snprintf(row, sizeof(row), "| model signature of the spec below | %016llx |",
             (unsigned long long)gk_spec_model_signature(&sample));
    cr_expect(strstr(readme, row), "%s", row);
    gk_buf_unref(spec);
    free(readme);
}
