#include "tool/faults_play.h"

#include "common/assert.h"
#include "common/rng.h"
#include "tool/units.h"

#include <stdio.h>
#include <string.h>

/* Draws of one repetition of one fault, by their use. */
enum draw { DRAW_POINT, DRAW_WHO, DRAW_WITH, DRAW_LENGTH };

static uint64_t draw(const struct gk_faults_play *play, uint32_t line, enum draw use,
                     uint64_t bound)
{
    const struct gk_rng rng = {.seed = play->faults->seed,
                               .purpose = GK_RNG_FAULT,
                               .a = UINT32_MAX - line, /* apart from pairs of daemons */
                               .b = play->lines[line].done};

    return gk_rng_below(&rng, (uint64_t)use, bound);
}

static uint64_t draw_span(const struct gk_faults_play *play, uint32_t line, enum draw use,
                          const struct gk_faults_span *span)
{
    return span->low == span->high ? span->low
                                   : span->low + draw(play, line, use, span->high - span->low + 1);
}

void gk_faults_play_init(struct gk_faults_play *play, const struct gk_faults *faults,
                         const struct gk_faults_job *job)
{
    memset(play, 0, sizeof(*play));
    play->faults = faults;
    play->job = *job;
    for (uint32_t i = 0; i < faults->faults_count; i++) {
        play->lines[i].next = faults->faults[i].at;
        play->lines[i].next.low = draw_span(play, i, DRAW_POINT, &faults->faults[i].at);
    }
}

/* Whom it meets this time: daemons `from` to `from + count - 1` of a role, or none of it. */
struct range {
    uint32_t from, count;
};

static struct range range_of(const struct gk_faults_play *play, uint32_t line, enum draw use,
                             struct gk_faults_who who, enum gk_role role)
{
    bool server = role == GK_ROLE_SERVER;
    uint32_t all = server ? play->job.servers : play->job.workers;
    struct range none = {0, 0};

    switch (who.whom) {
    case GK_FAULTS_ALL:
        return (struct range){0, all};
    case GK_FAULTS_WORKERS:
        return server ? none : (struct range){0, all};
    case GK_FAULTS_SERVERS:
        return server ? (struct range){0, all} : none;
    case GK_FAULTS_WORKER:
        return server ? none : (struct range){who.index, 1};
    case GK_FAULTS_SERVER:
        return server ? (struct range){who.index, 1} : none;
    case GK_FAULTS_ANY_WORKER:
        return server ? none : (struct range){(uint32_t)draw(play, line, use, all), 1};
    case GK_FAULTS_ANY_SERVER:
        return server ? (struct range){(uint32_t)draw(play, line, use, all), 1} : none;
    case GK_FAULTS_LAUNCHER:
        break;
    }
    return none;
}

struct firing { /* of one fault, now */
    struct gk_faults_play *play;
    struct gk_faults_act act;
    bool undone, steps; /* it has an end, counted in steps */
    uint64_t end;
    gk_faults_act_fn *fn;
    void *context;
};

static void fire(struct firing *firing)
{
    struct gk_faults_play *play = firing->play;
    struct gk_faults_undo *undo = &play->undos[play->undos_count];

    if (firing->undone && play->undos_count == GK_FAULTS_UNDO_MAX) {
        return; /* what could not be ended is not begun */
    }
    if (firing->undone) {
        *undo =
            (struct gk_faults_undo){.steps = firing->steps, .at = firing->end, .act = firing->act};
        undo->act.ends = true;
        play->undos_count++;
    }
    firing->fn(firing->context, &firing->act);
}

static void fire_messages(struct firing *firing, uint32_t line)
{
    const struct gk_fault_line *fault = firing->act.fault;
    struct gk_faults_play *play = firing->play;
    struct range workers = range_of(play, line, DRAW_WHO, fault->who, GK_ROLE_WORKER);
    struct range servers = range_of(play, line, DRAW_WHO, fault->who, GK_ROLE_SERVER);

    /* Of the two ends one was named in `who`, the other in `with` or by nobody, which is all. */
    if (workers.count == 0) {
        workers = range_of(play, line, DRAW_WITH, fault->with, GK_ROLE_WORKER);
    } else if (servers.count == 0) {
        servers = range_of(play, line, DRAW_WITH, fault->with, GK_ROLE_SERVER);
    }
    for (uint32_t i = 0; i < workers.count; i++) {
        for (uint32_t j = 0; j < servers.count; j++) {
            firing->act.role = GK_ROLE_WORKER;
            firing->act.index = workers.from + i;
            firing->act.server = servers.from + j;
            fire(firing);
        }
    }
}

static void fire_processes(struct firing *firing, uint32_t line)
{
    const struct gk_fault_line *fault = firing->act.fault;

    for (int role = GK_ROLE_SERVER; role <= GK_ROLE_WORKER; role++) {
        struct range range = range_of(firing->play, line, DRAW_WHO, fault->who, (enum gk_role)role);

        for (uint32_t i = 0; i < range.count; i++) {
            firing->act.role = (enum gk_role)role;
            firing->act.index = range.from + i;
            fire(firing);
        }
    }
}

static void fire_line(struct gk_faults_play *play, uint32_t line, uint64_t now_us, uint64_t step,
                      const struct firing *how)
{
    const struct gk_fault_line *fault = &play->faults->faults[line];
    uint64_t length = draw_span(play, line, DRAW_LENGTH, &fault->length);
    struct firing firing = *how;

    firing.act.fault = fault;
    firing.act.what = fault->what;
    switch ((int)fault->what) {
    case GK_FAULTS_KILL:
    case GK_FAULTS_RESTART:
    case GK_FAULTS_LOSE_STATE:
        firing.act.comes_back = fault->length.given || fault->what != GK_FAULTS_KILL;
        firing.act.down_us = length;
        break;
    default:
        firing.undone = fault->length.given;
        firing.steps = fault->length.steps;
        firing.end = (fault->length.steps ? step : now_us) + length;
        break;
    }
    if (fault->who.whom == GK_FAULTS_LAUNCHER) {
        firing.act.launcher = true;
        firing.act.length_us = length;
        firing.undone = false; /* whoever is frozen thaws nobody */
        fire(&firing);
    } else if (gk_faults_is_message(fault->what)) {
        fire_messages(&firing, line);
    } else {
        fire_processes(&firing, line);
    }
}

/* When it comes again. */
static void plan_next(struct gk_faults_play *play, uint32_t line, uint64_t now_us, uint64_t step)
{
    const struct gk_fault_line *fault = &play->faults->faults[line];
    struct gk_faults_play_line *state = &play->lines[line];
    bool same = state->next.steps == fault->every.steps;

    state->done++;
    if (state->done == fault->times) {
        state->next.given = false;
        return;
    }
    /* From the point that was meant, not from when it was seen; so nothing drifts. */
    state->next.low = (same                 ? state->next.low
                       : fault->every.steps ? step
                                            : now_us) +
                      draw_span(play, line, DRAW_POINT, &fault->every);
    state->next.steps = fault->every.steps;
}

static void end_due(struct gk_faults_play *play, uint64_t now_us, uint64_t step,
                    const struct firing *how)
{
    uint32_t kept = 0, count = play->undos_count;

    play->undos_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct gk_faults_undo undo = play->undos[i];

        if ((undo.steps ? step : now_us) >= undo.at) {
            how->fn(how->context, &undo.act);
        } else {
            play->undos[kept++] = undo;
        }
    }
    play->undos_count = kept;
}

void gk_faults_play_tick(struct gk_faults_play *play, uint64_t now_us, uint64_t step,
                         gk_faults_act_fn *act, void *context)
{
    const struct firing how = {.play = play, .fn = act, .context = context};

    end_due(play, now_us, step, &how);
    for (uint32_t i = 0; i < play->faults->faults_count; i++) {
        struct gk_faults_span *next = &play->lines[i].next;
        bool due = next->given && (next->steps ? step : now_us) >= next->low;

        if (due && next->steps && play->faults->faults[i].after_us > 0) {
            next->steps = false; /* the step has come; now it is a matter of time */
            next->low = now_us + play->faults->faults[i].after_us;
        } else if (due) {
            fire_line(play, i, now_us, step, &how);
            plan_next(play, i, now_us, step);
        }
    }
}

static void append(char *ret, size_t ret_bytes, const char *text, const char *more)
{
    size_t used = strlen(ret);

    (void)snprintf(ret + used, ret_bytes - used, "%s%s", text, more);
}

void gk_faults_act_text(const struct gk_faults_act *act, char *ret, size_t ret_bytes)
{
    const struct gk_fault_line *fault = act->fault;

    (void)snprintf(ret, ret_bytes, "%s%s", act->ends ? "end of " : "",
                   gk_faults_do_name(act->what));
    if (gk_faults_is_message(act->what)) {
        if (fault->chance < 1.0) {
            append(ret, ret_bytes, " ", gk_unit_percent(fault->chance).text);
        }
        if (act->what == GK_FAULTS_DELAY) {
            append(ret, ret_bytes, " by ", gk_unit_seconds((double)fault->amount_us / 1e6).text);
        }
        (void)snprintf(ret + strlen(ret), ret_bytes - strlen(ret),
                       " between worker %u and server %u", act->index, act->server);
    } else if (act->launcher) {
        append(ret, ret_bytes, " launcher", "");
    } else {
        (void)snprintf(ret + strlen(ret), ret_bytes - strlen(ret), " %s %u",
                       gk_role_name(act->role), act->index);
    }
}
