#include "server/store/files.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct gk_name gk_name_segment(uint32_t epoch, uint64_t version)
{
    struct gk_name name;

    (void)snprintf(name.text, sizeof(name.text), "wal-%" PRIu32 "-%" PRIu64 ".log", epoch, version);
    return name;
}

struct gk_name gk_name_snapshot(uint32_t epoch, uint64_t version)
{
    struct gk_name name;

    (void)snprintf(name.text, sizeof(name.text), "snap-%" PRIu32 "-%" PRIu64, epoch, version);
    return name;
}

enum gk_err gk_place_failed(const struct gk_place *place, const char *name, const char *what,
                            enum gk_err err, int number, struct gk_words *words)
{
    char text[128] = "";

    if (number != 0 && strerror_r(number, text, sizeof(text)) != 0) {
        (void)snprintf(text, sizeof(text), "error %d", number);
    }
    gk_words_set(words, "%s/%s: cannot %s: %s", place->directory, name, what,
                 text[0] ? text : gk_err_text(err));
    return err;
}

enum gk_err gk_place_unopened(const struct gk_place *place, const char *name, enum gk_err err,
                              int number, struct gk_words *words)
{
    err = gk_place_failed(place, name, "open it", err, number, words);
    return err == GK_E_NOTFOUND ? GK_E_AGAIN : err;
}

void gk_place_at(const struct gk_place *place, const char *name, uint64_t offset,
                 struct gk_words *words)
{
    gk_words_prefix(words, "%s/%s, offset %" PRIu64 ": ", place->directory, name, offset);
}

enum gk_err gk_place_remove(const struct gk_place *place, const char *name, struct gk_words *words)
{
    int number = 0;
    enum gk_err err = place->ops->remove(place->disk, name, &number);

    return err && err != GK_E_NOTFOUND
               ? gk_place_failed(place, name, "remove it", err, number, words)
               : GK_OK;
}

enum gk_err gk_place_sync_directory(const struct gk_place *place, struct gk_words *words)
{
    int number = 0;
    enum gk_err err = place->ops->sync_directory(place->disk, &number);

    return err ? gk_place_failed(place, ".", "sync the directory", GK_E_IO, number, words) : GK_OK;
}

enum gk_err gk_place_publish(const struct gk_place *place, const char *temporary, const char *name,
                             struct gk_words *words)
{
    int number = 0;
    enum gk_err err = place->ops->rename(place->disk, temporary, name, &number);

    return err ? gk_place_failed(place, name, "put it in its place", err, number, words)
               : gk_place_sync_directory(place, words);
}

void gk_known_drop_first(struct gk_known_list *known)
{
    known->count--;
    memmove(&known->list[0], &known->list[1], known->count * sizeof(known->list[0]));
}

enum gk_err gk_known_complete(const struct gk_place *place, const struct gk_known_list *segments,
                              const struct gk_known_list *snapshots, struct gk_words *words)
{
    const struct gk_known *newest;

    if (snapshots->count == 0) {
        return GK_OK;
    }
    newest = &snapshots->list[snapshots->count - 1];
    if (segments->count == 0 && newest->epoch > 0) {
        return GK_OK; /* an operator has begun an epoch */
    }
    for (uint32_t i = 0; i < segments->count; i++) {
        if (segments->list[i].version == newest->version) {
            return GK_OK;
        }
    }
    gk_words_set(words, "%s/%s is missing, the log behind %s", place->directory,
                 gk_name_segment(newest->epoch, newest->version).text,
                 gk_name_snapshot(newest->epoch, newest->version).text);
    return GK_E_CORRUPT;
}

struct listing {
    struct gk_known_list *segments, *snapshots;
    bool full;
};

/* Exactly what our own functions would print. */
static bool parse(const char *name, bool segment, struct gk_known *ret)
{
    const char *kind = segment ? "wal-" : "snap-";
    struct gk_known known = {0};
    struct gk_name again;
    char *end;

    if (strncmp(name, kind, strlen(kind)) != 0) {
        return false;
    }
    known.epoch = (uint32_t)strtoul(name + strlen(kind), &end, 10);
    if (*end != '-') {
        return false;
    }
    known.version = strtoull(end + 1, &end, 10);
    again = segment ? gk_name_segment(known.epoch, known.version)
                    : gk_name_snapshot(known.epoch, known.version);
    if (strcmp(again.text, name) != 0) {
        return false;
    }
    *ret = known;
    return true;
}

static bool take_name(void *context, const char *name)
{
    struct listing *listing = context;
    struct gk_known_list *known;
    struct gk_known found;

    if (parse(name, true, &found)) {
        known = listing->segments;
    } else if (parse(name, false, &found)) {
        known = listing->snapshots;
    } else {
        return true;
    }
    if (known->count == GK_STORE_FILES_MAX) {
        listing->full = true;
        return false;
    }
    known->list[known->count++] = found;
    return true;
}

static int by_version(const void *a, const void *b)
{
    const struct gk_known *x = a, *y = b;

    if (x->epoch != y->epoch) {
        return x->epoch < y->epoch ? -1 : 1;
    }
    return x->version < y->version ? -1 : x->version > y->version;
}

enum gk_err gk_place_list(const struct gk_place *place, struct gk_known_list *ret_segments,
                          struct gk_known_list *ret_snapshots, struct gk_words *words)
{
    struct listing listing = {ret_segments, ret_snapshots, false};
    int number = 0;
    enum gk_err err;

    ret_segments->count = 0;
    ret_snapshots->count = 0;
    err = place->ops->list(place->disk, take_name, &listing, &number);
    if (err) {
        return gk_place_failed(place, ".", "list the directory", err, number, words);
    }
    if (listing.full) {
        gk_words_set(words, "%s: more than %d segments or snapshots", place->directory,
                     (int)GK_STORE_FILES_MAX);
        return GK_E_LIMIT;
    }
    qsort(ret_segments->list, ret_segments->count, sizeof(struct gk_known), by_version);
    qsort(ret_snapshots->list, ret_snapshots->count, sizeof(struct gk_known), by_version);
    return GK_OK;
}
