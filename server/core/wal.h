/* The log as bytes: segment headers and records, to and from memory.  No I/O.
 *
 * A segment is a header and then records, each a multiple of 64 bytes.  A record is a header of 192
 * bytes, the rows of its ranks, the indices and the values; each part begins at a multiple of 64,
 * so that the arrays of a record which was read into aligned memory are used where they lie, and
 * that one gathered write puts them on disk without a copy.
 *
 * Every record carries the checksum of the one before it, so that the bytes behind a cut never come
 * to life again, its number since the directory was made, and how much of its segment was known to
 * be safe when it was written: a bad record below such a mark was damaged later, one above all
 * marks is the torn tail of a crash.  docs/state.md has the tables. */
#ifndef GK_SERVER_CORE_WAL_H
#define GK_SERVER_CORE_WAL_H

#include "common/err.h"
#include "common/limits.h"
#include "common/words.h"
#include "server/core/record.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    GK_WAL_FORMAT = 1,
    GK_WAL_ALIGN = 64,
    GK_WAL_SEGMENT_BYTES = 128,
    GK_WAL_HEADER_BYTES = 192,
    GK_WAL_ROW_BYTES = 48,
    GK_WAL_PIECES_MAX = 5,
};

/* What a file of the directory says about itself.  JOB is such a header too, of its own magic. */
struct gk_wal_segment {
    uint32_t shard, servers, workers;
    uint32_t epoch;
    uint64_t first_version; /* of the records' predecessor */
    uint64_t first_number;  /* of its first record */
    char job[GK_JOB_NAME_BYTES];
};

enum gk_wal_file { GK_WAL_FILE_LOG, GK_WAL_FILE_JOB };

/* Returns the header's checksum, which the first record carries; decoding gives GK_E_CORRUPT, or
 * GK_E_UNSUPPORTED for a whole header of another format. */
uint32_t gk_wal_segment_encode(const struct gk_wal_segment *segment, enum gk_wal_file kind,
                               uint8_t ret[GK_WAL_SEGMENT_BYTES]);
enum gk_err gk_wal_segment_decode(const uint8_t bytes[GK_WAL_SEGMENT_BYTES], enum gk_wal_file kind,
                                  struct gk_wal_segment *ret, uint32_t *ret_crc,
                                  struct gk_words *words);

/* Where a record stands in the log. */
struct gk_wal_place {
    uint32_t previous_crc; /* of the record before it, or of the segment's header */
    uint64_t number;       /* since the directory was made */
    uint64_t synced;       /* bytes of the segment that are known to be on disk */
};

struct gk_wal_piece {
    const void *data;
    size_t size;
};

/* Bytes of a whole record, header included. */
uint64_t gk_wal_bytes(const struct gk_record *record);

/* Header and rows of a job with so many workers. */
size_t gk_wal_scratch_bytes(uint32_t workers);

/* The record in pieces that borrow from it and from `scratch`.  Not for INIT, which is a snapshot.
 * Returns the record's checksum, for the next one. */
uint32_t gk_wal_encode(const struct gk_record *record, const struct gk_wal_place *place,
                       uint8_t *scratch, struct gk_wal_piece ret_pieces[GK_WAL_PIECES_MAX],
                       uint32_t *ret_count);

struct gk_wal_head {         /* a header that was read */
    struct gk_record record; /* without its arrays */
    struct gk_wal_place place;
    uint64_t bytes; /* of the record */
    uint32_t rows;  /* contributions or members */
    bool dense;
    uint32_t payload_crc, crc;
};

/* Parse and check what needs no predecessor.  GK_E_CORRUPT, GK_E_UNSUPPORTED (a whole header of
 * another format) and words. */
enum gk_err gk_wal_head_decode(const uint8_t bytes[GK_WAL_HEADER_BYTES], struct gk_wal_head *ret,
                               struct gk_words *words);

/* Memory for the rows of one record. */
struct gk_wal_rows {
    struct gk_contribution contributions[GK_WORKERS_MAX];
    struct gk_member_entry members[GK_WORKERS_MAX];
};

/* The whole record: `payload` are the bytes behind the header, aligned to 64; the record borrows
 * from it and from `rows`.  GK_E_CORRUPT and words. */
enum gk_err gk_wal_decode(const struct gk_wal_head *head, const uint8_t *payload,
                          struct gk_wal_rows *rows, struct gk_record *ret, struct gk_words *words);

/* One rank's durable row as GK_WAL_ROW_BYTES, the same in records and snapshots. */
void gk_wal_row_encode(const struct gk_rank_row *row, uint32_t rank, uint8_t *at);
enum gk_err gk_wal_row_decode(const uint8_t *at, struct gk_member_entry *ret,
                              struct gk_words *words);

#endif
