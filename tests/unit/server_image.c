/* Goal: a record changes the image only when it follows from it, and then in exactly one way.
 * Method: a drawn history; then every field of a record that could lie is made to, one at a time,
 * and the image must stay as it was. */
#include "store_job.h"

static struct job *begun(uint64_t seed)
{
    struct job *job = job_new(&(struct job_options){GK_OPTIMIZER_MOMENTUM, 96, 3, 2, 1, seed});

    job_take(job, job_life(job));
    job_take(job, job_member(job));
    job_take(job, job_init(job));
    return job;
}

/* The record does not follow, words say why, nothing changed. */
static void refused(struct job *job, const struct gk_record *record, const char *why)
{
    struct gk_words words = {""};
    struct gk_image *before;

    cr_assert(gk_image_new(1, 2, 3, &before) == GK_OK);
    gk_image_copy(before, job->image);
    cr_assert(gk_image_apply(job->image, record, &words) == GK_E_CORRUPT, "%s", why);
    cr_assert(words.text[0] != 0, "%s: no words", why);
    cr_assert(job_image_equals(before, job->image), "%s changed the image", why);
    gk_image_free(before);
}

#define LIE(make, change)                                                                          \
    do {                                                                                           \
        struct gk_record r = *make(job);                                                           \
        change;                                                                                    \
        refused(job, &r, #make ": " #change);                                                      \
    } while (0)

Test(server_image, counts_and_rows)
{
    struct job *job = begun(1);
    const struct gk_record *record = job_round(job);
    uint64_t applied = 0, lost = 0;

    cr_assert(job->image->initialised && job->image->incarnation == 1);
    for (int i = 0; i < 200; i++) {
        job_take(job, record);
        for (uint32_t c = 0; c < record->contributions_count; c++) {
            const struct gk_contribution *contribution = &record->contributions[c];
            const struct gk_rank_row *row = &job->image->rows[contribution->rank];

            applied += contribution->verdict == GK_VERDICT_APPLIED;
            lost += contribution->verdict == GK_VERDICT_LOST;
            cr_assert(row->verdict == contribution->verdict &&
                      row->verdict_step == contribution->step &&
                      row->verdict_incarnation == contribution->incarnation);
        }
        record = job_round(job);
    }
    cr_assert(job->image->version == 200 && job->image->applied == applied &&
              job->image->lost == lost);
    cr_assert(lost > 0 && applied > 0);
    job_free(job);
}

/* A version without samples takes no optimizer step. */
Test(server_image, optimizer_step_needs_samples)
{
    struct job *job = begun(2);
    uint64_t steps = 0, empty = 0;

    for (int i = 0; i < 100; i++) {
        const struct gk_record *record = job_round(job);

        steps += record->samples > 0;
        empty += record->samples == 0;
        job_take(job, record);
        cr_assert(job->image->optimizer_step == steps);
    }
    cr_assert(empty > 0);
    job_free(job);
}

Test(server_image, a_round_that_lies_is_refused)
{
    struct job *job = begun(3);

    for (int i = 0; i < 30; i++) {
        job_take(job, job_next(job));
    }
    for (int i = 0; i < 40; i++) {
        LIE(job_round, r.version++);
        LIE(job_round, r.version--);
        LIE(job_round, r.epoch++);
        LIE(job_round, r.step++);
        LIE(job_round, r.optimizer_step++);
        LIE(job_round, r.optimizer = GK_OPTIMIZER_NESTEROV);
        LIE(job_round, r.job_uid.lo ^= 1);
        LIE(job_round, r.job_uid = (struct gk_uid){0});
        LIE(job_round, r.samples++);
        LIE(job_round, r.contributions_count = 4);
        LIE(job_round, r.hashed = true; r.version += GK_HASH_EVERY * 100);
        LIE(job_round, r.count = r.idx ? 1000 : r.count - 1);
        LIE(job_round, r.type = GK_RECORD_LIFE + 1);
        LIE(job_round, r.type = 0);
        if (job_round(job)->contributions_count > 1) {
            struct gk_contribution kept = job->contributions[1];

            refused(job, (job->contributions[1].rank = 0, &job->record), "a rank twice");
            job->contributions[1] = kept;
            refused(job, (job->contributions[1].rank = 3, &job->record), "a rank beyond the job");
            job->contributions[1] = kept;
            refused(job, (job->contributions[1].verdict = 9, &job->record), "a verdict");
            job->contributions[1] = kept;
            refused(job, (job->contributions[1].step++, &job->record), "another step");
            job->contributions[1] = kept;
            job->contributions[1].samples = UINT64_MAX;
            refused(job, &job->record, "samples that overflow");
            job->contributions[1] = kept;
        }
        if (job->record.idx && job->record.count > 2) {
            uint32_t kept = job->idx[1];

            refused(job, (job->idx[1] = job->idx[0], &job->record), "an index twice");
            refused(job, (job->idx[1] = 48, &job->record), "an index beyond the shard");
            job->idx[1] = kept;
        }
        job_take(job, &job->record);
    }
    job_free(job);
}

Test(server_image, a_hash_belongs_to_its_versions)
{
    struct job *job = begun(4);

    cr_assert(job_round(job)->hashed);
    job_take(job, &job->record);
    for (int i = 1; i < GK_HASH_EVERY; i++) {
        LIE(job_round, r.hashed = true);
        job_take(job, job_round(job));
    }
    cr_assert(job_round(job)->hashed);
    job_free(job);
}

Test(server_image, members_that_lie_are_refused)
{
    struct job *job = begun(5);

    for (int i = 0; i < 10; i++) {
        job_take(job, job_round(job));
    }
    for (int i = 0; i < 20; i++) {
        LIE(job_member, r.version++);
        LIE(job_member, r.members_count = 0);
        LIE(job_member, r.members_count = 4);
        LIE(job_member, job->members[0].rank = 3);
        LIE(job_member, job->members[0].row.verdict = 77);
        LIE(job_member, r.job_uid = (struct gk_uid){0});
        if (job_member(job)->members_count == 2) {
            refused(job, (job->members[1].rank = job->members[0].rank, &job->record), "twice");
        }
        job_take(job, job_member(job));
        LIE(job_member, job->members[0].row.incarnation =
                            job->image->rows[job->members[0].rank].incarnation - 1);
    }
    job_member(job);
    job->record.members_count = 1;
    job->members[0].row.left = true;
    job->members[0].row.left_at = 12;
    job_take(job, &job->record);
    refused(job, (job->members[0].row.left = false, &job->record), "it comes back");
    refused(job, (job->members[0].row.left = true, job->members[0].row.left_at = 13, &job->record),
            "it leaves again");
    job_free(job);
}

/* Until a version follows, another init replaces version 0; meanwhile members know of no job. */
Test(server_image, init_until_a_version_follows)
{
    struct job *job = begun(6);
    struct gk_uid first = job->image->job_uid;

    LIE(job_init, r.version = 1);
    LIE(job_init, r.lo -= 16);
    LIE(job_init, r.hi += 16);
    LIE(job_init, r.optimizer = GK_OPTIMIZER_SGD);
    LIE(job_init, r.spec_bytes--);
    LIE(job_init, r.spec_bytes = GK_SPEC_BYTES_MAX + 1);
    LIE(job_init, job->spec_bytes[9] ^= 1);
    job->spec_bytes[9] ^= 1;
    job_member(job);
    job->record.job_uid = (struct gk_uid){0};
    job_take(job, &job->record);
    job_take(job, job_init(job));
    cr_assert(job->image->job_uid.hi != first.hi);
    job_take(job, job_round(job));
    LIE(job_init, r.init_id++);
    job_free(job);
}

Test(server_image, order_of_the_kinds)
{
    struct job *job = job_new(&(struct job_options){GK_OPTIMIZER_SGD, 96, 3, 2, 1, 7});

    LIE(job_round, r.epoch = 0);
    LIE(job_finished, r.epoch = 0);
    LIE(job_life, r.incarnation = 0);
    job_take(job, job_life(job));
    job_take(job, job_init(job));
    LIE(job_life, r.incarnation = 1);
    job_take(job, job_round(job));
    LIE(job_finished, r.version++);
    job_take(job, job_finished(job));
    cr_assert(job->image->finished);
    LIE(job_round, r.epoch = 0);
    LIE(job_finished, r.epoch = 0);
    LIE(job_init, r.epoch = 0);
    job_take(job, job_life(job));
    job_take(job, job_member(job));
    job_free(job);
}
