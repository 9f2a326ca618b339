/* Goal: the judge learns of a launcher what it tells, how it ends, whom it leaves behind, and what
 * was logged; thaws it, and ends it when it is late.  Method: small functions in the place of the
 * launcher, each in the process that the judge makes; the judge's own log goes to a file. */
#include "common/log.h"
#include "tool/faults_judge.h"

#include <criterion/criterion.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char said[8192]; /* by the judge */

static int judge(const char *script, gk_faults_launch *launch)
{
    char path[] = "/tmp/gkps-judge-XXXXXX", log[] = "/tmp/gkps-judge-XXXXXX";
    struct gk_faults *faults;
    struct gk_words words = {{0}};
    struct gk_faults_trial trial = {.launch = launch};
    int fd = mkstemp(path), log_fd = mkstemp(log), former, code;
    ssize_t n;

    cr_assert(fd >= 0 && log_fd >= 0);
    cr_assert_eq(write(fd, script, strlen(script)), (ssize_t)strlen(script));
    close(fd);
    cr_assert_eq(gk_faults_read(path, &faults, &words), GK_OK, "%s", words.text);
    unlink(path);
    unlink(log);
    trial.faults = faults;
    former = dup(STDERR_FILENO);
    dup2(log_fd, STDERR_FILENO);
    gk_log_open("test", GK_LOG_TEXT, GK_LOG_WARN, STDERR_FILENO);
    code = gk_faults_judge(&trial);
    dup2(former, STDERR_FILENO);
    close(former);
    n = pread(log_fd, said, sizeof(said) - 1, 0);
    said[n > 0 ? n : 0] = '\0';
    close(log_fd);
    gk_faults_free(faults);
    return code;
}

static void tell(const struct gk_faults_stage *stage, uint64_t hash, uint64_t lost)
{
    struct gk_tally tally;

    cr_assert_eq(gk_tally_init(&tally, 1, 1), GK_OK);
    tally.servers[0] = (struct gk_tally_server){
        .summed = true, .hashed = true, .model_hash = hash, .pushes = lost, .lost = lost};
    tally.workers[0].summed = true;
    gk_faults_stage_result(stage, &tally);
    gk_tally_fini(&tally);
}

static int good(void *context, const struct gk_faults_stage *stage)
{
    (void)context;
    (void)!write(STDERR_FILENO, "half of ", 8);
    (void)!write(STDERR_FILENO, "a line\nmore\n", 12);
    tell(stage, 7, 2);
    return 0;
}

static int another_model(void *context, const struct gk_faults_stage *stage)
{
    (void)context;
    tell(stage, stage->faults ? 7 : 8, 0);
    return 0;
}

static int fails_calmly(void *context, const struct gk_faults_stage *stage)
{
    (void)context;
    tell(stage, 7, 0);
    return stage->faults ? 0 : 69;
}

static int killed(void *context, const struct gk_faults_stage *stage)
{
    (void)context;
    (void)stage;
    kill(getpid(), SIGKILL);
    return 0;
}

static int leaves_somebody(void *context, const struct gk_faults_stage *stage)
{
    (void)context;
    tell(stage, 7, 0);
    if (fork() == 0) {
        pause();
        _exit(0);
    }
    return 0;
}

/* What outlives a killed launcher for a moment is no leak. */
static int leaves_somebody_short(void *context, const struct gk_faults_stage *stage)
{
    int ends[2];

    (void)context;
    (void)stage;
    cr_assert_eq(pipe(ends), 0);
    if (fork() == 0) {
        char byte;

        close(ends[1]);
        (void)!read(ends[0], &byte, 1); /* until the launcher is dead */
        (void)!write(STDERR_FILENO, "orphan\n", 7);
        _exit(0);
    }
    kill(getpid(), SIGKILL);
    return 0;
}

/* And what it has frozen is thawed: only then it can see that the launcher is gone. */
static int leaves_somebody_frozen(void *context, const struct gk_faults_stage *stage)
{
    int status;
    pid_t child;

    (void)context;
    (void)stage;
    child = fork();
    if (child == 0) {
        (void)raise(SIGSTOP);
        (void)!write(STDERR_FILENO, "thawed\n", 7);
        _exit(0);
    }
    cr_assert_eq(waitpid(child, &status, WUNTRACED), child); /* until it stands still */
    kill(getpid(), SIGKILL);
    return 0;
}

static int freezes(void *context, const struct gk_faults_stage *stage)
{
    (void)context;
    gk_faults_stage_freeze(stage, 50 * 1000);
    kill(getpid(), SIGSTOP);
    tell(stage, 7, 0);
    return 0;
}

static int never_ends(void *context, const struct gk_faults_stage *stage)
{
    (void)context;
    (void)stage;
    for (;;) {
        pause();
    }
    return 0;
}

Test(tool_faults_judge, what_holds)
{
    cr_assert_eq(judge("expect: {completes: true, same-hash: true, pushes-lost: 2,\n"
                       "  says: [half of a line, more]}\n",
                       good),
                 0, "%s", said);
    cr_assert_eq(judge("expect: {same-hash: false}\n", another_model), 0, "%s", said);
    cr_assert_eq(judge("expect: {exit: 137}\n", killed), 0, "%s", said);
    cr_assert_eq(judge("expect: {exit: 137, says: orphan}\n", leaves_somebody_short), 0, "%s",
                 said);
    cr_assert_eq(judge("expect: {completes: true}\n", freezes), 0, "%s", said);
}

Test(tool_faults_judge, what_does_not)
{
    cr_assert_eq(judge("expect:\n  same-hash: true\n", another_model), 70);
    cr_assert(strstr(said, ":2: same-hash: the model is 0000000000000007, without faults it is "
                           "0000000000000008"),
              "%s", said);
    cr_assert_eq(judge("expect:\n  says: nothing of the kind\n", good), 70);
    cr_assert(strstr(said, ":2: says: no line"), "%s", said);
    cr_assert_eq(judge("expect:\n  same-hash: true\n", fails_calmly), 69);
    cr_assert(strstr(said, "RUN-UNDISTURBED"), "%s", said);
    cr_assert_eq(judge("expect:\n  completes: true\n", killed), 70);
    cr_assert(strstr(said, ":2: completes: it did not: the run ended with code 137"), "%s", said);
}

Test(tool_faults_judge, who_was_frozen_is_thawed)
{
    cr_assert_eq(judge("expect: {exit: 137, leaks: none, says: thawed}\n", leaves_somebody_frozen),
                 0, "%s", said);
}

Test(tool_faults_judge, a_leak_is_named_and_killed)
{
    cr_assert_eq(judge("expect: {completes: true}\n", leaves_somebody), 70);
    cr_assert(strstr(said, ": leaks: process "), "%s", said);
    cr_assert(strstr(said, "outlived the run, and was killed"), "%s", said);
}

Test(tool_faults_judge, who_is_late_is_ended)
{
    cr_assert_eq(judge("expect:\n  within: 100 ms\n", never_ends), 70);
    cr_assert(strstr(said, ":2: within: it was not over"), "%s", said);
}
