/* The folder of a server: its snapshots, its log, and whether one follows from the other. */
#include "tool/inspect.h"

#include "common/limits.h"
#include "proto/spec.h"
#include "server/store/archive.h"
#include "tool/json.h"

#include <inttypes.h>

enum { OPENS_MAX = 20 }; /* a living server folds: files that were listed may be gone */

static void set_problem(json_t *object, const struct gk_words *words)
{
    (void)json_object_set_new(object, "ok", json_false());
    (void)json_object_set_new(object, "problem", gk_json_string(words->text));
}

/* It cannot be read, and what is in it may be good. */
static bool is_closed(enum gk_err err)
{
    return err == GK_E_IO || err == GK_E_NOTFOUND || err == GK_E_AGAIN || err == GK_E_REFUSED;
}

/* 0: it cannot be told. */
static uint64_t file_bytes(const struct gk_archive *archive, const char *name)
{
    const struct gk_place *place = &archive->place;
    struct gk_file *file;
    uint64_t bytes = 0;
    int ignored;

    if (place->ops->open(place->disk, name, false, false, &file, &ignored) == GK_OK) {
        (void)place->ops->size(file, &bytes, &ignored);
        place->ops->close_file(file);
    }
    return bytes;
}

static json_t *snapshot_json(struct gk_archive *archive, const struct gk_known *known,
                             enum gk_err *ret_err, struct gk_words *ret_problem)
{
    const struct gk_name name = gk_name_snapshot(known->epoch, known->version);
    struct gk_archived state;
    json_t *object =
        json_pack("{s:s, s:s, s:o, s:o}", "kind", "snapshot", "name", name.text, "first_version",
                  gk_json_integer(known->version), "last_version", gk_json_integer(known->version));
    enum gk_err err = gk_archive_snapshot(archive, known, &state, ret_problem);

    if (!err) {
        const struct gk_image *image = state.image;
        uint32_t planes = gk_image_planes(image);
        uint64_t hash = 0;

        err = gk_archive_hash(archive, &state, true, &hash, ret_problem);
        (void)json_object_set_new(object, "planes", json_integer(planes));
        (void)json_object_set_new(object, "elements", gk_json_integer(image->hi - image->lo));
        (void)json_object_set_new(object, "state_hash", gk_json_hash(hash));
        gk_archived_fini(archive, &state);
    }
    (void)json_object_set_new(object, "bytes", gk_json_integer(file_bytes(archive, name.text)));
    *ret_err = err;
    (void)json_object_set_new(object, "unreadable", json_boolean(is_closed(err)));
    (void)json_object_set_new(object, "problem",
                              err ? gk_json_string(ret_problem->text) : json_null());
    return object;
}

static void void_files(const struct gk_archive *archive, json_t *files)
{
    const struct gk_known_list *lists[] = {&archive->void_snapshots, &archive->void_segments};

    for (size_t l = 0; l < 2; l++) {
        for (uint32_t i = 0; i < lists[l]->count; i++) {
            const struct gk_known *known = &lists[l]->list[i];
            struct gk_name name = l == 0 ? gk_name_snapshot(known->epoch, known->version)
                                         : gk_name_segment(known->epoch, known->version);

            (void)json_array_append_new(
                files, json_pack("{s:s, s:s, s:o, s:o, s:n}", "kind", "void", "name", name.text,
                                 "bytes", gk_json_integer(file_bytes(archive, name.text)),
                                 "first_version", gk_json_integer(known->version), "problem"));
        }
    }
}

static void put_spec(const struct gk_image *image, json_t *object)
{
    struct gk_spec spec;

    if (!image->initialised ||
        gk_spec_decode(image->spec, image->spec_bytes, &spec, NULL) != GK_OK) {
        return;
    }
    (void)json_object_set_new(object, "model", gk_json_string(spec.model));
    (void)json_object_set_new(object, "parameters", gk_json_integer(spec.params_count));
    (void)json_object_set_new(object, "steps", gk_json_integer(spec.steps));
    (void)json_object_set_new(object, "seed", gk_json_integer(spec.seed));
    gk_spec_clear(&spec);
}

/* From the oldest snapshot through the whole log: every state hash on the way. */
static enum gk_err replay(struct gk_archive *archive, json_t *object)
{
    const struct gk_archive_wish wish = {.version = GK_ARCHIVE_NEWEST, .from_oldest = true};
    struct gk_archived state;
    struct gk_words words = {""};
    uint64_t hash = 0;
    enum gk_err err = gk_archive_read(archive, &wish, &state, &words);

    if (err) {
        set_problem(object, &words);
        return err;
    }
    (void)json_object_set_new(object, "initialised", json_boolean(state.image->initialised));
    (void)json_object_set_new(object, "version", gk_json_integer(state.image->version));
    (void)json_object_set_new(object, "finished", json_boolean(state.image->finished));
    (void)json_object_set_new(object, "lives", json_integer(state.image->incarnation));
    (void)json_object_set_new(object, "lo", gk_json_integer(state.image->lo));
    (void)json_object_set_new(object, "hi", gk_json_integer(state.image->hi));
    (void)json_object_set_new(
        object, "replay",
        json_pack("{s:o, s:o, s:o}", "from_version", gk_json_integer(state.from_version), "records",
                  gk_json_integer(state.records), "hashes", gk_json_integer(state.hashes)));
    if (state.image->initialised &&
        gk_archive_hash(archive, &state, false, &hash, &words) == GK_OK) {
        (void)json_object_set_new(object, "model_hash", gk_json_hash(hash));
    }
    put_spec(state.image, object);
    gk_archived_fini(archive, &state);
    return GK_OK;
}

/* *ret_gone: a file that was listed is not there any more. */
static void inspect(struct gk_archive *archive, bool records, json_t *object, bool *ret_gone)
{
    json_t *files = json_array();
    struct gk_words first = {""};
    bool unreadable = false, log_gone;

    *ret_gone = false;
    (void)json_object_set_new(object, "job", gk_json_string(archive->owner.job));
    (void)json_object_set_new(object, "shard", json_integer(archive->owner.shard));
    (void)json_object_set_new(object, "servers", json_integer(archive->owner.servers));
    (void)json_object_set_new(object, "workers", json_integer(archive->owner.workers));
    (void)json_object_set_new(object, "epoch", json_integer(archive->epoch));
    for (uint32_t i = 0; i < archive->snapshots.count; i++) {
        struct gk_words words = {""};
        enum gk_err err = GK_OK;

        (void)json_array_append_new(
            files, snapshot_json(archive, &archive->snapshots.list[i], &err, &words));
        if (words.text[0] && (!first.text[0] || (unreadable && !is_closed(err)))) {
            first = words;
            unreadable = is_closed(err);
        }
        *ret_gone = *ret_gone || err == GK_E_AGAIN;
    }
    if (!gk_inspect_log(archive, records, files, &log_gone) && (!first.text[0] || unreadable)) {
        size_t i;
        json_t *file;

        json_array_foreach(files, i, file)
        {
            if (json_is_string(json_object_get(file, "problem")) &&
                !json_is_true(json_object_get(file, "unreadable")) &&
                (!first.text[0] || unreadable)) {
                unreadable = false;
                gk_words_set(&first, "%s", json_string_value(json_object_get(file, "problem")));
            }
        }
    }
    void_files(archive, files);
    (void)json_object_set_new(object, "files", files);
    *ret_gone = *ret_gone || log_gone;
    if (first.text[0]) {
        set_problem(object, &first);
        (void)json_object_set_new(object, "unreadable", json_boolean(unreadable));
    } else {
        *ret_gone = replay(archive, object) == GK_E_AGAIN;
    }
    if (archive->jobless && json_is_true(json_object_get(object, "ok"))) {
        gk_words_set(&first,
                     "%.200s: the file " GK_STORE_JOB
                     " is missing; the next start of its server writes it anew",
                     archive->place.directory);
        set_problem(object, &first);
    }
}

json_t *gk_inspect_server(const char *path, bool records)
{
    const struct gk_vector_ops *ops;
    struct gk_archive *archive;
    struct gk_words words = {""};
    json_t *object = NULL;
    bool gone = true;

    if (gk_vector_cpu(GK_CPU_AUTO, &ops, &words) != GK_OK) {
        ops = gk_vector_reference();
    }
    for (int i = 0; i < OPENS_MAX && gone; i++) {
        enum gk_err err = gk_archive_open(path, false, ops, &archive, &words);

        json_decref(object);
        object = json_pack("{s:o, s:s, s:b, s:n}", "path", gk_json_string(path), "kind", "server",
                           "ok", 1, "problem");
        if (err) {
            set_problem(object, &words);
            (void)json_object_set_new(object, "unreadable", json_boolean(is_closed(err)));
            gone = err == GK_E_AGAIN;
            continue;
        }
        inspect(archive, records, object, &gone);
        gk_archive_close(archive);
    }
    return object;
}
