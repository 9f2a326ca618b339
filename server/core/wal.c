#include "server/core/wal.h"

#include "common/assert.h"
#include "common/bits.h"
#include "common/hash.h"

#include <inttypes.h>
#include <string.h>

static const uint8_t segment_magic[2][4] = {{'G', 'K', 'P', 'L'}, {'G', 'K', 'P', 'J'}};
static const uint8_t record_magic[4] = {'G', 'K', 'P', 'R'};
static const uint8_t zeros[GK_WAL_ALIGN];

enum { FLAG_HASHED = 1, FLAG_DENSE = 2 };

enum { /* offsets in a segment's header */
       SEGMENT_FORMAT = 4,
       SEGMENT_SHARD = 8,
       SEGMENT_SERVERS = 12,
       SEGMENT_WORKERS = 16,
       SEGMENT_EPOCH = 20,
       SEGMENT_FIRST_VERSION = 24,
       SEGMENT_FIRST_NUMBER = 32,
       SEGMENT_JOB = 40,
       SEGMENT_REST = SEGMENT_JOB + GK_JOB_NAME_BYTES,
       SEGMENT_CRC = GK_WAL_SEGMENT_BYTES - 4,
};

enum { /* offsets in a record's header */
       AT_FORMAT = 4,
       AT_TYPE = 6,
       AT_BYTES = 8,
       AT_UID = 16,
       AT_EPOCH = 32,
       AT_ROWS = 36,
       AT_VERSION = 40,
       AT_NUMBER = 48,
       AT_SYNCED = 56,
       AT_PREVIOUS = 64,
       AT_FLAGS = 68,
       AT_STATE_HASH = 72,
       AT_STEP = 80,
       AT_OPTIMIZER_STEP = 88,
       AT_SAMPLES = 96,
       AT_COUNT = 104,
       AT_OPTIMIZER = 112,
       AT_HYPER = 116,
       AT_INCARNATION = 144,
       AT_REST = 148,
       AT_PAYLOAD_CRC = 184,
       AT_CRC = 188,
};

static uint64_t padded(uint64_t bytes)
{
    return (bytes + GK_WAL_ALIGN - 1) / GK_WAL_ALIGN * GK_WAL_ALIGN;
}

static void put_u16(uint8_t *at, uint16_t x)
{
    memcpy(at, &x, sizeof(x));
}

static uint16_t get_u16(const uint8_t *at)
{
    uint16_t x;

    memcpy(&x, at, sizeof(x));
    return x;
}

static bool all_zero(const uint8_t *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (bytes[i] != 0) {
            return false;
        }
    }
    return true;
}

static enum gk_err bad(struct gk_words *words, const char *what)
{
    gk_words_set(words, "%s", what);
    return GK_E_CORRUPT;
}

uint32_t gk_wal_segment_encode(const struct gk_wal_segment *segment, enum gk_wal_file kind,
                               uint8_t ret[GK_WAL_SEGMENT_BYTES])
{
    size_t length = strlen(segment->job);
    uint32_t crc;

    GK_ASSERT(length < GK_JOB_NAME_BYTES);
    memset(ret, 0, GK_WAL_SEGMENT_BYTES);
    memcpy(ret, segment_magic[kind], sizeof(segment_magic[kind]));
    put_u16(ret + SEGMENT_FORMAT, GK_WAL_FORMAT);
    gk_put_u32(ret + SEGMENT_SHARD, segment->shard);
    gk_put_u32(ret + SEGMENT_SERVERS, segment->servers);
    gk_put_u32(ret + SEGMENT_WORKERS, segment->workers);
    gk_put_u32(ret + SEGMENT_EPOCH, segment->epoch);
    gk_put_u64(ret + SEGMENT_FIRST_VERSION, segment->first_version);
    gk_put_u64(ret + SEGMENT_FIRST_NUMBER, segment->first_number);
    memcpy(ret + SEGMENT_JOB, segment->job, length);
    crc = gk_crc32c(ret, SEGMENT_CRC);
    gk_put_u32(ret + SEGMENT_CRC, crc);
    return crc;
}

enum gk_err gk_wal_segment_decode(const uint8_t bytes[GK_WAL_SEGMENT_BYTES], enum gk_wal_file kind,
                                  struct gk_wal_segment *ret, uint32_t *ret_crc,
                                  struct gk_words *words)
{
    uint32_t crc = gk_get_u32(bytes + SEGMENT_CRC);
    struct gk_wal_segment segment = {0};

    if (memcmp(bytes, segment_magic[kind], sizeof(segment_magic[kind])) != 0) {
        return bad(words, "no file header");
    }
    if (gk_crc32c(bytes, SEGMENT_CRC) != crc) {
        return bad(words, "the checksum of the file header is wrong");
    }
    if (get_u16(bytes + SEGMENT_FORMAT) != GK_WAL_FORMAT) {
        gk_words_set(words, "format %" PRIu16 ", this program knows %d",
                     get_u16(bytes + SEGMENT_FORMAT), (int)GK_WAL_FORMAT);
        return GK_E_UNSUPPORTED;
    }
    if (get_u16(bytes + SEGMENT_FORMAT + 2) != 0 || bytes[SEGMENT_REST - 1] != 0 ||
        !all_zero(bytes + SEGMENT_REST, SEGMENT_CRC - SEGMENT_REST)) {
        return bad(words, "the file header holds what this format does not have");
    }
    segment.shard = gk_get_u32(bytes + SEGMENT_SHARD);
    segment.servers = gk_get_u32(bytes + SEGMENT_SERVERS);
    segment.workers = gk_get_u32(bytes + SEGMENT_WORKERS);
    segment.epoch = gk_get_u32(bytes + SEGMENT_EPOCH);
    segment.first_version = gk_get_u64(bytes + SEGMENT_FIRST_VERSION);
    segment.first_number = gk_get_u64(bytes + SEGMENT_FIRST_NUMBER);
    memcpy(segment.job, bytes + SEGMENT_JOB, GK_JOB_NAME_BYTES);
    *ret = segment;
    *ret_crc = crc;
    return GK_OK;
}

static uint32_t rows_of(const struct gk_record *record)
{
    return record->type == GK_RECORD_MEMBER ? record->members_count : record->contributions_count;
}

static uint64_t size_of(uint32_t rows, bool dense, uint64_t count)
{
    return GK_WAL_HEADER_BYTES + padded((uint64_t)rows * GK_WAL_ROW_BYTES) +
           (dense ? 0 : padded(count * sizeof(uint32_t))) + padded(count * sizeof(float));
}

uint64_t gk_wal_bytes(const struct gk_record *record)
{
    return size_of(rows_of(record), !record->idx, record->count);
}

size_t gk_wal_scratch_bytes(uint32_t workers)
{
    return GK_WAL_HEADER_BYTES + (size_t)padded((uint64_t)workers * GK_WAL_ROW_BYTES);
}

static void put_contribution(uint8_t *at, const struct gk_contribution *c)
{
    gk_put_u32(at, c->rank);
    gk_put_u32(at + 4, c->incarnation);
    gk_put_u64(at + 8, c->step);
    gk_put_u64(at + 16, c->base_version);
    gk_put_u64(at + 24, c->samples);
    gk_put_u64(at + 32, c->push_id);
    gk_put_u32(at + 40, c->verdict);
}

static void get_contribution(const uint8_t *at, struct gk_contribution *ret)
{
    *ret = (struct gk_contribution){
        .rank = gk_get_u32(at),
        .incarnation = gk_get_u32(at + 4),
        .step = gk_get_u64(at + 8),
        .base_version = gk_get_u64(at + 16),
        .samples = gk_get_u64(at + 24),
        .push_id = gk_get_u64(at + 32),
        .verdict = gk_get_u32(at + 40),
    };
}

void gk_wal_row_encode(const struct gk_rank_row *row, uint32_t rank, uint8_t *at)
{
    gk_put_u32(at, rank);
    gk_put_u32(at + 4, row->incarnation);
    gk_put_u64(at + 8, row->life_nonce);
    gk_put_u32(at + 16, row->verdict);
    gk_put_u32(at + 20, row->verdict_incarnation);
    gk_put_u64(at + 24, row->verdict_step);
    gk_put_u64(at + 32, row->left_at);
    gk_put_u32(at + 40, row->left);
    gk_put_u32(at + 44, 0);
}

enum gk_err gk_wal_row_decode(const uint8_t *at, struct gk_member_entry *ret,
                              struct gk_words *words)
{
    if (gk_get_u32(at + 40) > 1 || gk_get_u32(at + 44) != 0) {
        return bad(words, "a rank has neither left nor stayed");
    }
    *ret = (struct gk_member_entry){
        .rank = gk_get_u32(at),
        .row =
            {
                .incarnation = gk_get_u32(at + 4),
                .life_nonce = gk_get_u64(at + 8),
                .verdict = gk_get_u32(at + 16),
                .verdict_incarnation = gk_get_u32(at + 20),
                .verdict_step = gk_get_u64(at + 24),
                .left_at = gk_get_u64(at + 32),
                .left = gk_get_u32(at + 40) == 1,
            },
    };
    return GK_OK;
}

static void put_hyper(uint8_t *at, const struct gk_hyper *hyper)
{
    const float list[] = {hyper->lr,    hyper->momentum, hyper->beta2,       hyper->epsilon,
                          hyper->bias1, hyper->bias2,    hyper->weight_decay};

    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
        gk_put_u32(at + 4 * i, gk_float_bits(list[i]));
    }
}

static void get_hyper(const uint8_t *at, struct gk_hyper *ret)
{
    float *const list[] = {&ret->lr,    &ret->momentum, &ret->beta2,       &ret->epsilon,
                           &ret->bias1, &ret->bias2,    &ret->weight_decay};

    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
        *list[i] = gk_bits_float(gk_get_u32(at + 4 * i));
    }
}

static void put_head(uint8_t *at, const struct gk_record *record, const struct gk_wal_place *place)
{
    memset(at, 0, GK_WAL_HEADER_BYTES);
    memcpy(at, record_magic, sizeof(record_magic));
    put_u16(at + AT_FORMAT, GK_WAL_FORMAT);
    put_u16(at + AT_TYPE, (uint16_t)record->type);
    gk_put_u64(at + AT_BYTES, gk_wal_bytes(record));
    gk_put_u64(at + AT_UID, record->job_uid.hi);
    gk_put_u64(at + AT_UID + 8, record->job_uid.lo);
    gk_put_u32(at + AT_EPOCH, record->epoch);
    gk_put_u32(at + AT_ROWS, rows_of(record));
    gk_put_u64(at + AT_VERSION, record->version);
    gk_put_u64(at + AT_NUMBER, place->number);
    gk_put_u64(at + AT_SYNCED, place->synced);
    gk_put_u32(at + AT_PREVIOUS, place->previous_crc);
    if (record->type == GK_RECORD_ROUND) {
        gk_put_u32(at + AT_FLAGS,
                   (record->hashed ? FLAG_HASHED : 0u) | (record->idx ? 0u : FLAG_DENSE));
        gk_put_u64(at + AT_STATE_HASH, record->hashed ? record->state_hash : 0);
        gk_put_u64(at + AT_STEP, record->step);
        gk_put_u64(at + AT_OPTIMIZER_STEP, record->optimizer_step);
        gk_put_u64(at + AT_SAMPLES, record->samples);
        gk_put_u64(at + AT_COUNT, record->count);
        gk_put_u32(at + AT_OPTIMIZER, record->optimizer);
        put_hyper(at + AT_HYPER, &record->hyper);
    } else if (record->type == GK_RECORD_LIFE) {
        gk_put_u32(at + AT_INCARNATION, record->incarnation);
    }
}

static void add_piece(struct gk_wal_piece *pieces, uint32_t *count, const void *data, uint64_t size)
{
    if (size > 0) {
        pieces[(*count)++] = (struct gk_wal_piece){data, (size_t)size};
    }
}

static void add_padded(struct gk_wal_piece *pieces, uint32_t *count, const void *data,
                       uint64_t size)
{
    add_piece(pieces, count, data, size);
    add_piece(pieces, count, zeros, padded(size) - size);
}

uint32_t gk_wal_encode(const struct gk_record *record, const struct gk_wal_place *place,
                       uint8_t *scratch, struct gk_wal_piece ret_pieces[GK_WAL_PIECES_MAX],
                       uint32_t *ret_count)
{
    uint8_t *rows = scratch + GK_WAL_HEADER_BYTES;
    uint64_t rows_bytes = padded((uint64_t)rows_of(record) * GK_WAL_ROW_BYTES);
    uint32_t count = 0, crc;

    GK_ASSERT(record->type != GK_RECORD_INIT);
    put_head(scratch, record, place);
    memset(rows, 0, (size_t)rows_bytes);
    for (uint32_t i = 0; i < rows_of(record); i++) {
        if (record->type == GK_RECORD_MEMBER) {
            gk_wal_row_encode(&record->members[i].row, record->members[i].rank,
                              rows + (size_t)i * GK_WAL_ROW_BYTES);
        } else {
            put_contribution(rows + (size_t)i * GK_WAL_ROW_BYTES, &record->contributions[i]);
        }
    }
    add_piece(ret_pieces, &count, scratch, GK_WAL_HEADER_BYTES + rows_bytes);
    add_padded(ret_pieces, &count, record->idx, record->idx ? record->count * 4 : 0);
    add_padded(ret_pieces, &count, record->val, record->count * 4);
    crc = gk_crc32c(rows, (size_t)rows_bytes);
    for (uint32_t i = 1; i < count; i++) {
        crc = gk_crc32c_more(crc, ret_pieces[i].data, ret_pieces[i].size);
    }
    gk_put_u32(scratch + AT_PAYLOAD_CRC, crc);
    crc = gk_crc32c(scratch, AT_CRC);
    gk_put_u32(scratch + AT_CRC, crc);
    *ret_count = count;
    return crc;
}

/* Fields that a type does not have are zero, and its size follows from the others. */
static enum gk_err check_head(const uint8_t *at, const struct gk_wal_head *head,
                              struct gk_words *words)
{
    const struct gk_record *record = &head->record;
    bool round = record->type == GK_RECORD_ROUND;
    bool member = record->type == GK_RECORD_MEMBER;
    bool life = record->type == GK_RECORD_LIFE;

    if (!round && !member && !life && record->type != GK_RECORD_FINISHED) {
        gk_words_set(words, "a record of unknown type %" PRIu32, record->type);
        return GK_E_CORRUPT;
    }
    if (!all_zero(at + AT_REST, AT_PAYLOAD_CRC - AT_REST) || gk_get_u32(at + AT_FLAGS) > 3 ||
        (!round && !all_zero(at + AT_FLAGS, AT_INCARNATION - AT_FLAGS)) ||
        (!life && gk_get_u32(at + AT_INCARNATION) != 0) ||
        (!record->hashed && record->state_hash != 0)) {
        return bad(words, "the record's header holds what its type does not have");
    }
    if (head->rows > GK_WORKERS_MAX || (head->rows > 0 && !round && !member)) {
        gk_words_set(words, "a record with %" PRIu32 " ranks", head->rows);
        return GK_E_CORRUPT;
    }
    if (record->count > UINT32_MAX ||
        head->bytes != size_of(head->rows, head->dense, record->count)) {
        gk_words_set(words, "a record of %" PRIu64 " bytes does not hold what it says",
                     head->bytes);
        return GK_E_CORRUPT;
    }
    return GK_OK;
}

enum gk_err gk_wal_head_decode(const uint8_t bytes[GK_WAL_HEADER_BYTES], struct gk_wal_head *ret,
                               struct gk_words *words)
{
    struct gk_wal_head head = {0};
    struct gk_record *record = &head.record;
    uint32_t flags = gk_get_u32(bytes + AT_FLAGS);
    enum gk_err err;

    if (memcmp(bytes, record_magic, sizeof(record_magic)) != 0) {
        return bad(words, "no record");
    }
    head.crc = gk_get_u32(bytes + AT_CRC);
    if (gk_crc32c(bytes, AT_CRC) != head.crc) {
        return bad(words, "the checksum of the record's header is wrong");
    }
    if (get_u16(bytes + AT_FORMAT) != GK_WAL_FORMAT) {
        gk_words_set(words, "a record of format %" PRIu16 ", this program knows %d",
                     get_u16(bytes + AT_FORMAT), (int)GK_WAL_FORMAT);
        return GK_E_UNSUPPORTED;
    }
    record->type = get_u16(bytes + AT_TYPE);
    record->job_uid = (struct gk_uid){gk_get_u64(bytes + AT_UID), gk_get_u64(bytes + AT_UID + 8)};
    record->epoch = gk_get_u32(bytes + AT_EPOCH);
    record->version = gk_get_u64(bytes + AT_VERSION);
    record->hashed = (flags & FLAG_HASHED) != 0;
    record->state_hash = gk_get_u64(bytes + AT_STATE_HASH);
    record->step = gk_get_u64(bytes + AT_STEP);
    record->optimizer_step = gk_get_u64(bytes + AT_OPTIMIZER_STEP);
    record->samples = gk_get_u64(bytes + AT_SAMPLES);
    record->count = gk_get_u64(bytes + AT_COUNT);
    record->optimizer = gk_get_u32(bytes + AT_OPTIMIZER);
    get_hyper(bytes + AT_HYPER, &record->hyper);
    record->incarnation = gk_get_u32(bytes + AT_INCARNATION);
    head.bytes = gk_get_u64(bytes + AT_BYTES);
    head.rows = gk_get_u32(bytes + AT_ROWS);
    head.dense = record->type != GK_RECORD_ROUND || (flags & FLAG_DENSE) != 0;
    head.payload_crc = gk_get_u32(bytes + AT_PAYLOAD_CRC);
    head.place = (struct gk_wal_place){
        .previous_crc = gk_get_u32(bytes + AT_PREVIOUS),
        .number = gk_get_u64(bytes + AT_NUMBER),
        .synced = gk_get_u64(bytes + AT_SYNCED),
    };
    err = check_head(bytes, &head, words);
    if (!err) {
        *ret = head;
    }
    return err;
}

enum gk_err gk_wal_decode(const struct gk_wal_head *head, const uint8_t *payload,
                          struct gk_wal_rows *rows, struct gk_record *ret, struct gk_words *words)
{
    struct gk_record record = head->record;
    const uint8_t *at = payload + padded((uint64_t)head->rows * GK_WAL_ROW_BYTES);
    enum gk_err err = GK_OK;

    GK_ASSERT((uintptr_t)payload % GK_WAL_ALIGN == 0);
    if (gk_crc32c(payload, (size_t)(head->bytes - GK_WAL_HEADER_BYTES)) != head->payload_crc) {
        return bad(words, "the checksum of the record is wrong");
    }
    for (uint32_t i = 0; i < head->rows && !err; i++) {
        const uint8_t *row = payload + (size_t)i * GK_WAL_ROW_BYTES;

        if (record.type == GK_RECORD_MEMBER) {
            err = gk_wal_row_decode(row, &rows->members[i], words);
        } else {
            get_contribution(row, &rows->contributions[i]);
        }
    }
    if (err) {
        return err;
    }
    if (record.type == GK_RECORD_MEMBER) {
        record.members = rows->members;
        record.members_count = head->rows;
    } else if (record.type == GK_RECORD_ROUND) {
        record.contributions = rows->contributions;
        record.contributions_count = head->rows;
        if (!head->dense) {
            record.idx = (const uint32_t *)(const void *)at;
            at += padded(record.count * sizeof(uint32_t));
        }
        record.val = (const float *)(const void *)at;
    }
    *ret = record;
    return GK_OK;
}
