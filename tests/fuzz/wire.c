#include "tests/fuzz/wire.h"

#include "common/bits.h"
#include "common/hash.h"
#include "proto/pack.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HEAD_BYTES = 8, LENGTH_BYTES = 3, SKEW_BYTES = 4, SKEWED = 1 << 3 };

uint8_t fuzz_take_u8(struct fuzz_bytes *in)
{
    if (in->left == 0) {
        return 0;
    }
    in->left--;
    return *in->at++;
}

uint32_t fuzz_take_u32(struct fuzz_bytes *in)
{
    uint32_t x = fuzz_take_u8(in);

    x |= (uint32_t)fuzz_take_u8(in) << 8;
    x |= (uint32_t)fuzz_take_u8(in) << 16;
    return x | (uint32_t)fuzz_take_u8(in) << 24;
}

void fuzz_message_add(struct fuzz_message *message, const void *bytes, size_t size)
{
    struct fuzz_part *part;

    if (message->count == FUZZ_PARTS_MAX) {
        return;
    }
    part = &message->parts[message->count++];
    part->size = size > FUZZ_PART_BYTES_MAX ? FUZZ_PART_BYTES_MAX : size;
    part->bytes = malloc(part->size > 0 ? part->size : 1);
    FUZZ_CHECK(part->bytes);
    if (part->size > 0) {
        memcpy(part->bytes, bytes, part->size);
    }
}

void fuzz_message_read(struct fuzz_bytes *in, struct fuzz_message *ret)
{
    uint8_t head = fuzz_take_u8(in);
    uint32_t count = head & 7;

    *ret = (struct fuzz_message){.skewed = (head & SKEWED) != 0};
    for (uint32_t i = 0; i < count; i++) {
        size_t size = fuzz_take_u8(in);

        size |= (size_t)fuzz_take_u8(in) << 8;
        size |= (size_t)fuzz_take_u8(in) << 16;
        size = size > in->left ? in->left : size;
        fuzz_message_add(ret, in->at, size);
        in->at += size;
        in->left -= size;
    }
}

size_t fuzz_message_write(const struct fuzz_message *message, uint8_t *ret, size_t room)
{
    size_t size = 1;

    for (uint32_t i = 0; i < message->count; i++) {
        size += LENGTH_BYTES + message->parts[i].size;
    }
    if (size > room) {
        return 0;
    }
    *ret++ = (uint8_t)(message->count | (message->skewed ? SKEWED : 0u));
    for (uint32_t i = 0; i < message->count; i++) {
        const struct fuzz_part *part = &message->parts[i];

        for (uint32_t b = 0; b < LENGTH_BYTES; b++) {
            *ret++ = (uint8_t)(part->size >> 8 * b);
        }
        memcpy(ret, part->bytes, part->size);
        ret += part->size;
    }
    return size;
}

void fuzz_message_clear(struct fuzz_message *message)
{
    for (uint32_t i = 0; i < message->count; i++) {
        free(message->parts[i].bytes);
    }
    memset(message, 0, sizeof(*message));
}

void fuzz_message_seal(struct fuzz_message *message)
{
    struct fuzz_part *head = &message->parts[0];
    uint8_t bytes[HEAD_BYTES + GK_RECORD_BYTES_MAX] = {'G', 'K', 'P', '1'};
    struct gk_header header;
    enum gk_err err;
    size_t size;

    if (message->count == 0 || head->size < HEAD_BYTES) {
        return;
    }
    size = head->size - HEAD_BYTES;
    if (size <= GK_HEADER_BYTES_MAX) {
        err = gk_record_unpack(GK_RECORD_HEADER, head->bytes + HEAD_BYTES, size, &header, NULL);
        if (!err) { /* otherwise its form is what is wrong with it, and stays */
            for (uint32_t i = 0; i < GK_FRAMES_MAX; i++) {
                const struct fuzz_part *part = &message->parts[i + 1];

                header.frame_crc[i] =
                    i + 1 < message->count ? gk_crc32c(part->bytes, part->size) : 0;
            }
            size = gk_record_pack(GK_RECORD_HEADER, &header, bytes + HEAD_BYTES);
            free(head->bytes);
            head->size = HEAD_BYTES + size;
            head->bytes = malloc(head->size);
            FUZZ_CHECK(head->bytes);
            memcpy(head->bytes, bytes, head->size);
        }
    }
    memcpy(head->bytes, bytes, 4);
    gk_put_u32(head->bytes + 4, gk_crc32c(head->bytes + HEAD_BYTES, head->size - HEAD_BYTES));
}

static void release(struct gk_buf *buf)
{
    free(buf->owner);
    free(buf);
}

void fuzz_message_bufs(const struct fuzz_message *message, struct gk_buf **ret_parts)
{
    for (uint32_t i = 0; i < message->count; i++) {
        const struct fuzz_part *part = &message->parts[i];
        size_t skew = message->skewed ? SKEW_BYTES : 0;
        struct gk_buf *buf = calloc(1, sizeof(*buf));
        uint8_t *bytes = malloc(part->size + skew > 0 ? part->size + skew : 1);

        FUZZ_CHECK(buf && bytes);
        if (part->size > 0) {
            memcpy(bytes + skew, part->bytes, part->size);
        }
        buf->data = bytes + skew;
        buf->size = part->size;
        buf->owner = bytes;
        buf->release = release;
        atomic_init(&buf->refs, 1);
        ret_parts[i] = buf;
    }
}

enum gk_err fuzz_message_take(const struct fuzz_message *message, struct gk_msg *ret_msg,
                              struct gk_words *words)
{
    struct gk_buf *parts[FUZZ_PARTS_MAX];
    enum gk_err err;

    fuzz_message_bufs(message, parts);
    words->text[0] = '\0';
    err = gk_msg_from_wire(parts, message->count, ret_msg, words);
    for (uint32_t i = 0; i < message->count; i++) {
        gk_buf_unref(parts[i]);
    }
    return err;
}

void fuzz_message_send(const struct gk_msg *msg, struct fuzz_message *sent)
{
    struct gk_buf *parts[GK_PARTS_MAX];
    uint32_t parts_count;

    FUZZ_CHECK(gk_msg_to_wire(msg, parts, &parts_count) == GK_OK);
    memset(sent, 0, sizeof(*sent));
    for (uint32_t i = 0; i < parts_count; i++) {
        fuzz_message_add(sent, parts[i]->data, parts[i]->size);
        gk_buf_unref(parts[i]);
    }
}

void fuzz_message_check_ours(const struct gk_msg *msg)
{
    struct fuzz_message sent;
    struct gk_msg again;
    struct gk_words words;

    fuzz_message_send(msg, &sent);
    if (fuzz_message_take(&sent, &again, &words) != GK_OK) {
        fuzz_failed(words.text, __FILE__, __LINE__);
    }
    FUZZ_CHECK(again.h.kind == msg->h.kind && again.h.session == msg->h.session);
    gk_msg_clear(&again);
    fuzz_message_clear(&sent);
}

/* What the receivers do with a message that is no message: answer it, by its header alone. */
static void check_answerable(const struct gk_msg *msg)
{
    struct gk_msg nack = {.h = {
                              .kind = GK_KIND_NACK,
                              .session = msg->h.session,
                              .req_id = msg->h.req_id,
                              .rank = msg->h.rank,
                              .shard = msg->h.shard,
                              .code = GK_CODE_BAD_MESSAGE,
                          }};

    FUZZ_CHECK(msg->frames_count == 0 && msg->words.text[0] == '\0');
    gk_words_set(&nack.words, "no");
    fuzz_message_check_ours(&nack);
}

/* Nothing behind from_wire() asks again, so it is asked here in the plainest way. */
static void check_arrays(const struct gk_msg *msg)
{
    const struct gk_header *h = &msg->h;
    const struct gk_buf *values = NULL;
    uint64_t last = 0;

    if (h->kind != GK_KIND_PUSH && h->kind != GK_KIND_INIT && h->kind != GK_KIND_PARAMS) {
        return;
    }
    FUZZ_CHECK(h->lo < h->hi && h->count <= h->hi - h->lo);
    if (h->count == 0) {
        FUZZ_CHECK(msg->frames_count == 0);
        return;
    }
    FUZZ_CHECK(msg->frames_count > 0);
    values = msg->frame[msg->frames_count - 1];
    FUZZ_CHECK(values->size == 4 * h->count && (uintptr_t)values->data % 8 == 0);
    for (uint64_t i = 0; i < h->count; i++) {
        FUZZ_CHECK(isfinite(gk_bits_float(gk_get_u32(values->data + 4 * i))));
    }
    if (h->index_encoding != GK_INDEX_RAW32) {
        FUZZ_CHECK(h->count == h->hi - h->lo);
        return;
    }
    FUZZ_CHECK(msg->frames_count == 2 && msg->frame[0]->size == 4 * h->count);
    for (uint64_t i = 0; i < h->count; i++) {
        uint64_t index = gk_get_u32(msg->frame[0]->data + 4 * i);

        FUZZ_CHECK(index < h->hi - h->lo && (i == 0 || index > last));
        last = index;
    }
}

/* One message, one byte string. */
static void check_same(const struct gk_msg *msg, const struct fuzz_message *message)
{
    struct gk_buf *parts[GK_PARTS_MAX];
    uint32_t parts_count;

    FUZZ_CHECK(gk_msg_to_wire(msg, parts, &parts_count) == GK_OK);
    FUZZ_CHECK(parts_count == message->count);
    for (uint32_t i = 0; i < parts_count; i++) {
        const struct fuzz_part *part = &message->parts[i];

        FUZZ_CHECK(parts[i]->size == part->size);
        FUZZ_CHECK(part->size == 0 || memcmp(parts[i]->data, part->bytes, part->size) == 0);
        gk_buf_unref(parts[i]);
    }
}

enum gk_err fuzz_message_parse(const struct fuzz_message *message, struct gk_msg *ret_msg,
                               struct gk_words *words)
{
    enum gk_err err = fuzz_message_take(message, ret_msg, words);

    if (err) {
        FUZZ_CHECK(err == GK_E_CORRUPT || err == GK_E_UNSUPPORTED || err == GK_E_LIMIT);
        fuzz_check_words(words->text);
        check_answerable(ret_msg);
    } else {
        check_arrays(ret_msg);
        check_same(ret_msg, message);
    }
    return err;
}
