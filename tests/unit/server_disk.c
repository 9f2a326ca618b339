/* Goal: what the core makes of a disk: a full one, a broken one, one that is synced late; and which
 * records carry the hash of the state.  Method: records are held back by the rig and answered by
 * hand; hashes are compared with sums over all planes. */
#include "tests/unit/server_job.h"

#include "common/limits.h"

static void answer_write(struct rig *rig, enum gk_err err, const char *words)
{
    uint64_t op = rig->ops_queued[0].op;

    cr_assert(rig->ops_count == 1 && rig->ops_queued[0].kind == GK_SERVER_WRITE);
    rig->ops_count = 0;
    rig_event(rig, (struct gk_server_event){
                       .kind = GK_SERVER_WRITE_DONE, .op = op, .err = err, .words = words});
}

Test(server_disk, full_disk_waits_and_goes_on)
{
    struct rig *rig = rig_running(1);

    rig->held = 1u << GK_SERVER_WRITE;
    rig_round(rig, 0);
    for (int i = 0; i < 3; i++) {
        answer_write(rig, GK_E_LIMIT, "the disk of wal-0-0.log is full");
        cr_assert(rig_view(rig).disk_full && rig_view(rig).version == 0);
        cr_assert(rig->ops_count == 0);
        rig_pull(rig, 0, 0);
        cr_kind(rig, GK_KIND_PARAMS);
        rig_ping(rig, 0, 1);
        cr_assert(rig_last(rig)->msg.body.ping.waits == GK_WAIT_DISK);
        rig_tick(rig, 1000 * 1000);
        cr_assert(rig->ops_count == 1);
    }
    cr_assert(strstr(rig->traces, "SERVER-DISK-FULL the disk of wal-0-0.log is full; version 0"));
    rig->held = 0;
    answer_write(rig, GK_OK, NULL);
    rig_release(rig);
    cr_assert(!rig_view(rig).disk_full && rig_view(rig).version == 1);
    cr_assert(strstr(rig->traces, "SERVER-DISK-ROOM there is room on the disk again, after 3.0 s"));
    rig_free(rig);
}

/* Nobody comes any further than the record for which there is no room: what is missing at the
 * deadline is the disk, not the ranks. */
Test(server_disk, too_small_to_begin)
{
    for (int init = 0; init < 2; init++) {
        struct rig *rig = rig_new(1, 1, 0);
        int refused = 0;

        rig->config.deadline_us = 30 * 1000 * 1000;
        rig_again(rig);
        rig_start(rig);
        if (init) {
            rig_hello(rig, 0, 1);
            rig->held = 1u << GK_SERVER_WRITE;
            rig_init(rig);
        } else {
            struct gk_msg hello = rig_hello_msg(rig, 0, 1);

            rig->held = 1u << GK_SERVER_WRITE;
            rig_send(rig, 1, &hello);
        }
        while (!rig->exited && refused < 60) {
            if (rig->ops_count > 0) {
                answer_write(rig, GK_E_LIMIT, "wal-0: No space left on device");
                refused++;
            }
            rig_tick(rig, 1000 * 1000);
        }
        cr_assert(rig->exited && rig->exit_code == 75, "%d", rig->exit_code);
        cr_assert(strcmp(rig->exit_id, "SERVER-DEADLINE") == 0);
        cr_assert(strstr(rig->exit_words.text, "no room on the disk") &&
                      strstr(rig->exit_words.text, "wal-0: No space left on device; gave up"),
                  "%s", rig->exit_words.text);
        rig_free(rig);
    }
}

Test(server_disk, broken_disk_ends_the_process)
{
    struct rig *rig = rig_running(1);

    rig->held = 1u << GK_SERVER_WRITE;
    rig_round(rig, 0);
    answer_write(rig, GK_E_IO, "wal-0-0.log: sync failed");
    cr_assert(rig->exited && rig->exit_code == 75);
    cr_assert(strcmp(rig->exit_id, "SERVER-WRITE-FAILED") == 0);
    cr_assert(strstr(rig->exit_words.text, "sync failed") && rig_view(rig).version == 0);
    rig_free(rig);
}

Test(server_disk, synced_late)
{
    struct rig *rig = rig_running(1);

    for (uint64_t t = 0; t < 3; t++) {
        rig->held = 1u << GK_SERVER_WRITE;
        rig_round(rig, t);
        cr_assert(rig->ops_count == 1);
        rig->held = 0;
        rig->ops_count = 0;
        rig_event(rig, (struct gk_server_event){.kind = GK_SERVER_WRITE_DONE,
                                                .op = rig->ops_queued[0].op,
                                                .unsynced = true});
        rig_release(rig);
        cr_assert(rig_view(rig).version == t + 1 && rig_view(rig).durable_version == 0);
    }
    rig_event(rig, (struct gk_server_event){.kind = GK_SERVER_SYNCED, .version = 2});
    cr_assert(rig_view(rig).durable_version == 2);
    rig_event(rig, (struct gk_server_event){.kind = GK_SERVER_SYNCED, .version = 1});
    cr_assert(rig_view(rig).durable_version == 2, "it never goes back");
    rig_ping(rig, 0, 1);
    cr_assert(rig_last(rig)->msg.h.durable_version == 2 && rig_last(rig)->msg.h.version == 3);
    rig_free(rig);
}

static uint64_t state_hash(const struct rig *rig)
{
    uint64_t hash = 0;

    for (uint32_t plane = 0; plane < 2; plane++) {
        for (uint64_t i = 0; i < rig->hi - rig->lo; i++) {
            hash += gk_hash_term(plane, rig->lo + i,
                                 gk_float_bits(gk_server_plane(rig->core, plane)[i]));
        }
    }
    return hash;
}

Test(server_disk, every_so_many_records_carry_a_hash)
{
    struct rig *rig = rig_running(1);

    for (uint64_t t = 0; t < 2 * GK_HASH_EVERY + 2; t++) {
        uint64_t hash = state_hash(rig);
        const struct gk_record *record;

        rig_round(rig, t);
        record = &rig->records[(rig->records_count - 1) % 256].record;
        cr_assert(record->type == GK_RECORD_ROUND && record->version == t + 1);
        cr_assert(record->hashed == (t % GK_HASH_EVERY == 0), "version %d", (int)t);
        cr_assert(record->state_hash == (record->hashed ? hash : 0));
    }
    rig_free(rig);
}

Test(server_disk, a_slow_hash_holds_its_record_back)
{
    struct rig *rig = rig_running(1);

    for (uint64_t t = 0; t < GK_HASH_EVERY; t++) {
        rig->held = t + 1 == GK_HASH_EVERY ? 1u << GK_SERVER_HASH : 0;
        rig_round(rig, t);
    }
    rig_round(rig, GK_HASH_EVERY);
    cr_assert(rig_view(rig).version == GK_HASH_EVERY && rig_view(rig).round == GK_ROUND_WRITING);
    rig->held = 0;
    rig_release(rig);
    cr_assert(rig_view(rig).version == GK_HASH_EVERY + 1);
    rig_free(rig);
}
