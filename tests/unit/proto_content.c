/* Goal: what stands in bodies, text and arrays is judged as strictly as the header.
 * Method: legal messages get one wrong body field, text or array entry, are sealed again with right
 * checksums, and must be refused with words that name it; random bytes and randomly broken messages
 * must never be taken for more than they are; our own illegal messages must trip an assertion. */
#include "tests/unit/proto_legal.h"

#include "common/hash.h"

#include <criterion/criterion.h>
#include <signal.h>

enum { RANDOM_STRINGS = 200 * 1000 };

static struct gk_buf *sealed(const struct gk_header *h, struct gk_buf *const *parts, uint32_t count)
{
    uint8_t bytes[GK_RECORD_BYTES_MAX];
    struct gk_header copy = *h;
    struct gk_buf *part;
    size_t size;

    for (uint32_t i = 1; i < count; i++) {
        copy.frame_crc[i - 1] = gk_crc32c(parts[i]->data, parts[i]->size);
    }
    size = gk_record_pack(GK_RECORD_HEADER, &copy, bytes);
    part = gk_buf_new(8 + size);
    memcpy(part->data, "GKP1", 4);
    gk_put_u32(part->data + 4, gk_crc32c(bytes, size));
    memcpy(part->data + 8, bytes, size);
    return part;
}

/* Error of a message with these parts behind `h`.  Takes the parts. */
static enum gk_err judge(const struct gk_header *h, struct gk_buf *first, struct gk_buf *second,
                         struct gk_words *ret_words)
{
    struct gk_buf *parts[GK_PARTS_MAX] = {NULL, first, second};
    uint32_t count = second ? 3 : 2;
    struct gk_msg msg;
    enum gk_err err;

    ret_words->text[0] = 0;
    parts[0] = sealed(h, parts, count);
    err = gk_msg_from_wire(parts, count, &msg, ret_words);
    cr_expect(!err || msg.frames_count == 0);
    cr_expect(msg.h.kind == h->kind, "the header was whole");
    gk_msg_clear(&msg);
    drop_parts(parts, count);
    return err;
}

static struct gk_buf *body_part(enum gk_record record, const void *body)
{
    uint8_t bytes[GK_RECORD_BYTES_MAX];

    return gk_buf_copy(bytes, gk_record_pack(record, body, bytes));
}

struct body_breakage {
    uint32_t kind;
    const char *field;
    uint64_t value;
};

static const struct body_breakage BODY_BREAKAGES[] = {
    {GK_KIND_HELLO, "protocol_min", 0},
    {GK_KIND_HELLO, "protocol_min", 3},
    {GK_KIND_HELLO, "workers", 0},
    {GK_KIND_HELLO, "workers", GK_WORKERS_MAX + 1},
    {GK_KIND_HELLO, "servers", 0},
    {GK_KIND_HELLO, "servers", GK_SERVERS_MAX + 1},
    {GK_KIND_HELLO, "role", 0},
    {GK_KIND_HELLO, "role", 2},
    {GK_KIND_HELLO, "life_nonce", 0},
    {GK_KIND_HELLO, "slot", GK_SLOT_LEFT + 1},
    {GK_KIND_HELLO, "slot", GK_SLOT_NONE},
    {GK_KIND_HELLO, "slot_left_at", 1},
    {GK_KIND_HELLO, "slot_step", GK_VERSION_MAX + 1},
    {GK_KIND_WELCOME, "life_nonce", 0},
    {GK_KIND_WELCOME, "oldest_version", 8},
    {GK_KIND_WELCOME, "workers", GK_WORKERS_MAX + 1},
    {GK_KIND_WELCOME, "workers_present", GK_WORKERS_MAX + 1},
    {GK_KIND_PING, "received_us", 1},
    {GK_KIND_PING, "waits", GK_WAIT_DISK + 1},
    {GK_KIND_PING, "waits_for", GK_SERVERS_MAX},
    {GK_KIND_PONG, "waits_for", GK_WORKERS_MAX},
    {GK_KIND_PONG, "waits_count", GK_WORKERS_MAX + 1},
};

static struct gk_msg base_of(uint32_t kind)
{
    struct gk_msg msg = {.h = {.kind = kind, .session = kind == GK_KIND_HELLO ? 0 : 1}};

    if (kind == GK_KIND_HELLO) {
        msg.body.hello = (struct gk_hello){.protocol_min = 1,
                                           .protocol_max = 2,
                                           .workers = 2,
                                           .servers = 2,
                                           .role = 1,
                                           .life_nonce = 3,
                                           .slot = GK_SLOT_STEP,
                                           .slot_step = 7};
    } else if (kind == GK_KIND_WELCOME) {
        msg.h.init_id = 5;
        msg.h.version = 7;
        msg.h.hi = 100;
        msg.body.welcome =
            (struct gk_welcome){.life_nonce = 3, .initialised = true, .oldest_version = 6};
    } else {
        msg.body.ping.waits = kind == GK_KIND_PING ? GK_WAIT_SHARD : GK_WAIT_RANK;
    }
    return msg;
}

static struct gk_buf *name_part(uint32_t kind)
{
    return kind == GK_KIND_HELLO ? gk_buf_copy("job", 3) : NULL;
}

Test(proto_content, body_fields)
{
    for (uint32_t i = 0; i < sizeof(BODY_BREAKAGES) / sizeof(BODY_BREAKAGES[0]); i++) {
        const struct body_breakage *b = &BODY_BREAKAGES[i];
        struct gk_msg msg = base_of(b->kind);
        enum gk_record record = gk_kind_rule(b->kind)->body;
        uint32_t count, found = 0;
        const struct gk_field *fields = gk_record_fields(record, &count);
        struct gk_words words;
        enum gk_err err;

        err = judge(&msg.h, body_part(record, &msg.body), name_part(b->kind), &words);
        cr_assert(err == GK_OK, "%s", words.text);
        for (uint32_t f = 0; f < count; f++) {
            if (strcmp(fields[f].name, b->field) == 0) {
                memcpy((uint8_t *)&msg.body + fields[f].offset, &b->value, fields[f].bytes);
                found++;
            }
        }
        cr_assert(found == 1, "%s", b->field);
        err = judge(&msg.h, body_part(record, &msg.body), name_part(b->kind), &words);
        cr_expect(err == GK_E_CORRUPT && strstr(words.text, b->field), "%u: %s: %s", i, b->field,
                  words.text);
    }
}

Test(proto_content, body_against_header)
{
    struct gk_msg msg = base_of(GK_KIND_WELCOME);
    struct gk_words words;

    msg.h.init_id = 0;
    cr_expect(judge(&msg.h, body_part(GK_RECORD_WELCOME, &msg.body), NULL, &words) == GK_E_CORRUPT);
    cr_expect(strstr(words.text, "init_id"));
    msg.h.init_id = 5;
    msg.h.hi = 0;
    cr_expect(judge(&msg.h, body_part(GK_RECORD_WELCOME, &msg.body), NULL, &words) == GK_E_CORRUPT);
    cr_expect(strstr(words.text, "hi"));
    msg.h.init_id = 0;
    msg.body.welcome.initialised = false;
    cr_expect(judge(&msg.h, body_part(GK_RECORD_WELCOME, &msg.body), NULL, &words) == GK_E_CORRUPT);
    cr_expect(strstr(words.text, "version"));
}

/* The same rules of form as in the header: takeover = 2, a zero written out, an unknown field, more
 * than 256 bytes. */
Test(proto_content, forms_of_a_body)
{
    static const struct {
        const char *bytes;
        size_t count;
        enum gk_err err;
        const char *said;
    } TAILS[] = {
        {"\x58\x02", 2, GK_E_CORRUPT, "takeover is 2"}, {"\x60\x00", 2, GK_E_CORRUPT, "one form"},
        {"\x80\x01\x01", 3, GK_E_UNSUPPORTED, "16"},    {"\x60", 1, GK_E_CORRUPT, "not a protobuf"},
        {"\x08\x01", 2, GK_E_CORRUPT, "one form"},
    };
    struct gk_msg msg = base_of(GK_KIND_HELLO);
    struct gk_words words;
    struct gk_buf *body, *longer;

    msg.body.hello.slot = GK_SLOT_NONE;
    msg.body.hello.slot_step = 0;
    body = body_part(GK_RECORD_HELLO, &msg.body);
    for (uint32_t i = 0; i < sizeof(TAILS) / sizeof(TAILS[0]); i++) {
        longer = gk_buf_new(body->size + TAILS[i].count);
        memcpy(longer->data, body->data, body->size);
        memcpy(longer->data + body->size, TAILS[i].bytes, TAILS[i].count);
        cr_expect(judge(&msg.h, longer, name_part(GK_KIND_HELLO), &words) == TAILS[i].err, "%u", i);
        cr_expect(strstr(words.text, TAILS[i].said), "%u: %s", i, words.text);
    }
    longer = gk_buf_new(GK_BODY_BYTES_MAX + 1);
    cr_expect(judge(&msg.h, longer, name_part(GK_KIND_HELLO), &words) == GK_E_LIMIT);
    cr_expect(judge(&msg.h, gk_buf_new(0), name_part(GK_KIND_HELLO), &words) == GK_E_CORRUPT);
    cr_expect(strstr(words.text, "protocol_min"));
    /* All zeros is what a PING may say. */
    msg = base_of(GK_KIND_PING);
    cr_expect(judge(&msg.h, gk_buf_new(0), NULL, &words) == GK_OK, "%s", words.text);
    gk_buf_unref(body);
}

static const struct {
    const char *bytes;
    size_t good; /* bytes before the first fault */
} TEXTS[] = {
    {"plain", 5},
    {"caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x99\x82", 14},
    {"\xf4\x8f\xbf\xbf", 4},      /* U+10FFFF */
    {"a\x01", 1},                 /* control */
    {"a\x7f", 1},                 /* delete */
    {"a\xc2\x85", 1},             /* next line, a control of Latin-1 */
    {"a\xc0\x80", 1},             /* NUL in two bytes */
    {"a\xc1\xbf", 1},             /* overlong */
    {"a\xe0\x9f\xbf", 1},         /* overlong */
    {"a\xf0\x8f\xbf\xbf", 1},     /* overlong */
    {"a\xed\xa0\x80", 1},         /* surrogate */
    {"a\xf4\x90\x80\x80", 1},     /* above U+10FFFF */
    {"a\xf8\x88\x80\x80\x80", 1}, /* five bytes */
    {"a\x80", 1},                 /* continuation alone */
    {"a\xc3", 1},                 /* cut short */
    {"a\xe2\x82", 1},             /* cut short */
    {"a\xf0\x9f\x99", 1},         /* cut short */
    {"a\xe2\x28\xa1", 1},         /* no continuation */
    {"a\xff", 1},
};

Test(proto_content, text)
{
    struct gk_msg msg = {.h = {.kind = GK_KIND_REFUSE, .code = GK_CODE_HELD}};
    struct gk_words words;

    for (uint32_t i = 0; i < sizeof(TEXTS) / sizeof(TEXTS[0]); i++) {
        size_t size = strlen(TEXTS[i].bytes);
        enum gk_err err = judge(&msg.h, gk_buf_copy(TEXTS[i].bytes, size), NULL, &words);

        cr_expect(gk_text_good((const uint8_t *)TEXTS[i].bytes, size, false) == TEXTS[i].good, "%u",
                  i);
        cr_expect(err == (TEXTS[i].good == size ? GK_OK : GK_E_CORRUPT), "%u: %s", i, words.text);
    }
    cr_expect(judge(&msg.h, gk_buf_copy("a\0b", 3), NULL, &words) == GK_E_CORRUPT);
    cr_expect(judge(&msg.h, gk_buf_copy("a\nb", 3), NULL, &words) == GK_E_CORRUPT);
    cr_expect(judge(&msg.h, gk_buf_new(0), NULL, &words) == GK_E_CORRUPT);
    cr_expect(judge(&msg.h, gk_buf_new(GK_TEXT_BYTES_MAX + 1), NULL, &words) == GK_E_LIMIT);
    msg = (struct gk_msg){.h = {.kind = GK_KIND_STATUS_OK}};
    cr_expect(judge(&msg.h, gk_buf_copy("{\n\t}\r\n", 6), NULL, &words) == GK_OK);
    cr_expect(judge(&msg.h, gk_buf_copy("{\x1b}", 3), NULL, &words) == GK_E_CORRUPT);
    cr_expect(judge(&msg.h, gk_buf_new(0), NULL, &words) == GK_E_CORRUPT);
    cr_expect(judge(&msg.h, gk_buf_new(GK_STATUS_BYTES_MAX + 1), NULL, &words) == GK_E_LIMIT);
}

/* The longest name of a job fits, one byte more does not. */
Test(proto_content, job_name)
{
    struct gk_msg msg = base_of(GK_KIND_HELLO);
    struct gk_words words;
    char name[GK_JOB_NAME_BYTES];

    memset(name, 'j', sizeof(name));
    cr_expect(judge(&msg.h, body_part(GK_RECORD_HELLO, &msg.body),
                    gk_buf_copy(name, sizeof(name) - 1), &words) == GK_OK);
    cr_expect(judge(&msg.h, body_part(GK_RECORD_HELLO, &msg.body), gk_buf_copy(name, sizeof(name)),
                    &words) == GK_E_LIMIT);
}

static enum gk_err push_of(const uint32_t *indices, const uint32_t *bits,
                           struct gk_words *ret_words)
{
    struct gk_header h = {.kind = GK_KIND_PUSH,
                          .session = 1,
                          .lo = 100,
                          .hi = 110,
                          .samples = 1,
                          .push_id = 2,
                          .chunks = 1,
                          .push_bytes = 24,
                          .index_encoding = GK_INDEX_RAW32,
                          .value_encoding = GK_VALUE_F32,
                          .count = 3};

    return judge(&h, gk_buf_copy(indices, 12), gk_buf_copy(bits, 12), ret_words);
}

Test(proto_content, arrays)
{
    static const uint32_t GOOD_INDICES[][3] = {{0, 1, 2}, {7, 8, 9}, {0, 5, 9}};
    static const uint32_t BAD_INDICES[][3] = {{0, 0, 1},          {1, 0, 2},         {0, 2, 2},
                                              {0, 2, 1},          {7, 8, 10},        {10, 11, 12},
                                              {0, 1, UINT32_MAX}, {UINT32_MAX, 0, 1}};
    static const uint32_t GOOD_BITS[][3] = {{0, 0x80000000, 1},
                                            {0x7f7fffff, 0xff7fffff, 0x3f800000}};
    static const uint32_t BAD_BITS[] = {0x7f800000, 0xff800000, 0x7fc00000, 0xffffffff, 0x7f800001};
    struct gk_words words;

    for (uint32_t i = 0; i < 3; i++) {
        cr_expect(push_of(GOOD_INDICES[i], GOOD_BITS[i % 2], &words) == GK_OK, "%s", words.text);
    }
    for (uint32_t i = 0; i < 8; i++) {
        cr_expect(push_of(BAD_INDICES[i], GOOD_BITS[0], &words) == GK_E_CORRUPT, "%u", i);
        cr_expect(strstr(words.text, "PUSH: index "), "%s", words.text);
    }
    for (uint32_t i = 0; i < 5; i++) {
        for (uint32_t at = 0; at < 3; at++) {
            uint32_t bits[3] = {0};
            char said[32];

            bits[at] = BAD_BITS[i];
            snprintf(said, sizeof(said), "value %u is not finite", at);
            cr_expect(push_of(GOOD_INDICES[0], bits, &words) == GK_E_CORRUPT);
            cr_expect(strstr(words.text, said), "%s", words.text);
        }
    }
}

/* INIT takes any bytes as the spec, but not more than a spec can have, and not none. */
Test(proto_content, spec_frame)
{
    struct gk_header h = {.kind = GK_KIND_INIT,
                          .session = 1,
                          .hi = 2,
                          .init_id = 3,
                          .job_uid = {4, 5},
                          .chunks = 1,
                          .index_encoding = GK_INDEX_DENSE,
                          .value_encoding = GK_VALUE_F32,
                          .count = 2};
    struct gk_words words;

    cr_expect(judge(&h, gk_buf_new(GK_SPEC_BYTES_MAX), gk_buf_new(8), &words) == GK_OK);
    cr_expect(judge(&h, gk_buf_new(GK_SPEC_BYTES_MAX + 1), gk_buf_new(8), &words) == GK_E_LIMIT);
    cr_expect(judge(&h, gk_buf_new(0), gk_buf_new(8), &words) == GK_E_CORRUPT);
    cr_expect(strstr(words.text, "spec: empty"), "%s", words.text);
}

/* What this rule lets through HELLO takes: the daemons ask it before they say a name. */
Test(proto_content, job_names)
{
    static const char *const good[] = {"a", "gkps", "with blank", "na\xc3\xafve",
                                       "\xf0\x9f\x90\xa2"};
    static const char *const bad[] = {"",     "two\nlines", "tab\t",    "\x7f",
                                      "\xc3", "\xff",       "\xc2\x85", "\xed\xa0\x80"};
    char name[GK_JOB_NAME_BYTES + 1] = "";
    struct gk_words words;

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        cr_expect(gk_job_name_check(good[i], &words) == GK_OK, "%s", good[i]);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        words.text[0] = 0;
        cr_expect(gk_job_name_check(bad[i], &words) == GK_E_INVALID, "%zu", i);
        cr_expect(strstr(words.text, i == 0 ? "1 to 63" : "UTF-8"), "%s", words.text);
    }
    memset(name, 'x', GK_JOB_NAME_BYTES - 1);
    cr_expect(gk_job_name_check(name, &words) == GK_OK);
    name[GK_JOB_NAME_BYTES - 1] = 'x';
    cr_expect(gk_job_name_check(name, &words) == GK_E_INVALID);
    cr_expect(strstr(words.text, "64"), "%s", words.text);
}

/* Frames that do not lie on 8 bytes are copied to where they do; those that do, as ZeroMQ's, are
 * used where they are. */
Test(proto_content, unaligned)
{
    struct draw draw = {.rng = {.seed = 5, .purpose = GK_RNG_IDENTITY}};

    for (uint32_t round = 0; round < 500; round++) {
        struct gk_buf *parts[GK_PARTS_MAX];
        struct gk_buf crooked[GK_PARTS_MAX], *list[GK_PARTS_MAX];
        struct gk_msg in, out;
        uint32_t count = 0;
        size_t shift = 1 + below(&draw, 15);

        legal_message(&draw, round % 2 ? GK_KIND_PUSH : GK_KIND_INIT, &in);
        cr_assert(gk_msg_to_wire(&in, parts, &count) == GK_OK);
        for (uint32_t i = 0; i < count; i++) {
            struct gk_buf *room = gk_buf_new(parts[i]->size + shift);

            memcpy(room->data + shift, parts[i]->data, parts[i]->size);
            gk_buf_unref(parts[i]);
            parts[i] = room;
            crooked[i] = (struct gk_buf){.data = room->data + shift, .size = room->size - shift};
            atomic_init(&crooked[i].refs, 1);
            list[i] = &crooked[i];
        }
        cr_assert(gk_msg_from_wire(list, count, &out, NULL) == GK_OK);
        cr_assert_str_eq(difference(&in, &out), "");
        for (uint32_t i = 0; i < out.frames_count; i++) {
            const struct gk_buf *part = &crooked[count - out.frames_count + i];

            cr_assert((uintptr_t)out.frame[i]->data % 8 == 0);
            cr_assert_eq(out.frame[i] == part, shift == 8);
            cr_assert_eq(atomic_load(&part->refs), shift == 8 ? 2u : 1u);
        }
        drop_parts(parts, count);
        gk_msg_clear(&in);
        gk_msg_clear(&out);
    }
}

/* Noise, noise behind a right magic and CRC, and legal messages with a few bytes changed and sealed
 * again.  Whatever is accepted must be legal by our own assertions and come out as the same bytes.
 */
Test(proto_content, random_bytes, .timeout = 120)
{
    struct draw draw = {.rng = {.seed = 6, .purpose = GK_RNG_IDENTITY}};
    uint32_t accepted = 0;

    for (uint32_t round = 0; round < RANDOM_STRINGS; round++) {
        struct gk_buf *parts[GK_PARTS_MAX], *again[GK_PARTS_MAX];
        uint32_t count = 1 + below(&draw, GK_PARTS_MAX), again_count = 0, way = below(&draw, 4);
        struct gk_words words;
        struct gk_msg msg;

        if (way == 3) {
            uint32_t kind = 1 + below(&draw, GK_KIND_MAX);

            legal_message(&draw, reserved_kind(kind) ? GK_KIND_PUSH : kind, &msg);
            cr_assert(gk_msg_to_wire(&msg, parts, &count) == GK_OK);
            gk_msg_clear(&msg);
        } else {
            for (uint32_t i = 0; i < count; i++) {
                parts[i] = gk_buf_new(below(&draw, 80) + (way == 0 ? 0 : 8));
                for (size_t b = 0; b < parts[i]->size; b++) {
                    /* Small bytes are field numbers and varints more often. */
                    parts[i]->data[b] =
                        (uint8_t)(below(&draw, 2) ? any(&draw, 255) : below(&draw, 256));
                }
            }
        }
        if (way == 3) {
            for (uint32_t i = below(&draw, 4); i > 0 && parts[0]->size > 8; i--) {
                parts[0]->data[8 + below(&draw, (uint32_t)parts[0]->size - 8)] =
                    (uint8_t)below(&draw, 256);
            }
        }
        if (way > 0) {
            memcpy(parts[0]->data, "GKP1", 4);
            gk_put_u32(parts[0]->data + 4, gk_crc32c(parts[0]->data + 8, parts[0]->size - 8));
        }
        if (gk_msg_from_wire(parts, count, &msg, &words) == GK_OK) {
            accepted++;
            cr_assert(gk_msg_to_wire(&msg, again, &again_count) == GK_OK);
            cr_assert(again_count == count);
            for (uint32_t i = 0; i < count; i++) {
                cr_assert(again[i]->size == parts[i]->size);
                cr_assert(memcmp(again[i]->data, parts[i]->data, parts[i]->size) == 0);
            }
            drop_parts(again, again_count);
        }
        gk_msg_clear(&msg);
        drop_parts(parts, count);
    }
    cr_expect(accepted > RANDOM_STRINGS / 20 && accepted < RANDOM_STRINGS / 4, "%u", accepted);
}

/* Words that quote anything go out as printable UTF-8, cut between two characters. */
Test(proto_content, words_are_mended)
{
    struct gk_msg msg = {.h = {.kind = GK_KIND_NACK, .code = GK_CODE_BAD_MESSAGE}}, back;
    struct gk_buf *parts[GK_PARTS_MAX];
    uint32_t count = 0;

    snprintf(msg.words.text, sizeof(msg.words.text), "bad \xff\xfe name \xc3\xa9\xc3");
    cr_assert(gk_msg_to_wire(&msg, parts, &count) == GK_OK);
    cr_assert(gk_msg_from_wire(parts, count, &back, NULL) == GK_OK);
    cr_expect_str_eq(back.words.text, "bad ?? name \xc3\xa9?");
    gk_msg_clear(&back);
    drop_parts(parts, count);
    memset(msg.words.text, 0, sizeof(msg.words.text));
    msg.words.text[0] = 'x';
    for (uint32_t i = 1; i + 3 < sizeof(msg.words.text); i += 3) {
        memcpy(msg.words.text + i, "\xe2\x82\xac", 3);
    }
    cr_assert(gk_msg_to_wire(&msg, parts, &count) == GK_OK);
    cr_assert(gk_msg_from_wire(parts, count, &back, NULL) == GK_OK);
    cr_expect(strlen(back.words.text) == 478, "%zu", strlen(back.words.text));
    cr_expect(strncmp(back.words.text, msg.words.text, 478) == 0);
    gk_msg_clear(&back);
    drop_parts(parts, count);
}

static void send(struct gk_msg *msg)
{
    struct gk_buf *parts[GK_PARTS_MAX];
    uint32_t count;

    (void)gk_msg_to_wire(msg, parts, &count);
}

Test(proto_content, own_header_is_asserted, .signal = SIGABRT)
{
    struct gk_msg msg = {.h = {.kind = GK_KIND_LEAVE, .session = 1, .plane = 1}};

    send(&msg);
}

Test(proto_content, own_body_is_asserted, .signal = SIGABRT)
{
    struct gk_msg msg = base_of(GK_KIND_HELLO);

    gk_words_set(&msg.words, "job");
    msg.body.hello.role = 0;
    send(&msg);
}

Test(proto_content, own_frames_are_asserted, .signal = SIGABRT)
{
    struct gk_msg msg = {.h = {.kind = GK_KIND_STATUS_OK}};

    send(&msg);
}

Test(proto_content, names)
{
    cr_expect_str_eq(gk_kind_name(GK_KIND_PUSH), "PUSH");
    cr_expect_str_eq(gk_kind_name(0), "?");
    cr_expect_str_eq(gk_kind_name(GK_KIND_MAX + 1), "?");
    cr_expect_str_eq(gk_kind_name(UINT32_MAX), "?");
    cr_expect_str_eq(gk_verdict_name(GK_VERDICT_APPLIED), "applied");
    cr_expect_str_eq(gk_verdict_name(GK_VERDICT_LOST), "lost");
    cr_expect_str_eq(gk_verdict_name(GK_VERDICT_LOST + 1), "?");
    cr_expect_str_eq(gk_code_name(GK_CODE_NO_SESSION), "NO_SESSION");
    cr_expect_str_eq(gk_code_name(GK_CODE_FINISHED), "FINISHED");
    cr_expect_str_eq(gk_code_name(10), "?");
    cr_expect_str_eq(gk_code_name(UINT32_MAX), "?");
}
