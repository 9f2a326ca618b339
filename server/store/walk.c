/* The walk over the log: which record comes next, and where a log may end.
 *
 * In the newest segment a record that is not good ends the log, unless a later record says that it
 * was on disk already: then it was damaged, and nobody may go on without it. */
#include "server/store/replay.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const struct gk_known *segment_at(const struct gk_walk *walk)
{
    return &walk->segments->list[walk->at];
}

static bool is_newest(const struct gk_walk *walk)
{
    return walk->at + 1 == walk->segments->count;
}

/* There is no next record; `why` says what is there instead. */
static enum gk_err end_of_segment(struct gk_walk *walk, const struct gk_words *why,
                                  struct gk_words *words)
{
    struct gk_rest rest;
    enum gk_err err;

    if (!is_newest(walk) || !walk->last_may_end) {
        *words = *why;
        return GK_E_CORRUPT;
    }
    err = gk_reader_rest(walk->place, &walk->reader, &rest, words);
    if (err) {
        return err;
    }
    if (rest.marked) {
        gk_words_set(words,
                     "%s; the record at offset %" PRIu64
                     " was written when this was safe: the file was damaged later",
                     why->text, rest.marked_by);
        return GK_E_CORRUPT;
    }
    walk->torn_bytes = rest.bytes;
    if (rest.bytes > 0) {
        walk->torn = *why;
    }
    return GK_E_NOTFOUND;
}

static enum gk_err open_segment(struct gk_walk *walk, struct gk_words *words)
{
    const struct gk_known *known = segment_at(walk);

    return gk_reader_open(walk->place, known->epoch, known->version, &walk->reader, words);
}

/* The next record's header; segments that end are left behind. */
static enum gk_err find_head(struct gk_walk *walk, struct gk_wal_head *ret, struct gk_words *words)
{
    struct gk_words why = {""};
    enum gk_err err;

    while (!is_newest(walk) && walk->reader.number == segment_at(walk)[1].number) {
        gk_reader_close(walk->place, &walk->reader);
        walk->at++;
        err = open_segment(walk, words);
        if (err) {
            return err;
        }
    }
    err = gk_reader_peek(walk->place, &walk->reader, ret, &why);
    if (err == GK_E_CORRUPT) {
        return end_of_segment(walk, &why, words);
    }
    if (err) {
        *words = why;
    }
    return err;
}

/* A round that begins a segment knows the hash of the version that the segment begins behind. */
static void learn(struct gk_walk *walk, const struct gk_wal_head *head)
{
    struct gk_known *known = &walk->segments->list[walk->at];

    if (head->record.hashed && head->record.version == known->version + 1) {
        known->hashed = true;
        known->hash = head->record.state_hash;
        known->hash_at = walk->reader.offset;
    }
}

enum gk_err gk_walk_open(struct gk_walk *walk, uint64_t number, struct gk_words *words)
{
    struct gk_wal_head head;
    enum gk_err err;

    walk->at = 0;
    while (!is_newest(walk) && walk->segments->list[walk->at + 1].number <= number) {
        walk->at++;
    }
    walk->rows = malloc(sizeof(*walk->rows));
    if (!walk->rows) {
        gk_words_set(words, "%s", gk_err_text(GK_E_NOMEM));
        return GK_E_NOMEM;
    }
    err = open_segment(walk, words);
    if (err) {
        free(walk->rows);
        walk->rows = NULL;
        return err;
    }
    while (!err && walk->reader.number < number) {
        err = find_head(walk, &head, words);
        if (!err) {
            learn(walk, &head);
            gk_reader_next(&walk->reader, &head);
        }
    }
    if (err == GK_E_NOTFOUND || (!err && walk->reader.number > number)) {
        gk_words_set(words,
                     "the log has records %" PRIu64 " to %" PRIu64
                     ", the snapshot needs those from %" PRIu64 " on",
                     segment_at(walk)->number, walk->reader.number, number);
        gk_place_at(walk->place, walk->reader.name.text, walk->reader.offset, words);
        err = GK_E_CORRUPT;
    }
    walk->number = number;
    if (err) {
        gk_walk_close(walk);
    }
    return err;
}

void gk_walk_close(struct gk_walk *walk)
{
    gk_reader_close(walk->place, &walk->reader);
    free(walk->rows);
    walk->rows = NULL;
}

enum gk_err gk_walk_next(struct gk_walk *walk, const struct gk_vector_ops *ops,
                         struct gk_queue *queue, struct gk_record *ret_record, uint8_t **ret_memory,
                         struct gk_words *words)
{
    struct gk_words why = {""};
    struct gk_wal_head head;
    enum gk_err err = find_head(walk, &head, words);
    uint8_t *memory;

    if (err) {
        return err;
    }
    memory = ops->alloc(queue, GK_MEMORY_PINNED, (size_t)(head.bytes - GK_WAL_HEADER_BYTES) + 1);
    if (!memory) {
        gk_words_set(words, "no memory for a record of %" PRIu64 " bytes", head.bytes);
        return GK_E_NOMEM;
    }
    err = gk_reader_payload(walk->place, &walk->reader, &head, memory, words);
    if (!err) {
        err = gk_wal_decode(&head, memory, walk->rows, ret_record, &why);
        if (err) {
            gk_place_at(walk->place, walk->reader.name.text, walk->reader.offset, &why);
            err = end_of_segment(walk, &why, words);
        }
    }
    if (err) {
        ops->free(queue, GK_MEMORY_PINNED, memory);
        return err;
    }
    learn(walk, &head);
    walk->record_at = walk->reader.offset;
    gk_reader_next(&walk->reader, &head);
    walk->number = walk->reader.number;
    *ret_memory = memory;
    return GK_OK;
}

uint64_t gk_walk_last_hashed(const struct gk_walk *walk)
{
    uint64_t last = UINT64_MAX;
    bool good = true;

    for (uint32_t i = walk->at; i < walk->segments->count && good; i++) {
        const struct gk_known *known = &walk->segments->list[i];
        struct gk_reader reader;
        struct gk_wal_head head;

        good = gk_reader_open(walk->place, known->epoch, known->version, &reader, NULL) == GK_OK;
        while (good && gk_reader_peek(walk->place, &reader, &head, NULL) == GK_OK) {
            last = head.record.hashed && reader.number >= walk->number ? reader.number : last;
            gk_reader_next(&reader, &head);
        }
        if (good) {
            gk_reader_close(walk->place, &reader);
        }
    }
    return last;
}
