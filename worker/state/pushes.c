/* Pushes in the ring of the file: a head, the table of slices, the table of chunks, the arrays. */
#include "common/assert.h"
#include "common/bits.h"
#include "common/hash.h"
#include "proto/spec.h"
#include "worker/state/format.h"

#include <stdlib.h>
#include <string.h>

/* A shard's slice takes 8 bytes an entry, or, where that is less, 4 bytes a parameter. */
static uint64_t arrays_bytes_max(const struct gk_slot_header *header)
{
    return gk_min_u64(8 * header->push_max, 4 * header->params_count);
}

static uint64_t chunks_max(const struct gk_slot_header *header)
{
    return header->servers + 2 * header->push_max / header->chunk_floats + 1;
}

uint64_t gk_slot_entry_bytes(const struct gk_slot_header *header)
{
    return sizeof(struct gk_slot_push) + header->servers * sizeof(struct gk_slot_slice) +
           chunks_max(header) * sizeof(struct gk_slot_chunk) + arrays_bytes_max(header);
}

/* The size of each array follows from the encoding. */
static uint64_t frame_bytes(uint32_t index_encoding, uint64_t count, uint32_t frame)
{
    uint32_t frames = index_encoding == GK_INDEX_RAW32 ? 2 : index_encoding == GK_INDEX_DENSE;

    return frame < frames ? count * sizeof(float) : 0;
}

static uint64_t body_bytes(const struct gk_push *push, uint32_t *ret_chunks)
{
    uint64_t bytes = push->slices_count * sizeof(struct gk_slot_slice);

    *ret_chunks = 0;
    for (uint32_t s = 0; s < push->slices_count; s++) {
        *ret_chunks += push->slices[s].chunks_count;
        bytes +=
            push->slices[s].chunks_count * sizeof(struct gk_slot_chunk) + push->slices[s].bytes;
    }
    return bytes;
}

static uint8_t *put_bytes(uint8_t *at, const void *bytes, size_t size)
{
    memcpy(at, bytes, size);
    return at + size;
}

static uint8_t *put_slice(uint8_t *at, const struct gk_push_slice *slice)
{
    struct gk_slot_slice record = {.id = slice->id, .chunks = slice->chunks_count};

    return put_bytes(at, &record, sizeof(record));
}

static uint8_t *put_chunk(uint8_t *at, const struct gk_push_chunk *chunk)
{
    struct gk_slot_chunk record = {.lo = chunk->lo,
                                   .hi = chunk->hi,
                                   .count = chunk->count,
                                   .index_encoding = chunk->index_encoding};

    return put_bytes(at, &record, sizeof(record));
}

static uint8_t *put_arrays(uint8_t *at, const struct gk_push_slice *slice)
{
    for (uint32_t c = 0; c < slice->chunks_count; c++) {
        for (uint32_t f = 0; f < slice->chunks[c].frames_count; f++) {
            at = put_bytes(at, slice->chunks[c].frame[f]->data, slice->chunks[c].frame[f]->size);
        }
    }
    return at;
}

static uint8_t *put_body(const struct gk_slot *slot, uint8_t *at, const struct gk_push *push)
{
    for (uint32_t s = 0; s < push->slices_count; s++) {
        at = put_slice(at, &push->slices[s]);
    }
    for (uint32_t s = 0; s < push->slices_count; s++) {
        for (uint32_t c = 0; c < push->slices[s].chunks_count; c++) {
            at = put_chunk(at, &push->slices[s].chunks[c]);
        }
    }
    gk_slot_say(slot, "half a push");
    for (uint32_t s = 0; s < push->slices_count; s++) {
        at = put_arrays(at, &push->slices[s]);
    }
    return at;
}

enum gk_err gk_slot_push_write(const struct gk_slot *slot, const struct gk_push *push, uint64_t seq,
                               struct gk_words *words)
{
    uint8_t *at = gk_slot_entry_at(slot, push->step);
    struct gk_slot_push head = {.seal = {.seq = seq, .kind = GK_SLOT_RECORD_PUSH},
                                .step = push->step,
                                .samples = push->samples,
                                .slices = push->slices_count,
                                .has_rate = push->has_rate,
                                .lr_bits = push->lr_bits};
    uint8_t *end;

    GK_ASSERT(push->slices_count == slot->header.servers);
    head.body_bytes = body_bytes(push, &head.chunks);
    if (sizeof(head) + head.body_bytes > slot->header.entry_bytes) {
        gk_words_set(words,
                     "the push of step %llu takes %llu bytes, the slot has room for %llu: the job "
                     "spec allows %llu entries",
                     (unsigned long long)push->step, (unsigned long long)head.body_bytes,
                     (unsigned long long)(slot->header.entry_bytes - sizeof(head)),
                     (unsigned long long)slot->header.push_max);
        return GK_E_LIMIT;
    }
    gk_slot_unseal(slot, at);
    end = put_body(slot, at + sizeof(head), push);
    GK_ASSERT(end == at + sizeof(head) + head.body_bytes);
    head.body_crc = gk_crc32c(at + sizeof(head), head.body_bytes);
    gk_slot_seal(slot, at, &head, sizeof(head));
    return GK_OK;
}

struct reader { /* of a body whose CRC was right */
    const uint8_t *at;
    uint64_t left;
};

static bool take(struct reader *reader, void *ret, uint64_t size)
{
    if (size > reader->left) {
        return false;
    }
    memcpy(ret, reader->at, size);
    reader->at += size;
    reader->left -= size;
    return true;
}

/* As a message may carry it: indices that rise and stay inside, values that are finite. */
static bool is_content(const struct gk_push_chunk *chunk)
{
    bool sparse = chunk->index_encoding == GK_INDEX_RAW32;
    const struct gk_buf *values = sparse ? chunk->frame[1] : chunk->frame[0];

    for (uint64_t i = 0; sparse && i < chunk->count; i++) {
        uint32_t index = gk_get_u32(chunk->frame[0]->data + i * sizeof(index));

        if (index >= chunk->hi - chunk->lo ||
            (i > 0 && index <= gk_get_u32(chunk->frame[0]->data + (i - 1) * sizeof(index)))) {
            return false;
        }
    }
    for (uint64_t i = 0; i < chunk->count; i++) {
        if ((gk_get_u32(values->data + i * sizeof(float)) & GK_KEY_MASK) >= GK_KEY_NONFINITE) {
            return false;
        }
    }
    return true;
}

static enum gk_err take_frames(struct reader *reader, struct gk_push_chunk *chunk)
{
    for (uint32_t f = 0; f < 2 && frame_bytes(chunk->index_encoding, chunk->count, f) > 0; f++) {
        uint64_t size = frame_bytes(chunk->index_encoding, chunk->count, f);

        if (size > reader->left) {
            return GK_E_CORRUPT;
        }
        chunk->frame[f] = gk_buf_copy(reader->at, size);
        if (!chunk->frame[f]) {
            return GK_E_NOMEM;
        }
        chunk->frames_count = f + 1;
        reader->at += size;
        reader->left -= size;
    }
    return is_content(chunk) ? GK_OK : GK_E_CORRUPT;
}

/* Chunks tile the shard; one without arrays has no entries. */
static bool is_chunk(const struct gk_slot_chunk *chunk, uint64_t lo, uint64_t shard_hi)
{
    uint64_t length = chunk->hi - chunk->lo;
    bool counted;

    if (chunk->index_encoding == GK_INDEX_DENSE) {
        counted = chunk->count == length;
    } else if (chunk->index_encoding == GK_INDEX_RAW32) {
        counted = chunk->count > 0 && chunk->count <= length;
    } else {
        counted = chunk->index_encoding == GK_INDEX_NONE && chunk->count == 0;
    }
    return chunk->lo == lo && chunk->hi > lo && chunk->hi <= shard_hi && counted;
}

static enum gk_err take_slices(struct reader *reader, struct gk_push *push, uint32_t chunks)
{
    uint64_t all = 0;

    if (chunks > reader->left / sizeof(struct gk_slot_chunk)) {
        return GK_E_CORRUPT; /* their table would not fit: nothing is allocated for it */
    }
    for (uint32_t s = 0; s < push->slices_count; s++) {
        struct gk_slot_slice record;

        if (!take(reader, &record, sizeof(record)) || record.id == 0 || record.chunks == 0 ||
            record.chunks > chunks) {
            return GK_E_CORRUPT;
        }
        push->slices[s].id = record.id;
        push->slices[s].chunks = calloc(record.chunks, sizeof(*push->slices[s].chunks));
        if (!push->slices[s].chunks) {
            return GK_E_NOMEM;
        }
        push->slices[s].chunks_count = record.chunks;
        all += record.chunks;
    }
    return all == chunks ? GK_OK : GK_E_CORRUPT;
}

static enum gk_err take_chunks(struct reader *reader, const struct gk_slot_header *header,
                               struct gk_push *push, uint32_t s)
{
    struct gk_push_slice *slice = &push->slices[s];
    uint64_t lo = gk_partition_lo(header->params_count, header->servers, s);
    uint64_t hi = gk_partition_lo(header->params_count, header->servers, s + 1);

    for (uint32_t c = 0; c < slice->chunks_count; c++) {
        struct gk_slot_chunk record;

        if (!take(reader, &record, sizeof(record)) || !is_chunk(&record, lo, hi) ||
            record.count > header->chunk_floats) {
            return GK_E_CORRUPT;
        }
        slice->chunks[c].lo = record.lo;
        slice->chunks[c].hi = record.hi;
        slice->chunks[c].count = record.count;
        slice->chunks[c].index_encoding = record.index_encoding;
        lo = record.hi;
    }
    return lo == hi ? GK_OK : GK_E_CORRUPT;
}

static enum gk_err take_body(struct reader *reader, const struct gk_slot_header *header,
                             struct gk_push *push, uint32_t chunks)
{
    enum gk_err err = take_slices(reader, push, chunks);

    for (uint32_t s = 0; !err && s < push->slices_count; s++) {
        err = take_chunks(reader, header, push, s);
    }
    for (uint32_t s = 0; !err && s < push->slices_count; s++) {
        struct gk_push_slice *slice = &push->slices[s];

        for (uint32_t c = 0; !err && c < slice->chunks_count; c++) {
            err = take_frames(reader, &slice->chunks[c]);
            for (uint32_t f = 0; f < slice->chunks[c].frames_count; f++) {
                slice->bytes += slice->chunks[c].frame[f]->size;
            }
        }
    }
    return err || reader->left == 0 ? err : GK_E_CORRUPT;
}

/* The push that a head describes: every slice must have the id that it was given when it was made.
 */
static enum gk_err read_body(const struct gk_slot *slot, const struct gk_slot_push *head,
                             struct gk_push **ret_push)
{
    struct reader reader = {.at = (uint8_t *)gk_slot_entry_at(slot, head->step) + sizeof(*head),
                            .left = head->body_bytes};
    struct gk_push *push = calloc(1, sizeof(*push));
    enum gk_err err = GK_E_NOMEM;

    if (!push) {
        return GK_E_NOMEM;
    }
    push->step = head->step;
    push->samples = head->samples;
    push->has_rate = head->has_rate == 1;
    push->lr_bits = head->lr_bits;
    push->slices = calloc(head->slices, sizeof(*push->slices));
    if (push->slices) {
        push->slices_count = head->slices;
        err = take_body(&reader, &slot->header, push, head->chunks);
    }
    for (uint32_t s = 0; !err && s < push->slices_count; s++) {
        if (gk_push_slice_id(push, s, slot->identity.rank) != push->slices[s].id) {
            err = GK_E_CORRUPT;
        }
    }
    if (err) {
        gk_push_free(push);
        return err;
    }
    *ret_push = push;
    return GK_OK;
}

/* Flips count seq and step alike, so a push of this memory stands as far behind in both. */
static bool belongs(const struct gk_slot_push *head, const struct gk_slot_residual *memory,
                    uint64_t step)
{
    uint64_t behind = memory->step - step;

    return head->step == step && head->seal.seq + behind == memory->seal.seq;
}

/* As a message may carry it. */
static bool is_rate(const struct gk_slot_push *head)
{
    return head->has_rate == 1 ? gk_rate_good(gk_bits_float(head->lr_bits))
                               : head->has_rate == 0 && head->lr_bits == 0;
}

enum gk_err gk_slot_push_read(const struct gk_slot *slot, const struct gk_slot_residual *memory,
                              uint64_t step, struct gk_push **ret_push, struct gk_words *words)
{
    const uint8_t *at = gk_slot_entry_at(slot, step);
    struct gk_slot_push head;
    bool whole = gk_slot_unsealed(at, GK_SLOT_RECORD_PUSH, &head, sizeof(head));
    enum gk_err err;

    if (head.seal.seq == 0 || (whole && !belongs(&head, memory, step))) {
        return GK_E_NOTFOUND;
    }
    err = whole && is_rate(&head) && head.slices == slot->header.servers &&
                  head.body_bytes <= slot->header.entry_bytes - sizeof(head) &&
                  gk_crc32c(at + sizeof(head), head.body_bytes) == head.body_crc
              ? read_body(slot, &head, ret_push)
              : GK_E_CORRUPT;
    if (err == GK_E_CORRUPT) {
        gk_words_set(words, "the push of step %llu is damaged at offset %llu",
                     (unsigned long long)step, (unsigned long long)(at - slot->map));
    }
    return err;
}
