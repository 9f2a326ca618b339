/* Goal: what is due comes when the script says, to whom it says, as often as it says, ends when it
 * should, and is the same for the same seed; and an outcome is judged by every expectation.
 * Method: scripts as texts, a clock that the test moves, and a list of what was done. */
#include "tool/faults_expect.h"
#include "tool/faults_play.h"
#include "tool/faults_yaml.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct gk_faults *faults;
static struct gk_faults_play play;
static char done[4096]; /* what was done, one act a line */

static void load(const char *text)
{
    char path[] = "/tmp/gkps-faults-XXXXXX";
    struct gk_words words = {{0}};
    int fd = mkstemp(path);

    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    gk_faults_free(faults);
    cr_assert_eq(gk_faults_read(path, &faults, &words), GK_OK, "%s", words.text);
    unlink(path);
    gk_faults_play_init(&play, faults, &(struct gk_faults_job){.servers = 2, .workers = 3});
    done[0] = '\0';
}

static unsigned lines(const char *text)
{
    unsigned count = 0;

    for (; *text; text++) {
        count += *text == '\n';
    }
    return count;
}

static void on_act(void *context, const struct gk_faults_act *act)
{
    char text[128];

    (void)context;
    gk_faults_act_text(act, text, sizeof(text));
    snprintf(done + strlen(done), sizeof(done) - strlen(done), "%s\n", text);
}

/* What is done in one tick. */
static const char *tick(uint64_t ms, uint64_t step)
{
    done[0] = '\0';
    gk_faults_play_tick(&play, ms * 1000, step, on_act, NULL);
    return done;
}

Test(tool_faults_play, steps_and_times)
{
    load("faults:\n"
         "  - {at: {step: 20}, do: kill, who: worker 2}\n"
         "  - {at: {time: 1.5 s}, do: freeze, who: server 1, for: 200 ms}\n");
    cr_assert_str_eq(tick(0, 0), "");
    cr_assert_str_eq(tick(1000, 19), "");
    cr_assert_str_eq(tick(1001, 23), "kill worker 2\n");
    cr_assert_str_eq(tick(1002, 24), "");
    cr_assert_str_eq(tick(1510, 24), "freeze server 1\n");
    cr_assert_str_eq(tick(1600, 24), "");
    cr_assert_str_eq(tick(1711, 24), "end of freeze server 1\n");
    cr_assert_str_eq(tick(9999, 99), "");
}

Test(tool_faults_play, step_zero_is_at_once)
{
    load("faults:\n  - {at: {step: 0}, do: drop, who: worker 1, with: server 0, chance: 20 %}\n");
    cr_assert_str_eq(tick(0, 0), "drop 20.00 % between worker 1 and server 0\n");
}

/* Repetitions keep to the points that were meant, also when they were seen late. */
Test(tool_faults_play, storms)
{
    load("faults:\n  - {at: {step: 10}, do: restart, who: worker 0, every: 10 steps, times: 3}\n");
    cr_assert_str_eq(tick(0, 14), "restart worker 0\n");
    cr_assert_str_eq(tick(0, 19), "");
    cr_assert_str_eq(tick(0, 31), "restart worker 0\n");
    cr_assert_str_eq(tick(0, 31), "restart worker 0\n");
    cr_assert_str_eq(tick(0, 99), "");

    load("faults:\n  - {at: {step: 10}, do: thaw, who: worker 0, every: 100 ms, times: 3}\n");
    cr_assert_str_eq(tick(70, 10), "thaw worker 0\n");
    cr_assert_str_eq(tick(169, 10), "");
    cr_assert_str_eq(tick(175, 10), "thaw worker 0\n");
    cr_assert_str_eq(tick(269, 10), "");
    cr_assert_str_eq(tick(270, 10), "thaw worker 0\n");
}

Test(tool_faults_play, whom)
{
    load("faults:\n  - {at: {step: 0}, do: kill, who: all}\n");
    cr_assert_str_eq(tick(0, 0),
                     "kill server 0\nkill server 1\nkill worker 0\nkill worker 1\nkill worker 2\n");
    load("faults:\n  - {at: {step: 0}, do: partition, who: worker 1, for: 5 steps}\n");
    cr_assert_str_eq(tick(0, 2), "partition between worker 1 and server 0\n"
                                 "partition between worker 1 and server 1\n");
    cr_assert_str_eq(tick(0, 6), "");
    cr_assert_str_eq(tick(0, 7), "end of partition between worker 1 and server 0\n"
                                 "end of partition between worker 1 and server 1\n");
    load("faults:\n  - {at: {step: 0}, do: heal, who: server 1, with: workers}\n");
    cr_assert_str_eq(tick(0, 0), "heal between worker 0 and server 1\n"
                                 "heal between worker 1 and server 1\n"
                                 "heal between worker 2 and server 1\n");
    load("faults:\n  - {at: {step: 0}, do: delay, who: servers, amount: 50 ms}\n");
    tick(0, 0);
    cr_assert(strstr(done, "delay by 50"), "%s", done);
    cr_assert(strstr(done, "between worker 2 and server 1\n"), "%s", done);
    cr_assert_eq(lines(done), 6);
    load("faults:\n  - {at: {step: 0}, do: drop, who: all}\n");
    tick(0, 0);
    cr_assert_eq(lines(done), 6);
    load("faults:\n  - {at: {step: 0}, do: freeze, who: launcher, for: 1 s}\n");
    cr_assert_str_eq(tick(0, 0), "freeze launcher\n");
    cr_assert_str_eq(tick(5000, 0), "");
}

/* Draws: within their bounds, all of them met, the same for the same seed. */
Test(tool_faults_play, draws)
{
    static const char text[] = "seed: %d\n"
                               "faults:\n"
                               "  - {at: {step: 10 to 13}, do: kill, who: any worker,\n"
                               "     every: 1 step to 3 steps, times: 40}\n";
    char script[256], first[sizeof(done)], all[sizeof(done)];
    unsigned starts = 0, differ = 0;

    for (int seed = 1; seed <= 20; seed++) {
        snprintf(script, sizeof(script), text, seed);
        for (int again = 0; again < 2; again++) {
            load(script);
            all[0] = '\0';
            cr_assert_str_eq(tick(0, 9), "");
            for (uint64_t step = 10; step < 200; step++) {
                snprintf(all + strlen(all), sizeof(all) - strlen(all), "%s", tick(0, step));
                starts |= step <= 13 && done[0] && !strchr(strchr(all, '\n') + 1, '\n')
                              ? 1u << (step - 10)
                              : 0;
            }
            cr_assert_eq(strlen(all), 40 * strlen("kill worker 2\n"));
            cr_assert(strstr(all, "worker 0") && strstr(all, "worker 1") &&
                      strstr(all, "worker 2"));
            cr_assert(!again || strcmp(first, all) == 0);
            differ += seed > 1 && !again && strcmp(first, all) != 0;
            strcpy(first, all);
        }
    }
    cr_assert_eq(starts, 15, "not all of 10 to 13 were drawn: %x", starts);
    cr_assert_geq(differ, 18);
}

/* More ends than there is room for: what could not be ended is not begun. */
Test(tool_faults_play, ends_are_bounded)
{
    load("faults:\n"
         "  - {at: {step: 0}, do: freeze, who: workers, for: 60 s, every: 1 ms, times: 1000}\n");
    for (uint64_t ms = 0; ms < 1000; ms++) {
        tick(ms, 0);
    }
    cr_assert_eq(play.undos_count, GK_FAULTS_UNDO_MAX);
    done[0] = '\0';
    cr_assert_str_eq(tick(2000, 0), "");
}

/* Expectations. */

static char failures[2048];

static void on_fail(void *context, uint32_t line, const char *words)
{
    (void)context;
    snprintf(failures + strlen(failures), sizeof(failures) - strlen(failures), "%u %s\n", line,
             words);
}

static const char *judged(const struct gk_faults_outcome *outcome)
{
    failures[0] = '\0';
    cr_assert_eq(gk_faults_expect(faults, outcome, on_fail, NULL) == 0, failures[0] == '\0');
    return failures;
}

static const struct gk_faults_outcome good = {.told = true,
                                              .complete = true,
                                              .hashed = true,
                                              .model_hash = 5,
                                              .compared = true,
                                              .undisturbed_hash = 5,
                                              .memory_bytes = 100 << 20,
                                              .said = {true, true}};

Test(tool_faults_play, what_holds)
{
    struct gk_faults_outcome outcome = good;

    load("expect:\n  same-hash: true\n  exit: 0\n  completes: true\n  memory-mib: 100\n"
         "  pushes-lost: 0\n  restarts: at most 2\n  says: [a, b]\n");
    cr_assert_str_eq(judged(&outcome), "");
    cr_assert_eq(gk_faults_expect_count(faults), 10);

    load("expect:\n  same-hash: false\n  completes: false\n  exit: 137\n");
    outcome.model_hash = 6;
    outcome.exit_code = 137;
    outcome.complete = false;
    cr_assert_str_eq(judged(&outcome), "");
}

Test(tool_faults_play, what_does_not)
{
    struct gk_faults_outcome outcome = good;

    load("expect:\n  same-hash: true\n  exit: 0\n  completes: true\n  memory-mib: 99\n"
         "  pushes-lost: 0\n  restarts: at least 2\n  says: [a, b, c]\n");
    outcome.model_hash = 6;
    outcome.lost = 3;
    outcome.restarts = 1;
    cr_assert_str_eq(judged(&outcome),
                     "8 says: no line of the log holds 'c'\n"
                     "5 memory-mib: the largest process took 100.0 MiB\n"
                     "2 same-hash: the model is 0000000000000006, without faults it is "
                     "0000000000000005\n"
                     "6 pushes-lost: 3, more than 0\n"
                     "7 restarts: 1, fewer than 2\n");

    load("expect:\n  exit: 69\n  same-hash: false\n");
    outcome = good;
    cr_assert_str_eq(judged(&outcome), "2 exit: the run ended with code 0\n"
                                       "3 same-hash: both models are 0000000000000005\n");

    load("faults:\n  - {at: {step: 5}, do: kill, who: worker 1, every: 1 step, times: 3}\n");
    outcome = good;
    outcome.done[0] = 2;
    gk_words_set(&outcome.leaked, "process 7 (x)");
    cr_assert_str_eq(judged(&outcome), "0 leaks: process 7 (x) outlived the run, and was killed\n"
                                       "2 kill: done 2 times of 3 before the run was over\n");
}

Test(tool_faults_play, a_launcher_that_did_not_tell)
{
    struct gk_faults_outcome outcome = {.exit_code = 137};

    load("expect:\n  completes: true\n  pushes-lost: 0\n  same-hash: true\n");
    cr_assert_str_eq(judged(&outcome),
                     "2 completes: it did not: the run ended with code 137\n"
                     "4 same-hash: the run left no model to compare\n"
                     "3 pushes-lost: not known, because the launcher did not live to tell\n");
    load("expect:\n  within: 2 s\n");
    outcome.late = true;
    cr_assert_eq(strncmp(judged(&outcome), "2 within: it was not over after 2", 33), 0);
    cr_assert_eq(lines(failures), 1);
    outcome = good;
    outcome.complete = false;
    load("expect:\n  completes: true\n");
    cr_assert_str_eq(judged(&outcome), "2 completes: it did not: the run ended with code 0, and "
                                       "not every daemon summed up\n");
}
