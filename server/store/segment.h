/* One segment of the log as a file: appended to, and read from its beginning. */
#ifndef GK_SERVER_STORE_SEGMENT_H
#define GK_SERVER_STORE_SEGMENT_H

#include "server/core/wal.h"
#include "server/store/files.h"

/* The segment that records are appended to. */
struct gk_segment {
    struct gk_file *file; /* NULL: none */
    struct gk_name name;
    uint64_t first_version;
    uint64_t end;      /* of the last good record */
    uint64_t reserved; /* size of the file: zeros behind `end` */
    uint64_t synced;   /* what is known to be on disk */
    uint32_t crc;      /* of the last record */
};

/* Make the file, write its header, sync it and the directory.  On failure the file is removed. */
enum gk_err gk_segment_create(const struct gk_place *place, const struct gk_wal_segment *header,
                              struct gk_segment *ret, struct gk_words *words);
void gk_segment_close(const struct gk_place *place, struct gk_segment *segment);

/* Room for `bytes` more, in steps.  GK_E_LIMIT: there is none; GK_E_IO. */
enum gk_err gk_segment_reserve(const struct gk_place *place, struct gk_segment *segment,
                               uint64_t bytes, uint64_t step, struct gk_words *words);

/* Write a record at the end.  On failure the file is cut back to where it ended; GK_E_LIMIT: and
 * may be written to again; GK_E_IO: never again. */
enum gk_err gk_segment_append(const struct gk_place *place, struct gk_segment *segment,
                              const struct gk_record *record, uint64_t number, uint8_t *scratch,
                              struct gk_words *words);

/* GK_E_IO, whatever the reason: those pages are never trusted again. */
enum gk_err gk_segment_sync(const struct gk_place *place, struct gk_segment *segment,
                            struct gk_words *words);

/* Write what is there once more, from `offset` to the end, so that the next sync is one of these
 * bytes.  GK_E_LIMIT, GK_E_IO, GK_E_NOMEM. */
enum gk_err gk_segment_write_again(const struct gk_place *place, struct gk_segment *segment,
                                   uint64_t offset, struct gk_words *words);

/* A segment that is read, record by record. */
struct gk_reader {
    struct gk_file *file;
    struct gk_name name;
    struct gk_wal_segment header;
    uint64_t size;   /* of the file */
    uint64_t offset; /* of the next record */
    uint32_t crc;    /* of the one before */
    uint64_t number; /* of the next record */
    uint64_t proven; /* bytes of which a record so far says that they were on disk */
};

/* GK_E_CORRUPT: there is no whole header; GK_E_INVALID: one that the name contradicts;
 * GK_E_AGAIN: the file went away; GK_E_UNSUPPORTED; GK_E_IO.  Words name the file. */
enum gk_err gk_reader_open(const struct gk_place *place, uint32_t epoch, uint64_t version,
                           struct gk_reader *ret, struct gk_words *words);
void gk_reader_close(const struct gk_place *place, struct gk_reader *reader);

/* The header of the next record, which stays the next.  GK_E_CORRUPT: there is no good one, words
 * say why (also at the end of the log); GK_E_IO. */
enum gk_err gk_reader_peek(const struct gk_place *place, struct gk_reader *reader,
                           struct gk_wal_head *ret, struct gk_words *words);

/* What is behind its header, into `payload`.  GK_E_CORRUPT, GK_E_IO. */
enum gk_err gk_reader_payload(const struct gk_place *place, struct gk_reader *reader,
                              const struct gk_wal_head *head, uint8_t *payload,
                              struct gk_words *words);

/* Step over the record. */
void gk_reader_next(struct gk_reader *reader, const struct gk_wal_head *head);

struct gk_rest {        /* what lies at and behind the reader's offset */
    uint64_t bytes;     /* up to the last one that is not zero */
    bool marked;        /* a later record says that this offset was on disk already */
    uint64_t marked_by; /* offset of that record */
};

/* GK_E_IO, GK_E_NOMEM. */
enum gk_err gk_reader_rest(const struct gk_place *place, struct gk_reader *reader,
                           struct gk_rest *ret, struct gk_words *words);

/* The same of a whole file that gk_reader_open() could not open for want of a header.  The newest
 * one has none after a crash while it was made, unless a record lies in it (`marked`): a header is
 * on disk before the first record is written. */
enum gk_err gk_reader_headless(const struct gk_place *place, uint32_t epoch, uint64_t version,
                               struct gk_rest *ret, struct gk_words *words);

#endif
