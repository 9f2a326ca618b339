/* Waits: each has a limit or a line that names whom it waits for (P6). */
#include "common/bits.h"
#include "common/exit.h"
#include "server/core/state.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { NAMED_MAX = 6 };

__attribute__((format(printf, 2, 3))) static void append(struct gk_words *words, const char *format,
                                                         ...)
{
    size_t length = strlen(words->text);
    va_list args;

    va_start(args, format);
    (void)vsnprintf(words->text + length, sizeof(words->text) - length, format, args);
    va_end(args);
}

static void name_rank(const struct gk_server *server, uint32_t rank, struct gk_words *words)
{
    const struct gk_member *member = &server->live.members[rank];

    if (!member->heard) {
        append(words, "rank %" PRIu32 " (never seen)", rank);
        return;
    }
    append(words, "rank %" PRIu32 " (last heard %.1f s ago", rank,
           (double)(server->now_us - member->heard_us) / 1e6);
    if (member->ping.waits == GK_WAIT_SHARD && member->ping.waits_for != server->config.shard) {
        append(words, ", waits for shard %" PRIu32, member->ping.waits_for);
    }
    append(words, ")");
}

/* The ranks for which `missing` is true, by name; true when one of them is silent. */
static bool name_missing(const struct gk_server *server,
                         bool (*missing)(const struct gk_server *, uint32_t),
                         struct gk_words *words)
{
    uint32_t named = 0, more = 0;
    bool silent = false;

    for (uint32_t r = 0; r < server->config.workers; r++) {
        if (!missing(server, r)) {
            continue;
        }
        silent = silent || gk_server_silent(server, r);
        if (named == NAMED_MAX) {
            more++;
            continue;
        }
        append(words, "%s", named++ > 0 ? ", " : "");
        name_rank(server, r, words);
    }
    if (more > 0) {
        append(words, " and %" PRIu32 " more", more);
    }
    return silent;
}

static bool missing_push(const struct gk_server *server, uint32_t rank)
{
    return gk_server_round_active(server, rank) && !server->live.members[rank].push.contributed;
}

static bool missing_hello(const struct gk_server *server, uint32_t rank)
{
    return server->live.members[rank].session == 0;
}

bool gk_server_before_version(const struct gk_server *server)
{
    enum gk_shard_state state = server->live.state;

    return state == GK_SHARD_WAITING || state == GK_SHARD_SETUP || state == GK_SHARD_INIT;
}

static void stall_round(struct gk_server *server)
{
    struct gk_words words;
    uint32_t lowest;
    bool silent;

    if (gk_server_round_missing(server, &lowest) == 0) {
        return;
    }
    gk_words_set(&words, "round %" PRIu64 " waits for ", server->image->version);
    silent = name_missing(server, missing_push, &words);
    append(&words, ", open for %.1f s",
           (double)(server->now_us - server->live.round.opened_us) / 1e6);
    gk_server_trace(server, silent ? GK_LOG_WARN : GK_LOG_INFO, "SERVER-ROUND-WAITS", "%s",
                    words.text);
}

/* Before version 0: workers, then the model. */
static void name_start(const struct gk_server *server, struct gk_words *words)
{
    uint32_t missing;
    uint32_t present = gk_server_present(server, (struct gk_uid){0}, &missing);

    if (present < server->config.workers) {
        gk_words_set(words, "waiting for worker %" PRIu32 " of %" PRIu32 ": missing ", present + 1,
                     server->config.workers);
        (void)name_missing(server, missing_hello, words);
    } else {
        gk_words_set(
            words, "all %" PRIu32 " workers are here, waiting for rank 0 to send the model%s",
            server->config.workers,
            server->config.servers > 1 ? ": it does so when it has reached all servers" : "");
    }
}

/* When this life last heard any rank. */
static uint64_t heard_us(const struct gk_server *server)
{
    uint64_t last_us = server->live.started_us;

    for (uint32_t r = 0; r < server->config.workers; r++) {
        const struct gk_member *member = &server->live.members[r];

        if (member->heard && member->heard_us > last_us) {
            last_us = member->heard_us;
        }
    }
    return last_us;
}

/* The open round waits for it, and this life of the shard has never heard it: nobody knows that it
 * will ever come.  One that was here and went away is waited for instead. */
static bool missing_never_seen(const struct gk_server *server, uint32_t rank)
{
    return missing_push(server, rank) && !server->live.members[rank].heard;
}

static bool round_waits_for_unseen(const struct gk_server *server)
{
    uint32_t lowest;

    if (gk_server_round_missing(server, &lowest) == 0) {
        return false;
    }
    for (uint32_t r = lowest; r < server->config.workers; r++) {
        if (missing_never_seen(server, r)) {
            return true;
        }
    }
    return false;
}

/* A process that is refused gives up at its own deadline, and knows why: it speaks first. */
static uint64_t unseen_until_us(const struct gk_server *server)
{
    const struct gk_server_live *live = &server->live;

    return gk_max_u64(live->started_us, live->round.opened_us) + server->config.deadline_us +
           GK_LINGER_US;
}

/* Before version 0 for those that are missing, and so when a job goes on; then for the day when
 * nobody at all is left. */
static uint64_t deadline_us(const struct gk_server *server)
{
    const struct gk_server_live *live = &server->live;
    uint64_t silent_us;

    if (server->config.deadline_us == 0) {
        return UINT64_MAX;
    }
    if (gk_server_before_version(server)) {
        return live->started_us + server->config.deadline_us;
    }
    if (live->state != GK_SHARD_RUNNING) {
        return UINT64_MAX;
    }
    silent_us = heard_us(server) + server->config.deadline_us;
    return round_waits_for_unseen(server) ? gk_min_u64(silent_us, unseen_until_us(server))
                                          : silent_us;
}

/* Who is missing may only wait for a record that finds no room. */
static bool waits_for_disk(const struct gk_server *server)
{
    return server->live.writer.full &&
           (gk_server_before_version(server) || round_waits_for_unseen(server));
}

static void name_full_disk(const struct gk_server *server, struct gk_words *words)
{
    const struct gk_writer *writer = &server->live.writer;

    gk_words_set(words, "no room on the disk for %.0f s: %s",
                 (double)(server->now_us - writer->full_since_us) / 1e6, writer->full_words.text);
}

static void name_deadline(const struct gk_server *server, struct gk_words *words)
{
    double seconds = (double)server->config.deadline_us / 1e6;

    if (waits_for_disk(server)) {
        name_full_disk(server, words);
        append(words, "; gave up after %.0f s", seconds);
    } else if (gk_server_before_version(server)) {
        name_start(server, words);
        append(words, "; gave up after %.0f s", seconds);
    } else if (round_waits_for_unseen(server)) {
        gk_words_set(words, "round %" PRIu64 " waits for ", server->image->version);
        (void)name_missing(server, missing_never_seen, words);
        append(words, "; gave up after %.0f s (--deadline)",
               (double)(server->now_us - server->live.started_us) / 1e6);
    } else {
        gk_words_set(words,
                     "no worker has been heard for %.0f s at version %" PRIu64
                     ": the job is over (--deadline)",
                     seconds, server->image->version);
    }
}

static void stall(struct gk_server *server)
{
    struct gk_words words;

    server->live.stall_us = server->now_us + GK_STALL_AGAIN_US;
    if (server->live.state == GK_SHARD_RUNNING) {
        stall_round(server);
    } else if (gk_server_before_version(server)) {
        name_start(server, &words);
        append(&words, ", for %.1f s", (double)(server->now_us - server->live.started_us) / 1e6);
        gk_server_trace(server, GK_LOG_INFO, "SERVER-WAITS", "%s", words.text);
    }
}

void gk_server_watch_paused(struct gk_server *server, uint64_t pause_us)
{
    struct gk_server_live *live = &server->live;

    if (pause_us == 0 || live->look_us == 0) { /* or START has not come */
        return;
    }
    live->started_us += pause_us;
    live->linger_until_us += pause_us;
    live->drain_until_us += pause_us;
    live->dispute.until_us += pause_us;
    gk_server_pin_paused(server, pause_us);
    for (uint32_t r = 0; r < server->config.workers; r++) {
        struct gk_member *member = &live->members[r];

        member->heard_us += pause_us;
        member->wanted_us += pause_us;
        member->rival.since_us += pause_us;
        member->rival.heard_us += pause_us;
    }
    gk_server_trace(server, GK_LOG_INFO, "SERVER-PAUSED",
                    "this process stood still for about %.1f s, which counts against nobody",
                    (double)pause_us / 1e6);
}

void gk_server_watch(struct gk_server *server)
{
    struct gk_server_live *live = &server->live;
    struct gk_words words;

    gk_server_write_again(server);
    gk_server_pin_watch(server);
    if (server->now_us >= deadline_us(server)) {
        name_deadline(server, &words);
        gk_server_exit(server, waits_for_disk(server) ? GK_EXIT_RETRY : GK_EXIT_PEER,
                       "SERVER-DEADLINE", words.text);
        return;
    }
    if (live->state == GK_SHARD_FINISHED && live->hashed &&
        server->now_us >= live->linger_until_us) {
        gk_server_exit(server, GK_EXIT_OK, "SERVER-DONE", "finished");
        return;
    }
    if (live->state == GK_SHARD_DRAINING) {
        gk_server_drained(server);
        return;
    }
    if (live->dispute.begun) {
        gk_server_rates_watch(server);
        return;
    }
    if (server->now_us >= live->stall_us) {
        stall(server);
    }
}

static uint64_t due_us(const struct gk_server *server)
{
    const struct gk_server_live *live = &server->live;

    switch (live->state) {
    case GK_SHARD_WAITING:
    case GK_SHARD_SETUP:
    case GK_SHARD_INIT:
        return gk_min_u64(live->stall_us, deadline_us(server));
    case GK_SHARD_RUNNING:
        return gk_min_u64(live->dispute.begun ? live->dispute.until_us : live->stall_us,
                          deadline_us(server));
    case GK_SHARD_FINISHED:
        return live->hashed ? live->linger_until_us : UINT64_MAX;
    case GK_SHARD_DRAINING:
        return live->drain_until_us;
    case GK_SHARD_EXITED:
    case GK_SHARD_STATES_COUNT:
        break;
    }
    return UINT64_MAX;
}

/* Earliest time at which gk_server_watch() or a waiting pull has something to do, and at least once
 * a second, or a pause of this process would not be seen. */
uint64_t gk_server_watch_next_us(const struct gk_server *server)
{
    return server->live.pulls_due ? server->now_us
                                  : gk_min_u64(due_us(server), server->live.look_us);
}
