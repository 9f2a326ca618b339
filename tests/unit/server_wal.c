/* Goal: what is read from a log is what was written, and nothing else is ever taken for a record.
 * Method: every kind round trip; the bytes of one record and one segment header, pinned; every bit
 * of a record flipped; every field of a header that could lie made to, with its checksum mended. */
#include "store_job.h"

#include "common/hash.h"
#include "server/core/wal.h"

enum { BYTES_MAX = 64 * 1024 };

struct flat { /* a record as it lies on disk */
    uint8_t *bytes;
    uint64_t size;
    uint32_t crc;
};

static uint8_t flat_bytes[BYTES_MAX] __attribute__((aligned(GK_WAL_ALIGN)));
static struct gk_wal_rows rows;

static struct flat flatten(const struct gk_record *record, const struct gk_wal_place *place)
{
    static uint8_t scratch[BYTES_MAX];
    struct gk_wal_piece pieces[GK_WAL_PIECES_MAX];
    struct flat flat = {.bytes = flat_bytes};
    uint32_t count;

    cr_assert(gk_wal_scratch_bytes(JOB_WORKERS_MAX) <= sizeof(scratch));
    memset(scratch, 0xa5, sizeof(scratch));
    flat.crc = gk_wal_encode(record, place, scratch, pieces, &count);
    cr_assert(count <= GK_WAL_PIECES_MAX);
    for (uint32_t i = 0; i < count; i++) {
        cr_assert(flat.size + pieces[i].size <= BYTES_MAX);
        memcpy(flat.bytes + flat.size, pieces[i].data, pieces[i].size);
        flat.size += pieces[i].size;
    }
    cr_assert(flat.size == gk_wal_bytes(record) && flat.size % GK_WAL_ALIGN == 0);
    return flat;
}

static enum gk_err unflatten(const struct flat *flat, struct gk_record *ret,
                             struct gk_wal_head *head, struct gk_words *words)
{
    enum gk_err err = gk_wal_head_decode(flat->bytes, head, words);

    if (err) {
        return err;
    }
    if (head->bytes > flat->size) {
        gk_words_set(words, "longer than it was");
        return GK_E_CORRUPT;
    }
    return gk_wal_decode(head, flat->bytes + GK_WAL_HEADER_BYTES, &rows, ret, words);
}

static bool hyper_equals(const struct gk_hyper *a, const struct gk_hyper *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

static void equal(const struct gk_record *a, const struct gk_record *b)
{
    cr_assert(a->type == b->type && a->epoch == b->epoch && a->job_uid.hi == b->job_uid.hi &&
              a->job_uid.lo == b->job_uid.lo && a->version == b->version &&
              a->hashed == b->hashed && a->state_hash == b->state_hash &&
              a->incarnation == b->incarnation && a->step == b->step &&
              a->optimizer_step == b->optimizer_step && a->optimizer == b->optimizer &&
              a->samples == b->samples && a->contributions_count == b->contributions_count &&
              a->members_count == b->members_count && a->count == b->count && !a->idx == !b->idx &&
              hyper_equals(&a->hyper, &b->hyper));
    for (uint32_t i = 0; i < a->contributions_count; i++) {
        const struct gk_contribution *x = &a->contributions[i], *y = &b->contributions[i];

        cr_assert(x->rank == y->rank && x->incarnation == y->incarnation && x->step == y->step &&
                  x->base_version == y->base_version && x->samples == y->samples &&
                  x->push_id == y->push_id && x->verdict == y->verdict);
    }
    for (uint32_t i = 0; i < a->members_count; i++) {
        cr_assert(a->members[i].rank == b->members[i].rank &&
                  job_row_equals(&a->members[i].row, &b->members[i].row));
    }
    if (a->count > 0) {
        cr_assert(!a->idx || memcmp(a->idx, b->idx, a->count * sizeof(*a->idx)) == 0);
        cr_assert(memcmp(a->val, b->val, a->count * sizeof(*a->val)) == 0);
        cr_assert((uintptr_t)b->val % GK_WAL_ALIGN == 0, "used where it lies");
    }
}

static struct job *begun(uint64_t seed)
{
    struct job *job = job_new(&(struct job_options){GK_OPTIMIZER_MOMENTUM, 200, 4, 1, 0, seed});

    job_take(job, job_life(job));
    job_take(job, job_init(job));
    return job;
}

static const struct gk_record *any_record(struct job *job, int i)
{
    return i % 9 == 7 ? job_life(job) : i % 9 == 8 ? job_finished(job) : job_next(job);
}

Test(server_wal, round_trip)
{
    for (uint64_t seed = 1; seed <= 10; seed++) {
        struct job *job = begun(seed);

        for (int i = 0; i < 100; i++) {
            const struct gk_record *record = any_record(job, i);
            struct gk_wal_place place = {(uint32_t)seed * 77, 1000 + (uint64_t)i,
                                         64u * (uint64_t)i};
            struct flat flat = flatten(record, &place);
            struct gk_wal_head head;
            struct gk_record again;
            struct gk_words words = {""};

            cr_assert(unflatten(&flat, &again, &head, &words) == GK_OK, "%s", words.text);
            equal(record, &again);
            cr_assert(head.place.previous_crc == place.previous_crc &&
                      head.place.number == place.number && head.place.synced == place.synced &&
                      head.crc == flat.crc && head.bytes == flat.size);
            if (record->type != GK_RECORD_FINISHED) {
                job_take(job, record);
            }
        }
        job_free(job);
    }
}

/* The format is frozen: these bytes are in directories. */
Test(server_wal, golden_record)
{
    static const uint32_t idx[] = {3, 17};
    static const float val[] = {1.5f, -2.0f};
    static const struct gk_contribution contribution = {1, 2, 24, 24, 32, 0x1122334455667788, 1};
    const struct gk_record record = {
        .type = GK_RECORD_ROUND,
        .epoch = 1,
        .job_uid = {0xa1a2a3a4a5a6a7a8, 0xb1b2b3b4b5b6b7b8},
        .version = 26,
        .hashed = true,
        .state_hash = 0xc1c2c3c4c5c6c7c8,
        .step = 25,
        .optimizer_step = 23,
        .optimizer = GK_OPTIMIZER_MOMENTUM,
        .hyper = {.lr = 0.5f, .momentum = 0.25f, .weight_decay = 0.125f},
        .samples = 32,
        .contributions = &contribution,
        .contributions_count = 1,
        .idx = idx,
        .val = val,
        .count = 2,
    };
    struct flat flat = flatten(&record, &(struct gk_wal_place){0xd1d2d3d4, 99, 4096});
    const uint8_t *at = flat.bytes;

    cr_assert(flat.size == 192 + 64 + 64 + 64);
    cr_assert(memcmp(at, "GKPR\1\0\1\0", 8) == 0);
    cr_assert(gk_get_u64(at + 8) == 384 && gk_get_u64(at + 16) == 0xa1a2a3a4a5a6a7a8 &&
              gk_get_u64(at + 24) == 0xb1b2b3b4b5b6b7b8 && gk_get_u32(at + 32) == 1 &&
              gk_get_u32(at + 36) == 1 && gk_get_u64(at + 40) == 26 && gk_get_u64(at + 48) == 99 &&
              gk_get_u64(at + 56) == 4096 && gk_get_u32(at + 64) == 0xd1d2d3d4 &&
              gk_get_u32(at + 68) == 1 && gk_get_u64(at + 72) == 0xc1c2c3c4c5c6c7c8 &&
              gk_get_u64(at + 80) == 25 && gk_get_u64(at + 88) == 23 && gk_get_u64(at + 96) == 32 &&
              gk_get_u64(at + 104) == 2 && gk_get_u32(at + 112) == 3);
    cr_assert(gk_get_u32(at + 116) == 0x3f000000 && gk_get_u32(at + 120) == 0x3e800000 &&
              gk_get_u32(at + 124) == 0 && gk_get_u32(at + 140) == 0x3e000000);
    for (int i = 144; i < 184; i++) {
        cr_assert(at[i] == 0, "byte %d", i);
    }
    cr_assert(gk_get_u32(at + 184) == gk_crc32c(at + 192, 192) &&
              gk_get_u32(at + 188) == gk_crc32c(at, 188));
    cr_assert(gk_get_u32(at + 192) == 1 && gk_get_u32(at + 196) == 2 &&
              gk_get_u64(at + 200) == 24 && gk_get_u64(at + 208) == 24 &&
              gk_get_u64(at + 216) == 32 && gk_get_u64(at + 224) == 0x1122334455667788 &&
              gk_get_u32(at + 232) == 1);
    cr_assert(gk_get_u32(at + 256) == 3 && gk_get_u32(at + 260) == 17 &&
              gk_get_u32(at + 320) == 0x3fc00000 && gk_get_u32(at + 324) == 0xc0000000);
    cr_assert(gk_crc32c(at, flat.size) == 0xc4186f40, "%08x", gk_crc32c(at, flat.size));
}

Test(server_wal, golden_segment)
{
    const struct gk_wal_segment segment = {2, 3, 4, 1, 25, 31, "mnist"};
    struct gk_wal_segment again;
    struct gk_words words = {""};
    uint8_t bytes[GK_WAL_SEGMENT_BYTES];
    uint32_t crc = gk_wal_segment_encode(&segment, GK_WAL_FILE_LOG, bytes), crc_again;

    cr_assert(memcmp(bytes, "GKPL\1\0\0\0", 8) == 0);
    cr_assert(gk_get_u32(bytes + 8) == 2 && gk_get_u32(bytes + 12) == 3 &&
              gk_get_u32(bytes + 16) == 4 && gk_get_u32(bytes + 20) == 1 &&
              gk_get_u64(bytes + 24) == 25 && gk_get_u64(bytes + 32) == 31 &&
              strcmp((char *)bytes + 40, "mnist") == 0 &&
              gk_get_u32(bytes + 124) == gk_crc32c(bytes, 124) && crc == gk_get_u32(bytes + 124));
    cr_assert(gk_wal_segment_decode(bytes, GK_WAL_FILE_LOG, &again, &crc_again, &words) == GK_OK);
    cr_assert(again.shard == 2 && again.servers == 3 && again.workers == 4 && again.epoch == 1 &&
              again.first_version == 25 && again.first_number == 31 && crc_again == crc &&
              strcmp(again.job, "mnist") == 0);
    cr_assert(gk_wal_segment_decode(bytes, GK_WAL_FILE_JOB, &again, &crc_again, &words) ==
              GK_E_CORRUPT);
    for (int bit = 0; bit < GK_WAL_SEGMENT_BYTES * 8; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        cr_assert(gk_wal_segment_decode(bytes, GK_WAL_FILE_LOG, &again, &crc_again, &words) ==
                  GK_E_CORRUPT);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

Test(server_wal, every_flipped_bit_is_seen)
{
    struct job *job = begun(3);

    for (int i = 0; i < 9; i++) {
        const struct gk_record *record = any_record(job, i);
        struct flat flat = flatten(record, &(struct gk_wal_place){1, 2, 3});
        struct gk_wal_head head;
        struct gk_record again;

        for (uint64_t bit = 0; bit < flat.size * 8; bit += 1 + job_draw(job, 7)) {
            struct gk_words words = {""};

            flat.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
            cr_assert(unflatten(&flat, &again, &head, &words) == GK_E_CORRUPT);
            cr_assert(words.text[0] != 0);
            flat.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
        cr_assert(unflatten(&flat, &again, &head, NULL) == GK_OK);
    }
    job_free(job);
}

/* A header with a true checksum that says what cannot be: nothing is read beyond the record. */
Test(server_wal, a_header_that_lies)
{
    static const struct {
        int at, size;
        uint64_t value;
    } lies[] = {
        {4, 2, 2},
        {6, 2, 0},
        {6, 2, GK_RECORD_INIT},
        {6, 2, 6},
        {8, 8, 0},
        {8, 8, 192},
        {8, 8, UINT64_MAX - 63},
        {36, 4, 1025},
        {36, 4, UINT32_MAX},
        {68, 4, 4},
        {104, 8, UINT64_MAX},
        {104, 8, UINT64_C(1) << 32},
        {104, 8, 1 << 20},
        {144, 4, 1},
        {148, 4, 1},
        {180, 4, 1},
    };
    struct job *job = begun(4);

    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        struct flat flat = flatten(job_round(job), &(struct gk_wal_place){1, 2, 3});
        struct gk_wal_head head;
        struct gk_words words = {""};

        memcpy(flat.bytes + lies[i].at, &lies[i].value, (size_t)lies[i].size);
        gk_put_u32(flat.bytes + 188, gk_crc32c(flat.bytes, 188));
        cr_assert(gk_wal_head_decode(flat.bytes, &head, &words) ==
                      (lies[i].at == 4 ? GK_E_UNSUPPORTED : GK_E_CORRUPT),
                  "lie %zu", i);
        cr_assert(words.text[0] != 0);
    }
    job_free(job);
}
