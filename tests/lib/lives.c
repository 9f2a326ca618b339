/* Goal: ranks as processes.  One that is killed and started again goes on with residual, push and
 * auxiliary bytes that belong together, to the model of an undisturbed run; one whose state is gone
 * says so; a child of fork() can do nothing to its parent, exits as usual, and holds nothing that
 * the next life of its parent needs; a program that is executed inherits nothing.
 * Method: this program runs itself as a rank, reads a line a step from it, and kills it at random
 * moments, whose seed is printed.  Model hashes and ledgers of real servers. */
#include "tests/lib/rig.h"

#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES = 256, KILLS = 6 };

static const char *self, *server;
static char folder[] = "/tmp/gkps-lives-XXXXXX";
static unsigned long long random_state;

static const struct rig_job jobs[] = {
    {.servers = 2, .workers = 2, .steps = 40},
    {.servers = 1, .workers = 2, .steps = 40, .way = RIG_OWN, .optimizer = "sgd"},
};

static uint32_t draw(uint32_t below)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % below;
}

/* What a rank process does: rank JOB NUMBER ADDRESSES STATE WITH-CHILD. */

static void check_life(const struct rig_rank *rank)
{
    const struct gkps_start *start = &rank->start;

    rig_check(start->resumed == 0 || rank->aux.steps == start->step,
              "resumed at step %llu with what belongs to %llu", (unsigned long long)start->step,
              (unsigned long long)rank->aux.steps);
    rig_check(start->resumed == 1 || start->lost == 1 || start->step == 0,
              "begins anew at step %llu without a word", (unsigned long long)start->step);
    rig_check(start->resumed == 1 || rank->aux.steps == 0, "not resumed, but bytes are there");
    rig_check(start->resumed + start->lost <= 1, "resumed and lost");
}

/* It holds on to all that it has inherited, and outlives its parent. */
static void leave_child(void)
{
    pid_t pid = fork();

    rig_require(pid >= 0, "no process");
    if (pid == 0) {
        (void)close(STDOUT_FILENO);
        (void)alarm(60);
        for (;;) {
            (void)pause();
        }
    }
    (void)printf("child %ld\n", (long)pid);
}

static int rank_process(char **argv)
{
    struct rig_rank *rank = rig_ranks();
    const struct rig_job *job = &jobs[atoi(argv[2])];

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    rig_case("a life");
    rank->job = job;
    rank->number = (uint32_t)atoi(argv[3]);
    rank->addresses = argv[4];
    rank->state_dir = argv[5];
    rank->more_key = "takeover"; /* as a launcher says that has seen the former life die */
    rank->more_value = "true";
    rig_require(rig_rank_open(rank) == GKPS_OK && rig_rank_start(rank) == GKPS_OK, "%s",
                rank->words);
    check_life(rank);
    if (argv[6][0] == '1') {
        leave_child();
    }
    (void)printf("start %llu %u %u\n", (unsigned long long)rank->start.step, rank->start.resumed,
                 rank->start.lost);
    while (!rank->start.left && rank->version < job->steps) {
        rig_require(rig_rank_step(rank) == GKPS_OK, "%s", rank->words);
        (void)printf("step %llu\n", (unsigned long long)rank->version);
    }
    rig_require(gkps_leave(rank->gkps, 0) == GKPS_OK, "%s", gkps_error(rank->gkps, NULL));
    gkps_close(rank->gkps);
    free(rank);
    (void)printf("end\n");
    return rig_result();
}

/* The parent's side. */

struct life {
    pid_t pid;
    FILE *lines;
    uint32_t lives;
    bool with_child;
    pid_t child;
    struct gkps_start start; /* what it told */
};

static struct life lives[RIG_RANKS_MAX];

static void state_dir(uint32_t number, char *ret_path, size_t bytes)
{
    (void)snprintf(ret_path, bytes, "%s/rank-%u", folder, number);
}

static void live(size_t job, const struct rig *rig, uint32_t number)
{
    struct life *life = &lives[number];
    char numbers[2][16], path[64];
    int pipe_fd[2];

    state_dir(number, path, sizeof(path));
    (void)snprintf(numbers[0], sizeof(numbers[0]), "%zu", job);
    (void)snprintf(numbers[1], sizeof(numbers[1]), "%u", number);
    rig_require(pipe(pipe_fd) == 0, "no pipe");
    life->pid = fork();
    rig_require(life->pid >= 0, "no process");
    if (life->pid == 0) {
        (void)dup2(pipe_fd[1], STDOUT_FILENO);
        (void)close(pipe_fd[0]);
        (void)close(pipe_fd[1]);
        (void)execl(self, self, "rank", numbers[0], numbers[1], rig->addresses, path,
                    life->with_child ? "1" : "0", (char *)NULL);
        _exit(127);
    }
    (void)close(pipe_fd[1]);
    life->lines = fdopen(pipe_fd[0], "r");
    rig_require(life->lines != NULL, "no stream");
    life->lives++;
    life->child = 0;
}

/* Until a line begins like that; false: it has ended. */
static bool read_until(struct life *life, const char *begin)
{
    char line[LINE_BYTES];
    unsigned long long step;
    long child;

    while (fgets(line, sizeof(line), life->lines)) {
        if (sscanf(line, "child %ld", &child) == 1) {
            life->child = (pid_t)child;
        }
        if (sscanf(line, "start %llu %u %u", &step, &life->start.resumed, &life->start.lost) == 3) {
            life->start.step = step;
        }
        if (strncmp(line, begin, strlen(begin)) == 0) {
            return true;
        }
    }
    return false;
}

static void reap(struct life *life, bool good)
{
    int status = 0;

    (void)waitpid(life->pid, &status, 0);
    (void)fclose(life->lines);
    rig_check(!good || (WIFEXITED(status) && WEXITSTATUS(status) == 0), "a rank ended with %d",
              status);
}

static void kill_life(struct life *life)
{
    (void)kill(life->pid, SIGKILL);
    reap(life, false);
}

static void remove_state(uint32_t number)
{
    static const char *const names[] = {"slot", "LOCK"};
    char path[64], file[128];

    state_dir(number, path, sizeof(path));
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        (void)snprintf(file, sizeof(file), "%s/%s", path, names[i]);
        (void)unlink(file);
    }
    rig_check(rmdir(path) == 0, "%s is not empty", path);
}

static void begin_lives(size_t job, struct rig *rig)
{
    memset(lives, 0, sizeof(lives));
    rig_open(rig, jobs[job].servers, jobs[job].workers);
    for (uint32_t i = 0; i < jobs[job].workers; i++) {
        live(job, rig, i);
    }
}

static void end_lives(size_t job, struct rig *rig, struct rig_end *ret_end)
{
    for (uint32_t i = 0; i < jobs[job].workers; i++) {
        rig_check(read_until(&lives[i], "end"), "rank %u has not come to its end", i);
        reap(&lives[i], true);
        remove_state(i);
    }
    rig_end(rig, ret_end);
}

static void test_kills(size_t job)
{
    struct rig_rank *ranks = rig_ranks();
    struct rig_end undisturbed, end;
    struct rig rig;

    rig_case("undisturbed");
    rig_train(&jobs[job], ranks, &undisturbed);
    free(ranks);
    rig_case("killed");
    begin_lives(job, &rig);
    for (uint32_t i = 0; i < KILLS; i++) {
        struct life *life = &lives[draw(jobs[job].workers)];

        if (draw(4) > 0) { /* else while it starts */
            for (uint32_t steps = draw(5) + 1; steps > 0 && read_until(life, "step"); steps--) {
            }
        }
        for (uint32_t turns = draw(2000); turns > 0; turns--) { /* between two lines */
            (void)!getppid();
        }
        kill_life(life);
        live(job, &rig, (uint32_t)(life - lives));
    }
    end_lives(job, &rig, &end);
    rig_check(end.hash == undisturbed.hash, "another model than undisturbed");
    rig_check(end.version == undisturbed.version && end.lost == 0 && end.returned == 0 &&
                  end.applied == undisturbed.applied,
              "ledger: version %llu, applied %llu, lost %llu, returned %llu",
              (unsigned long long)end.version, (unsigned long long)end.applied,
              (unsigned long long)end.lost, (unsigned long long)end.returned);
}

static void test_lost_state(void)
{
    struct rig_end end;
    struct rig rig;

    rig_case("state is gone");
    begin_lives(0, &rig);
    rig_check(read_until(&lives[1], "step 5"), "rank 1 has not reached step 5");
    kill_life(&lives[1]);
    remove_state(1);
    live(0, &rig, 1);
    rig_check(read_until(&lives[1], "start"), "rank 1 has not started again");
    rig_check(lives[1].start.lost == 1 && lives[1].start.resumed == 0 && lives[1].start.step >= 5,
              "lost %u, resumed %u, step %llu", lives[1].start.lost, lives[1].start.resumed,
              (unsigned long long)lives[1].start.step);
    end_lives(0, &rig, &end);
    rig_check(end.version == jobs[0].steps, "ended at version %llu",
              (unsigned long long)end.version);
}

/* What a DataLoader leaves behind when its parent is killed. */
static void test_orphan(void)
{
    struct rig_end end;
    struct rig rig;
    pid_t child;

    rig_case("an orphan");
    memset(lives, 0, sizeof(lives));
    rig_open(&rig, jobs[0].servers, jobs[0].workers);
    lives[0].with_child = true;
    live(0, &rig, 0);
    live(0, &rig, 1);
    rig_check(read_until(&lives[0], "step 3"), "rank 0 has not reached step 3");
    child = lives[0].child;
    kill_life(&lives[0]);
    rig_check(child > 0 && kill(child, 0) == 0, "the child is not there");
    lives[0].with_child = false;
    live(0, &rig, 0);
    end_lives(0, &rig, &end);
    rig_check(lives[0].start.resumed == 1, "it has not resumed");
    rig_check(end.lost == 0, "lost %llu", (unsigned long long)end.lost);
    (void)kill(child, SIGKILL);
}

/* Children of fork(). */

#define FORKED(call)                                                                               \
    rig_check((call) == GKPS_E_FORKED && gkps_error(gkps, &told)[0] && told == 70, "%s: %s",       \
              #call, gkps_error(gkps, NULL))

static void call_everything(struct gkps *gkps)
{
    struct gkps_start start = {.size = sizeof(start)};
    struct gkps_step step = {.size = sizeof(step), .samples = 1};
    struct gkps_stats stats = {.size = sizeof(stats)};
    const struct gkps_tensor tensor = {.size = sizeof(tensor), .name = "x"};
    const struct gkps_sparse list = {.size = sizeof(list)};
    float memory = 0;
    int told = 0;

    FORKED(gkps_tensors(gkps, &tensor, 1));
    FORKED(gkps_bind(gkps, 0, &memory, NULL, 200));
    FORKED(gkps_aux(gkps, &memory, 4));
    FORKED(gkps_start(gkps, &start));
    FORKED(gkps_step(gkps, &step));
    FORKED(gkps_push(gkps, &step));
    FORKED(gkps_push_sparse(gkps, &step, &list));
    FORKED(gkps_wait(gkps, &step));
    FORKED(gkps_pull(gkps));
    FORKED(gkps_report(gkps, 1, 1));
    FORKED(gkps_note(gkps, "note"));
    FORKED(gkps_fail(gkps, 70, "why"));
    FORKED(gkps_leave(gkps, 0));
    rig_check(gkps_stats(gkps, &stats) == GKPS_E_FORKED, "stats");
    gkps_stop(gkps, 70);
    gkps_close(gkps);
}

/* The child may open a handle of its own, and exits as programs do. */
static void fork_child(struct gkps *gkps)
{
    struct rig_rank *own;
    pid_t pid = fork();
    int status = 0;

    rig_require(pid >= 0, "no process");
    if (pid == 0) {
        (void)alarm(60);
        call_everything(gkps);
        own = rig_ranks();
        own->job = &jobs[0];
        own->addresses = "tcp://127.0.0.1:1";
        rig_check(rig_rank_open(own) == GKPS_OK, "%s", own->words);
        gkps_close(own->gkps);
        free(own);
        exit(rig_result());
    }
    (void)waitpid(pid, &status, 0);
    rig_check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a child ended with %d", status);
}

static void fork_after(struct rig_rank *rank, const struct gkps_step *step)
{
    if (step->version % 4 == rank->number) {
        fork_child(rank->gkps);
    }
}

static void test_forks(void)
{
    struct rig_job job = jobs[0];
    struct rig_rank *ranks = rig_ranks();
    struct rig_end undisturbed, end;

    job.steps = 8;
    rig_case("no fork");
    rig_train(&job, ranks, &undisturbed);
    free(ranks);
    ranks = rig_ranks();
    rig_case("forks");
    job.look = fork_after;
    rig_train(&job, ranks, &end);
    rig_check(end.hash == undisturbed.hash, "another model than without forks");
    free(ranks);
}

static void test_fork_before_start(void)
{
    struct rig_rank *rank = rig_ranks();

    rig_case("fork after gkps_open");
    rank->job = &jobs[0];
    rank->addresses = "tcp://127.0.0.1:1";
    rig_require(rig_rank_open(rank) == GKPS_OK, "%s", rank->words);
    fork_child(rank->gkps);
    gkps_close(rank->gkps);
    free(rank);
}

/* Descriptors that an executed program finds open, as its exit code. */
static int count_files(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;

    while (dir && readdir(dir)) {
        n++;
    }
    return n;
}

static int count_in_program(void)
{
    pid_t pid = fork();
    int status = 0;

    rig_require(pid >= 0, "no process");
    if (pid == 0) {
        (void)execl(self, self, "files", (char *)NULL);
        _exit(127);
    }
    (void)waitpid(pid, &status, 0);
    return WEXITSTATUS(status);
}

static void test_exec(void)
{
    struct rig_rank *rank = rig_ranks();
    struct gkps_start start = {.size = sizeof(start), .timeout_ms = 1};
    char path[64];
    struct rig rig;
    int before;

    rig_case("what is executed");
    state_dir(0, path, sizeof(path));
    rig_open(&rig, jobs[0].servers, jobs[0].workers);
    before = count_in_program();
    rank->job = &jobs[0];
    rank->addresses = rig.addresses;
    rank->state_dir = path;
    rig_require(rig_rank_open(rank) == GKPS_OK, "%s", rank->words);
    rig_check(gkps_start(rank->gkps, &start) == GKPS_E_TIMEOUT, "%s", gkps_error(rank->gkps, NULL));
    rig_check(count_in_program() == before, "%d descriptors, not %d", count_in_program(), before);
    gkps_close(rank->gkps);
    rig_kill(&rig);
    remove_state(0);
    free(rank);
}

int main(int argc, char **argv)
{
    self = argv[0];
    if (argc == 2 && strcmp(argv[1], "files") == 0) {
        return count_files();
    }
    if (argc == 7 && strcmp(argv[1], "rank") == 0) {
        return rank_process(argv);
    }
    rig_require(argc == 2 || argc == 3, "usage: lib_lives GKPS-SERVER [SEED]");
    server = argv[1];
    rig_use(server);
    random_state = argc == 3 ? strtoull(argv[2], NULL, 10)
                             : (unsigned long long)time(NULL) * 1000003u + (unsigned)getpid();
    (void)printf("replay: %s %s %llu\n", self, server, random_state);
    (void)fflush(stdout);
    rig_require(mkdtemp(folder) != NULL, "no folder");
    for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++) {
        test_kills(i);
    }
    test_lost_state();
    test_orphan();
    test_forks();
    test_fork_before_start();
    test_exec();
    rig_check(rmdir(folder) == 0, "something is left in %s", folder);
    return rig_result();
}
