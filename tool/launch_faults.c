/* Messages are troubled in the worker, at whose sockets each pair has its two ends together
 * (common/net/fault.h); a child learns of it through its link, and its next life once more. */
#include "tool/launch_faults.h"

#include "common/exit.h"
#include "common/json.h"
#include "common/limits.h"
#include "common/net/clock.h"
#include "common/net/link.h"
#include "tool/faults_play.h"
#include "tool/faults_stage.h"
#include "tool/faults_state.h"
#include "tool/launch_internal.h"
#include "tool/ports.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TICK_MS = 10, RULES = GK_FAULTS_CORRUPT - GK_FAULTS_PARTITION + 1 };

struct rule { /* in force on the messages between two */
    double chance;
    uint64_t amount_us;
};

struct pair {
    struct rule rules[RULES]; /* by the word in `do`, from GK_FAULTS_PARTITION */
};

struct fate { /* of one child */
    bool frozen;
    bool disk_full;
    bool killed;     /* by us, and it has not ended yet */
    bool comes_back; /* ... and then begins again after down_us */
    bool loses_state;
    uint64_t down_us;
};

struct gk_launch_faults {
    const struct gk_faults_stage *stage;
    struct gk_faults_play play;
    uv_timer_t timer;
    uint64_t begin_us;
    struct pair *pairs;       /* worker by worker */
    struct fate *fates;       /* of the fleet */
    bool done[GK_FAULTS_MAX]; /* in this tick: it met somebody */
    bool ended, closed;
};

static void on_timer(uv_timer_t *timer)
{
    gk_launch_faults_tick(timer->data);
}

enum gk_err gk_launch_faults_open(struct gk_launch *launch)
{
    const struct gk_faults_stage *stage = launch->plan->stage;
    struct gk_launch_faults *faults;
    struct gk_faults_job job = {.servers = launch->tally->servers_count,
                                .workers = launch->tally->workers_count};

    if (!stage || !stage->faults) {
        return GK_OK;
    }
    faults = calloc(1, sizeof(*faults));
    if (faults) {
        faults->pairs = calloc((size_t)job.servers * job.workers, sizeof(*faults->pairs));
        faults->fates = calloc(launch->fleet.children_count, sizeof(*faults->fates));
    }
    if (!faults || !faults->pairs || !faults->fates) {
        launch->faults = faults;
        gk_launch_faults_free(launch);
        return GK_E_NOMEM;
    }
    faults->stage = stage;
    faults->begin_us = gk_now_us();
    gk_faults_play_init(&faults->play, stage->faults, &job);
    (void)uv_timer_init(&launch->loop, &faults->timer); /* cannot fail, nor can the next */
    faults->timer.data = launch;
    (void)uv_timer_start(&faults->timer, on_timer, 0, TICK_MS);
    launch->faults = faults;
    return GK_OK;
}

void gk_launch_faults_close(struct gk_launch *launch)
{
    if (launch->faults && !launch->faults->closed) {
        launch->faults->closed = true;
        uv_close((uv_handle_t *)&launch->faults->timer, NULL);
    }
}

void gk_launch_faults_free(struct gk_launch *launch)
{
    if (launch->faults) {
        free(launch->faults->pairs);
        free(launch->faults->fates);
        free(launch->faults);
        launch->faults = NULL;
    }
}

static struct gk_child *child_of(struct gk_launch *launch, enum gk_role role, uint32_t index)
{
    uint32_t from = role == GK_ROLE_SERVER ? 0 : launch->fleet.servers_count;

    return &launch->fleet.children[from + index];
}

static struct fate *fate_of(struct gk_launch *launch, const struct gk_child *child)
{
    return &launch->faults->fates[child - launch->fleet.children];
}

/* Takes the object. */
static void tell(struct gk_child *child, json_t *object)
{
    if (object && !child->done) {
        gk_link_send(child->link, object);
    }
    json_decref(object);
}

static void tell_rule(struct gk_launch *launch, uint32_t worker, uint32_t server,
                      enum gk_faults_do what)
{
    const struct gk_launch_faults *faults = launch->faults;
    const struct rule *rule = &faults->pairs[worker * launch->tally->servers_count + server]
                                   .rules[what - GK_FAULTS_PARTITION];

    tell(child_of(launch, GK_ROLE_WORKER, worker),
         json_pack("{s:s, s:i, s:f, s:o, s:o}", "fault", gk_faults_do_name(what), "peer",
                   (int)server, "chance", rule->chance, "amount_us",
                   gk_json_integer(rule->amount_us), "seed",
                   gk_json_integer(faults->stage->faults->seed)));
}

static void tell_disk(struct gk_child *server, bool full)
{
    tell(server, json_pack("{s:s, s:b}", "fault", "disk-full", "on", (int)full));
}

static void trouble_messages(struct gk_launch *launch, const struct gk_faults_act *act)
{
    struct pair *pair =
        &launch->faults->pairs[act->index * launch->tally->servers_count + act->server];
    struct rule *rule = &pair->rules[act->what - GK_FAULTS_PARTITION];

    if (act->what == GK_FAULTS_HEAL) {
        memset(pair, 0, sizeof(*pair));
    } else {
        rule->chance = act->ends ? 0.0 : act->fault->chance;
        rule->amount_us = act->fault->amount_us;
    }
    tell_rule(launch, act->index, act->server, act->what);
}

static void freeze(struct gk_launch *launch, struct gk_child *child, bool on)
{
    fate_of(launch, child)->frozen = on && !child->done;
    gk_child_signal(child, on ? SIGSTOP : SIGCONT);
}

/* Its next life begins after so long. */
static void plan(struct gk_child *child, uint64_t down_us)
{
    child->restart.due_us = down_us == GK_FAULTS_EVER ? GK_FAULTS_EVER : gk_now_us() + down_us;
}

static void end_life(struct gk_launch *launch, struct gk_child *child,
                     const struct gk_faults_act *act)
{
    struct fate *fate = fate_of(launch, child);

    if (child->done || child->exited) {
        return; /* nobody is there to be killed */
    }
    fate->killed = true;
    fate->comes_back = act->comes_back;
    fate->down_us = act->down_us;
    fate->loses_state = act->what == GK_FAULTS_LOSE_STATE;
    gk_child_signal(child, SIGKILL);
    child->killed = false; /* in words: not because it would not stop */
}

static void start_now(struct gk_launch *launch, struct gk_child *child)
{
    struct fate *fate = fate_of(launch, child);

    if (child->done && child->restart.due_us > 0) {
        plan(child, 0);
    } else if (fate->killed && fate->comes_back) {
        fate->down_us = 0;
    }
}

static void harm_launcher(struct gk_launch *launch, const struct gk_faults_act *act)
{
    const struct gk_faults_stage *stage = launch->faults->stage;

    (void)fflush(NULL);
    if (act->what == GK_FAULTS_KILL) {
        gk_faults_stage_done(stage, (uint32_t)(act->fault - stage->faults->faults));
        (void)kill(getpid(), SIGKILL);
    } else {
        gk_faults_stage_freeze(stage, act->length_us);
        (void)kill(getpid(), SIGSTOP);
    }
}

static void harm_child(struct gk_launch *launch, struct gk_child *child,
                       const struct gk_faults_act *act)
{
    switch (act->what) {
    case GK_FAULTS_KILL:
    case GK_FAULTS_RESTART:
    case GK_FAULTS_LOSE_STATE:
        end_life(launch, child, act);
        break;
    case GK_FAULTS_FREEZE:
        freeze(launch, child, !act->ends);
        break;
    case GK_FAULTS_THAW:
        freeze(launch, child, false);
        break;
    case GK_FAULTS_DISK_FULL:
    case GK_FAULTS_DISK_FREE:
        fate_of(launch, child)->disk_full = act->what == GK_FAULTS_DISK_FULL && !act->ends;
        tell_disk(child, fate_of(launch, child)->disk_full);
        break;
    case GK_FAULTS_START:
        start_now(launch, child);
        break;
    case GK_FAULTS_PARTITION:
    case GK_FAULTS_HEAL:
    case GK_FAULTS_DROP:
    case GK_FAULTS_DELAY:
    case GK_FAULTS_DUPLICATE:
    case GK_FAULTS_CORRUPT:
    case GK_FAULTS_DO_COUNT:
        break; /* done to messages */
    }
}

static void say_act(struct gk_launch *launch, const struct gk_faults_act *act)
{
    struct gk_console *console = launch->plan->console;
    char text[160];

    gk_faults_act_text(act, text, sizeof(text));
    gk_launch_say(launch, GK_LOG_INFO, "RUN-FAULT", "%s", text);
    if (launch->options->quiet || act->ends) {
        return;
    }
    gk_console_clear(console);
    (void)fprintf(console->out, "fault: %s (%s:%u)\n", text, launch->faults->stage->faults->name,
                  act->fault->line);
    (void)fflush(console->out);
}

/* It meets somebody who lives or will live again, not one whose work is over; what is wrong with
 * messages and disks waits for lives to come. */
static void note_done(struct gk_launch *launch, const struct gk_faults_act *act)
{
    struct gk_launch_faults *faults = launch->faults;
    const struct gk_child *child = child_of(launch, act->role, act->index);
    bool lasts = gk_faults_is_message(act->what) || act->what == GK_FAULTS_DISK_FULL ||
                 act->what == GK_FAULTS_DISK_FREE;
    bool to_come = child->restart.due_us > 0 || (lasts && child->restart.started_us == 0);

    if (!act->ends && (act->launcher || !child->done || to_come)) {
        faults->done[act->fault - faults->stage->faults->faults] = true;
    }
}

static void on_act(void *context, const struct gk_faults_act *act)
{
    struct gk_launch *launch = context;

    say_act(launch, act);
    note_done(launch, act);
    if (act->launcher) {
        harm_launcher(launch, act);
    } else if (gk_faults_is_message(act->what)) {
        trouble_messages(launch, act);
    } else {
        harm_child(launch, child_of(launch, act->role, act->index), act);
    }
}

void gk_launch_faults_tick(struct gk_launch *launch)
{
    struct gk_launch_faults *faults = launch->faults;

    if (!faults || faults->ended || launch->state >= GK_LAUNCH_LOST) {
        return;
    }
    memset(faults->done, 0, sizeof(faults->done));
    gk_faults_play_tick(&faults->play, gk_now_us() - faults->begin_us, gk_tally_step(launch->tally),
                        on_act, launch);
    for (uint32_t i = 0; i < faults->stage->faults->faults_count; i++) {
        if (faults->done[i]) {
            gk_faults_stage_done(faults->stage, i);
        }
    }
}

void gk_launch_faults_born(struct gk_launch *launch, struct gk_child *child)
{
    struct gk_launch_faults *faults = launch->faults;

    if (!faults) {
        return;
    }
    if (child->role == GK_ROLE_SERVER) {
        if (fate_of(launch, child)->disk_full) {
            tell_disk(child, true);
        }
        return;
    }
    for (uint32_t server = 0; server < launch->tally->servers_count; server++) {
        const struct pair *pair =
            &faults->pairs[child->index * launch->tally->servers_count + server];

        for (int i = 0; i < RULES; i++) {
            if (pair->rules[i].chance > 0.0) {
                tell_rule(launch, child->index, server,
                          (enum gk_faults_do)(GK_FAULTS_PARTITION + i));
            }
        }
    }
}

static void lose_state(struct gk_launch *launch, const struct gk_child *child)
{
    struct gk_words words;

    if (gk_faults_state_remove(launch->faults->stage->state_dir, child->role, child->index,
                               &words) != GK_OK) {
        gk_launch_say(launch, GK_LOG_ERROR, "RUN-FAULT", "lose-state: %s", words.text);
    }
}

bool gk_launch_faults_died(struct gk_launch *launch, struct gk_child *child)
{
    struct fate *fate;

    if (!launch->faults || launch->faults->ended || launch->state > GK_LAUNCH_SUMMARIES) {
        return false;
    }
    fate = fate_of(launch, child);
    fate->frozen = false;
    if (!fate->killed || child->term_signal != SIGKILL) {
        fate->killed = false; /* it was quicker */
        return false;
    }
    fate->killed = false;
    if (fate->loses_state) {
        lose_state(launch, child);
    }
    if (!fate->comes_back) {
        return false;
    }
    if (launch->state == GK_LAUNCH_SERVERS) {
        child->address[0] = '\0'; /* nobody knows it yet */
    } else if (child->role == GK_ROLE_SERVER && !launch->faults->stage->state_dir) {
        launch->emptied = child;
    }
    plan(child, fate->down_us);
    return true;
}

void gk_launch_faults_end(struct gk_launch *launch)
{
    struct gk_launch_faults *faults = launch->faults;

    if (!faults || faults->ended) {
        return;
    }
    faults->ended = true;
    for (uint32_t i = 0; i < launch->fleet.children_count; i++) {
        if (faults->fates[i].frozen) {
            freeze(launch, &launch->fleet.children[i], false);
        }
    }
}

/* So that a worker can be told where a server will be.  False: no ports are to be had. */
static bool choose_addresses(struct gk_launch *launch)
{
    uint16_t ports[GK_PORTS_MAX];

    if (!gk_ports_find(launch->fleet.servers_count, ports)) {
        return false;
    }
    for (uint32_t i = 0; i < launch->fleet.servers_count; i++) {
        struct gk_child *child = &launch->fleet.children[i];

        (void)snprintf(child->address, sizeof(child->address), "tcp://127.0.0.1:%u",
                       (unsigned)ports[i]);
    }
    return true;
}

bool gk_launch_faults_plan_start(struct gk_launch *launch)
{
    const struct gk_faults *script = launch->faults ? launch->faults->stage->faults : NULL;
    uint64_t due_us = gk_now_us();

    if (!script || script->start_count == 0) {
        return false;
    }
    if (!choose_addresses(launch)) {
        gk_launch_say(launch, GK_LOG_ERROR, "RUN-START-FAILED", "no ports for the servers");
        gk_launch_drain(launch, GK_EXIT_RETRY);
        return true;
    }
    for (uint32_t i = 0; i < launch->fleet.children_count; i++) {
        launch->fleet.children[i].restart.due_us = GK_FAULTS_EVER; /* until somebody says start */
    }
    for (uint32_t i = 0; i < script->start_count; i++) {
        const struct gk_faults_begin *begin = &script->start[i];

        if (begin->wait) {
            due_us += begin->wait_us;
        } else {
            child_of(launch, begin->who.whom == GK_FAULTS_SERVER ? GK_ROLE_SERVER : GK_ROLE_WORKER,
                     begin->who.index)
                ->restart.due_us = due_us;
        }
    }
    gk_launch_set(launch, GK_LAUNCH_WORKERS);
    return true;
}
