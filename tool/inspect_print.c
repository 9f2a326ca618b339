#include "tool/inspect.h"

#include "common/words.h"
#include "tool/json.h"
#include "tool/table.h"
#include "tool/units.h"

#include <inttypes.h>
#include <string.h>

enum { TEXT_BYTES = GK_WORDS_BYTES };

static void records_text(const json_t *file, char *ret)
{
    json_t *types = json_object_get(file, "types");
    const char *name;
    json_t *count;
    size_t used;

    (void)snprintf(ret, TEXT_BYTES, "%s records",
                   gk_unit_count(gk_json_u64(file, "records", 0)).text);
    json_object_foreach(types, name, count)
    {
        used = strlen(ret);
        if (json_integer_value(count) > 0) {
            (void)snprintf(ret + used, TEXT_BYTES - used, ", %" JSON_INTEGER_FORMAT " %s",
                           json_integer_value(count), name);
        }
    }
}

static void content_text(const json_t *file, const char *kind, char *ret)
{
    char hash[20];

    gk_json_text(file, "state_hash", hash, sizeof(hash));
    if (strcmp(kind, "snapshot") == 0) {
        (void)snprintf(ret, TEXT_BYTES, "%s planes of %s, hash %s",
                       gk_unit_count(gk_json_u64(file, "planes", 0)).text,
                       gk_unit_count(gk_json_u64(file, "elements", 0)).text, hash);
    } else if (strcmp(kind, "log") == 0) {
        records_text(file, ret);
    } else {
        (void)snprintf(ret, TEXT_BYTES, "of an older epoch: void");
    }
}

static void versions_text(const json_t *file, char *ret, size_t ret_bytes)
{
    uint64_t first = gk_json_u64(file, "first_version", 0);
    uint64_t last = gk_json_u64(file, "last_version", first);

    if (first == last) {
        (void)snprintf(ret, ret_bytes, "version %" PRIu64, first);
    } else {
        (void)snprintf(ret, ret_bytes, "versions %" PRIu64 " to %" PRIu64, first + 1, last);
    }
}

/* What nobody could look at may be good. */
static const char *wrong(const json_t *object)
{
    return json_is_true(json_object_get(object, "unreadable")) ? "CANNOT BE READ" : "DAMAGED";
}

static void file_row(struct gk_table *table, const json_t *file)
{
    char name[96], kind[16], versions[64], text[TEXT_BYTES];
    bool bad = json_is_string(json_object_get(file, "problem"));
    bool torn = json_is_string(json_object_get(file, "torn"));

    gk_json_text(file, "name", name, sizeof(name));
    gk_json_text(file, "kind", kind, sizeof(kind));
    versions_text(file, versions, sizeof(versions));
    gk_table_cell(table, "%s", name);
    gk_table_cell(table, "%s", gk_unit_bytes(gk_json_u64(file, "bytes", 0)).text);
    gk_table_cell(table, "%s", versions);
    if (bad) {
        gk_json_text(file, "problem", text, sizeof(text));
        gk_table_cell(table, "%s: %s", wrong(file), text);
        return;
    }
    content_text(file, kind, text);
    gk_table_cell(table, "%s%s", text, torn ? ", torn tail" : "");
}

static void record_line(const json_t *record, FILE *out)
{
    char type[16];

    gk_json_text(record, "type", type, sizeof(type));
    (void)fprintf(out,
                  "    offset %-10" PRIu64 " record %-8" PRIu64 " %-8s version %" PRIu64
                  ", %" PRIu64 " bytes",
                  gk_json_u64(record, "offset", 0), gk_json_u64(record, "number", 0), type,
                  gk_json_u64(record, "version", 0), gk_json_u64(record, "bytes", 0));
    if (strcmp(type, "round") == 0) {
        char hash[20];

        gk_json_text(record, "state_hash_before", hash, sizeof(hash));
        (void)fprintf(out, ", %zu ranks, %" PRIu64 " samples, %" PRIu64 " entries%s%s",
                      json_array_size(json_object_get(record, "ranks")),
                      gk_json_u64(record, "samples", 0), gk_json_u64(record, "entries", 0),
                      *hash ? ", hash before it " : "", hash);
    }
    (void)fprintf(out, "\n");
}

static void print_heading(const json_t *object, const char *path, FILE *out)
{
    char job[64], model[64];

    gk_json_text(object, "job", job, sizeof(job));
    gk_json_text(object, "model", model, sizeof(model));
    (void)fprintf(out, "%s: ", path);
    if (!*job) {
        (void)fprintf(out, "cannot be read\n");
        return;
    }
    (void)fprintf(out,
                  "shard %" PRIu64 " of %" PRIu64 " of job '%s' with %" PRIu64
                  " workers, epoch %" PRIu64 "%s%s\n",
                  gk_json_u64(object, "shard", 0), gk_json_u64(object, "servers", 0), job,
                  gk_json_u64(object, "workers", 0), gk_json_u64(object, "epoch", 0),
                  *model ? ", " : "", model);
}

static void print_worker(const json_t *object, const char *path, FILE *out)
{
    char job[64], state[16], text[TEXT_BYTES];

    gk_json_text(object, "job", job, sizeof(job));
    gk_json_text(object, "state", state, sizeof(state));
    (void)fprintf(out, "%s: ", path);
    if (!*job) {
        (void)fprintf(out, "cannot be read\n");
    } else if (json_is_integer(json_object_get(object, "rank"))) {
        (void)fprintf(out,
                      "rank %" PRIu64 " of %" PRIu64 " of job '%s', life %" PRIu64
                      ", epoch %" PRIu64 ", %s\n",
                      gk_json_u64(object, "rank", 0), gk_json_u64(object, "workers", 0), job,
                      gk_json_u64(object, "incarnation", 0), gk_json_u64(object, "epoch", 0),
                      gk_unit_bytes(gk_json_u64(object, "bytes", 0)).text);
    } else {
        (void)fprintf(out, "a worker of job '%s' that has not joined yet\n", job);
    }
    if (strcmp(state, "left") == 0) {
        (void)fprintf(out, "  has left at step %" PRIu64 "\n", gk_json_u64(object, "left_at", 0));
    } else if (strcmp(state, "step") == 0) {
        (void)fprintf(out, "  residual behind step %" PRIu64 ", with %" PRIu64 " pushes\n",
                      gk_json_u64(object, "step", 0), gk_json_u64(object, "pushes", 0));
    } else if (strcmp(state, "none") == 0) {
        (void)fprintf(out, "  no residual yet\n");
    }
    gk_json_text(object, "problem", text, sizeof(text));
    if (*text) {
        (void)fprintf(out, "  %s: %s\n", wrong(object), text);
    }
}

/* What it comes to. */
static void print_verdict(const json_t *object, FILE *out)
{
    const json_t *replay = json_object_get(object, "replay");
    char text[TEXT_BYTES], hash[20];

    if (!json_is_true(json_object_get(object, "ok"))) {
        gk_json_text(object, "problem", text, sizeof(text));
        (void)fprintf(out, "  %s: %s\n", wrong(object), text);
        return;
    }
    gk_json_text(object, "model_hash", hash, sizeof(hash));
    if (!gk_json_bool(object, "initialised")) {
        (void)fprintf(out, "  no version yet\n");
        return;
    }
    (void)fprintf(
        out,
        "  version %" PRIu64 "%s, hash of its parameters %s; replayed from version %" PRIu64
        ", %" PRIu64 " state hashes agree\n",
        gk_json_u64(object, "version", 0), gk_json_bool(object, "finished") ? ", finished" : "",
        hash, gk_json_u64(replay, "from_version", 0), gk_json_u64(replay, "hashes", 0));
}

void gk_inspect_print(const json_t *object, FILE *out)
{
    const json_t *files = json_object_get(object, "files");
    struct gk_table table;
    char text[TEXT_BYTES];
    const json_t *file, *record;
    size_t i, r;

    gk_json_text(object, "path", text, sizeof(text));
    if (strcmp(json_string_value(json_object_get(object, "kind")), "worker") == 0) {
        print_worker(object, text, out);
        return;
    }
    print_heading(object, text, out);
    gk_table_init(&table, "lrll");
    json_array_foreach(files, i, file)
    {
        file_row(&table, file);
    }
    gk_table_print(&table, "  ", out);
    gk_table_fini(&table);
    json_array_foreach(files, i, file)
    {
        gk_json_text(file, "torn", text, sizeof(text));
        if (*text) {
            (void)fprintf(out, "  torn tail of %" PRIu64 " bytes: %s\n",
                          gk_json_u64(file, "torn_bytes", 0), text);
        }
        json_array_foreach(json_object_get(file, "list"), r, record)
        {
            record_line(record, out);
        }
    }
    print_verdict(object, out);
}
