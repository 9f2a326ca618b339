/* A message to bytes and back.
 *
 * Out: our own messages obey the rules that peers are held to, which is asserted; arrays go as
 * references, and their CRCs into the header.  In: the header first (size, magic, CRC, fields, the
 * rules of its kind), then number, sizes and CRCs of the parts, then what stands in them; nothing
 * of a message is used before all of it has been judged, and the first violation is named. */
#include "proto/msg.h"

#include "common/assert.h"
#include "common/bits.h"
#include "common/hash.h"
#include "proto/check.h"
#include "proto/pack.h"

#include <inttypes.h>
#include <string.h>

/* A header or nothing: frame 0 is [magic u32][crc32c u32][protobuf]. */
enum { MAGIC_BYTES = 4, HEAD_BYTES = 8, FRAME_ALIGN = 8 };

static const uint8_t magic[MAGIC_BYTES] = {'G', 'K', 'P', '1'};

static enum gk_err header_from_wire(const struct gk_buf *part, struct gk_header *ret,
                                    struct gk_words *words)
{
    if (part->size > GK_HEADER_BYTES_MAX) {
        gk_words_set(words, "the header has %zu bytes, the limit is %d", part->size,
                     GK_HEADER_BYTES_MAX);
        return GK_E_LIMIT;
    }
    if (part->size <= HEAD_BYTES) {
        gk_words_set(words, "the header has %zu bytes, too few", part->size);
        return GK_E_CORRUPT;
    }
    if (memcmp(part->data, magic, MAGIC_BYTES) != 0) {
        gk_words_set(words, "the magic is missing");
        return GK_E_CORRUPT;
    }
    if (gk_crc32c(part->data + HEAD_BYTES, part->size - HEAD_BYTES) !=
        gk_get_u32(part->data + MAGIC_BYTES)) {
        gk_words_set(words, "the CRC of the header is wrong");
        return GK_E_CORRUPT;
    }
    return gk_record_unpack(GK_RECORD_HEADER, part->data + HEAD_BYTES, part->size - HEAD_BYTES, ret,
                            words);
}

/* Number, sizes and checksums of the parts behind the header. */
static enum gk_err check_parts(const struct gk_header *h, const struct gk_parts_rule *rule,
                               struct gk_buf *const *parts, uint32_t count, struct gk_words *words)
{
    if (count > rule->count || count + rule->optional < rule->count) {
        gk_words_set(words, "%" PRIu32 " parts behind the header, not %" PRIu32, count,
                     rule->count);
        return GK_E_CORRUPT;
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct gk_part_rule *part = &rule->parts[i];
        size_t size = parts[i]->size;
        uint32_t crc;

        if (part->bytes_min == part->bytes_max && size != part->bytes_min) {
            gk_words_set(words, "%s: %zu bytes, not %zu", gk_part_name(part->part), size,
                         part->bytes_min);
            return GK_E_CORRUPT;
        }
        if (size > part->bytes_max) {
            gk_words_set(words, "%s: %zu bytes, the limit is %zu", gk_part_name(part->part), size,
                         part->bytes_max);
            return GK_E_LIMIT;
        }
        if (size < part->bytes_min) {
            gk_words_set(words, "%s: empty", gk_part_name(part->part));
            return GK_E_CORRUPT;
        }
        crc = gk_crc32c(parts[i]->data, size);
        if (crc != h->frame_crc[i]) {
            gk_words_set(words,
                         "%s: the CRC is %08" PRIx32 ", frame_crc_%" PRIu32 " says %08" PRIx32,
                         gk_part_name(part->part), crc, i, h->frame_crc[i]);
            return GK_E_CORRUPT;
        }
    }
    for (uint32_t i = count; i < GK_FRAMES_MAX; i++) {
        if (h->frame_crc[i] != 0) {
            gk_words_set(words, "frame_crc_%" PRIu32 " is %08" PRIx32 ", but there is no such part",
                         i, h->frame_crc[i]);
            return GK_E_CORRUPT;
        }
    }
    return GK_OK;
}

static enum gk_err text_from_wire(const struct gk_buf *part, struct gk_words *ret,
                                  struct gk_words *words)
{
    size_t good = gk_text_good(part->data, part->size, false);

    if (good < part->size) {
        gk_words_set(words, "text: byte %zu is not printable UTF-8", good);
        return GK_E_CORRUPT;
    }
    memcpy(ret->text, part->data, part->size);
    ret->text[part->size] = 0;
    return GK_OK;
}

static enum gk_err json_check(const struct gk_buf *part, struct gk_words *words)
{
    size_t good = gk_text_good(part->data, part->size, true);

    if (good < part->size) {
        gk_words_set(words, "JSON: byte %zu is not printable UTF-8", good);
        return GK_E_CORRUPT;
    }
    return GK_OK;
}

/* The transport aligns what it receives to 8 bytes; other callers may not, and nobody behind this
 * point should have to ask.  No more than 8: ZeroMQ puts its parts at 8 mod 16, and each would be
 * copied. */
static enum gk_err keep_frame(struct gk_buf *part, struct gk_msg *msg, struct gk_words *words)
{
    struct gk_buf *frame = (uintptr_t)part->data % FRAME_ALIGN == 0
                               ? gk_buf_ref(part)
                               : gk_buf_copy(part->data, part->size);

    if (!frame) {
        gk_words_set(words, "no memory for a frame of %zu bytes", part->size);
        return GK_E_NOMEM;
    }
    msg->frame[msg->frames_count++] = frame;
    return GK_OK;
}

static enum gk_err part_from_wire(enum gk_part kind, struct gk_buf *part, struct gk_msg *msg,
                                  struct gk_words *words)
{
    const uint8_t nothing = 0;
    enum gk_err err = GK_OK;

    switch (kind) {
    case GK_PART_BODY:
        err = gk_record_unpack(gk_kind_rule(msg->h.kind)->body, part->size ? part->data : &nothing,
                               part->size, &msg->body, words);
        return err ? err : gk_body_check(msg, words);
    case GK_PART_TEXT:
        return text_from_wire(part, &msg->words, words);
    case GK_PART_JSON:
        err = json_check(part, words);
        break;
    case GK_PART_INDICES:
        err = gk_indices_check(part->data, msg->h.count, msg->h.hi - msg->h.lo, words);
        break;
    case GK_PART_VALUES:
        err = gk_values_check(part->data, msg->h.count, words);
        break;
    case GK_PART_SPEC:
        break; /* gk_spec_decode() judges it */
    }
    return err ? err : keep_frame(part, msg, words);
}

static enum gk_err parts_from_wire(struct gk_buf *const *parts, uint32_t count, struct gk_msg *msg,
                                   struct gk_words *words)
{
    struct gk_parts_rule rule;
    enum gk_err err;

    gk_parts_of(&msg->h, &rule);
    err = check_parts(&msg->h, &rule, parts, count, words);
    for (uint32_t i = 0; !err && i < count; i++) {
        err = part_from_wire(rule.parts[i].part, parts[i], msg, words);
    }
    return err;
}

/* Keep the header alone.  Whoever answers repeats rank and shard, and must not be led into sending
 * nonsense. */
static enum gk_err failed(enum gk_err err, struct gk_msg *msg, struct gk_words *words)
{
    struct gk_header header = msg->h;

    gk_msg_clear(msg);
    msg->h = header;
    msg->h.rank = header.rank < GK_WORKERS_MAX ? header.rank : GK_RANK_ANY;
    msg->h.shard = header.shard < GK_SERVERS_MAX ? header.shard : 0;
    if (gk_kind_rule(header.kind)) {
        gk_words_prefix(words, "%s: ", gk_kind_name(header.kind));
    }
    return err;
}

enum gk_err gk_msg_from_wire(struct gk_buf *const *parts, uint32_t parts_count,
                             struct gk_msg *ret_msg, struct gk_words *words)
{
    enum gk_err err;

    memset(ret_msg, 0, sizeof(*ret_msg));
    if (parts_count == 0) {
        gk_words_set(words, "a message without parts");
        return GK_E_CORRUPT;
    }
    err = header_from_wire(parts[0], &ret_msg->h, words);
    err = err ? err : gk_header_check(&ret_msg->h, words);
    if (!err && parts_count > GK_PARTS_MAX) {
        gk_words_set(words, "%" PRIu32 " parts, the limit is %d", parts_count, GK_PARTS_MAX);
        err = GK_E_LIMIT;
    }
    err = err ? err : parts_from_wire(parts + 1, parts_count - 1, ret_msg, words);
    return err ? failed(err, ret_msg, words) : GK_OK;
}

/* Words may quote a file or a peer: what is not printable UTF-8 becomes '?', what is too long is
 * cut. */
static struct gk_buf *text_to_wire(const char *text, size_t bytes_max)
{
    size_t bytes = strlen(text);
    struct gk_buf *part;

    if (bytes > bytes_max) {
        bytes = bytes_max;
        while (bytes > 0 && ((uint8_t)text[bytes] & 0xc0) == 0x80) {
            bytes--; /* never in the middle of a character */
        }
    }
    part = gk_buf_copy(text, bytes);
    for (size_t good = 0; part && good < bytes;) {
        good += gk_text_good(part->data + good, bytes - good, false);
        if (good < bytes) {
            part->data[good++] = '?';
        }
    }
    return part;
}

static struct gk_buf *body_to_wire(const struct gk_msg *msg)
{
    uint8_t bytes[GK_RECORD_BYTES_MAX];
    size_t count = gk_record_pack(gk_kind_rule(msg->h.kind)->body, &msg->body, bytes);

    GK_ASSERT(count <= GK_BODY_BYTES_MAX);
    return gk_buf_copy(bytes, count);
}

static struct gk_buf *header_to_wire(const struct gk_header *header)
{
    uint8_t bytes[HEAD_BYTES + GK_RECORD_BYTES_MAX];
    size_t count = gk_record_pack(GK_RECORD_HEADER, header, bytes + HEAD_BYTES);

    GK_ASSERT(HEAD_BYTES + count <= GK_HEADER_BYTES_MAX);
    memcpy(bytes, magic, MAGIC_BYTES);
    gk_put_u32(bytes + MAGIC_BYTES, gk_crc32c(bytes + HEAD_BYTES, count));
    return gk_buf_copy(bytes, HEAD_BYTES + count);
}

/* Our own messages obey the rules that peers are held to; the assertion says which one was broken.
 */
static void must_hold(enum gk_err err, const struct gk_words *words, int line)
{
    if (err) {
        gk_assert_failed(words->text, __FILE__, line);
    }
}

static struct gk_buf *words_to_wire(const struct gk_msg *msg, const struct gk_part_rule *part)
{
    const char *text = msg->words.text;

    GK_ASSERT(text[0]);
    GK_ASSERT(msg->h.kind != GK_KIND_HELLO || strlen(text) <= part->bytes_max);
    return text_to_wire(text, part->bytes_max);
}

/* The next array frame of the message, by reference. */
static struct gk_buf *frame_to_wire(const struct gk_msg *msg, uint32_t frame,
                                    const struct gk_part_rule *part)
{
    GK_ASSERT(frame < msg->frames_count && msg->frame[frame]);
    GK_ASSERT(msg->frame[frame]->size >= part->bytes_min);
    GK_ASSERT(msg->frame[frame]->size <= part->bytes_max);
    return gk_buf_ref(msg->frame[frame]);
}

/* The parts behind the header, one reference each, and their CRCs; *ret_count of them also on
 * failure. */
static enum gk_err parts_to_wire(const struct gk_msg *msg, struct gk_buf **ret_parts,
                                 uint32_t *ret_crcs, uint32_t *ret_count)
{
    struct gk_parts_rule rule;
    uint32_t frames = 0;

    gk_parts_of(&msg->h, &rule);
    *ret_count = 0;
    for (uint32_t i = 0; i < rule.count; i++) {
        const struct gk_part_rule *part = &rule.parts[i];
        struct gk_buf *buf;
        uint32_t crc = 0;

        if (part->part == GK_PART_TEXT && !msg->words.text[0] && rule.optional > 0) {
            continue;
        }
        if (part->part == GK_PART_BODY) {
            buf = body_to_wire(msg);
        } else if (part->part == GK_PART_TEXT) {
            buf = words_to_wire(msg, part);
        } else {
            buf = frame_to_wire(msg, frames, part);
            crc = msg->known_crc[frames++];
        }
        if (!buf) {
            return GK_E_NOMEM;
        }
        ret_crcs[*ret_count] = crc ? crc : gk_crc32c(buf->data, buf->size);
        ret_parts[(*ret_count)++] = buf;
    }
    GK_ASSERT(frames == msg->frames_count);
    return GK_OK;
}

enum gk_err gk_msg_to_wire(const struct gk_msg *msg, struct gk_buf **ret_parts,
                           uint32_t *ret_parts_count)
{
    struct gk_buf *parts[GK_PARTS_MAX] = {0};
    struct gk_header header = msg->h;
    struct gk_words words;
    uint32_t count;
    enum gk_err err;

    memset(header.frame_crc, 0, sizeof(header.frame_crc));
    must_hold(gk_header_check(&header, &words), &words, __LINE__);
    must_hold(gk_body_check(msg, &words), &words, __LINE__);
    err = parts_to_wire(msg, parts + 1, header.frame_crc, &count);
    parts[0] = err ? NULL : header_to_wire(&header);
    if (!parts[0]) {
        for (uint32_t i = 0; i < count; i++) {
            gk_buf_unref(parts[i + 1]);
        }
        return GK_E_NOMEM;
    }
    for (uint32_t i = 0; i <= count; i++) {
        ret_parts[i] = parts[i];
    }
    *ret_parts_count = count + 1;
    return GK_OK;
}

void gk_msg_clear(struct gk_msg *msg)
{
    for (uint32_t i = 0; i < msg->frames_count; i++) {
        gk_buf_unref(msg->frame[i]);
    }
    memset(msg, 0, sizeof(*msg));
}
