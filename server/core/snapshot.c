#include "server/core/snapshot.h"

#include "common/assert.h"
#include "common/bits.h"
#include "common/hash.h"
#include "server/core/wal.h"

#include <inttypes.h>
#include <string.h>

static const uint8_t magic[4] = {'G', 'K', 'P', 'S'};

enum { FLAG_FINISHED = 1 };

enum { /* offsets in the header */
       AT_FORMAT = 4,
       AT_SHARD = 8,
       AT_SERVERS = 12,
       AT_WORKERS = 16,
       AT_EPOCH = 20,
       AT_VERSION = 24,
       AT_NEXT_NUMBER = 32,
       AT_UID = 40,
       AT_INIT_ID = 56,
       AT_LO = 64,
       AT_HI = 72,
       AT_OPTIMIZER_STEP = 80,
       AT_COUNTS = 88,
       AT_INCARNATION = 120,
       AT_FLAGS = 124,
       AT_OPTIMIZER = 128,
       AT_PLANES = 132,
       AT_STATE_HASH = 136,
       AT_SPEC_BYTES = 144,
       AT_BLOCK_FLOATS = 148,
       AT_JOB = 152,
       AT_TABLES_CRC = AT_JOB + GK_JOB_NAME_BYTES,
       AT_SAMPLES = AT_TABLES_CRC + 4,
       AT_REST = AT_SAMPLES + 8,
       AT_CRC = GK_SNAPSHOT_HEADER_BYTES - 4,
};

static uint64_t padded(uint64_t bytes, uint64_t to)
{
    return (bytes + to - 1) / to * to;
}

/* Everything but the image's part must be set. */
static void lay_out(struct gk_snapshot_layout *layout, uint32_t spec_bytes, uint32_t workers)
{
    layout->blocks = (layout->length + layout->block_floats - 1) / layout->block_floats;
    layout->spec_at = GK_SNAPSHOT_HEADER_BYTES;
    layout->rows_at = layout->spec_at + padded(spec_bytes, GK_WAL_ALIGN);
    layout->sums_at = layout->rows_at + padded((uint64_t)workers * GK_WAL_ROW_BYTES, GK_WAL_ALIGN);
    layout->planes_at =
        padded(layout->sums_at + layout->planes * layout->blocks * 4, GK_SNAPSHOT_PAGE);
    layout->plane_stride = padded(layout->length * sizeof(float), GK_SNAPSHOT_PAGE);
    layout->bytes = layout->planes_at + layout->planes * layout->plane_stride;
}

void gk_snapshot_layout(const struct gk_image *image, uint32_t block_floats,
                        struct gk_snapshot_layout *ret)
{
    struct gk_snapshot_layout layout = {
        .length = image->hi - image->lo,
        .planes = gk_image_planes(image),
        .block_floats = block_floats,
    };

    lay_out(&layout, (uint32_t)image->spec_bytes, image->workers);
    *ret = layout;
}

uint64_t gk_snapshot_block(const struct gk_snapshot_layout *layout, uint32_t plane, uint64_t block,
                           uint64_t *ret_count)
{
    uint64_t first = block * layout->block_floats;

    *ret_count = gk_min_u64(layout->block_floats, layout->length - first);
    return layout->planes_at + plane * layout->plane_stride + first * sizeof(float);
}

static void put_head(const struct gk_image *image, const struct gk_snapshot_layout *layout,
                     const struct gk_snapshot_facts *facts, uint8_t *at)
{
    const uint16_t format = GK_SNAPSHOT_FORMAT;

    memcpy(at, magic, sizeof(magic));
    memcpy(at + AT_FORMAT, &format, sizeof(format));
    gk_put_u32(at + AT_SHARD, image->shard);
    gk_put_u32(at + AT_SERVERS, image->servers);
    gk_put_u32(at + AT_WORKERS, image->workers);
    gk_put_u32(at + AT_EPOCH, image->epoch);
    gk_put_u64(at + AT_VERSION, image->version);
    gk_put_u64(at + AT_NEXT_NUMBER, facts->next_number);
    gk_put_u64(at + AT_UID, image->job_uid.hi);
    gk_put_u64(at + AT_UID + 8, image->job_uid.lo);
    gk_put_u64(at + AT_INIT_ID, image->init_id);
    gk_put_u64(at + AT_LO, image->lo);
    gk_put_u64(at + AT_HI, image->hi);
    gk_put_u64(at + AT_OPTIMIZER_STEP, image->optimizer_step);
    gk_put_u64(at + AT_COUNTS, image->applied);
    gk_put_u64(at + AT_COUNTS + 8, image->returned);
    gk_put_u64(at + AT_COUNTS + 16, image->skipped);
    gk_put_u64(at + AT_COUNTS + 24, image->lost);
    gk_put_u32(at + AT_INCARNATION, image->incarnation);
    gk_put_u32(at + AT_FLAGS, image->finished ? FLAG_FINISHED : 0);
    gk_put_u32(at + AT_OPTIMIZER, image->optimizer);
    gk_put_u32(at + AT_PLANES, layout->planes);
    gk_put_u64(at + AT_STATE_HASH, facts->state_hash);
    gk_put_u32(at + AT_SPEC_BYTES, (uint32_t)image->spec_bytes);
    gk_put_u32(at + AT_BLOCK_FLOATS, layout->block_floats);
    gk_put_u64(at + AT_SAMPLES, image->samples);
    memcpy(at + AT_JOB, facts->job, strlen(facts->job));
}

void gk_snapshot_encode(const struct gk_image *image, const struct gk_snapshot_layout *layout,
                        const struct gk_snapshot_facts *facts, const uint32_t *sums, uint8_t *ret)
{
    GK_ASSERT(image->initialised && strlen(facts->job) < GK_JOB_NAME_BYTES);
    memset(ret, 0, (size_t)layout->planes_at);
    put_head(image, layout, facts, ret);
    memcpy(ret + layout->spec_at, image->spec, image->spec_bytes);
    for (uint32_t r = 0; r < image->workers; r++) {
        gk_wal_row_encode(&image->rows[r], r, ret + layout->rows_at + (size_t)r * GK_WAL_ROW_BYTES);
    }
    for (uint64_t i = 0; i < layout->planes * layout->blocks; i++) {
        gk_put_u32(ret + layout->sums_at + 4 * i, sums[i]);
    }
    gk_put_u32(ret + AT_TABLES_CRC, gk_crc32c(ret + GK_SNAPSHOT_HEADER_BYTES,
                                              layout->planes_at - GK_SNAPSHOT_HEADER_BYTES));
    gk_put_u32(ret + AT_CRC, gk_crc32c(ret, AT_CRC));
}

static enum gk_err bad(struct gk_words *words, const char *what)
{
    gk_words_set(words, "%s", what);
    return GK_E_CORRUPT;
}

static bool rest_is_zero(const uint8_t *bytes)
{
    for (int i = AT_REST; i < AT_CRC; i++) {
        if (bytes[i] != 0) {
            return false;
        }
    }
    return bytes[AT_FORMAT + 2] == 0 && bytes[AT_FORMAT + 3] == 0 && bytes[AT_TABLES_CRC - 1] == 0;
}

enum gk_err gk_snapshot_head_decode(const uint8_t bytes[GK_SNAPSHOT_HEADER_BYTES],
                                    struct gk_snapshot_head *ret, struct gk_words *words)
{
    struct gk_snapshot_head head = {
        .shard = gk_get_u32(bytes + AT_SHARD),
        .servers = gk_get_u32(bytes + AT_SERVERS),
        .workers = gk_get_u32(bytes + AT_WORKERS),
        .epoch = gk_get_u32(bytes + AT_EPOCH),
        .version = gk_get_u64(bytes + AT_VERSION),
        .facts.next_number = gk_get_u64(bytes + AT_NEXT_NUMBER),
        .facts.state_hash = gk_get_u64(bytes + AT_STATE_HASH),
        .layout.length = gk_get_u64(bytes + AT_HI) - gk_get_u64(bytes + AT_LO),
        .layout.planes = gk_get_u32(bytes + AT_PLANES),
        .layout.block_floats = gk_get_u32(bytes + AT_BLOCK_FLOATS),
        .spec_bytes = gk_get_u32(bytes + AT_SPEC_BYTES),
        .tables_crc = gk_get_u32(bytes + AT_TABLES_CRC),
        .bytes = bytes,
    };

    if (memcmp(bytes, magic, sizeof(magic)) != 0) {
        return bad(words, "no snapshot");
    }
    if (gk_crc32c(bytes, AT_CRC) != gk_get_u32(bytes + AT_CRC)) {
        return bad(words, "the checksum of the header is wrong");
    }
    if (bytes[AT_FORMAT] != GK_SNAPSHOT_FORMAT || bytes[AT_FORMAT + 1] != 0) {
        gk_words_set(words, "another format than this program knows");
        return GK_E_UNSUPPORTED;
    }
    if (!rest_is_zero(bytes) || gk_get_u32(bytes + AT_FLAGS) > FLAG_FINISHED ||
        head.layout.length > UINT32_MAX || head.layout.planes < 1 || head.layout.planes > 3 ||
        head.workers < 1 || head.workers > GK_WORKERS_MAX || head.spec_bytes > GK_SPEC_BYTES_MAX ||
        head.layout.block_floats < 1 || head.layout.block_floats > GK_SNAPSHOT_BLOCK_FLOATS) {
        return bad(words, "the header holds what cannot be");
    }
    memcpy(head.facts.job, bytes + AT_JOB, GK_JOB_NAME_BYTES);
    lay_out(&head.layout, head.spec_bytes, head.workers);
    *ret = head;
    return GK_OK;
}

static enum gk_err get_rows(const struct gk_snapshot_head *head, const uint8_t *bytes,
                            struct gk_rank_row *rows, struct gk_words *words)
{
    for (uint32_t r = 0; r < head->workers; r++) {
        struct gk_member_entry entry;
        enum gk_err err = gk_wal_row_decode(
            bytes + head->layout.rows_at + (size_t)r * GK_WAL_ROW_BYTES, &entry, words);

        if (err) {
            return err;
        }
        if (entry.rank != r || entry.row.verdict > GK_VERDICT_LOST) {
            gk_words_set(words, "the row of rank %" PRIu32 " is wrong", r);
            return GK_E_CORRUPT;
        }
        rows[r] = entry.row;
    }
    return GK_OK;
}

enum gk_err gk_snapshot_decode(const struct gk_snapshot_head *head, const uint8_t *bytes,
                               struct gk_image *image, const uint8_t **ret_sums,
                               struct gk_words *words)
{
    const struct gk_image_shape shape = {
        .spec = bytes + head->layout.spec_at,
        .spec_bytes = head->spec_bytes,
        .lo = gk_get_u64(bytes + AT_LO),
        .hi = gk_get_u64(bytes + AT_HI),
    };
    enum gk_err err;

    GK_ASSERT(image->workers == head->workers);
    if (gk_crc32c(bytes + GK_SNAPSHOT_HEADER_BYTES,
                  (size_t)head->layout.planes_at - GK_SNAPSHOT_HEADER_BYTES) != head->tables_crc) {
        return bad(words, "the checksum of the tables is wrong");
    }
    err = gk_image_check_spec(image, &shape, &image->optimizer, words);
    err = err ? err : get_rows(head, bytes, image->rows, words);
    if (err) {
        return err;
    }
    if (image->optimizer != gk_get_u32(bytes + AT_OPTIMIZER) ||
        head->layout.planes != gk_image_planes(image)) {
        return bad(words, "optimizer and spec differ");
    }
    memcpy(image->spec, shape.spec, shape.spec_bytes);
    image->spec_bytes = shape.spec_bytes;
    image->lo = shape.lo;
    image->hi = shape.hi;
    image->epoch = head->epoch;
    image->version = head->version;
    image->samples = gk_get_u64(bytes + AT_SAMPLES);
    image->incarnation = gk_get_u32(bytes + AT_INCARNATION);
    image->initialised = true;
    image->finished = (gk_get_u32(bytes + AT_FLAGS) & FLAG_FINISHED) != 0;
    image->job_uid = (struct gk_uid){gk_get_u64(bytes + AT_UID), gk_get_u64(bytes + AT_UID + 8)};
    image->init_id = gk_get_u64(bytes + AT_INIT_ID);
    image->optimizer_step = gk_get_u64(bytes + AT_OPTIMIZER_STEP);
    image->applied = gk_get_u64(bytes + AT_COUNTS);
    image->returned = gk_get_u64(bytes + AT_COUNTS + 8);
    image->skipped = gk_get_u64(bytes + AT_COUNTS + 16);
    image->lost = gk_get_u64(bytes + AT_COUNTS + 24);
    *ret_sums = bytes + head->layout.sums_at;
    return GK_OK;
}
