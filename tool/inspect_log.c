/* The segments of one log, record by record: every checksum, the chain, and where it ends. */
#include "tool/inspect.h"

#include "server/store/archive.h"
#include "server/store/segment.h"
#include "tool/json.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TYPES = GK_RECORD_LIFE + 1, LOOKS_MAX = 4, LOOK_MS = 20 };

static const char *const type_names[TYPES] = {"none",     "round", "member",
                                              "finished", "init",  "life"};

struct scan { /* of one segment */
    struct gk_archive *archive;
    const struct gk_known *known;
    bool newest;
    struct gk_reader reader;
    struct gk_wal_rows *rows;
    uint64_t counts[TYPES];
    uint64_t last_version;
    uint64_t last_number; /* where the next segment must begin */
    json_t *records;      /* NULL: not asked for */
    struct gk_words problem;
    uint64_t torn_bytes;
    struct gk_words torn;
};

static json_t *record_json(const struct scan *scan, const struct gk_record *record,
                           const struct gk_wal_head *head)
{
    json_t *object = json_pack(
        "{s:s, s:o, s:o, s:o, s:o}", "type", type_names[record->type], "offset",
        gk_json_integer(scan->reader.offset), "number", gk_json_integer(head->place.number),
        "bytes", gk_json_integer(head->bytes), "version", gk_json_integer(record->version));
    json_t *ranks = json_array();

    if (record->type == GK_RECORD_ROUND) {
        (void)json_object_set_new(object, "samples", gk_json_integer(record->samples));
        (void)json_object_set_new(object, "lr", gk_json_real((double)record->hyper.lr));
        (void)json_object_set_new(object, "entries", gk_json_integer(record->count));
        (void)json_object_set_new(object, "dense", json_boolean(record->idx == NULL));
        (void)json_object_set_new(object, "state_hash_before",
                                  record->hashed ? gk_json_hash(record->state_hash) : json_null());
    }
    if (record->type == GK_RECORD_LIFE) {
        (void)json_object_set_new(object, "incarnation", json_integer(record->incarnation));
    }
    for (uint32_t i = 0; i < record->contributions_count; i++) {
        const struct gk_contribution *c = &record->contributions[i];

        (void)json_array_append_new(
            ranks, json_pack("{s:I, s:I, s:I, s:I, s:I}", "rank", (json_int_t)c->rank,
                             "incarnation", (json_int_t)c->incarnation, "step", (json_int_t)c->step,
                             "samples", (json_int_t)c->samples, "verdict", (json_int_t)c->verdict));
    }
    for (uint32_t i = 0; i < record->members_count; i++) {
        const struct gk_member_entry *m = &record->members[i];

        (void)json_array_append_new(ranks, json_pack("{s:I, s:I, s:b}", "rank", (json_int_t)m->rank,
                                                     "incarnation", (json_int_t)m->row.incarnation,
                                                     "left", (int)m->row.left));
    }
    (void)json_object_set_new(object, "ranks", ranks);
    return object;
}

/* One record, or GK_E_CORRUPT and what is there instead. */
static enum gk_err scan_record(struct scan *scan, struct gk_words *why)
{
    const struct gk_archive *archive = scan->archive;
    struct gk_record record;
    struct gk_wal_head head;
    uint8_t *memory;
    enum gk_err err = gk_reader_peek(&archive->place, &scan->reader, &head, why);

    if (err) {
        return err;
    }
    memory = archive->ops->alloc(archive->queue, GK_MEMORY_PINNED,
                                 (size_t)(head.bytes - GK_WAL_HEADER_BYTES) + 1);
    if (!memory) {
        gk_words_set(why, "no memory for a record of %" PRIu64 " bytes", head.bytes);
        return GK_E_NOMEM;
    }
    err = gk_reader_payload(&archive->place, &scan->reader, &head, memory, why);
    if (!err) {
        err = gk_wal_decode(&head, memory, scan->rows, &record, why);
        if (err) {
            gk_place_at(&archive->place, scan->reader.name.text, scan->reader.offset, why);
        }
    }
    if (!err) {
        scan->counts[record.type < TYPES ? record.type : 0]++;
        scan->last_version = record.version;
        if (scan->records) {
            (void)json_array_append_new(scan->records, record_json(scan, &record, &head));
        }
        gk_reader_next(&scan->reader, &head);
    }
    archive->ops->free(archive->queue, GK_MEMORY_PINNED, memory);
    return err;
}

static void judge_end(struct scan *scan, const struct gk_words *why)
{
    struct gk_rest rest = {0};
    struct gk_words words;

    if (gk_reader_rest(&scan->archive->place, &scan->reader, &rest, &words) != GK_OK) {
        scan->problem = words;
    } else if (rest.marked) {
        gk_words_set(&scan->problem,
                     "%.400s; the record at offset %" PRIu64 " was written when this was safe",
                     why->text, rest.marked_by);
    } else if (rest.bytes > 0 && !scan->newest) {
        scan->problem = *why;
    } else if (rest.bytes > 0) {
        scan->torn_bytes = rest.bytes;
        scan->torn = *why;
    }
}

/* All records; at the end of the newest segment look again, a living server may be writing. */
static enum gk_err scan_segment(struct scan *scan)
{
    const struct timespec wait = {.tv_nsec = LOOK_MS * 1000000L};
    const struct gk_archive *archive = scan->archive;
    struct gk_words why = {""};
    int looks = 0, ignored;
    enum gk_err err = gk_reader_open(&archive->place, scan->known->epoch, scan->known->version,
                                     &scan->reader, &scan->problem);

    if (err) {
        return err;
    }
    scan->last_version = scan->known->version;
    while (looks < LOOKS_MAX) {
        err = scan_record(scan, &why);
        if (!err) {
            looks = 0;
            continue;
        }
        scan->torn_bytes = 0;
        scan->torn.text[0] = scan->problem.text[0] = '\0';
        if (err == GK_E_CORRUPT) {
            judge_end(scan, &why);
        } else {
            scan->problem = why;
        }
        looks++;
        if (!scan->newest || (!scan->torn.text[0] && !scan->problem.text[0])) {
            break;
        }
        (void)nanosleep(&wait, NULL); /* sooner does no harm */
        (void)archive->place.ops->size(scan->reader.file, &scan->reader.size, &ignored);
    }
    scan->last_number = scan->reader.number;
    return GK_OK; /* what was found is in the scan */
}

static json_t *segment_json(const struct scan *scan)
{
    const struct gk_name name = gk_name_segment(scan->known->epoch, scan->known->version);
    json_t *counts = json_object();
    uint64_t records = 0;

    for (int t = 1; t < TYPES; t++) {
        records += scan->counts[t];
        (void)json_object_set_new(counts, type_names[t], gk_json_integer(scan->counts[t]));
    }
    return json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o?}", "kind", "log",
                     "name", name.text, "bytes", gk_json_integer(scan->reader.size), "used",
                     gk_json_integer(scan->reader.offset), "first_version",
                     gk_json_integer(scan->known->version), "last_version",
                     gk_json_integer(scan->last_version), "records", gk_json_integer(records),
                     "types", counts, "torn_bytes", gk_json_integer(scan->torn_bytes), "torn",
                     scan->torn.text[0] ? gk_json_string(scan->torn.text) : json_null(), "problem",
                     scan->problem.text[0] ? gk_json_string(scan->problem.text) : json_null());
}

bool gk_inspect_log(struct gk_archive *archive, bool records, json_t *files, bool *ret_gone)
{
    const struct gk_known_list *segments = &archive->segments;
    struct gk_wal_rows *rows = malloc(sizeof(*rows));
    uint64_t expected = 0;
    bool good = rows != NULL;

    *ret_gone = false;
    for (uint32_t i = 0; i < segments->count && rows; i++) {
        struct scan scan = {.archive = archive,
                            .known = &segments->list[i],
                            .newest = i + 1 == segments->count,
                            .rows = rows,
                            .records = records ? json_array() : NULL};
        json_t *file;

        *ret_gone = scan_segment(&scan) == GK_E_AGAIN || *ret_gone;
        if (i > 0 && !scan.problem.text[0] && scan.known->number != expected) {
            gk_words_set(&scan.problem,
                         "it begins with record %" PRIu64
                         ", the file before it ends before %" PRIu64,
                         scan.known->number, expected);
            gk_place_at(&archive->place, scan.reader.name.text, 0, &scan.problem);
        }
        expected = scan.last_number;
        good = good && !scan.problem.text[0];
        file = segment_json(&scan);
        if (scan.records) {
            (void)json_object_set_new(file, "list", scan.records);
        }
        (void)json_array_append_new(files, file);
        gk_reader_close(&archive->place, &scan.reader);
    }
    free(rows);
    return good;
}
