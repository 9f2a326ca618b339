#include "tool/tally.h"

#include "common/assert.h"
#include "tool/json.h"
#include "tool/table.h"
#include "tool/units.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const gk_tally_times[GK_TALLY_TIMES] = {"compute", "select", "push", "wait", "pull"};

const char *gk_role_name(enum gk_role role)
{
    return role == GK_ROLE_SERVER ? "server" : "worker";
}

enum gk_err gk_tally_init(struct gk_tally *tally, uint32_t servers, uint32_t workers)
{
    memset(tally, 0, sizeof(*tally));
    tally->servers = calloc(servers, sizeof(*tally->servers));
    tally->workers = calloc(workers, sizeof(*tally->workers));
    if (!tally->servers || !tally->workers) {
        gk_tally_fini(tally);
        return GK_E_NOMEM;
    }
    tally->servers_count = servers;
    tally->workers_count = workers;
    tally->accuracy = (double)NAN;
    tally->test_loss = (double)NAN;
    for (uint32_t i = 0; i < workers; i++) {
        tally->workers[i].loss = (double)NAN;
        tally->workers[i].accuracy = (double)NAN;
        tally->workers[i].test_loss = (double)NAN;
    }
    return GK_OK;
}

void gk_tally_fini(struct gk_tally *tally)
{
    free(tally->servers);
    free(tally->workers);
    memset(tally, 0, sizeof(*tally));
}

/* Whoever sums up has done the last step, but counts those of its last life. */
static uint64_t steps_done(const struct gk_tally *tally, const struct gk_tally_worker *worker)
{
    uint64_t known = tally->uneven ? worker->step : tally->steps;

    return (worker->restarts > 0 || tally->resumed) && known > worker->steps ? known
                                                                             : worker->steps;
}

static void take_worker_summary(const struct gk_tally *tally, struct gk_tally_worker *worker,
                                const json_t *object)
{
    const json_t *time = json_object_get(object, "time");

    worker->summed = true;
    worker->steps = gk_json_u64(object, "steps", 0);
    worker->step = steps_done(tally, worker);
    worker->samples = gk_json_u64(object, "samples", 0);
    worker->seconds = gk_json_double(object, "seconds");
    worker->loss = gk_json_double(object, "loss");
    worker->accuracy = gk_json_double(object, "accuracy");
    worker->test_loss = gk_json_double(object, "test_loss");
    worker->bytes_pushed = gk_json_u64(object, "bytes_pushed", 0);
    worker->bytes_pulled = gk_json_u64(object, "bytes_pulled", 0);
    worker->bytes_headers = gk_json_u64(object, "bytes_headers", 0);
    worker->bytes_dense = gk_json_u64(object, "bytes_dense", 0);
    worker->selected = gk_json_u64(object, "selected", 0);
    worker->retries = gk_json_u64(object, "retries", 0);
    worker->residuals_lost = gk_json_u64(object, "residuals_lost", 0);
    worker->left_before = json_is_true(json_object_get(object, "left_before"));
    worker->parameters = gk_json_u64(object, "parameters", 0);
    gk_json_text(object, "blas", worker->blas, sizeof(worker->blas));
    for (int i = 0; i < GK_TALLY_TIMES; i++) {
        worker->time[i] = gk_json_double(time, gk_tally_times[i]);
    }
}

static void take_server_summary(struct gk_tally_server *server, const json_t *object)
{
    server->summed = true;
    server->hashed = gk_json_hex64(object, "model_hash", &server->model_hash);
    server->version = gk_json_u64(object, "version", 0);
    server->pushes = gk_json_u64(object, "pushes", 0);
    server->applied = gk_json_u64(object, "applied", 0);
    server->returned = gk_json_u64(object, "returned", 0);
    server->skipped = gk_json_u64(object, "skipped", 0);
    server->lost = gk_json_u64(object, "lost", 0);
}

static enum gk_tally_event worker_line(struct gk_tally *tally, struct gk_tally_worker *worker,
                                       const char *event, const json_t *object)
{
    if (strcmp(event, "progress") == 0) {
        worker->reported = true;
        worker->step = gk_json_u64(object, "step", worker->step);
        worker->loss = gk_json_double(object, "loss");
        return GK_TALLY_PROGRESS;
    }
    if (strcmp(event, "eval") == 0) {
        tally->evaluated = true;
        tally->eval_step = gk_json_u64(object, "step", 0);
        tally->accuracy = gk_json_double(object, "accuracy");
        tally->test_loss = gk_json_double(object, "loss");
        return GK_TALLY_EVAL;
    }
    if (strcmp(event, "summary") == 0) {
        take_worker_summary(tally, worker, object);
        return GK_TALLY_SUMMARY;
    }
    return GK_TALLY_OTHER;
}

enum gk_tally_event gk_tally_line(struct gk_tally *tally, enum gk_role role, uint32_t index,
                                  const json_t *object)
{
    char event[16];

    gk_json_text(object, "event", event, sizeof(event));
    if (role == GK_ROLE_WORKER) {
        GK_ASSERT(index < tally->workers_count);
        tally->workers[index].opened = true;
    }
    if (strcmp(event, "death") == 0) {
        return GK_TALLY_DEATH;
    }
    if (strcmp(event, "note") == 0) {
        return GK_TALLY_NOTE;
    }
    if (strcmp(event, "trouble") == 0) {
        return GK_TALLY_TROUBLE;
    }
    if (role == GK_ROLE_WORKER) {
        return worker_line(tally, &tally->workers[index], event, object);
    }
    GK_ASSERT(index < tally->servers_count);
    if (strcmp(event, "endpoint") == 0) {
        return GK_TALLY_ENDPOINT;
    }
    if (strcmp(event, "summary") == 0) {
        take_server_summary(&tally->servers[index], object);
        return GK_TALLY_SUMMARY;
    }
    return GK_TALLY_OTHER;
}

void gk_tally_restart(struct gk_tally *tally, enum gk_role role, uint32_t index)
{
    tally->restarts++;
    if (role == GK_ROLE_WORKER) {
        GK_ASSERT(index < tally->workers_count);
        tally->workers[index].restarts++;
        tally->workers[index].reported = false;
    }
}

bool gk_tally_begun(const struct gk_tally *tally)
{
    for (uint32_t i = 0; i < tally->workers_count; i++) {
        if (tally->workers[i].step > 0) {
            return true;
        }
    }
    return false;
}

bool gk_tally_short(const struct gk_tally *tally, uint32_t rank)
{
    const struct gk_tally_worker *worker = &tally->workers[rank];

    bool was_done = tally->steps > 0 && tally->resumed && tally->resumed_from >= tally->steps;
    bool early = !tally->uneven && worker->step < tally->steps;

    return worker->summed && !was_done && (worker->left_before || early);
}

uint64_t gk_tally_step(const struct gk_tally *tally)
{
    uint64_t least = UINT64_MAX, most = 0;

    for (uint32_t i = 0; i < tally->workers_count; i++) {
        const struct gk_tally_worker *worker = &tally->workers[i];

        if (!worker->summed && worker->step < least) {
            least = worker->step;
        }
        if (worker->step > most) {
            most = worker->step;
        }
    }
    return least == UINT64_MAX ? most : least;
}

double gk_tally_loss(const struct gk_tally *tally)
{
    double sum = 0.0;
    uint32_t count = 0;

    for (uint32_t i = 0; i < tally->workers_count; i++) {
        if (isfinite(tally->workers[i].loss)) {
            sum += tally->workers[i].loss;
            count++;
        }
    }
    return count ? sum / count : (double)NAN;
}

/* Done by this run. */
static uint64_t steps_here(const struct gk_tally_total *total)
{
    return total->steps > total->resumed_from ? total->steps - total->resumed_from : 0;
}

static void add_workers(const struct gk_tally *tally, struct gk_tally_total *total)
{
    for (uint32_t i = 0; i < tally->workers_count; i++) {
        const struct gk_tally_worker *worker = &tally->workers[i];

        total->complete = total->complete && worker->summed;
        total->steps = worker->step > total->steps ? worker->step : total->steps;
        total->samples += worker->samples;
        if (worker->seconds > total->seconds) {
            total->seconds = worker->seconds;
        }
        total->bytes_pushed += worker->bytes_pushed;
        total->bytes_pulled += worker->bytes_pulled;
        total->bytes_headers += worker->bytes_headers;
        total->bytes_dense += worker->bytes_dense;
        total->selected += worker->selected;
        total->retries += worker->retries;
        total->residuals_lost += worker->residuals_lost;
        for (int t = 0; t < GK_TALLY_TIMES; t++) {
            total->time[t] += worker->time[t] / tally->workers_count;
        }
    }
    if (total->seconds > 0.0) {
        total->steps_per_s = (double)steps_here(total) / total->seconds;
        total->samples_per_s = (double)total->samples / total->seconds;
    }
}

static void add_servers(const struct gk_tally *tally, struct gk_tally_total *total)
{
    for (uint32_t i = 0; i < tally->servers_count; i++) {
        const struct gk_tally_server *server = &tally->servers[i];

        total->complete = total->complete && server->summed;
        total->hashed = total->hashed && server->hashed;
        total->one_version = total->one_version && server->version == tally->servers[0].version;
        total->balanced = total->balanced && server->pushes == server->applied + server->returned +
                                                                   server->skipped + server->lost;
        total->model_hash += server->model_hash; /* mod 2^64 by definition */
        total->pushes += server->pushes;
        total->applied += server->applied;
        total->returned += server->returned;
        total->skipped += server->skipped;
        total->lost += server->lost;
    }
    total->version = tally->servers[0].version;
    /* Shards of different versions together are no model. */
    total->hashed = total->hashed && total->one_version;
}

void gk_tally_total(const struct gk_tally *tally, struct gk_tally_total *ret_total)
{
    memset(ret_total, 0, sizeof(*ret_total));
    ret_total->complete = true;
    ret_total->hashed = true;
    ret_total->one_version = true;
    ret_total->balanced = true;
    ret_total->steps_per_s = (double)NAN;
    ret_total->samples_per_s = (double)NAN;
    ret_total->restarts = tally->restarts;
    ret_total->from_state = tally->from_state;
    ret_total->resumed = tally->resumed;
    ret_total->resumed_from = tally->resumed ? tally->resumed_from : 0;
    ret_total->seconds = tally->seconds;
    ret_total->loss = gk_tally_loss(tally);
    ret_total->accuracy = tally->workers[0].accuracy;
    ret_total->test_loss = tally->workers[0].test_loss;
    ret_total->parameters = tally->workers[0].parameters;
    ret_total->blas = tally->workers[0].blas;
    add_workers(tally, ret_total);
    add_servers(tally, ret_total);
    if (tally->uneven && tally->evaluated && isnan(ret_total->accuracy)) {
        ret_total->accuracy = tally->accuracy;
        ret_total->test_loss = tally->test_loss;
    }
    if (tally->uneven && ret_total->one_version && ret_total->version > ret_total->steps) {
        ret_total->steps = ret_total->version; /* counted over all lives */
    }
}

static json_t *ledger_json(const struct gk_tally_total *total)
{
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:b}", "pushes", gk_json_integer(total->pushes),
                     "applied", gk_json_integer(total->applied), "returned",
                     gk_json_integer(total->returned), "skipped", gk_json_integer(total->skipped),
                     "lost", gk_json_integer(total->lost), "balanced", (int)total->balanced);
}

static json_t *times_json(const struct gk_tally_total *total)
{
    json_t *times = json_object();

    for (int i = 0; i < GK_TALLY_TIMES; i++) {
        if (json_object_set_new(times, gk_tally_times[i], gk_json_real(total->time[i])) != 0) {
            json_decref(times);
            return NULL;
        }
    }
    return times;
}

/* Of the configuration, once more at the top; null: it is not there. */
static json_t *setting(const json_t *config, const char *key)
{
    json_t *value = json_object_get(config, key);

    return value ? json_incref(value) : json_null();
}

/* A number that only the workers of this run could tell. */
static json_t *worker_json(const struct gk_tally_total *total, uint64_t value)
{
    return total->from_state ? json_null() : gk_json_integer(value);
}

json_t *gk_tally_json(const struct gk_tally_total *total, const char *job, const json_t *config)
{
    const struct {
        const char *key;
        json_t *value;
    } fields[] = {
        {"gkps", json_string(GK_VERSION)},
        {"job", json_string(job)},
        {"model", setting(config, "model")},
        {"data", setting(config, "data")},
        {"parameters", total->parameters ? gk_json_integer(total->parameters) : json_null()},
        {"compressor", setting(config, "compressor")},
        {"density", setting(config, "density")},
        {"seed", setting(config, "seed")},
        {"accuracy", gk_json_real(total->accuracy)},
        {"loss", gk_json_real(total->loss)},
        {"test_loss", gk_json_real(total->test_loss)},
        {"restarts", gk_json_integer(total->restarts)},
        {"resumed_from", total->resumed ? gk_json_integer(total->resumed_from) : json_null()},
        {"steps", gk_json_integer(total->steps)},
        {"samples", worker_json(total, total->samples)},
        {"seconds", gk_json_real(total->from_state ? (double)NAN : total->seconds)},
        {"steps_per_s", gk_json_real(total->steps_per_s)},
        {"samples_per_s", gk_json_real(total->samples_per_s)},
        {"version", gk_json_integer(total->version)},
        {"model_hash", total->hashed ? gk_json_hash(total->model_hash) : json_null()},
        {"bytes_pushed", worker_json(total, total->bytes_pushed)},
        {"bytes_pulled", worker_json(total, total->bytes_pulled)},
        {"bytes_headers", worker_json(total, total->bytes_headers)},
        {"bytes_dense", worker_json(total, total->bytes_dense)},
        {"selected", worker_json(total, total->selected)},
        {"retries", worker_json(total, total->retries)},
        {"residuals_lost", worker_json(total, total->residuals_lost)},
        {"time", total->from_state ? json_null() : times_json(total)},
        {"ledger", ledger_json(total)},
        {"config", json_deep_copy(config)},
    };
    json_t *object = json_object();
    bool failed = false;

    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        /* Takes the value even when it fails. */
        failed = json_object_set_new(object, fields[i].key, fields[i].value) != 0 || failed;
    }
    if (failed) {
        json_decref(object);
        return NULL;
    }
    return object;
}

static void row(struct gk_table *table, const char *name, const char *value)
{
    gk_table_cell(table, "%s", name);
    gk_table_cell(table, "%s", value);
}

static void byte_rows(struct gk_table *table, const struct gk_tally_total *total)
{
    uint64_t moved = total->bytes_pushed + total->bytes_pulled + total->bytes_headers;
    struct gk_unit dense = gk_unit_bytes(total->bytes_dense);

    row(table, "bytes pushed", gk_unit_bytes(total->bytes_pushed).text);
    row(table, "bytes pulled", gk_unit_bytes(total->bytes_pulled).text);
    row(table, "bytes in headers", gk_unit_bytes(total->bytes_headers).text);
    gk_table_cell(table, "bytes if dense");
    if (moved > 0 && moved < total->bytes_dense) {
        gk_table_cell(table, "%s (%.3g times as many)", dense.text,
                      (double)total->bytes_dense / (double)moved);
    } else {
        gk_table_cell(
            table, "%s%s", dense.text,
            moved > 0 && total->bytes_dense > 0 ? " (no more: compression does not pay here)" : "");
    }
}

static void time_row(struct gk_table *table, const struct gk_tally_total *total)
{
    char text[GK_TALLY_TIMES * 48] = "";
    size_t used = 0;

    for (int i = 0; i < GK_TALLY_TIMES; i++) {
        uint64_t steps = steps_here(total);
        double per_step = steps ? total->time[i] / (double)steps : (double)NAN;

        (void)snprintf(text + used, sizeof(text) - used, "%s%s %s", i ? ", " : "",
                       gk_tally_times[i], gk_unit_seconds(per_step).text);
        used = strlen(text);
    }
    row(table, "time per step", text);
}

/* What the workers of this run have told. */
static void worker_rows(struct gk_table *table, const struct gk_tally_total *total)
{
    /* A program of the user's tells what it likes to. */
    if (isfinite(total->accuracy)) {
        row(table, "accuracy", gk_unit_percent(total->accuracy).text);
    }
    if (isfinite(total->test_loss)) {
        row(table, "test loss", gk_unit_number(total->test_loss).text);
    }
    if (isfinite(total->loss)) {
        row(table, "train loss", gk_unit_number(total->loss).text);
    }
    gk_table_cell(table, "speed");
    gk_table_cell(table, "%s steps/s, %s samples/s", gk_unit_rate(total->steps_per_s).text,
                  gk_unit_rate(total->samples_per_s).text);
    time_row(table, total);
    byte_rows(table, total);
}

static void print_heading(const struct gk_tally_total *total, const char *job, FILE *out)
{
    if (total->from_state) {
        (void)fprintf(out, "job %s: %s steps; what its state says:\n", job,
                      gk_unit_count(total->steps).text);
    } else {
        (void)fprintf(out, "job %s: %s steps, %s samples in %s\n", job,
                      gk_unit_count(total->steps).text, gk_unit_count(total->samples).text,
                      gk_unit_seconds(total->seconds).text);
    }
}

void gk_tally_print(const struct gk_tally_total *total, const char *job, FILE *out)
{
    struct gk_table table;
    char hash[24] = "-";

    if (total->hashed) {
        (void)snprintf(hash, sizeof(hash), "%016" PRIx64, total->model_hash);
    }
    gk_table_init(&table, "ll");
    if (!total->from_state) {
        worker_rows(&table, total);
    }
    gk_table_cell(&table, "pushes");
    gk_table_cell(&table, "%s = %s applied + %s returned + %s skipped + %s lost%s",
                  gk_unit_count(total->pushes).text, gk_unit_count(total->applied).text,
                  gk_unit_count(total->returned).text, gk_unit_count(total->skipped).text,
                  gk_unit_count(total->lost).text, total->balanced ? "" : " (DOES NOT BALANCE)");
    if (total->residuals_lost > 0) {
        gk_table_cell(&table, "residuals lost");
        gk_table_cell(&table, "%s (a worker went on with an empty one; another model than without)",
                      gk_unit_count(total->residuals_lost).text);
    }
    if (total->restarts > 0) {
        gk_table_cell(&table, "restarts");
        gk_table_cell(&table, "%u (samples, times and bytes are of the last lives)",
                      total->restarts);
    }
    if (total->resumed) {
        gk_table_cell(&table, "resumed");
        gk_table_cell(&table, "at version %s (speed, samples, times and bytes are since then)",
                      gk_unit_count(total->resumed_from).text);
    }
    row(&table, "model hash", hash);
    print_heading(total, job, out);
    gk_table_print(&table, "  ", out);
    gk_table_fini(&table);
}
