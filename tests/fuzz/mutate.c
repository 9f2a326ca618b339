#include "tests/fuzz/mutate.h"

#include "common/backend.h"
#include "common/bits.h"
#include "proto/pack.h"

#include <stdlib.h>
#include <string.h>

enum { HEAD_BYTES = 8, ENTRIES_MAX = 24 };

union body {
    struct gk_hello hello;
    struct gk_welcome welcome;
    struct gk_ping ping;
};

static bool chance(struct fuzz_random *random, uint32_t one_in)
{
    return fuzz_below(random, one_in) == 0;
}

/* The part as `bytes`; fuzz_message_seal() makes the checksums right. */
static void replace(struct fuzz_part *part, const void *bytes, size_t size)
{
    uint8_t *copy = malloc(size > 0 ? size : 1);

    FUZZ_CHECK(copy && size <= FUZZ_PART_BYTES_MAX);
    if (size > 0) {
        memcpy(copy, bytes, size);
    }
    free(part->bytes);
    *part = (struct fuzz_part){.bytes = copy, .size = size};
}

/* False: the first part says nothing that protobuf can read. */
static bool get_header(const struct fuzz_message *message, struct gk_header *ret)
{
    const struct fuzz_part *head = &message->parts[0];

    if (message->count == 0 || head->size <= HEAD_BYTES || head->size > GK_HEADER_BYTES_MAX) {
        return false;
    }
    (void)gk_record_unpack(GK_RECORD_HEADER, head->bytes + HEAD_BYTES, head->size - HEAD_BYTES, ret,
                           NULL);
    return ret->kind != 0;
}

static void put_header(struct fuzz_message *message, const struct gk_header *header)
{
    uint8_t bytes[HEAD_BYTES + GK_RECORD_BYTES_MAX] = {0};
    size_t size = gk_record_pack(GK_RECORD_HEADER, header, bytes + HEAD_BYTES);

    replace(&message->parts[0], bytes, HEAD_BYTES + size);
}

static void put_field(const struct gk_field *field, void *record, uint64_t value)
{
    uint8_t *at = (uint8_t *)record + field->offset;
    uint32_t narrow = (uint32_t)value;
    bool flag = (value & 1) != 0;

    if (field->bytes == sizeof(value)) {
        memcpy(at, &value, sizeof(value));
    } else if (field->bytes == sizeof(narrow)) {
        memcpy(at, &narrow, sizeof(narrow));
    } else {
        memcpy(at, &flag, sizeof(flag));
    }
}

/* Mostly a field that the kind may have: the others are refused at once. */
static uint32_t pick_field(const struct gk_header *header, uint32_t count,
                           struct fuzz_random *random)
{
    const struct gk_kind_rule *rule = gk_kind_rule(header->kind);
    uint32_t field = fuzz_below(random, count);

    for (uint32_t tries = 0; rule && tries < 64 && !chance(random, 16); tries++) {
        if (rule->fields >> field & 1) {
            break;
        }
        field = fuzz_below(random, count);
    }
    return field;
}

static void mutate_header(struct fuzz_message *message, struct fuzz_random *random)
{
    struct gk_header header;
    uint32_t count, to;
    const struct gk_field *fields = gk_record_fields(GK_RECORD_HEADER, &count);
    uint64_t value;

    if (!get_header(message, &header)) {
        return;
    }
    to = pick_field(&header, count, random);
    value = gk_field_get(&fields[to], &header);
    value = chance(random, 4) ? gk_field_get(&fields[fuzz_below(random, count)], &header)
                              : fuzz_interesting(random, value);
    put_field(&fields[to], &header, value);
    put_header(message, &header);
}

/* Another kind, without the fields that it may not have: it may still be refused, but later. */
static void mutate_kind(struct fuzz_message *message, struct fuzz_random *random)
{
    struct gk_header header;
    const struct gk_kind_rule *rule;
    uint32_t count;
    const struct gk_field *fields = gk_record_fields(GK_RECORD_HEADER, &count);

    if (!get_header(message, &header)) {
        return;
    }
    header.kind = fuzz_below(random, GK_KIND_MAX + 2);
    rule = gk_kind_rule(header.kind);
    for (uint32_t i = 1; rule && i < count; i++) {
        if (!(rule->fields >> i & 1)) {
            put_field(&fields[i], &header, 0);
        }
    }
    put_header(message, &header);
}

static void mutate_body(struct fuzz_message *message, struct fuzz_random *random)
{
    struct gk_header header;
    const struct gk_kind_rule *rule;
    union body body;
    uint8_t bytes[GK_RECORD_BYTES_MAX];
    const struct gk_field *fields;
    uint32_t count, to;

    if (message->count < 2 || !get_header(message, &header)) {
        return;
    }
    rule = gk_kind_rule(header.kind);
    if (!rule || rule->body == GK_RECORD_NONE || message->parts[1].size > GK_BODY_BYTES_MAX) {
        return;
    }
    (void)gk_record_unpack(rule->body, message->parts[1].bytes, message->parts[1].size, &body,
                           NULL);
    fields = gk_record_fields(rule->body, &count);
    to = fuzz_below(random, count);
    put_field(&fields[to], &body, fuzz_interesting(random, gk_field_get(&fields[to], &body)));
    replace(&message->parts[1], bytes, gk_record_pack(rule->body, &body, bytes));
}

/* Other arrays, of a size that the header agrees with. */
static void reshape(struct fuzz_message *message, struct fuzz_random *random)
{
    struct gk_header header;
    uint8_t bytes[4 * ENTRIES_MAX];
    uint32_t entries = 1 + fuzz_below(random, ENTRIES_MAX);
    uint32_t index = 0;
    bool dense = chance(random, 2);

    if (!get_header(message, &header) || header.value_encoding == 0) {
        return;
    }
    if (dense && header.kind == GK_KIND_PUSH && !chance(random, 4)) {
        entries = (uint32_t)gk_min_u64(header.hi - header.lo, ENTRIES_MAX);
    }
    header.index_encoding = dense ? GK_INDEX_DENSE : GK_INDEX_RAW32;
    header.count = entries;
    header.hi = dense ? header.lo + entries : header.hi;
    while (message->count > 1) {
        free(message->parts[--message->count].bytes);
    }
    for (uint32_t i = 0; i < entries; i++, index += 1 + fuzz_below(random, 3)) {
        gk_put_u32(bytes + 4 * (size_t)i, index);
    }
    if (!dense) {
        fuzz_message_add(message, bytes, 4 * (size_t)entries);
    }
    for (uint32_t i = 0; i < entries; i++) {
        gk_put_u32(bytes + 4 * (size_t)i, gk_float_bits((float)(int)fuzz_below(random, 64) - 31));
    }
    fuzz_message_add(message, bytes, 4 * (size_t)entries);
    header.push_bytes = header.kind == GK_KIND_PUSH && header.chunks <= 1
                            ? (dense ? 4 : 8) * header.count
                            : header.push_bytes;
    put_header(message, &header);
}

/* A number for an array: a float that is special, a bound of the header's, or a boundary. */
static uint32_t array_word(const struct fuzz_message *message, uint32_t old,
                           struct fuzz_random *random)
{
    static const uint32_t words[] = {0,          0x80000000, 0x00000001, 0x7f7fffff, 0x7f800000,
                                     0xff800000, 0x7fc00000, 0x7f800001, 0xffffffff, 0x3f800000};
    struct gk_header header;

    switch (fuzz_below(random, 3)) {
    case 0:
        return words[fuzz_below(random, sizeof(words) / sizeof(words[0]))];
    case 1:
        if (get_header(message, &header)) {
            return (uint32_t)(header.hi - header.lo) + fuzz_below(random, 3) - 1;
        }
        return old;
    default:
        return (uint32_t)fuzz_interesting(random, old);
    }
}

/* One number of an array: not finite, out of order, out of range. */
static void mutate_word(struct fuzz_message *message, struct fuzz_random *random)
{
    struct fuzz_part *part;
    uint32_t at;

    if (message->count < 2) {
        return;
    }
    part = &message->parts[1 + fuzz_below(random, message->count - 1)];
    if (part->size < 4) {
        return;
    }
    at = 4 * fuzz_below(random, (uint32_t)(part->size / 4));
    gk_put_u32(part->bytes + at, array_word(message, gk_get_u32(part->bytes + at), random));
}

/* Parts that are missing, come twice, or stand in each other's place. */
static void mutate_parts(struct fuzz_message *message, struct fuzz_random *random)
{
    uint32_t from, to;
    struct fuzz_part held;

    if (message->count == 0) {
        fuzz_message_add(message, "", 0);
        return;
    }
    from = fuzz_below(random, message->count);
    to = fuzz_below(random, message->count);
    held = message->parts[from];
    switch (fuzz_below(random, 4)) {
    case 0:
        fuzz_message_add(message, held.bytes, held.size);
        break;
    case 1:
        fuzz_message_add(message, "", 0);
        break;
    case 2:
        free(held.bytes);
        memmove(&message->parts[from], &message->parts[from + 1],
                (message->count - from - 1) * sizeof(held));
        message->count--;
        break;
    default:
        message->parts[from] = message->parts[to];
        message->parts[to] = held;
        break;
    }
}

/* Whatever libFuzzer does to plain bytes. */
static void mutate_bytes(struct fuzz_message *message, struct fuzz_random *random)
{
    static uint8_t bytes[FUZZ_PART_BYTES_MAX];
    struct fuzz_part *part;
    size_t head, size;

    if (message->count == 0) {
        return;
    }
    part = &message->parts[fuzz_below(random, message->count)];
    /* The eight bytes of magic and checksum are made anew anyway. */
    head = part == &message->parts[0] && part->size >= HEAD_BYTES ? HEAD_BYTES : 0;
    memcpy(bytes, part->bytes, part->size);
    size = head + LLVMFuzzerMutate(bytes + head, part->size - head,
                                   gk_min_u64(2 * part->size + 16, sizeof(bytes)) - head);
    replace(part, bytes, size);
}

void fuzz_message_borrow(struct fuzz_message *message, const struct fuzz_message *other,
                         struct fuzz_random *random)
{
    struct gk_header header, source;
    uint32_t count, field;
    const struct gk_field *fields = gk_record_fields(GK_RECORD_HEADER, &count);

    if (get_header(message, &header) && get_header(other, &source)) {
        field = pick_field(&header, count, random);
        put_field(&fields[field], &header, gk_field_get(&fields[field], &source));
        put_header(message, &header);
        fuzz_message_seal(message);
    }
}

static void mutate_once(struct fuzz_message *message, struct fuzz_random *random)
{
    switch (fuzz_below(random, 16)) {
    case 0:
        mutate_kind(message, random);
        break;
    case 1:
    case 2:
        mutate_bytes(message, random);
        break;
    case 3:
        mutate_parts(message, random);
        break;
    case 4:
    case 5:
        mutate_word(message, random);
        break;
    case 6:
    case 7:
        reshape(message, random);
        break;
    case 8:
    case 9:
    case 10:
        mutate_body(message, random);
        break;
    default:
        mutate_header(message, random);
        break;
    }
}

void fuzz_message_mutate(struct fuzz_message *message, struct fuzz_random *random)
{
    struct fuzz_part *part;
    uint32_t at;

    do {
        mutate_once(message, random);
    } while (chance(random, 3));
    if (chance(random, 32)) {
        message->skewed = !message->skewed;
    }
    fuzz_message_seal(message);
    if (message->count > 0 && chance(random, 24)) { /* damage that a checksum must find */
        part = &message->parts[fuzz_below(random, message->count)];
        at = part->size > 0 ? fuzz_below(random, (uint32_t)part->size) : 0;
        if (part->size > 0) {
            part->bytes[at] ^= (uint8_t)(1u << fuzz_below(random, 8));
        }
    }
}
