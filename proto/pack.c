/* Records (header and bodies, structs of scalars) to protobuf and back, field by field from the
 * tables of kinds.c; protobuf-c stays in this file.  Unpacking works in a small arena of its own.
 * There is one byte string for each record: what was unpacked is packed again and compared, so that
 * unknown fields, fields that come twice and zeros that are written out are refused. */
#include "proto/pack.h"

#include "common/assert.h"

#include <gkps.pb-c.h>

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

/* Everything one unpack needs; protobuf-c gets no other memory, so that a hostile message cannot
 * ask for more. */
struct arena {
    _Alignas(16) uint8_t bytes[4096];
    size_t used;
    bool exhausted;
};

union message {
    ProtobufCMessage base;
    Gkps__Header header;
    Gkps__Hello hello;
    Gkps__Welcome welcome;
    Gkps__Ping ping;
};

static void *arena_alloc(void *context, size_t size)
{
    struct arena *arena = context;
    size_t rounded = (size + 15) & ~(size_t)15;
    void *piece;

    if (rounded < size || rounded > sizeof(arena->bytes) - arena->used) {
        arena->exhausted = true;
        return NULL;
    }
    piece = arena->bytes + arena->used;
    arena->used += rounded;
    /* The library leaves some members unset on its error paths. */
    memset(piece, 0, rounded);
    return piece;
}

static void arena_free(void *context, void *piece)
{
    (void)context; /* the whole arena goes at once */
    (void)piece;
}

static const ProtobufCMessageDescriptor *descriptor_of(enum gk_record record)
{
    switch (record) {
    case GK_RECORD_HEADER:
        return &gkps__header__descriptor;
    case GK_RECORD_HELLO:
        return &gkps__hello__descriptor;
    case GK_RECORD_WELCOME:
        return &gkps__welcome__descriptor;
    case GK_RECORD_PING:
        return &gkps__ping__descriptor;
    case GK_RECORD_NONE:
        break;
    }
    gk_assert_failed("a record", __FILE__, __LINE__);
}

static size_t size_of(enum gk_record record)
{
    switch (record) {
    case GK_RECORD_HEADER:
        return sizeof(struct gk_header);
    case GK_RECORD_HELLO:
        return sizeof(struct gk_hello);
    case GK_RECORD_WELCOME:
        return sizeof(struct gk_welcome);
    case GK_RECORD_PING:
        return sizeof(struct gk_ping);
    case GK_RECORD_NONE:
        break;
    }
    gk_assert_failed("a record", __FILE__, __LINE__);
}

/* Our table and the generated one list the same fields in the order of their numbers. */
static const ProtobufCFieldDescriptor *theirs_of(const ProtobufCMessageDescriptor *descriptor,
                                                 uint32_t i, const struct gk_field *ours)
{
    const ProtobufCFieldDescriptor *theirs = &descriptor->fields[i];

    GK_ASSERT(theirs->id == i + 1 && strcmp(theirs->name, ours->name) == 0);
    return theirs;
}

static void message_from_ours(enum gk_record record, const void *source, union message *ret)
{
    const ProtobufCMessageDescriptor *descriptor = descriptor_of(record);
    uint32_t count;
    const struct gk_field *fields = gk_record_fields(record, &count);

    GK_ASSERT(count == descriptor->n_fields);
    protobuf_c_message_init(descriptor, ret);
    for (uint32_t i = 0; i < count; i++) {
        const ProtobufCFieldDescriptor *theirs = theirs_of(descriptor, i, &fields[i]);
        uint64_t value = gk_field_get(&fields[i], source);
        uint8_t *at = (uint8_t *)ret + theirs->offset;

        if (fields[i].bytes == sizeof(value)) {
            memcpy(at, &value, sizeof(value));
        } else {
            uint32_t narrow = (uint32_t)value;

            memcpy(at, &narrow, sizeof(narrow));
        }
    }
}

static enum gk_err ours_from_message(enum gk_record record, const ProtobufCMessage *message,
                                     void *ret, struct gk_words *words)
{
    uint32_t count;
    const struct gk_field *fields = gk_record_fields(record, &count);
    enum gk_err err = GK_OK;

    GK_ASSERT(count == message->descriptor->n_fields);
    for (uint32_t i = 0; i < count; i++) {
        const ProtobufCFieldDescriptor *theirs = theirs_of(message->descriptor, i, &fields[i]);
        const uint8_t *from = (const uint8_t *)message + theirs->offset;
        uint8_t *to = (uint8_t *)ret + fields[i].offset;

        if (fields[i].bytes == sizeof(bool)) {
            uint32_t value;
            bool flag;

            memcpy(&value, from, sizeof(value));
            flag = value != 0;
            memcpy(to, &flag, sizeof(flag));
            if (value > 1) {
                gk_words_set(words, "%s is %" PRIu32 ", not 0 or 1", fields[i].name, value);
                err = GK_E_CORRUPT;
            }
        } else {
            memcpy(to, from, fields[i].bytes);
        }
    }
    return err;
}

size_t gk_record_pack(enum gk_record record, const void *source, uint8_t *ret)
{
    union message message;
    size_t bytes;

    message_from_ours(record, source, &message);
    bytes = protobuf_c_message_get_packed_size(&message.base);
    GK_ASSERT(bytes <= GK_RECORD_BYTES_MAX);
    return protobuf_c_message_pack(&message.base, ret);
}

enum gk_err gk_record_unpack(enum gk_record record, const uint8_t *bytes, size_t bytes_count,
                             void *ret, struct gk_words *words)
{
    struct arena arena;
    ProtobufCAllocator allocator = {
        .alloc = arena_alloc, .free = arena_free, .allocator_data = &arena};
    uint8_t again[GK_RECORD_BYTES_MAX];
    const ProtobufCMessage *message;
    size_t again_bytes;
    enum gk_err err;

    arena.used = 0;
    arena.exhausted = false;
    memset(ret, 0, size_of(record));
    message = protobuf_c_message_unpack(descriptor_of(record), &allocator, bytes_count, bytes);
    if (!message) {
        gk_words_set(words, arena.exhausted ? "more fields than any message has"
                                            : "not a protobuf message");
        return arena.exhausted ? GK_E_LIMIT : GK_E_CORRUPT;
    }
    err = ours_from_message(record, message, ret, words);
    if (err) {
        return err;
    }
    if (message->n_unknown_fields > 0) {
        gk_words_set(words, "field number %" PRIu32 " is unknown", message->unknown_fields[0].tag);
        return GK_E_UNSUPPORTED;
    }
    again_bytes = gk_record_pack(record, ret, again);
    if (again_bytes != bytes_count || memcmp(again, bytes, bytes_count) != 0) {
        gk_words_set(words, "the fields are not in the one form (order, width, zeros left out)");
        return GK_E_CORRUPT;
    }
    return GK_OK;
}
