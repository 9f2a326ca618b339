/* From the tree of the file to the script: one function a part, one complaint a mistake. */
#include "tool/faults.h"

#include "common/exit.h"
#include "common/shown.h"
#include "tool/faults_value.h"
#include "tool/faults_yaml.h"

#include <stdlib.h>
#include <string.h>

#define DO_WORDS                                                                                   \
    "kill|freeze|thaw|restart|partition|heal|drop|delay|duplicate|corrupt|disk-full|disk-free|"    \
    "lose-state|start"

static const char *const do_names[GK_FAULTS_DO_COUNT] = {
    "kill",  "freeze",    "thaw",    "restart",   "partition", "heal",       "drop",
    "delay", "duplicate", "corrupt", "disk-full", "disk-free", "lose-state", "start"};

const char *gk_faults_do_name(enum gk_faults_do what)
{
    return do_names[what];
}

bool gk_faults_is_message(enum gk_faults_do what)
{
    return what >= GK_FAULTS_PARTITION && what <= GK_FAULTS_CORRUPT;
}

static bool is_one(struct gk_faults_who who)
{
    return who.whom == GK_FAULTS_WORKER || who.whom == GK_FAULTS_SERVER;
}

static bool is_workers(struct gk_faults_who who)
{
    return who.whom == GK_FAULTS_WORKER || who.whom == GK_FAULTS_ANY_WORKER ||
           who.whom == GK_FAULTS_WORKERS;
}

static bool is_servers(struct gk_faults_who who)
{
    return who.whom == GK_FAULTS_SERVER || who.whom == GK_FAULTS_ANY_SERVER ||
           who.whom == GK_FAULTS_SERVERS;
}

static bool read_do(struct gk_yaml_value map, struct gk_fault_line *fault)
{
    struct gk_yaml_value value = gk_yaml_get(map, "do");
    const char *text = gk_yaml_text(value);
    int what = gk_yaml_choice(text, DO_WORDS);
    char nearest[32];

    if (!value.node) {
        return gk_yaml_complain(map, "a fault needs 'do: kill' or the like");
    }
    if (what < 0) {
        gk_yaml_nearest(text, DO_WORDS, nearest, sizeof(nearest));
        if (nearest[0]) {
            return gk_yaml_complain(value, "do: '%s' is no fault; did you mean '%s'?",
                                    gk_shown(text).text, nearest);
        }
        return gk_yaml_complain(
            value,
            "do: '%s' is no fault; there are kill, freeze, thaw, restart, start, lose-state, "
            "partition, drop, delay, duplicate, corrupt, heal, disk-full, disk-free",
            gk_shown(text).text);
    }
    fault->what = (enum gk_faults_do)what;
    return true;
}

static bool read_who(struct gk_yaml_value map, const char *key, struct gk_faults_who *ret)
{
    struct gk_yaml_value value = gk_yaml_get(map, key);

    if (!value.node) {
        return gk_yaml_complain(map, "a fault needs '%s: worker 2' or the like", key);
    }
    if (!gk_faults_read_who(gk_yaml_text(value), ret)) {
        return gk_yaml_complain(value,
                                "%s: '%s' is nobody; say worker 2, server 1, any worker, any "
                                "server, workers, servers, all or launcher",
                                key, gk_shown(gk_yaml_text(value)).text);
    }
    return true;
}

static bool read_at(struct gk_yaml_value map, struct gk_faults_span *ret, uint64_t *ret_after_us)
{
    struct gk_yaml_value at = gk_yaml_get(map, "at"), value, after;
    bool steps;

    if (!at.node) {
        return gk_yaml_complain(map, "a fault needs 'at: {step: 20}' or 'at: {time: 1.5 s}'");
    }
    if (!gk_yaml_expect_map(at, "step|time|after", "at")) {
        return false;
    }
    after = gk_yaml_get(at, "after");
    value = gk_yaml_get(at, "step");
    steps = value.node != 0;
    if (steps == (gk_yaml_get(at, "time").node != 0)) {
        return gk_yaml_complain(at, "at: a step or a time, one of them");
    }
    if (after.node && (!steps || !gk_faults_read_duration(gk_yaml_text(after), ret_after_us))) {
        return gk_yaml_complain(after, "after: a time behind a step, such as 300 ms");
    }
    value = steps ? value : gk_yaml_get(at, "time");
    if (!gk_faults_read_point(gk_yaml_text(value), steps, ret)) {
        return gk_yaml_complain(value, "at: '%s' is no %s", gk_shown(gk_yaml_text(value)).text,
                                steps ? "step; say 20, or 10 to 200"
                                      : "time; say 1.5 s, or 1 s to 3 s");
    }
    return true;
}

static bool read_span(struct gk_yaml_value map, const char *key, struct gk_faults_span *ret)
{
    struct gk_yaml_value value = gk_yaml_get(map, key);

    if (value.node && !gk_faults_read_span(gk_yaml_text(value), ret)) {
        return gk_yaml_complain(value, "%s: '%s' is no length; say 20 steps, 1.5 s or 200 ms", key,
                                gk_shown(gk_yaml_text(value)).text);
    }
    if (value.node && ret->high == 0) {
        return gk_yaml_complain(value, "%s: nothing is as short as that", key);
    }
    return true;
}

static bool read_length(struct gk_yaml_value map, struct gk_fault_line *fault)
{
    struct gk_yaml_value value = gk_yaml_get(map, "for");
    bool down = fault->what == GK_FAULTS_KILL || fault->what == GK_FAULTS_LOSE_STATE;

    if (down && strcmp(gk_yaml_text(value), "ever") == 0) {
        fault->length =
            (struct gk_faults_span){.given = true, .low = GK_FAULTS_EVER, .high = GK_FAULTS_EVER};
        return true;
    }
    if (!read_span(map, "for", &fault->length)) {
        return false;
    }
    if (down && fault->length.steps) {
        return gk_yaml_complain(value, "for: whoever is down is so for a time, not for steps: most "
                                       "often there are none without it");
    }
    return true;
}

static bool read_repeats(struct gk_yaml_value map, struct gk_fault_line *fault)
{
    struct gk_yaml_value times = gk_yaml_get(map, "times");
    uint64_t count = 1;

    if (!read_span(map, "every", &fault->every)) {
        return false;
    }
    if (fault->every.given != (times.node != 0)) {
        return gk_yaml_complain(map, "'every' and 'times' go together");
    }
    if (times.node &&
        (!gk_faults_read_number(gk_yaml_text(times), &count) || count == 0 || count > 1000000)) {
        return gk_yaml_complain(times, "times: a number from 1 to 1000000");
    }
    fault->times = (uint32_t)count;
    return true;
}

static bool read_measures(struct gk_yaml_value map, struct gk_fault_line *fault)
{
    struct gk_yaml_value chance = gk_yaml_get(map, "chance"), amount = gk_yaml_get(map, "amount");
    bool drawn = gk_faults_is_message(fault->what) && fault->what != GK_FAULTS_PARTITION &&
                 fault->what != GK_FAULTS_HEAL;

    fault->chance = 1.0;
    if (chance.node && !drawn) {
        return gk_yaml_complain(chance, "chance belongs to drop, delay, duplicate and corrupt");
    }
    if (chance.node && !gk_faults_read_chance(gk_yaml_text(chance), &fault->chance)) {
        return gk_yaml_complain(chance, "chance: 20 %% or 0.2, up to 100 %%");
    }
    if (amount.node && fault->what != GK_FAULTS_DELAY) {
        return gk_yaml_complain(amount, "amount belongs to delay");
    }
    if (fault->what == GK_FAULTS_DELAY &&
        !gk_faults_read_duration(gk_yaml_text(amount), &fault->amount_us)) {
        return gk_yaml_complain(amount.node ? amount : map, "a delay needs 'amount: 50 ms'");
    }
    return true;
}

/* What can be done to whom. */
static bool check_who(struct gk_yaml_value map, const struct gk_fault_line *fault)
{
    struct gk_yaml_value who = gk_yaml_get(map, "who"), with = gk_yaml_get(map, "with");
    const char *name = do_names[fault->what];

    if (fault->who.whom == GK_FAULTS_LAUNCHER && fault->what != GK_FAULTS_KILL &&
        fault->what != GK_FAULTS_FREEZE) {
        return gk_yaml_complain(who, "the launcher can be killed and frozen, no more");
    }
    if (fault->who.whom == GK_FAULTS_LAUNCHER &&
        (fault->what == GK_FAULTS_FREEZE) != fault->length.given) {
        return gk_yaml_complain(who, fault->length.given
                                         ? "nobody starts a killed launcher again: leave 'for' out"
                                         : "a frozen launcher needs 'for: 3 s'");
    }
    if (fault->who.whom == GK_FAULTS_LAUNCHER && fault->length.steps) {
        return gk_yaml_complain(who, "the launcher is frozen for a time, not for steps");
    }
    if ((fault->what == GK_FAULTS_DISK_FULL || fault->what == GK_FAULTS_DISK_FREE) &&
        !is_servers(fault->who)) {
        return gk_yaml_complain(who, "%s: only servers have a disk that can fill up here", name);
    }
    if (fault->what == GK_FAULTS_START && !is_one(fault->who)) {
        return gk_yaml_complain(who, "start: one worker or one server");
    }
    if (with.node && !gk_faults_is_message(fault->what)) {
        return gk_yaml_complain(with, "with: %s has no other end", name);
    }
    if (with.node && !((is_workers(fault->who) && is_servers(fault->with)) ||
                       (is_servers(fault->who) && is_workers(fault->with)))) {
        return gk_yaml_complain(with,
                                "messages go between workers and servers: with '%s' they do "
                                "not",
                                gk_yaml_text(with));
    }
    return true;
}

static bool check_length(struct gk_yaml_value map, const struct gk_fault_line *fault)
{
    static const bool none[GK_FAULTS_DO_COUNT] = {
        [GK_FAULTS_THAW] = true,  [GK_FAULTS_RESTART] = true,   [GK_FAULTS_HEAL] = true,
        [GK_FAULTS_START] = true, [GK_FAULTS_DISK_FREE] = true,
    };

    if (fault->length.given && none[fault->what]) {
        return gk_yaml_complain(gk_yaml_get(map, "for"), "for: %s has no length",
                                do_names[fault->what]);
    }
    return true;
}

static bool read_fault(struct gk_yaml_value map, struct gk_fault_line *fault)
{
    fault->line = gk_yaml_line(map);
    if (!gk_yaml_expect_map(map, "at|do|who|with|for|every|times|chance|amount", "a fault") ||
        !read_do(map, fault) || !read_who(map, "who", &fault->who) ||
        !read_at(map, &fault->at, &fault->after_us) || !read_length(map, fault) ||
        !read_repeats(map, fault) || !read_measures(map, fault)) {
        return false;
    }
    fault->with.whom = GK_FAULTS_ALL;
    if (gk_yaml_get(map, "with").node && !read_who(map, "with", &fault->with)) {
        return false;
    }
    return check_who(map, fault) && check_length(map, fault);
}

static bool read_faults(struct gk_yaml_value list, struct gk_faults *faults)
{
    if (!list.node) {
        return true; /* a script may be about the start alone */
    }
    if (gk_yaml_type(list) != GK_YAML_LIST || gk_yaml_count(list) > GK_FAULTS_MAX) {
        return gk_yaml_complain(list, "faults: a list of at most %d", GK_FAULTS_MAX);
    }
    for (uint32_t i = 0; i < gk_yaml_count(list); i++) {
        if (!read_fault(gk_yaml_item(list, i), &faults->faults[i])) {
            return false;
        }
    }
    faults->faults_count = gk_yaml_count(list);
    return true;
}

static bool read_begin(struct gk_yaml_value item, struct gk_faults_begin *begin)
{
    const char *text = gk_yaml_text(item);

    begin->line = gk_yaml_line(item);
    begin->wait = strncmp(text, "wait ", 5) == 0;
    if (begin->wait ? gk_faults_read_duration(text + 5, &begin->wait_us)
                    : gk_faults_read_who(text, &begin->who) && is_one(begin->who)) {
        return true;
    }
    return gk_yaml_complain(item, "start: '%s'; say server 1, worker 0 or wait 500 ms",
                            gk_shown(text).text);
}

static bool read_start(struct gk_yaml_value list, struct gk_faults *faults)
{
    if (!list.node) {
        return true;
    }
    if (gk_yaml_type(list) != GK_YAML_LIST || gk_yaml_count(list) == 0 ||
        gk_yaml_count(list) > GK_FAULTS_START_MAX) {
        return gk_yaml_complain(list, "start: a list of at most %d, such as [server 1, worker 0]",
                                GK_FAULTS_START_MAX);
    }
    for (uint32_t i = 0; i < gk_yaml_count(list); i++) {
        if (!read_begin(gk_yaml_item(list, i), &faults->start[i])) {
            return false;
        }
        for (uint32_t j = 0; j < i; j++) {
            if (!faults->start[i].wait && !faults->start[j].wait &&
                faults->start[i].who.whom == faults->start[j].who.whom &&
                faults->start[i].who.index == faults->start[j].who.index) {
                return gk_yaml_complain(gk_yaml_item(list, i), "start: %s is there twice",
                                        gk_yaml_text(gk_yaml_item(list, i)));
            }
        }
    }
    faults->start_count = gk_yaml_count(list);
    return true;
}

static bool read_truth(struct gk_yaml_value map, const char *key, uint32_t *ret_line, bool *ret)
{
    struct gk_yaml_value value = gk_yaml_get(map, key);

    *ret_line = gk_yaml_line(value);
    if (value.node && !gk_faults_read_bool(gk_yaml_text(value), ret)) {
        return gk_yaml_complain(value, "%s: true or false", key);
    }
    return true;
}

static bool read_bounds(struct gk_yaml_value map, const char *key, struct gk_faults_bounds *ret)
{
    struct gk_yaml_value value = gk_yaml_get(map, key);

    ret->line = gk_yaml_line(value);
    if (value.node && !gk_faults_read_bounds(gk_yaml_text(value), ret)) {
        return gk_yaml_complain(value, "%s: a number, or 'at most 3', or 'at least 3'", key);
    }
    return true;
}

static bool read_says(struct gk_yaml_value value, struct gk_faults_expect *expect)
{
    bool list = gk_yaml_type(value) == GK_YAML_LIST;
    uint32_t count = list ? gk_yaml_count(value) : value.node != 0;

    if (count > GK_FAULTS_SAYS_MAX) {
        return gk_yaml_complain(value, "says: at most %d texts", GK_FAULTS_SAYS_MAX);
    }
    for (uint32_t i = 0; i < count; i++) {
        struct gk_yaml_value item = list ? gk_yaml_item(value, i) : value;

        if (!gk_yaml_text(item)[0]) {
            return gk_yaml_complain(item, "says: a text that some line must hold");
        }
        expect->says[i] = gk_yaml_text(item);
        expect->says_lines[i] = gk_yaml_line(item);
    }
    expect->says_count = count;
    return true;
}

static bool read_within(struct gk_yaml_value map, struct gk_faults_expect *expect)
{
    struct gk_yaml_value value = gk_yaml_get(map, "within");

    expect->within_us = GK_FAULTS_WITHIN_S * UINT64_C(1000000);
    expect->within_line = gk_yaml_line(value);
    if (value.node && (!gk_faults_read_duration(gk_yaml_text(value), &expect->within_us) ||
                       expect->within_us == 0)) {
        return gk_yaml_complain(value, "within: a time such as 60 s");
    }
    return true;
}

static bool read_expect(struct gk_yaml_value map, struct gk_faults_expect *expect)
{
    struct gk_yaml_value leaks = gk_yaml_get(map, "leaks");

    if (map.node &&
        !gk_yaml_expect_map(
            map, "completes|same-hash|exit|leaks|memory-mib|pushes-lost|restarts|says|within",
            "expect")) {
        return false;
    }
    if (leaks.node && strcmp(gk_yaml_text(leaks), "none") != 0) {
        return gk_yaml_complain(leaks, "leaks: none, and that is checked always");
    }
    if (!read_truth(map, "completes", &expect->completes_line, &expect->completes) ||
        !read_truth(map, "same-hash", &expect->hash_line, &expect->same_hash) ||
        !read_bounds(map, "exit", &expect->exit_code) ||
        !read_bounds(map, "memory-mib", &expect->memory_mib) ||
        !read_bounds(map, "pushes-lost", &expect->pushes_lost) ||
        !read_bounds(map, "restarts", &expect->restarts) ||
        !read_says(gk_yaml_get(map, "says"), expect) || !read_within(map, expect)) {
        return false;
    }
    /* A memory of just so many MiB is a bound, not a wish. */
    if (expect->memory_mib.low == expect->memory_mib.high) {
        expect->memory_mib.low = 0;
    }
    if (expect->completes_line == 0 && expect->exit_code.line == 0) {
        expect->completes = true;
        expect->completes_line = map.node ? gk_yaml_line(map) : 1;
    }
    return true;
}

static bool read_options(struct gk_yaml_value map, struct gk_faults *faults)
{
    if (!map.node) {
        return true;
    }
    if (gk_yaml_type(map) != GK_YAML_MAP || gk_yaml_count(map) > GK_FAULTS_OPTIONS_MAX) {
        return gk_yaml_complain(map, "run: options of gkps run, such as 'workers: 4'");
    }
    for (uint32_t i = 0; i < gk_yaml_count(map); i++) {
        struct gk_yaml_value value;

        faults->options[i].name = gk_yaml_key(map, i, &value);
        faults->options[i].text = gk_yaml_text(value);
        faults->options[i].line = gk_yaml_line(value);
        if (gk_yaml_type(value) != GK_YAML_TEXT) {
            return gk_yaml_complain(value, "run: '%s' is one value",
                                    gk_shown(faults->options[i].name).text);
        }
        if (strcmp(faults->options[i].name, "faults") == 0) {
            return gk_yaml_complain(value, "run: a script cannot name another");
        }
        for (uint32_t j = 0; j < i; j++) {
            if (strcmp(faults->options[i].name, faults->options[j].name) == 0) {
                return gk_yaml_complain(value, "run: key '%s' is given twice",
                                        gk_shown(faults->options[i].name).text);
            }
        }
    }
    faults->options_count = gk_yaml_count(map);
    return true;
}

static bool read_script(struct gk_yaml_value root, struct gk_faults *faults)
{
    struct gk_yaml_value seed = gk_yaml_get(root, "seed");

    faults->seed = 1;
    if (!gk_yaml_expect_map(root, "seed|run|start|faults|expect", "a fault script")) {
        return false;
    }
    if (seed.node && !gk_faults_read_number(gk_yaml_text(seed), &faults->seed)) {
        return gk_yaml_complain(seed, "seed: a number up to 10^15");
    }
    return read_options(gk_yaml_get(root, "run"), faults) &&
           read_start(gk_yaml_get(root, "start"), faults) &&
           read_faults(gk_yaml_get(root, "faults"), faults) &&
           read_expect(gk_yaml_get(root, "expect"), &faults->expect);
}

enum gk_err gk_faults_read(const char *path, struct gk_faults **ret_faults, struct gk_words *words)
{
    struct gk_faults *faults = calloc(1, sizeof(*faults));
    enum gk_err err;

    if (!faults) {
        gk_words_set(words, "no memory to read a fault script");
        return GK_E_NOMEM;
    }
    err = gk_yaml_read(path, &faults->yaml, words);
    if (!err) {
        faults->name = gk_yaml_name(faults->yaml);
        (void)read_script(gk_yaml_root(faults->yaml), faults); /* its complaint is kept */
        err = gk_yaml_result(faults->yaml, words);
    }
    if (err) {
        gk_faults_free(faults);
        return err;
    }
    *ret_faults = faults;
    return GK_OK;
}

void gk_faults_free(struct gk_faults *faults)
{
    if (faults) {
        gk_yaml_free(faults->yaml);
        free(faults);
    }
}

/* True, and words, when the job has no such daemon. */
static bool absent(const struct gk_faults *faults, uint32_t line, struct gk_faults_who who,
                   const struct gk_faults_job *job, struct gk_words *words)
{
    uint32_t count = who.whom == GK_FAULTS_WORKER ? job->workers : job->servers;

    if (!is_one(who) || who.index < count) {
        return false;
    }
    gk_words_set(words, "%s:%u: there is no %s %u: the job has %u, from 0", faults->name, line,
                 who.whom == GK_FAULTS_WORKER ? "worker" : "server", who.index, count);
    return true;
}

/* Does a server lose its memory in it? */
static bool empties_server(const struct gk_fault_line *fault)
{
    bool ends = fault->what == GK_FAULTS_KILL || fault->what == GK_FAULTS_RESTART ||
                fault->what == GK_FAULTS_LOSE_STATE;

    return ends && (is_servers(fault->who) || fault->who.whom == GK_FAULTS_ALL);
}

static bool needs_disk(const struct gk_fault_line *fault)
{
    return fault->what == GK_FAULTS_DISK_FULL || fault->what == GK_FAULTS_DISK_FREE ||
           fault->what == GK_FAULTS_LOSE_STATE;
}

static bool starts_it(const struct gk_faults *faults, enum gk_faults_whom whom, uint32_t index)
{
    for (uint32_t i = 0; i < faults->start_count; i++) {
        if (!faults->start[i].wait && faults->start[i].who.whom == whom &&
            faults->start[i].who.index == index) {
            return true;
        }
    }
    for (uint32_t i = 0; i < faults->faults_count; i++) {
        if (faults->faults[i].what == GK_FAULTS_START && faults->faults[i].who.whom == whom &&
            faults->faults[i].who.index == index) {
            return true;
        }
    }
    return faults->start_count == 0;
}

/* A list of starts that leaves somebody out would wait for ever. */
static bool left_out(const struct gk_faults *faults, enum gk_faults_whom whom, uint32_t count,
                     struct gk_words *words)
{
    for (uint32_t i = 0; i < count; i++) {
        if (!starts_it(faults, whom, i)) {
            gk_words_set(words, "%s:%u: start: nobody ever starts %s %u", faults->name,
                         faults->start[0].line, whom == GK_FAULTS_WORKER ? "worker" : "server", i);
            return true;
        }
    }
    return false;
}

static bool must_end_well(const struct gk_faults *faults)
{
    return faults->expect.completes ||
           (faults->expect.exit_code.line > 0 && faults->expect.exit_code.high == GK_EXIT_OK);
}

bool gk_faults_need_state(const struct gk_faults *faults)
{
    for (uint32_t i = 0; i < faults->faults_count; i++) {
        const struct gk_fault_line *fault = &faults->faults[i];
        bool dies = fault->what == GK_FAULTS_KILL || fault->what == GK_FAULTS_RESTART;

        if (needs_disk(fault) || (empties_server(fault) && must_end_well(faults)) ||
            (dies && fault->who.whom != GK_FAULTS_LAUNCHER && faults->expect.same_hash)) {
            return true;
        }
    }
    return false;
}

enum gk_err gk_faults_check(const struct gk_faults *faults, const struct gk_faults_job *job,
                            struct gk_words *words)
{
    for (uint32_t i = 0; i < faults->faults_count; i++) {
        const struct gk_fault_line *fault = &faults->faults[i];

        if (absent(faults, fault->line, fault->who, job, words) ||
            absent(faults, fault->line, fault->with, job, words)) {
            return GK_E_CONFIG;
        }
    }
    for (uint32_t i = 0; i < faults->start_count; i++) {
        if (!faults->start[i].wait &&
            absent(faults, faults->start[i].line, faults->start[i].who, job, words)) {
            return GK_E_CONFIG;
        }
    }
    if (left_out(faults, GK_FAULTS_SERVER, job->servers, words) ||
        left_out(faults, GK_FAULTS_WORKER, job->workers, words)) {
        return GK_E_CONFIG;
    }
    return GK_OK;
}
