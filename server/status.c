#include "server/status.h"

#include "common/json.h"
#include "common/limits.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *seconds(uint64_t us)
{
    uint64_t ms = us / 1000; /* nobody reads more digits */

    return json_real((double)ms / 1e3);
}

/* What the last PING said, unless the job has gone on since: shards are never two versions apart.
 */
static json_t *waits_for(const struct gk_ping *ping, uint64_t version)
{
    if (ping->waits_version < version) {
        return json_null();
    }
    if (ping->waits == GK_WAIT_SHARD) {
        return json_sprintf("shard %" PRIu32 " version %" PRIu64, ping->waits_for,
                            ping->waits_version);
    }
    return ping->waits == GK_WAIT_RANK ? json_sprintf("rank %" PRIu32, ping->waits_for)
                                       : json_null();
}

/* "silent": it came, and was not heard for three pings. */
static const char *rank_state(const struct gk_server_facts *facts, const struct gk_rank_view *view)
{
    bool silent = facts->now_us - view->heard_us > GK_HELD_US;

    if (view->left) {
        return "left";
    }
    return !view->present ? "absent" : silent ? "silent" : "present";
}

static json_t *rank_json(const struct gk_server_facts *facts, uint32_t rank)
{
    struct gk_server_view shard;
    struct gk_rank_view view;

    gk_server_view(facts->core, &shard);
    gk_server_view_rank(facts->core, rank, &view);
    return json_pack("{s:o, s:s, s:o, s:o, s:o, s:b, s:o}", "rank", gk_json_integer(rank), "state",
                     rank_state(facts, &view), "incarnation", gk_json_integer(view.incarnation),
                     "step", gk_json_integer(view.pushed ? view.last_step + 1 : 0), "last_heard_s",
                     view.heard ? seconds(facts->now_us - view.heard_us) : json_null(),
                     "contributed", (int)view.contributed, "waits_for",
                     waits_for(&view.ping, shard.version));
}

static json_t *ranks_json(const struct gk_server_facts *facts, uint32_t limit)
{
    json_t *list = json_array();

    for (uint32_t r = 0; r < facts->config->workers && r < limit; r++) {
        (void)json_array_append_new(
            list, rank_json(facts, r)); /* NULL list or item: the dump fails as a whole */
    }
    return list;
}

static json_t *round_json(const struct gk_server_facts *facts, const struct gk_server_view *view)
{
    json_t *missing;

    if (!view->round_open) {
        return json_null();
    }
    missing = json_array();
    for (uint32_t r = 0; r < facts->config->workers; r++) {
        struct gk_rank_view rank;

        gk_server_view_rank(facts->core, r, &rank);
        if (rank.missing) {
            (void)json_array_append_new(missing, gk_json_integer(r));
        }
    }
    return json_pack("{s:o, s:o, s:o}", "step", gk_json_integer(view->version), "missing", missing,
                     "open_s", seconds(facts->now_us - view->round_open_us));
}

/* `pushes` counts those that were not replaced before their commit, so that the verdicts and the
 * pending add up to it. */
static json_t *ledger_json(const struct gk_ledger *ledger)
{
    return json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "pushes",
        gk_json_integer(ledger->pushes - ledger->dropped), "applied",
        gk_json_integer(ledger->applied), "returned", gk_json_integer(ledger->returned), "skipped",
        gk_json_integer(ledger->skipped), "lost", gk_json_integer(ledger->lost), "pending",
        gk_json_integer(ledger->pending), "dropped", gk_json_integer(ledger->dropped), "duplicates",
        gk_json_integer(ledger->duplicates), "nacks", gk_json_integer(ledger->nacks),
        "bad_messages", gk_json_integer(ledger->bad_messages));
}

/* Troubles that no message tells: the last two must stay 0. */
static json_t *net_json(const struct gk_server_facts *facts)
{
    const struct gk_zsock_stats *net = facts->net;

    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "rejected",
                     gk_json_integer(net->rejected), "cut", gk_json_integer(net->cut), "dropped_in",
                     gk_json_integer(net->dropped_in), "dropped_out",
                     gk_json_integer(net->dropped_out), "blocked", gk_json_integer(net->blocked),
                     "missed_wakes", gk_json_integer(net->missed_wakes), "mode_corrections",
                     gk_json_integer(facts->mode_corrections));
}

/* The state directory; null: there is none. */
static json_t *state_json(const struct gk_server_facts *facts, const struct gk_server_view *view)
{
    const struct gk_store_stats *store = &facts->store;

    if (!facts->state_dir) {
        return json_null();
    }
    return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "directory", facts->state_dir,
                     "snapshot_version", gk_json_integer(store->snapshot_version),
                     "log_first_version", gk_json_integer(store->log_first_version), "log_bytes",
                     gk_json_integer(store->log_bytes), "records", gk_json_integer(store->records),
                     "folds", gk_json_integer(store->folds), "sync_ms",
                     json_real((double)store->sync_us_median / 1e3), "disk_full_s",
                     view->disk_full ? seconds(facts->now_us - view->disk_full_us) : json_null());
}

static json_t *status_json(const struct gk_server_facts *facts, uint32_t limit)
{
    const struct gk_server_config *config = facts->config;
    struct gk_server_view view;
    json_t *json;

    gk_server_view(facts->core, &view);
    json = json_pack(
        "{s:s, s:o, s:o, s:o, s:o, s:s, s:o, s:o, s:o, s:o}", "job", config->job, "job_uid",
        json_sprintf("%016" PRIx64 "%016" PRIx64, view.job_uid.hi, view.job_uid.lo), "shard",
        gk_json_integer(config->shard), "servers", gk_json_integer(config->servers), "workers",
        gk_json_integer(config->workers), "state", gk_shard_state_name(view.state), "version",
        gk_json_integer(view.version), "durable_version", gk_json_integer(view.durable_version),
        "model_hash", view.hashed ? gk_json_hash(view.hash) : json_null(), "hash_version",
        gk_json_integer(view.hash_version));
    if (!json) {
        return NULL;
    }
    (void)json_object_set_new(json, "params", gk_json_integer(view.hi - view.lo));
    (void)json_object_set_new(json, "lo", gk_json_integer(view.lo));
    (void)json_object_set_new(json, "hi", gk_json_integer(view.hi));
    (void)json_object_set_new(json, "incarnation", gk_json_integer(view.incarnation));
    (void)json_object_set_new(json, "uptime_s", seconds(facts->now_us - facts->started_us));
    (void)json_object_set_new(json, "ranks", ranks_json(facts, limit));
    if (config->workers > limit) {
        (void)json_object_set_new(json, "ranks_omitted", gk_json_integer(config->workers - limit));
    }
    (void)json_object_set_new(json, "round", round_json(facts, &view));
    (void)json_object_set_new(json, "ledger", ledger_json(&view.ledger));
    (void)json_object_set_new(json, "bytes",
                              json_pack("{s:o, s:o}", "in", gk_json_integer(facts->net->bytes_in),
                                        "out", gk_json_integer(facts->net->bytes_out)));
    (void)json_object_set_new(json, "net", net_json(facts));
    (void)json_object_set_new(json, "state_dir", state_json(facts, &view));
    (void)json_object_set_new(json, "memory",
                              json_pack("{s:o}", "reserved", gk_json_integer(view.reserved_bytes)));
    return json;
}

struct gk_buf *gk_server_status(const struct gk_server_facts *facts)
{
    static const uint32_t limits[] = {GK_SERVER_STATUS_RANKS_MAX, GK_SERVER_STATUS_RANKS_MAX / 4,
                                      0};
    struct gk_buf *buf = NULL;

    for (size_t i = 0; !buf && i < sizeof(limits) / sizeof(limits[0]); i++) {
        json_t *json = status_json(facts, limits[i]);
        char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;

        if (text && strlen(text) <= GK_STATUS_BYTES_MAX) {
            buf = gk_buf_copy(text, strlen(text));
        }
        free(text);
        json_decref(json);
    }
    return buf;
}

json_t *gk_server_summary(const struct gk_server_config *config, const struct gk_server *core)
{
    struct gk_server_view view;
    const struct gk_ledger *ledger = &view.ledger;

    gk_server_view(core, &view);
    return json_pack(
        "{s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "event", "summary", "role", "server",
        "shard", gk_json_integer(config->shard), "version", gk_json_integer(view.version),
        "model_hash", view.hashed ? gk_json_hash(view.hash) : json_null(), "pushes",
        gk_json_integer(ledger->pushes - ledger->dropped), "applied",
        gk_json_integer(ledger->applied), "returned", gk_json_integer(ledger->returned), "skipped",
        gk_json_integer(ledger->skipped), "lost", gk_json_integer(ledger->lost));
}
