/* Records, one at a time: what is in flight, what comes next, what follows when it is durable.
 *
 * A round that waits goes first, then version 0, then FINISHED, then the members that changed, as
 * many as one record holds. */
#include "common/assert.h"
#include "common/exit.h"
#include "server/core/state.h"

#include <inttypes.h>
#include <string.h>

enum { WRITE_AGAIN_US = 1000 * 1000 }; /* after a full disk */

static void offer(struct gk_server *server)
{
    struct gk_writer *writer = &server->live.writer;
    struct gk_server_action *action = gk_server_emit(server, GK_SERVER_WRITE);

    action->u.record = &writer->record;
    writer->op = gk_server_emit_op(server, action);
}

static void submit(struct gk_server *server, enum gk_record_type type)
{
    struct gk_writer *writer = &server->live.writer;

    writer->record.type = type;
    writer->record.epoch = server->image->epoch;
    offer(server);
}

void gk_server_write_again(struct gk_server *server)
{
    struct gk_writer *writer = &server->live.writer;

    if (writer->full && writer->op == 0 && server->now_us >= writer->retry_us) {
        offer(server);
    }
}

static void fill_init(struct gk_server *server)
{
    const struct gk_server_durable *durable = &server->durable;
    struct gk_record *record = &server->live.writer.record;

    record->job_uid = server->live.init.job_uid;
    record->init_id = server->live.init.init_id;
    record->lo = durable->lo;
    record->hi = durable->hi;
    record->optimizer = durable->spec.optimizer;
    record->spec = durable->spec_bytes;
    record->spec_bytes = durable->spec_bytes_count;
    record->params = durable->memory.planes[0];
}

/* The row as it will be: what is durable now, and what changes. */
static struct gk_rank_row row_of(const struct gk_server *server, uint32_t rank)
{
    const struct gk_change *change = &server->live.members[rank].change;
    struct gk_rank_row row = server->image->rows[rank];

    if (change->hello) {
        row.incarnation = change->incarnation;
        row.life_nonce = change->life_nonce;
    }
    if (change->leave) {
        row.left = true;
        row.left_at = change->left_at;
    }
    return row;
}

static void fill_members(struct gk_server *server)
{
    struct gk_writer *writer = &server->live.writer;

    writer->record.version = server->image->version;
    writer->record.members = writer->members;
    for (uint32_t r = 0;
         r < server->config.workers && writer->record.members_count < GK_SERVER_MEMBERS_MAX; r++) {
        struct gk_change *change = &server->live.members[r].change;

        if (change->wanted) {
            change->wanted = false;
            writer->members[writer->record.members_count++] =
                (struct gk_member_entry){.rank = r, .row = row_of(server, r)};
        }
    }
}

void gk_server_write_next(struct gk_server *server)
{
    struct gk_writer *writer = &server->live.writer;
    bool draining = server->live.state == GK_SHARD_DRAINING;

    if (writer->op != 0 || writer->full) {
        return;
    }
    memset(&writer->record, 0, sizeof(writer->record));
    writer->record.job_uid = server->image->job_uid;
    if (server->live.round.state == GK_ROUND_WRITING) {
        if (server->image->version % GK_HASH_EVERY == 0 && !gk_server_hash_ready(server)) {
            return; /* its end comes back here */
        }
        gk_server_round_record(server, &writer->record);
        submit(server, GK_RECORD_ROUND);
    } else if (draining) {
        return; /* a commit ends, nothing new begins */
    } else if (server->live.init.writing) {
        fill_init(server);
        submit(server, GK_RECORD_INIT);
    } else if (server->live.finish_wanted) {
        server->live.finish_wanted = false;
        writer->record.version = server->image->version;
        submit(server, GK_RECORD_FINISHED);
    } else {
        fill_members(server);
        if (writer->record.members_count > 0) {
            submit(server, GK_RECORD_MEMBER);
        }
    }
}

static void members_written(struct gk_server *server)
{
    const struct gk_writer *writer = &server->live.writer;

    for (uint32_t i = 0; i < writer->record.members_count; i++) {
        const struct gk_member_entry *entry = &writer->members[i];
        struct gk_member *member = &server->live.members[entry->rank];
        struct gk_change *change = &member->change;

        if (member->session != 0 && member->life_nonce != entry->row.life_nonce) {
            /* The older life is fenced by this record, even when the new one has meanwhile asked
             * for a higher incarnation and waits for the next. */
            member->session = 0;
            member->pulls_count = 0;
        }
        if (change->hello && change->incarnation == entry->row.incarnation &&
            change->life_nonce == entry->row.life_nonce) {
            gk_server_session_open(server, entry->rank);
        }
        if (change->leave && entry->row.left) {
            gk_server_leave_recorded(server, entry->rank);
        }
    }
    gk_server_round_close(server); /* the ones that left may have been all that it waited for */
}

/* The last version stays served, and the record waits as it is: nothing that it says has happened
 * yet. */
static void no_room(struct gk_server *server, const char *words)
{
    struct gk_writer *writer = &server->live.writer;

    if (!writer->full) {
        writer->full = true;
        writer->full_since_us = server->now_us;
        gk_words_set(&writer->full_words, "%s", words);
        gk_server_trace(server, GK_LOG_ERROR, "SERVER-DISK-FULL",
                        "%s; version %" PRIu64 " stays served until there is room", words,
                        server->image->version);
    }
    writer->retry_us = server->now_us + WRITE_AGAIN_US;
}

static void room_again(struct gk_server *server)
{
    struct gk_writer *writer = &server->live.writer;

    if (writer->full) {
        writer->full = false;
        gk_server_trace(server, GK_LOG_INFO, "SERVER-DISK-ROOM",
                        "there is room on the disk again, after %.1f s",
                        (double)(server->now_us - writer->full_since_us) / 1e6);
    }
}

void gk_server_synced(struct gk_server *server, uint64_t version)
{
    struct gk_server_durable *durable = &server->durable;

    GK_ASSERT(version <= server->image->version);
    if (version > durable->durable_version) {
        durable->durable_version = version;
    }
}

void gk_server_written(struct gk_server *server, const struct gk_server_event *ev)
{
    struct gk_writer *writer = &server->live.writer;
    const char *words = ev->words ? ev->words : gk_err_text(ev->err);

    writer->op = 0;
    if (ev->err == GK_E_LIMIT) {
        no_room(server, words);
        return;
    }
    if (ev->err != GK_OK) {
        gk_server_exit(server, GK_EXIT_RETRY, "SERVER-WRITE-FAILED", words);
        return;
    }
    room_again(server);
    gk_image_take(server->image, &writer->record);
    switch ((enum gk_record_type)writer->record.type) {
    case GK_RECORD_ROUND:
        gk_server_round_written(server, ev->unsynced);
        break;
    case GK_RECORD_MEMBER:
        members_written(server);
        break;
    case GK_RECORD_FINISHED:
        gk_server_finish_written(server);
        break;
    case GK_RECORD_INIT:
        gk_server_init_written(server);
        break;
    case GK_RECORD_LIFE:
        GK_ASSERT(false && "the store writes it");
        break;
    }
    gk_server_write_next(server);
    gk_server_drained(server);
}
