#include "tool/status_view.h"

#include "common/exit.h"
#include "common/limits.h"
#include "tool/json.h"
#include "tool/table.h"
#include "tool/units.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES = 96, MISSING_SHOWN = 8 };

/* One rank as all shards see it. */
struct rank_row {
    bool known;
    char state[32];
    uint64_t incarnation, step_min, step_max;
    double heard_s; /* the freshest; NAN: never */
    uint32_t shards, contributed;
    char waits[TEXT_BYTES];
};

int64_t gk_status_imbalance(const json_t *status)
{
    const json_t *ledger = json_object_get(status, "ledger");
    uint64_t known = gk_json_u64(ledger, "applied", 0) + gk_json_u64(ledger, "returned", 0) +
                     gk_json_u64(ledger, "skipped", 0) + gk_json_u64(ledger, "lost", 0) +
                     gk_json_u64(ledger, "pending", 0);
    uint64_t pushes = gk_json_u64(ledger, "pushes", 0);

    return pushes >= known ? (int64_t)((pushes - known) & INT64_MAX)
                           : -(int64_t)((known - pushes) & INT64_MAX);
}

static bool same_text(const json_t *a, const json_t *b, const char *key)
{
    char left[TEXT_BYTES], right[TEXT_BYTES];

    gk_json_text(a, key, left, sizeof(left));
    gk_json_text(b, key, right, sizeof(right));
    return strcmp(left, right) == 0;
}

static void add_server(const json_t *first, const json_t *status, bool *seen,
                       struct gk_status_total *total)
{
    uint64_t shard = gk_json_u64(status, "shard", GK_SERVERS_MAX);
    uint64_t hash = 0;

    total->answers++;
    total->one_job =
        total->one_job && same_text(first, status, "job_uid") && same_text(first, status, "job");
    total->balanced = total->balanced && gk_status_imbalance(status) == 0;
    if (shard >= GK_SERVERS_MAX || seen[shard]) {
        total->whole = false;
    } else {
        seen[shard] = true;
    }
    total->hashed = total->hashed && gk_json_hex64(status, "model_hash", &hash) &&
                    gk_json_u64(status, "hash_version", UINT64_MAX) == total->hash_version;
    total->model_hash += hash; /* mod 2^64 by definition */
}

void gk_status_total(const struct gk_status_server *servers, uint32_t count,
                     struct gk_status_total *ret_total)
{
    bool seen[GK_SERVERS_MAX] = {false};
    const json_t *first = NULL;

    memset(ret_total, 0, sizeof(*ret_total));
    ret_total->one_job = ret_total->whole = ret_total->hashed = ret_total->balanced = true;
    for (uint32_t i = 0; i < count; i++) {
        if (!servers[i].status) {
            continue;
        }
        if (!first) {
            first = servers[i].status;
            ret_total->hash_version = gk_json_u64(first, "hash_version", 0);
        }
        add_server(first, servers[i].status, seen, ret_total);
    }
    ret_total->whole = ret_total->whole && first && ret_total->one_job &&
                       ret_total->answers == gk_json_u64(first, "servers", 0);
    ret_total->hashed = ret_total->hashed && ret_total->whole;
}

int gk_status_code(const struct gk_status_server *servers, uint32_t count)
{
    struct gk_status_total total;

    gk_status_total(servers, count, &total);
    if (total.answers < count) {
        return GK_EXIT_PEER;
    }
    return total.balanced ? GK_EXIT_OK : GK_EXIT_INTERNAL;
}

static void print_head(const struct gk_status_server *servers, uint32_t count,
                       const struct gk_status_total *total, FILE *out)
{
    const json_t *first = NULL;
    char job[GK_JOB_NAME_BYTES], uid[40];
    uint64_t shards, workers;

    for (uint32_t i = count; i-- > 0;) {
        first = servers[i].status ? servers[i].status : first;
    }
    shards = gk_json_u64(first, "servers", 0);
    workers = gk_json_u64(first, "workers", 0);
    gk_json_text(first, "job", job, sizeof(job));
    gk_json_text(first, "job_uid", uid, sizeof(uid));
    (void)fprintf(out, "job %s", job[0] ? job : "-");
    if (uid[0]) {
        (void)fprintf(out, " (%s)", uid);
    }
    (void)fprintf(out, ": %" PRIu64 " server%s, %" PRIu64 " worker%s\n", shards,
                  shards == 1 ? "" : "s", workers, workers == 1 ? "" : "s");
    if (!total->one_job) {
        (void)fprintf(out, "these servers belong to different jobs\n");
    }
    if (total->hashed) {
        (void)fprintf(out, "model hash %016" PRIx64 " at version %" PRIu64 "\n", total->model_hash,
                      total->hash_version);
    }
}

static void number_cell(struct gk_table *table, const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    if (json_is_integer(value)) {
        gk_table_cell(table, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    } else {
        gk_table_cell(table, "-");
    }
}

static void text_cell(struct gk_table *table, const json_t *object, const char *key)
{
    char text[TEXT_BYTES];

    gk_json_text(object, key, text, sizeof(text));
    gk_table_cell(table, "%s", text[0] ? text : "-");
}

static void seconds_cell(struct gk_table *table, double seconds)
{
    gk_table_cell(table, "%s", gk_unit_seconds(seconds).text);
}

static void heads(struct gk_table *table, const char *const *names)
{
    for (; *names; names++) {
        gk_table_cell(table, "%s", *names);
    }
}

static void print_shards(const struct gk_status_server *servers, uint32_t count, FILE *out)
{
    static const char *const names[] = {"shard",   "address",    "state",      "version",
                                        "durable", "parameters", "model hash", "in",
                                        "out",     "reserved",   "uptime",     NULL};
    struct gk_table table;

    gk_table_init(&table, "rllrrrlrrrr");
    heads(&table, names);
    for (uint32_t i = 0; i < count; i++) {
        const json_t *status = servers[i].status;
        const json_t *bytes = json_object_get(status, "bytes");

        number_cell(&table, status, "shard");
        gk_table_cell(&table, "%s", servers[i].address);
        if (status) {
            text_cell(&table, status, "state");
        } else {
            gk_table_cell(&table, "no answer");
        }
        number_cell(&table, status, "version");
        number_cell(&table, status, "durable_version");
        number_cell(&table, status, "params");
        text_cell(&table, status, "model_hash");
        gk_table_cell(&table, "%s", gk_unit_bytes(gk_json_u64(bytes, "in", 0)).text);
        gk_table_cell(&table, "%s", gk_unit_bytes(gk_json_u64(bytes, "out", 0)).text);
        gk_table_cell(
            &table, "%s",
            gk_unit_bytes(gk_json_u64(json_object_get(status, "memory"), "reserved", 0)).text);
        seconds_cell(&table, gk_json_double(status, "uptime_s"));
    }
    gk_table_print(&table, "", out);
    gk_table_fini(&table);
}

static void add_state(struct rank_row *row, const char *state)
{
    size_t used = strlen(row->state);

    if (!strstr(row->state, state)) { /* shards that disagree: "present/absent" */
        (void)snprintf(row->state + used, sizeof(row->state) - used, "%s%s", used ? "/" : "",
                       state);
    }
}

static void add_rank(struct rank_row *row, const json_t *rank)
{
    uint64_t incarnation = gk_json_u64(rank, "incarnation", 0);
    uint64_t step = gk_json_u64(rank, "step", 0);
    double heard_s = gk_json_double(rank, "last_heard_s");
    char state[16];

    if (!row->known) {
        row->known = true;
        row->step_min = step;
        row->heard_s = heard_s;
    }
    row->shards++;
    gk_json_text(rank, "state", state, sizeof(state));
    add_state(row, state);
    row->incarnation = incarnation > row->incarnation ? incarnation : row->incarnation;
    row->step_min = step < row->step_min ? step : row->step_min;
    row->step_max = step > row->step_max ? step : row->step_max;
    if (isfinite(heard_s) && !(row->heard_s <= heard_s)) {
        row->heard_s = heard_s;
    }
    row->contributed += gk_json_bool(rank, "contributed");
    if (!row->waits[0]) {
        gk_json_text(rank, "waits_for", row->waits, sizeof(row->waits));
    }
}

static void rank_cells(struct gk_table *table, uint32_t number, const struct rank_row *row)
{
    gk_table_cell(table, "%u", number);
    gk_table_cell(table, "%s", row->state[0] ? row->state : "-");
    gk_table_cell(table, "%" PRIu64, row->incarnation);
    if (row->step_min == row->step_max) {
        gk_table_cell(table, "%" PRIu64, row->step_min);
    } else {
        gk_table_cell(table, "%" PRIu64 "-%" PRIu64, row->step_min, row->step_max);
    }
    seconds_cell(table, row->heard_s);
    gk_table_cell(table, "%u/%u", row->contributed, row->shards);
    gk_table_cell(table, "%s", row->waits[0] ? row->waits : "-");
}

static void print_ranks(const struct gk_status_server *servers, uint32_t count, FILE *out)
{
    static const char *const names[] = {"rank",       "state",       "life",      "next step",
                                        "last heard", "contributed", "waits for", NULL};
    struct rank_row *rows = calloc(GK_WORKERS_MAX, sizeof(*rows));
    struct gk_table table;

    if (!rows) {
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        const json_t *ranks = json_object_get(servers[i].status, "ranks");

        for (size_t r = 0; r < json_array_size(ranks); r++) {
            const json_t *rank = json_array_get(ranks, r);
            uint64_t number = gk_json_u64(rank, "rank", GK_WORKERS_MAX);

            if (number < GK_WORKERS_MAX) {
                add_rank(&rows[number], rank);
            }
        }
    }
    gk_table_init(&table, "rlrrrrl");
    heads(&table, names);
    for (uint32_t i = 0; i < GK_WORKERS_MAX; i++) {
        if (rows[i].known) {
            rank_cells(&table, i, &rows[i]);
        }
    }
    gk_table_print(&table, "", out);
    gk_table_fini(&table);
    free(rows);
}

static void print_round(const json_t *status, FILE *out)
{
    const json_t *round = json_object_get(status, "round");
    const json_t *missing = json_object_get(round, "missing");
    size_t count = json_array_size(missing);

    if (!json_is_object(round)) {
        return;
    }
    (void)fprintf(out, "shard %" PRIu64 ": round of step %" PRIu64 " is open for %s, ",
                  gk_json_u64(status, "shard", 0), gk_json_u64(round, "step", 0),
                  gk_unit_seconds(gk_json_double(round, "open_s")).text);
    if (count == 0) {
        (void)fprintf(out, "all have contributed\n");
        return;
    }
    (void)fprintf(out, "waits for rank");
    for (size_t i = 0; i < count && i < MISSING_SHOWN; i++) {
        (void)fprintf(out, "%s %" JSON_INTEGER_FORMAT, i ? "," : "",
                      json_integer_value(json_array_get(missing, i)));
    }
    if (count > MISSING_SHOWN) {
        (void)fprintf(out, " and %zu more", count - MISSING_SHOWN);
    }
    (void)fputc('\n', out);
}

/* Why a shard makes no versions although nobody is missing. */
static void print_disk(const json_t *status, FILE *out)
{
    const json_t *state = json_object_get(status, "state_dir");
    char directory[256];

    if (!json_is_number(json_object_get(state, "disk_full_s"))) {
        return;
    }
    gk_json_text(state, "directory", directory, sizeof(directory));
    (void)fprintf(out,
                  "shard %" PRIu64 ": the disk of %s has been full for %s: make room there; "
                  "version %" PRIu64 " stays served\n",
                  gk_json_u64(status, "shard", 0), directory,
                  gk_unit_seconds(gk_json_double(state, "disk_full_s")).text,
                  gk_json_u64(status, "version", 0));
}

static const char *const ledger_keys[] = {"pushes",       "applied", "returned",   "skipped",
                                          "lost",         "pending", "duplicates", "nacks",
                                          "bad_messages", NULL};

static void print_ledger(const struct gk_status_server *servers, uint32_t count, FILE *out)
{
    struct gk_table table;

    gk_table_init(&table, "rrrrrrrrrrl");
    gk_table_cell(&table, "shard");
    heads(&table, ledger_keys);
    gk_table_cell(&table, "balance");
    for (uint32_t i = 0; i < count; i++) {
        const json_t *ledger = json_object_get(servers[i].status, "ledger");
        int64_t imbalance = gk_status_imbalance(servers[i].status);

        if (!servers[i].status) {
            continue;
        }
        number_cell(&table, servers[i].status, "shard");
        for (const char *const *key = ledger_keys; *key; key++) {
            number_cell(&table, ledger, *key);
        }
        if (imbalance == 0) {
            gk_table_cell(&table, "%s", json_is_object(ledger) ? "ok" : "-");
        } else {
            gk_table_cell(&table, "OFF BY %" PRId64, imbalance);
        }
    }
    gk_table_print(&table, "", out);
    gk_table_fini(&table);
}

void gk_status_print(const struct gk_status_server *servers, uint32_t count, FILE *out)
{
    struct gk_status_total total;

    gk_status_total(servers, count, &total);
    if (total.answers > 0) {
        print_head(servers, count, &total, out);
        (void)fputc('\n', out);
        print_shards(servers, count, out);
        (void)fputc('\n', out);
        print_ranks(servers, count, out);
        (void)fputc('\n', out);
        for (uint32_t i = 0; i < count; i++) {
            print_round(servers[i].status, out);
            print_disk(servers[i].status, out);
        }
        (void)fprintf(out, "\npushes = applied + returned + skipped + lost + pending\n");
        print_ledger(servers, count, out);
    }
}

static json_t *server_json(const struct gk_status_server *server)
{
    json_t *object = json_object();
    json_t *status = server->status ? json_deep_copy(server->status) : json_null();
    bool failed = json_object_set_new(object, "address", gk_json_string(server->address)) != 0;

    failed = json_object_set_new(object, "status", status) != 0 || failed;
    if (server->status) {
        failed = json_object_set_new(object, "imbalance",
                                     json_integer(gk_status_imbalance(server->status))) != 0 ||
                 failed;
    } else {
        failed = json_object_set_new(object, "error", gk_json_string(server->words)) != 0 || failed;
    }
    if (failed) {
        json_decref(object);
        return NULL;
    }
    return object;
}

json_t *gk_status_json(const struct gk_status_server *servers, uint32_t count)
{
    struct gk_status_total total;
    json_t *list = json_array();
    json_t *hash;

    gk_status_total(servers, count, &total);
    for (uint32_t i = 0; i < count; i++) {
        if (json_array_append_new(list, server_json(&servers[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    hash = total.hashed ? gk_json_hash(total.model_hash) : json_null();
    return json_pack(
        "{s:b, s:b, s:b, s:o, s:o, s:o}", "complete", (int)(total.answers == count), "whole_job",
        (int)total.whole, "balanced", (int)total.balanced, "model_hash", hash, "hash_version",
        total.hashed ? gk_json_integer(total.hash_version) : json_null(), "servers", list);
}
