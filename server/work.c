#include "server/work.h"

#include "common/assert.h"
#include "server/memory.h"

static enum gk_err set_up(struct gk_work *work, struct gk_work_job *job)
{
    gk_server_memory_free(work->ops, work->queue, &work->memory);
    return gk_server_memory_alloc(work->ops, work->queue, &job->setup, &work->memory, &job->words);
}

static void run(void *context, void *item)
{
    struct gk_work_job *job = item;
    struct gk_work *work = job->work;
    struct gk_ticket ticket = {0};

    (void)context;
    if (job->kind == GK_SERVER_SETUP) {
        job->err = set_up(work, job);
        return;
    }
    if (job->kind == GK_SERVER_PIN) {
        job->err = gk_pins_copy(work->ops, work->queue, job->pin);
        return;
    }
    if (job->kind == GK_SERVER_SUM) {
        ticket = work->ops->sum(work->queue, job->args);
    } else if (job->kind == GK_SERVER_APPLY) {
        ticket = work->ops->apply(work->queue, job->args);
    } else {
        ticket = work->ops->hash(work->queue, job->args);
    }
    job->err = work->ops->wait(work->queue, ticket);
}

static void ended(void *context, void *item)
{
    const struct gk_work_job *job = item;
    struct gk_server_event event = {.kind = GK_SERVER_SUM_DONE, .op = job->op, .err = job->err};

    (void)context;
    if (job->kind == GK_SERVER_SETUP) {
        event.kind = GK_SERVER_SETUP_DONE;
        event.words = job->words.text;
        event.memory = job->work->memory;
    } else if (job->kind == GK_SERVER_APPLY) {
        event.kind = GK_SERVER_APPLY_DONE;
    } else if (job->kind == GK_SERVER_HASH) {
        event.kind = GK_SERVER_HASH_DONE;
    } else if (job->kind == GK_SERVER_PIN) {
        event.kind = GK_SERVER_PIN_DONE;
        if (job->err) {
            gk_pins_drop(&job->work->pins, job->pin->slot);
        }
    }
    job->work->done(job->work->context, &event);
}

void gk_work_submit(struct gk_work *work, const struct gk_server_action *action)
{
    struct gk_work_job *job = &work->jobs[action->kind];
    struct gk_compute_job compute_job = {.run = run, .done = ended, .job = job};
    enum gk_err err;

    *job = (struct gk_work_job){.work = work, .kind = action->kind, .op = action->op};
    if (action->kind == GK_SERVER_SETUP) {
        job->setup = action->u.setup;
    } else if (action->kind == GK_SERVER_SUM) {
        job->args = action->u.sum;
    } else if (action->kind == GK_SERVER_APPLY) {
        job->args = action->u.apply;
    } else if (action->kind == GK_SERVER_HASH) {
        job->args = action->u.hash;
    } else {
        GK_ASSERT(action->kind == GK_SERVER_PIN);
        job->pin = action->u.pin;
        job->err = gk_pins_take(&work->pins, job->pin);
        if (job->err) {
            ended(NULL, job);
            return;
        }
    }
    err = gk_compute_submit(work->compute, &compute_job);
    GK_ASSERT(!err); /* at most one of each kind: the queue cannot be full */
}
