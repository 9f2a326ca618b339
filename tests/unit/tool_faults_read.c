/* Goal: a fault script is read as it is meant, and every mistake in it is one line with the file's
 * name, the line, and what would be right.  Method: whole scripts as texts in a temporary file. */
#include "tool/faults.h"
#include "tool/faults_value.h"
#include "tool/faults_yaml.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[] = "/tmp/gkps-faults-XXXXXX";
static struct gk_words words;

static enum gk_err read_text(const char *text, struct gk_faults **ret)
{
    int fd;
    enum gk_err err;

    memcpy(path + sizeof(path) - 7, "XXXXXX", 6);
    fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    words.text[0] = '\0';
    err = gk_faults_read(path, ret, &words);
    unlink(path);
    return err;
}

static const char whole[] =
    "# a storm\n"
    "seed: 7\n"
    "run: {workers: 3, servers: 2, restart: always}\n"
    "start: [server 1, wait 500 ms, worker 0, server 0, worker 2, worker 1]\n"
    "faults:\n"
    "  - at: {step: 10 to 200}\n"
    "    do: kill\n"
    "    who: any worker\n"
    "    for: ever\n"
    "  - {at: {time: 1.5 s}, do: drop, who: server 1, with: workers,\n"
    "     chance: 20 %, for: 30 steps, every: 200 ms, times: 5}\n"
    "  - {at: {step: 0}, do: delay, who: all, amount: 50ms}\n"
    "  - {at: {step: 1}, do: freeze, who: launcher, for: 3s}\n"
    "expect:\n"
    "  completes: true\n"
    "  same-hash: yes\n"
    "  leaks: none\n"
    "  memory-mib: 200\n"
    "  pushes-lost: at most 4\n"
    "  says: [\"waiting for\", rank 1]\n"
    "  within: 2 min\n";

Test(tool_faults_read, everything)
{
    struct gk_faults *faults;
    const struct gk_fault_line *f;

    cr_assert_eq(read_text(whole, &faults), GK_OK, "%s", words.text);
    f = faults->faults;
    cr_assert_eq(faults->seed, 7);
    cr_assert_eq(faults->options_count, 3);
    cr_assert_str_eq(faults->options[2].name, "restart");
    cr_assert_str_eq(faults->options[2].text, "always");
    cr_assert_eq(faults->start_count, 6);
    cr_assert(faults->start[1].wait && faults->start[1].wait_us == 500000);
    cr_assert(faults->start[2].who.whom == GK_FAULTS_WORKER && faults->start[2].who.index == 0);
    cr_assert_eq(faults->faults_count, 4);
    cr_assert(f[0].line == 6 && f[0].what == GK_FAULTS_KILL && f[0].at.steps);
    cr_assert(f[0].at.low == 10 && f[0].at.high == 200);
    cr_assert(f[0].who.whom == GK_FAULTS_ANY_WORKER && f[0].length.low == GK_FAULTS_EVER);
    cr_assert(!f[1].at.steps && f[1].at.low == 1500000 && f[1].at.high == 1500000);
    cr_assert(f[1].with.whom == GK_FAULTS_WORKERS && f[1].chance == 0.2 && f[1].times == 5);
    cr_assert(f[1].length.steps && f[1].length.low == 30 && f[1].every.low == 200000);
    cr_assert(f[2].amount_us == 50000 && f[2].chance == 1.0 && f[2].with.whom == GK_FAULTS_ALL);
    cr_assert(f[3].who.whom == GK_FAULTS_LAUNCHER && f[3].length.low == 3000000);
    cr_assert(faults->expect.completes && faults->expect.same_hash);
    cr_assert_eq(faults->expect.hash_line, 16);
    cr_assert(faults->expect.memory_mib.low == 0 && faults->expect.memory_mib.high == 200);
    cr_assert(faults->expect.pushes_lost.low == 0 && faults->expect.pushes_lost.high == 4);
    cr_assert_eq(faults->expect.says_count, 2);
    cr_assert_str_eq(faults->expect.says[1], "rank 1");
    cr_assert_eq(faults->expect.within_us, 120 * 1000000);
    gk_faults_free(faults);
    gk_faults_free(NULL);
}

Test(tool_faults_read, the_least)
{
    struct gk_faults *faults;

    cr_assert_eq(read_text("faults: []\n", &faults), GK_OK, "%s", words.text);
    cr_assert(faults->expect.completes && faults->expect.completes_line > 0);
    cr_assert_eq(faults->seed, 1);
    gk_faults_free(faults);
    /* The marks of one document are none of a second one. */
    cr_assert_eq(read_text("---\nfaults: []\n...\n# the end\n", &faults), GK_OK, "%s", words.text);
    gk_faults_free(faults);
    /* Another exit code is a wish of its own. */
    cr_assert_eq(read_text("expect: {exit: 69}\n", &faults), GK_OK, "%s", words.text);
    cr_assert_not(faults->expect.completes);
    gk_faults_free(faults);
}

#define ONE "faults:\n  - at: {step: 1}\n"

static const struct {
    const char *text;
    unsigned line;
    const char *says;
} mistakes[] = {
    {"", 1, "a fault script is a list of 'key: value'"},
    {"- a\n", 1, "a fault script is a list"},
    {"seed: x\n", 1, "seed: a number"},
    {"\nfautls: []\n", 2, "did you mean 'faults'?"},
    {"bananas: []\n", 1, "it has: seed, run, start, faults, expect"},
    {"seed: 1\nseed: 2\n", 2, "'seed' is given twice"},
    {"faults:\n  - {at: {step: 1}\n", 3, "not valid YAML"},
    {"a: b: c\n", 1, "not valid YAML"},
    {"faults:\n  - do: kill\n    who: all\n", 2, "needs 'at:"},
    {ONE "    who: all\n", 2, "needs 'do:"},
    {ONE "    do: kill\n", 2, "needs 'who:"},
    {ONE "    do: kil\n    who: all\n", 3, "did you mean 'kill'?"},
    {ONE "    do: explode\n    who: all\n", 3, "there are kill, freeze"},
    {ONE "    do: kill\n    who: me\n", 4, "'me' is nobody"},
    {ONE "    do: kill\n    who: worker 1024\n", 4, "is nobody"},
    {ONE "    do: kill\n    who: worker -1\n", 4, "is nobody"},
    {ONE "    do: kill\n    who: all\n    whoo: 1\n", 5, "did you mean 'who'?"},
    {ONE "    do: kill\n    who: all\n    for: 3\n", 5, "is no length"},
    {ONE "    do: kill\n    who: all\n    for: 3 steps\n", 5, "not for steps"},
    {ONE "    do: freeze\n    who: all\n    for: ever\n", 5, "is no length"},
    {ONE "    do: thaw\n    who: all\n    for: 1 s\n", 5, "thaw has no length"},
    {ONE "    do: drop\n    who: all\n    chance: 120 %\n", 5, "up to 100 %"},
    {ONE "    do: kill\n    who: all\n    chance: 20 %\n", 5, "chance belongs to"},
    {ONE "    do: delay\n    who: all\n", 2, "needs 'amount"},
    {ONE "    do: drop\n    who: all\n    amount: 1 s\n", 5, "amount belongs to delay"},
    {ONE "    do: drop\n    who: worker 1\n    with: worker 2\n", 5, "between workers and servers"},
    {ONE "    do: kill\n    who: worker 1\n    with: server 0\n", 5, "has no other end"},
    {ONE "    do: kill\n    who: all\n    every: 3 steps\n", 2, "go together"},
    {ONE "    do: kill\n    who: all\n    every: 0 steps\n    times: 2\n", 5, "as short as that"},
    {ONE "    do: kill\n    who: all\n    every: 3 steps\n    times: 0\n", 6, "from 1 to"},
    {ONE "    do: partition\n    who: launcher\n", 4, "killed and frozen"},
    {ONE "    do: freeze\n    who: launcher\n", 4, "needs 'for"},
    {ONE "    do: kill\n    who: launcher\n    for: 1 s\n", 4, "leave 'for' out"},
    {ONE "    do: disk-full\n    who: worker 1\n", 4, "only servers"},
    {ONE "    do: start\n    who: servers\n", 4, "one worker or one server"},
    {"faults:\n  - {at: {step: 1, time: 1 s}, do: kill, who: all}\n", 2, "one of them"},
    {"faults:\n  - {at: {step: 1 s}, do: kill, who: all}\n", 2, "is no step"},
    {"faults:\n  - {at: {time: 5}, do: kill, who: all}\n", 2, "is no time"},
    {"faults:\n  - {at: {step: 5 to 2}, do: kill, who: all}\n", 2, "is no step"},
    {"start: [server 0, everybody]\n", 1, "say server 1"},
    {"start:\n  - server 0\n  - server 0\n", 3, "is there twice"},
    {"start: []\n", 1, "a list of at most"},
    {"run: 3\n", 1, "run: options"},
    {"run: {steps: [1]}\n", 1, "'steps' is one value"},
    {"run:\n  steps: 1\n  seed: 2\n  steps: 3\n", 4, "'steps' is given twice"},
    {"seed: 1\n---\nexpect: {leaks: none}\n", 2, "a second document"},
    {"seed: 1\n...\n---\n- a\n", 3, "a second document"},
    {"seed: 1\n---\n{\n", 4, "not valid YAML"},
    {"run: {faults: x.yaml}\n", 1, "cannot name another"},
    {"expect:\n  completes: maybe\n", 2, "true or false"},
    {"expect:\n  same_hash: true\n", 2, "did you mean 'same-hash'?"},
    {"expect:\n  leaks: some\n", 2, "leaks: none"},
    {"expect:\n  exit: ok\n", 2, "exit: a number"},
    {"expect:\n  says: ''\n", 2, "a text that some line"},
    {"expect:\n  within: 0 s\n", 2, "a time such as"},
};

Test(tool_faults_read, mistakes)
{
    for (size_t i = 0; i < sizeof(mistakes) / sizeof(mistakes[0]); i++) {
        struct gk_faults *faults;
        char place[64];

        cr_expect_eq(read_text(mistakes[i].text, &faults), GK_E_CONFIG, "accepted: %s",
                     mistakes[i].text);
        snprintf(place, sizeof(place), "%s:%u: ", path, mistakes[i].line);
        cr_expect_eq(strncmp(words.text, place, strlen(place)), 0, "not at %s: %s", place,
                     words.text);
        cr_expect(strstr(words.text, mistakes[i].says), "'%s' is not in: %s", mistakes[i].says,
                  words.text);
    }
}

Test(tool_faults_read, files_that_are_none)
{
    struct gk_faults *faults;
    char *large = malloc(GK_YAML_BYTES_MAX + 16);

    cr_assert_eq(gk_faults_read("/nowhere/x.yaml", &faults, &words), GK_E_CONFIG);
    cr_assert(strstr(words.text, "/nowhere/x.yaml: cannot be read: No such file"));
    cr_assert_eq(gk_faults_read("/", &faults, &words), GK_E_CONFIG);
    cr_assert_eq(read_text("", &faults), GK_E_CONFIG); /* gives an unused name */
    cr_assert_eq(mkfifo(path, 0600), 0);               /* nobody will ever write to it */
    cr_assert_eq(gk_faults_read(path, &faults, &words), GK_E_CONFIG);
    cr_assert(strstr(words.text, ": is no regular file"));
    unlink(path);
    memset(large, ' ', GK_YAML_BYTES_MAX + 15);
    large[GK_YAML_BYTES_MAX + 15] = '\0';
    cr_assert_eq(read_text(large, &faults), GK_E_CONFIG);
    cr_assert(strstr(words.text, "larger than"));
    free(large);
    /* What refers to itself is read no deeper than the language goes. */
    cr_assert_eq(read_text("faults: &a [*a]\n", &faults), GK_E_CONFIG);
    cr_assert_eq(read_text("? [a]\n: b\n", &faults), GK_E_CONFIG);
}

/* Against a job: daemons that it has not, starts that never come. */
Test(tool_faults_read, checks_against_the_job)
{
    static const struct {
        const char *text;
        const char *says; /* NULL: good */
    } cases[] = {
        {ONE "    do: kill\n    who: worker 2\n", NULL},
        {ONE "    do: kill\n    who: worker 3\n", "there is no worker 3: the job has 3"},
        {ONE "    do: drop\n    who: worker 0\n    with: server 2\n", "no server 2"},
        {ONE "    do: kill\n    who: server 1\n", NULL},
        {"start: [server 0, server 1, worker 0, worker 1, worker 2]\n", NULL},
        {"start: [server 0, worker 0, worker 1, worker 2]\n", "nobody ever starts server 1"},
        {"start: [server 0, server 1, worker 0, worker 1]\n" ONE
         "    do: start\n    who: worker 2\n",
         NULL},
        {"start: [server 0, server 5, worker 0, worker 1]\n", "no server 5"},
    };
    const struct gk_faults_job job = {.servers = 2, .workers = 3};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct gk_faults *faults;
        enum gk_err err;

        cr_assert_eq(read_text(cases[i].text, &faults), GK_OK, "%s", words.text);
        err = gk_faults_check(faults, &job, &words);
        cr_expect_eq(err, cases[i].says ? GK_E_CONFIG : GK_OK, "case %zu: %s", i, words.text);
        cr_expect(!cases[i].says || strstr(words.text, cases[i].says), "case %zu: %s", i,
                  words.text);
        gk_faults_free(faults);
    }
}

/* Who dies and is to go on as if it had not needs a directory. */
Test(tool_faults_read, need_of_state)
{
    static const struct {
        const char *text;
        bool needed;
    } cases[] = {
        {ONE "    do: kill\n    who: server 1\n", true},
        {ONE "    do: restart\n    who: all\n", true},
        {ONE "    do: kill\n    who: server 1\nexpect: {exit: 69}\n", false},
        {ONE "    do: kill\n    who: server 1\nexpect: {exit: 0}\n", true},
        {ONE "    do: kill\n    who: worker 1\n", false},
        {ONE "    do: kill\n    who: worker 1\nexpect: {same-hash: true}\n", true},
        {ONE "    do: kill\n    who: launcher\nexpect: {exit: 137}\n", false},
        {ONE "    do: lose-state\n    who: worker 1\n", true},
        {ONE "    do: disk-full\n    who: server 1\nexpect: {exit: 69}\n", true},
        {ONE "    do: freeze\n    who: servers\n    for: 1 s\nexpect: {same-hash: true}\n", false},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct gk_faults *faults;

        cr_assert_eq(read_text(cases[i].text, &faults), GK_OK, "%s", words.text);
        cr_expect_eq(gk_faults_need_state(faults), cases[i].needed, "case %zu", i);
        gk_faults_free(faults);
    }
}

Test(tool_faults_read, values)
{
    static const struct {
        const char *text;
        uint64_t us; /* 0: none */
    } durations[] = {{"1.5s", 1500000},
                     {"200 ms", 200000},
                     {"3 min", 180000000},
                     {"50us", 50},
                     {"1", 0},
                     {"s", 0},
                     {"-1 s", 0},
                     {"1.2.3 s", 0},
                     {"1. s", 0},
                     {".5 s", 0},
                     {"1e3 s", 0},
                     {"1 h", 0},
                     {"", 0},
                     {"99999999999999999999 s", 0}};
    struct gk_faults_span span;
    struct gk_faults_bounds bounds = {0};
    double chance;

    for (size_t i = 0; i < sizeof(durations) / sizeof(durations[0]); i++) {
        uint64_t us = 0;

        cr_expect_eq(gk_faults_read_duration(durations[i].text, &us), durations[i].us > 0, "%s",
                     durations[i].text);
        cr_expect_eq(us, durations[i].us, "%s", durations[i].text);
    }
    cr_assert(gk_faults_read_span("1 step to 20 steps", &span) && span.high == 20);
    cr_assert(gk_faults_read_span("1 s  to  2 s", &span) && span.low == 1000000);
    cr_assert_not(gk_faults_read_span("1 s to 20 steps", &span));
    cr_assert_not(gk_faults_read_span("1.5 steps", &span));
    cr_assert_not(gk_faults_read_span("1 s to ", &span));
    cr_assert(gk_faults_read_chance("0", &chance) && chance == 0.0);
    cr_assert(gk_faults_read_chance("12.5%", &chance) && chance == 0.125);
    cr_assert_not(gk_faults_read_chance("20 percent", &chance));
    cr_assert(gk_faults_read_bounds("at least 2", &bounds) && bounds.high == UINT64_MAX);
    cr_assert_not(gk_faults_read_bounds("at most", &bounds));
}
