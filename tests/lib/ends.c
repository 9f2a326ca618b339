/* Goal: whatever ends a handle, it ends: ranks that do not fit together, a gradient that is not
 * finite, gkps_stop() from another thread and from a signal handler in every wait, a launcher that
 * is gone, gkps_close() at every stage.  One clear error, no hang, no thread and no descriptor
 * left. Method: two ranks in this process, of which the other is held back where a wait is wanted;
 * codes and words; threads and descriptors are counted in /proc. */
#include "tests/lib/rig.h"

#include <dirent.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const struct rig_job usual = {.servers = 2, .workers = 2, .steps = 6};

static unsigned count_of(const char *folder)
{
    DIR *dir = opendir(folder);
    unsigned n = 0;

    rig_require(dir != NULL, "no %s", folder);
    while (readdir(dir)) {
        n++;
    }
    (void)closedir(dir);
    return n;
}

static unsigned threads_before, files_before;

static void count(void)
{
    threads_before = count_of("/proc/self/task");
    files_before = count_of("/proc/self/fd");
}

/* A thread that was joined may be seen for a moment. */
static void check_counts(void)
{
    for (int i = 0; i < 1000 && count_of("/proc/self/task") > threads_before; i++) {
        (void)sched_yield();
    }
    rig_check(count_of("/proc/self/task") <= threads_before, "threads are left");
    rig_check(count_of("/proc/self/fd") <= files_before, "descriptors are left");
}

/* Ranks that end in a failure. */

static struct rig_rank *pair;

/* The first that fails ends the other, which would wait for it. */
static void *train_and_stop(void *argument)
{
    struct rig_rank *rank = argument;

    if (rig_rank_train(rank)) {
        gkps_stop(pair[1 - rank->number].gkps, 69);
    }
    return NULL;
}

static void fail(const char *name, const struct rig_job *first, const struct rig_job *second)
{
    const struct rig_job *jobs[] = {first, second};
    struct rig rig;

    rig_case(name);
    count();
    pair = rig_ranks();
    rig_open(&rig, usual.servers, usual.workers);
    for (uint32_t i = 0; i < 2; i++) {
        pair[i].job = jobs[i];
        pair[i].number = i;
        pair[i].addresses = rig.addresses;
        rig_require(rig_rank_open(&pair[i]) == GKPS_OK, "%s", pair[i].words);
    }
    for (uint32_t i = 0; i < 2; i++) {
        rig_require(pthread_create(&pair[i].thread, NULL, train_and_stop, &pair[i]) == 0,
                    "no thread");
    }
    for (uint32_t i = 0; i < 2; i++) {
        (void)pthread_join(pair[i].thread, NULL);
    }
    for (uint32_t i = 0; i < 2; i++) {
        gkps_close(pair[i].gkps);
    }
    rig_kill(&rig);
    check_counts();
}

/* One of the two has failed for this reason; the other too, or it was stopped. */
static void check_failure(int code, int exit_code, const char *words)
{
    unsigned found = 0;

    for (uint32_t i = 0; i < 2; i++) {
        const struct rig_rank *rank = &pair[i];

        if (rank->code == GKPS_E_STOPPED) {
            rig_check(rank->exit_code == 69, "rank %u: exit code %d", i, rank->exit_code);
            continue;
        }
        found++;
        rig_check(rank->code == code && rank->exit_code == exit_code &&
                      strstr(rank->words, words) && !strchr(rank->words, '\n'),
                  "rank %u: code %d, exit code %d, not '%s' but: %s", i, rank->code,
                  rank->exit_code, words, rank->words);
    }
    rig_check(found > 0, "no rank has failed for a reason of its own");
    free(pair);
}

static void spoil(struct rig_rank *rank)
{
    if (rank->number == 1 && rank->version == 3) {
        rank->gradient[251 + 7] = (float)NAN;
        rank->gradient[251 + 9] = (float)INFINITY;
    }
}

static void test_failures(void)
{
    struct rig_job other = usual;

    other.flags[1] = GKPS_NO_DECAY;
    fail("other models", &usual, &other);
    check_failure(GKPS_E_REFUSED, 77, "model");
    other = usual;
    other.density = "0.1";
    fail("other densities", &usual, &other);
    check_failure(GKPS_E_REFUSED, 77, "density differ");
    other = usual;
    other.optimizer = "sgd";
    fail("other optimizers", &usual, &other);
    check_failure(GKPS_E_REFUSED, 77, "density differ");
    other = usual;
    other.lr = 0.5;
    fail("a rate and none", &usual, &other);
    check_failure(GKPS_E_DATA, 65, "rate");
    {
        struct rig_job one = usual;

        one.lr = 0.25;
        fail("other rates", &one, &other);
        check_failure(GKPS_E_DATA, 65, "rate");
    }
    other = usual;
    other.spoil = spoil;
    fail("a gradient that is not finite", &other, &other);
    check_failure(GKPS_E_DATA, 65,
                  "step 3: gradient + residual is not finite at element 7 of "
                  "tensor 'cube' (2 such in all)");
}

/* A job that cannot begin: what rank 0 brings is not good, or nobody is there. */

static int cannot_read(void *context, char *words, size_t words_bytes)
{
    (void)context;
    (void)snprintf(words, words_bytes, "the checkpoint is torn");
    return 1;
}

static int not_finite(void *context, char *words, size_t words_bytes)
{
    struct rig_rank *rank = context;

    (void)words;
    (void)words_bytes;
    rank->params[200 + 3] = (float)NAN;
    return 0;
}

static void begin_badly(int (*initialise)(void *, char *, size_t), const char *deadline, int code,
                        int exit_code, const char *words)
{
    const struct rig_job job = {.servers = 1, .workers = 1, .steps = 1};
    struct rig_rank *rank = rig_ranks();
    struct gkps_start start = {
        .size = sizeof(start), .initialise = initialise, .initialise_context = rank};
    struct rig rig;
    int told;

    rig_case(words);
    rig_open(&rig, job.servers, job.workers);
    rank->job = &job;
    rank->addresses = deadline ? "tcp://127.0.0.1:1" : rig.addresses;
    rank->more_key = "deadline";
    rank->more_value = deadline;
    rig_require(rig_rank_open(rank) == GKPS_OK, "%s", rank->words);
    rig_check(gkps_start(rank->gkps, &start) == code, "%s", gkps_error(rank->gkps, NULL));
    rig_check(strstr(gkps_error(rank->gkps, &told), words) && told == exit_code, "exit code %d, %s",
              told, gkps_error(rank->gkps, NULL));
    gkps_close(rank->gkps);
    rig_kill(&rig);
    free(rank);
}

static void test_bad_beginnings(void)
{
    begin_badly(cannot_read, NULL, GKPS_E_DATA, 65, "the checkpoint is torn");
    begin_badly(not_finite, NULL, GKPS_E_DATA, 65, "element 3 of tensor 'vector' is not finite");
    begin_badly(NULL, "1", GKPS_E_PEER, 69, "shard 0 at tcp://127.0.0.1:1");
}

/* Stopping. */

static struct gkps *_Atomic to_stop;
static atomic_bool about_to_wait;

static void on_signal(int number)
{
    gkps_stop(atomic_load(&to_stop), 128 + number);
}

enum wait { WAIT_SERVERS, WAIT_START, WAIT_STEP, WAIT_WAIT, WAIT_LEAVE, WAITS };

/* Two ranks that have joined, or not even tried. */
struct scene {
    struct rig rig;
    struct rig_rank *ranks;
    enum wait wait;
};

static void *start_other(void *argument)
{
    (void)rig_rank_start(argument);
    return NULL;
}

static void open_scene(struct scene *scene, enum wait wait)
{
    scene->wait = wait;
    scene->ranks = rig_ranks();
    rig_open(&scene->rig, usual.servers, usual.workers);
    for (uint32_t i = 0; i < 2; i++) {
        struct rig_rank *rank = &scene->ranks[i];

        rank->job = &usual;
        rank->number = i;
        rank->addresses = wait == WAIT_SERVERS ? "tcp://127.0.0.1:1" : scene->rig.addresses;
        rig_require(rig_rank_open(rank) == GKPS_OK, "%s", rank->words);
    }
    if (wait < WAIT_STEP) {
        return;
    }
    rig_require(pthread_create(&scene->ranks[1].thread, NULL, start_other, &scene->ranks[1]) == 0,
                "no thread");
    rig_check(rig_rank_start(&scene->ranks[0]) == GKPS_OK, "%s", scene->ranks[0].words);
    (void)pthread_join(scene->ranks[1].thread, NULL);
    rig_check(scene->ranks[1].code == GKPS_OK, "%s", scene->ranks[1].words);
    if (wait == WAIT_LEAVE) { /* a server that is stopped confirms nothing */
        (void)kill(scene->rig.server[1].pid, SIGSTOP);
    }
}

static void close_scene(struct scene *scene)
{
    for (uint32_t i = 0; i < 2; i++) {
        gkps_close(scene->ranks[i].gkps);
    }
    rig_kill(&scene->rig);
    free(scene->ranks);
}

/* The wait, which does not end by itself. */
static void *wait_main(void *argument)
{
    struct scene *scene = argument;
    struct rig_rank *rank = &scene->ranks[0];
    struct gkps_step step = {.size = sizeof(step), .samples = 1};

    atomic_store(&about_to_wait, true);
    switch (scene->wait) {
    case WAIT_SERVERS:
    case WAIT_START:
        rank->code = rig_rank_start(rank);
        break;
    case WAIT_STEP:
        rank->code = gkps_step(rank->gkps, &step);
        break;
    case WAIT_WAIT:
        rank->code = gkps_push(rank->gkps, &step);
        rank->code = rank->code ? rank->code : gkps_wait(rank->gkps, &step);
        break;
    case WAIT_LEAVE:
    case WAITS:
        rank->code = gkps_leave(rank->gkps, 0);
        break;
    }
    return NULL;
}

static void stop_in(enum wait wait, bool by_signal)
{
    struct scene scene;
    struct rig_rank *rank;

    open_scene(&scene, wait);
    rank = &scene.ranks[0];
    atomic_store(&about_to_wait, false);
    atomic_store(&to_stop, rank->gkps);
    rig_require(pthread_create(&rank->thread, NULL, wait_main, &scene) == 0, "no thread");
    while (!atomic_load(&about_to_wait)) {
        (void)sched_yield();
    }
    for (unsigned i = 0; i < 1000u * (wait % 3); i++) { /* sometimes within the wait */
        (void)sched_yield();
    }
    if (by_signal) {
        (void)pthread_kill(rank->thread, SIGUSR1);
    } else {
        gkps_stop(rank->gkps, 128 + SIGUSR1);
    }
    (void)pthread_join(rank->thread, NULL);
    (void)gkps_error(rank->gkps, &rank->exit_code);
    rig_check(rank->code == GKPS_E_STOPPED && rank->exit_code == 128 + SIGUSR1,
              "wait %d: code %d, exit code %d: %s", (int)wait, rank->code, rank->exit_code,
              gkps_error(rank->gkps, NULL));
    rig_check(gkps_leave(rank->gkps, 0) == GKPS_E_STOPPED, "another call does something");
    close_scene(&scene);
}

static void test_stops(void)
{
    struct sigaction action = {.sa_handler = on_signal};

    (void)sigaction(SIGUSR1, &action, NULL);
    count();
    for (enum wait wait = WAIT_SERVERS; wait < WAITS; wait++) {
        rig_case("gkps_stop by another thread");
        stop_in(wait, false);
        rig_case("gkps_stop by a signal handler");
        stop_in(wait, true);
    }
    check_counts();
}

static void test_stop_before(void)
{
    struct rig_rank *rank = rig_ranks();

    rig_case("gkps_stop before gkps_start");
    rank->job = &usual;
    rank->addresses = "tcp://127.0.0.1:1";
    rig_require(rig_rank_open(rank) == GKPS_OK, "%s", rank->words);
    gkps_stop(rank->gkps, 0);
    rig_check(rig_rank_start(rank) == GKPS_E_STOPPED && rank->exit_code == 70, "code %d, %d: %s",
              rank->code, rank->exit_code, rank->words);
    gkps_close(rank->gkps);
    free(rank);
}

/* Signals. */

/* Bits of the signals that a thread of this process takes no part in. */
static unsigned long long blocked_by(const char *task)
{
    char path[64], line[128];
    unsigned long long mask = 0;
    FILE *file;

    (void)snprintf(path, sizeof(path), "/proc/self/task/%.20s/status", task);
    file = fopen(path, "r");
    while (file && fgets(line, sizeof(line), file)) {
        (void)sscanf(line, "SigBlk: %llx", &mask);
    }
    if (file) {
        (void)fclose(file);
    }
    return mask;
}

static void test_threads_take_no_signals(void)
{
    const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGUSR1, SIGCHLD, SIGALRM};
    struct scene scene;
    struct dirent *entry;
    unsigned others = 0;
    DIR *dir;

    rig_case("signals");
    open_scene(&scene, WAITS);
    dir = opendir("/proc/self/task");
    rig_require(dir != NULL, "no list of threads");
    while ((entry = readdir(dir))) {
        unsigned long long mask = 0;

        if (entry->d_name[0] == '.' || atol(entry->d_name) == (long)getpid()) {
            continue;
        }
        mask = blocked_by(entry->d_name);
        others++;
        for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
            rig_check(mask >> (numbers[i] - 1) & 1, "a thread takes signal %d", numbers[i]);
        }
    }
    (void)closedir(dir);
    rig_check(others >= 4, "two handles have %u threads", others);
    close_scene(&scene);
}

/* Closing without leaving. */

static void close_at(const char *name, enum wait wait)
{
    struct scene scene;
    struct gkps_start start = {.size = sizeof(start), .timeout_ms = 1};
    struct gkps_step step = {.size = sizeof(step), .samples = 1, .timeout_ms = 1};
    int code = GKPS_E_TIMEOUT;

    rig_case(name);
    count();
    open_scene(&scene, wait);
    switch (wait) {
    case WAIT_SERVERS:
    case WAIT_START:
        code = gkps_start(scene.ranks[0].gkps, &start);
        break;
    case WAIT_STEP:
        code = gkps_step(scene.ranks[0].gkps, &step);
        break;
    case WAIT_WAIT: /* while the selection may run */
        rig_check(gkps_push(scene.ranks[0].gkps, &step) == GKPS_OK, "no push");
        break;
    case WAIT_LEAVE:
        code = gkps_leave(scene.ranks[0].gkps, 1);
        break;
    case WAITS:
        break;
    }
    rig_check(code == GKPS_E_TIMEOUT, "code %d: %s", code, gkps_error(scene.ranks[0].gkps, NULL));
    close_scene(&scene);
    check_counts();
}

static void test_closes(void)
{
    close_at("close while no server is there", WAIT_SERVERS);
    close_at("close while the other rank is missing", WAIT_START);
    close_at("close with a step under way", WAIT_STEP);
    close_at("close right after a push", WAIT_WAIT);
    close_at("close while leaving", WAIT_LEAVE);
    close_at("close between steps", WAITS);
}

/* The launcher. */

static atomic_uint ended_calls;
static int ended_code;

static void on_ended(void *context, int exit_code, const char *words)
{
    (void)context;
    ended_code = exit_code;
    rig_check(strcmp(words, "the launcher is gone") == 0, "%s", words);
    atomic_fetch_add(&ended_calls, 1);
}

/* Its end is noticed in a wait and between calls, and writing to it kills nobody. */
static void launcher_gone(bool in_wait)
{
    struct rig_rank *rank = rig_ranks();
    struct gkps_start start = {.size = sizeof(start), .timeout_ms = 1};
    int line[2];
    int code;

    rig_case(in_wait ? "launcher gone in a wait" : "launcher gone between calls");
    count();
    atomic_store(&ended_calls, 0);
    rig_require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, line) == 0, "no socket pair");
    rank->job = &usual;
    rank->addresses = "tcp://127.0.0.1:1";
    rank->launcher_fd = line[1];
    rank->ended = on_ended;
    rig_require(rig_rank_open(rank) == GKPS_OK, "%s", rank->words);
    code = gkps_start(rank->gkps, &start);
    rig_check(code == GKPS_E_TIMEOUT, "code %d: %s", code, gkps_error(rank->gkps, NULL));
    (void)close(line[0]);
    while (!in_wait && atomic_load(&ended_calls) == 0) {
        (void)sched_yield();
    }
    (void)gkps_note(rank->gkps, "nobody reads this");
    rig_check(rig_rank_start(rank) == GKPS_E_STOPPED && rank->exit_code == 69, "code %d, %d: %s",
              rank->code, rank->exit_code, rank->words);
    gkps_close(rank->gkps);
    rig_check(atomic_load(&ended_calls) == 1 && ended_code == 69, "told %u times, code %d",
              atomic_load(&ended_calls), ended_code);
    check_counts();
    free(rank);
}

/* A launcher that is gone before the handle starts. */
static void launcher_was_gone(void)
{
    struct rig_rank *rank = rig_ranks();
    int line[2];

    rig_case("launcher gone before the start");
    rig_require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, line) == 0, "no socket pair");
    rank->job = &usual;
    rank->addresses = "tcp://127.0.0.1:1";
    rank->launcher_fd = line[1];
    rank->state_dir = "/proc/nowhere";
    (void)close(line[0]);
    rig_require(rig_rank_open(rank) == GKPS_OK, "%s", rank->words);
    rig_check(rig_rank_start(rank) == GKPS_E_STATE && rank->exit_code == 78, "code %d, %d: %s",
              rank->code, rank->exit_code, rank->words);
    gkps_close(rank->gkps);
    free(rank);
}

/* The log. */

static void test_silence(void)
{
    struct rig_rank *ranks = rig_ranks();
    FILE *said = tmpfile();
    int outputs[] = {dup(STDOUT_FILENO), dup(STDERR_FILENO)};
    struct rig_end end;

    rig_case("nothing on standard output and error");
    rig_require(said != NULL, "no file");
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++) {
        (void)dup2(fileno(said), fd);
    }
    rig_train(&usual, ranks, &end);
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++) {
        (void)dup2(outputs[fd - STDOUT_FILENO], fd);
        (void)close(outputs[fd - STDOUT_FILENO]);
    }
    rig_check(lseek(fileno(said), 0, SEEK_END) == 0, "something was written");
    rig_check(rig_logged("WORKER-MODEL") && rig_logged("WORKER-DONE"), "the log is not whole");
    (void)fclose(said);
    free(ranks);
}

int main(int argc, char **argv)
{
    rig_require(argc == 2, "usage: lib_ends GKPS-SERVER");
    rig_use(argv[1]);
    test_stop_before(); /* first: libuv keeps two descriptors of the process from its first loop on
                         */
    test_failures();
    test_bad_beginnings();
    test_stops();
    test_threads_take_no_signals();
    test_closes();
    launcher_gone(true);
    launcher_gone(false);
    launcher_was_gone();
    test_silence();
    return rig_result();
}
