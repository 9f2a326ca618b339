#include "tests/lib/rig.h"

#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DEADLINE_S = 200, LINE_BYTES = 8192 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned passed, failed;
static const char *case_name = "", *server_program;
static size_t log_used;
static char log_text[RIG_LOG_BYTES];

static const uint64_t dims_matrix[] = {20, 10}, dims_vector[] = {50}, dims_cube[] = {3, 23, 1, 1};
static const struct {
    const char *name;
    const uint64_t *dims;
    uint32_t dims_count;
    uint64_t at, count;
} shapes[RIG_TENSORS] = {
    {"matrix", dims_matrix, 2, 0, 200},
    {"vector", dims_vector, 1, 200, 50},
    {"scalar", NULL, 0, 250, 1},
    {"cube", dims_cube, 4, 251, 69},
};

/* Counts. */

static void say(const char *what, const char *format, va_list args)
{
    (void)fprintf(stderr, "%s: %s: ", what, case_name);
    (void)vfprintf(stderr, format, args);
    (void)fprintf(stderr, "\n");
}

void rig_check(bool good, const char *format, ...)
{
    va_list args;

    (void)pthread_mutex_lock(&lock);
    if (good) {
        passed++;
    } else {
        failed++;
        va_start(args, format);
        say("FAIL", format, args);
        va_end(args);
    }
    (void)pthread_mutex_unlock(&lock);
}

void rig_require(bool good, const char *format, ...)
{
    va_list args;

    if (good) {
        return;
    }
    (void)pthread_mutex_lock(&lock);
    va_start(args, format);
    say("cannot go on", format, args);
    va_end(args);
    (void)fprintf(stderr, "%s\n", log_text);
    _exit(2);
}

void rig_case(const char *name)
{
    (void)pthread_mutex_lock(&lock);
    case_name = name;
    log_used = 0;
    log_text[0] = '\0';
    (void)pthread_mutex_unlock(&lock);
}

int rig_result(void)
{
    (void)printf("%u passed, %u failed\n", passed, failed);
    return failed > 0 || passed == 0;
}

void rig_log(void *context, enum gkps_log_level level, const char *line)
{
    size_t bytes = strlen(line);

    (void)context;
    (void)level;
    (void)pthread_mutex_lock(&lock);
    if (log_used + bytes + 2 < sizeof(log_text)) {
        memcpy(log_text + log_used, line, bytes);
        log_used += bytes;
        log_text[log_used++] = '\n';
        log_text[log_used] = '\0';
    }
    (void)pthread_mutex_unlock(&lock);
}

bool rig_logged(const char *words)
{
    bool found;

    (void)pthread_mutex_lock(&lock);
    found = strstr(log_text, words) != NULL;
    (void)pthread_mutex_unlock(&lock);
    return found;
}

/* Servers. */

static void on_alarm(int number)
{
    static const char words[] = "nothing has happened for too long\n";

    (void)number;
    (void)!write(STDERR_FILENO, words, sizeof(words) - 1);
    _exit(3);
}

void rig_use(const char *program)
{
    server_program = program;
    (void)signal(SIGALRM, on_alarm);
    (void)alarm(DEADLINE_S);
}

/* In the child: becomes a server of that shard. */
static void become_server(const struct rig *rig, uint32_t shard, int line)
{
    char numbers[4][16];
    const char *args[] = {server_program,  "--bind",    "tcp://127.0.0.1:*",
                          "--shard",       numbers[0],  "--servers",
                          numbers[1],      "--workers", numbers[2],
                          "--launcher-fd", numbers[3],  "--log-level",
                          "error",         NULL};

    (void)snprintf(numbers[0], sizeof(numbers[0]), "%u", shard);
    (void)snprintf(numbers[1], sizeof(numbers[1]), "%u", rig->servers);
    (void)snprintf(numbers[2], sizeof(numbers[2]), "%u", rig->workers);
    (void)snprintf(numbers[3], sizeof(numbers[3]), "%d", line);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)execv(server_program, (char *const *)(uintptr_t)args);
    _exit(127);
}

/* The next line of the server that tells of this event; false: it has ended. */
static bool read_event(struct rig_server *server, const char *event, char *ret_line)
{
    char mark[64];

    (void)snprintf(mark, sizeof(mark), "\"event\":\"%s\"", event);
    while (fgets(ret_line, LINE_BYTES, server->line)) {
        if (strstr(ret_line, mark)) {
            return true;
        }
    }
    return false;
}

static void open_server(struct rig *rig, uint32_t shard)
{
    struct rig_server *server = &rig->server[shard];
    char line[LINE_BYTES];
    const char *at;
    int pair[2];

    rig_require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0, "no socket pair");
    server->pid = fork();
    rig_require(server->pid >= 0, "no process");
    if (server->pid == 0) {
        int ours = dup(pair[1]); /* without close-on-exec */

        become_server(rig, shard, ours);
    }
    (void)close(pair[1]);
    server->fd = pair[0];
    server->line = fdopen(pair[0], "r");
    rig_require(server->line && read_event(server, "endpoint", line), "server %u did not start",
                shard);
    at = strstr(line, "tcp://");
    rig_require(at && sscanf(at, "%63[^\"]", server->address) == 1, "no address in %s", line);
    (void)snprintf(rig->addresses + strlen(rig->addresses),
                   sizeof(rig->addresses) - strlen(rig->addresses), "%s%s", shard > 0 ? "," : "",
                   server->address);
}

void rig_open(struct rig *rig, uint32_t servers, uint32_t workers)
{
    memset(rig, 0, sizeof(*rig));
    rig->servers = servers;
    rig->workers = workers;
    for (uint32_t i = 0; i < servers; i++) {
        open_server(rig, i);
    }
}

static uint64_t number_of(const char *line, const char *key, int base)
{
    char mark[64];
    const char *at;

    (void)snprintf(mark, sizeof(mark), "\"%s\":", key);
    at = strstr(line, mark);
    rig_require(at != NULL, "no %s in %s", key, line);
    at += strlen(mark);
    return strtoull(*at == '"' ? at + 1 : at, NULL, base);
}

void rig_end(struct rig *rig, struct rig_end *ret_end)
{
    memset(ret_end, 0, sizeof(*ret_end));
    for (uint32_t i = 0; i < rig->servers; i++) {
        struct rig_server *server = &rig->server[i];
        char line[LINE_BYTES];
        int status = 0;

        rig_require(read_event(server, "summary", line), "server %u has ended without a summary",
                    i);
        ret_end->version = number_of(line, "version", 10);
        ret_end->hash += number_of(line, "model_hash", 16);
        ret_end->pushes += number_of(line, "pushes", 10);
        ret_end->applied += number_of(line, "applied", 10);
        ret_end->returned += number_of(line, "returned", 10);
        ret_end->skipped += number_of(line, "skipped", 10);
        ret_end->lost += number_of(line, "lost", 10);
        (void)kill(server->pid, SIGTERM); /* it would linger for those that have missed the end */
        while (fgets(line, sizeof(line), server->line)) {
        }
        (void)waitpid(server->pid, &status, 0);
        rig_check(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 143),
                  "server %u ended with status %d", i, status);
        (void)fclose(server->line);
    }
    rig_check(ret_end->pushes ==
                  ret_end->applied + ret_end->returned + ret_end->skipped + ret_end->lost,
              "the ledger does not add up");
}

void rig_kill(struct rig *rig)
{
    for (uint32_t i = 0; i < rig->servers; i++) {
        (void)kill(rig->server[i].pid, SIGKILL);
        (void)waitpid(rig->server[i].pid, NULL, 0);
        (void)fclose(rig->server[i].line);
    }
}

/* Ranks. */

uint64_t rig_tensor_at(uint32_t i, uint64_t *ret_count)
{
    *ret_count = shapes[i].count;
    return shapes[i].at;
}

struct rig_rank *rig_ranks(void)
{
    struct rig_rank *ranks = calloc(RIG_RANKS_MAX, sizeof(*ranks));

    rig_require(ranks != NULL, "no memory");
    return ranks;
}

static float noise(uint64_t seed)
{
    seed = (seed + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
    seed = (seed ^ (seed >> 27)) * 0x94d049bb133111ebu;
    return (float)((seed ^ (seed >> 31)) >> 40) / (float)(1 << 23) - 1;
}

static float initial(uint64_t i)
{
    return noise(i + 12345);
}

void rig_gradient(struct rig_rank *rank)
{
    for (uint64_t i = 0; i < RIG_PARAMS; i++) {
        rank->gradient[i] = 0.5f * (rank->params[i] - noise(i)) +
                            0.3f * noise((rank->version << 20) ^ (rank->number << 16) ^ i ^ 7777);
    }
}

/* Keeps the words, for others may call in between. */
static int keep(struct rig_rank *rank, int code)
{
    rank->code = code;
    if (code) {
        (void)snprintf(rank->words, sizeof(rank->words), "%s",
                       gkps_error(rank->gkps, &rank->exit_code));
    }
    return code;
}

static const struct rig_place *place;

struct settings {
    struct gkps_setting list[RIG_SETTINGS_MAX];
    size_t count;
};

static void set(struct settings *settings, const char *key, const char *value)
{
    if (value) {
        settings->list[settings->count++] = (struct gkps_setting){.key = key, .value = value};
    }
}

void rig_bind_at(const struct rig_place *new_place)
{
    place = new_place;
}

/* What the program would compute there. */
static void bring(struct rig_rank *rank, float *there, const float *here)
{
    if (place) {
        place->copy(rank->stream, there, here, false);
    }
}

static void fetch(struct rig_rank *rank)
{
    if (place) {
        place->copy(rank->stream, rank->params, rank->params_there, true);
        place->copy(rank->stream, rank->gradient, rank->gradient_there, true);
    }
}

void rig_rank_close(struct rig_rank *rank)
{
    gkps_close(rank->gkps);
    if (place) {
        place->close(rank->stream, rank->params_there, rank->gradient_there);
    }
}

static int describe(struct rig_rank *rank)
{
    float *params = place ? rank->params_there : rank->params;
    float *gradient = place ? rank->gradient_there : rank->gradient;
    struct gkps_tensor tensors[RIG_TENSORS];

    for (uint32_t i = 0; i < RIG_TENSORS; i++) {
        tensors[i] = (struct gkps_tensor){.size = sizeof(tensors[i]),
                                          .name = shapes[i].name,
                                          .dims = shapes[i].dims,
                                          .dims_count = shapes[i].dims_count,
                                          .flags = rank->job->flags[i],
                                          .density = rank->job->densities[i],
                                          .params = params + shapes[i].at,
                                          .gradient = gradient + shapes[i].at};
    }
    return gkps_tensors(rank->gkps, tensors, RIG_TENSORS) ||
           gkps_aux(rank->gkps, &rank->aux, sizeof(rank->aux));
}

int rig_rank_open(struct rig_rank *rank)
{
    const struct rig_job *job = rank->job;
    struct settings settings = {.count = 0};
    struct gkps_config config = {.size = sizeof(config),
                                 .flags = GKPS_NO_ENVIRONMENT,
                                 .settings = settings.list,
                                 .log = rig_log,
                                 .ended = rank->ended,
                                 .ended_context = rank};
    char number[16], workers[16], steps[24], fd[16];

    (void)snprintf(number, sizeof(number), "%u", rank->number);
    (void)snprintf(workers, sizeof(workers), "%u", job->workers);
    (void)snprintf(steps, sizeof(steps), "%llu", (unsigned long long)job->steps);
    set(&settings, "servers", rank->addresses);
    set(&settings, "rank", number);
    set(&settings, "workers", workers);
    set(&settings, "steps", steps);
    set(&settings, "compressor", job->compressor);
    set(&settings, "optimizer", job->optimizer);
    set(&settings, "density", job->density ? job->density : "0.05");
    set(&settings, "lr", "0.05");
    set(&settings, "weight-decay", "0.001");
    set(&settings, "state-dir", rank->state_dir);
    (void)snprintf(fd, sizeof(fd), "%d", rank->launcher_fd);
    set(&settings, "launcher-fd", rank->launcher_fd ? fd : NULL);
    set(&settings, rank->more_key ? rank->more_key : "", rank->more_value);
    config.settings_count = settings.count;
    if (place) {
        place->open(&rank->stream, &rank->params_there, &rank->gradient_there);
        config.device = place->device;
        config.stream = rank->stream;
    }
    return keep(rank, gkps_open(&config, &rank->gkps)) || keep(rank, describe(rank));
}

static int initialise(void *context, char *words, size_t words_bytes)
{
    struct rig_rank *rank = context;

    (void)words;
    (void)words_bytes;
    for (uint64_t i = 0; i < RIG_PARAMS; i++) {
        rank->params[i] = initial(i);
    }
    bring(rank, rank->params_there, rank->params);
    return 0;
}

int rig_rank_start(struct rig_rank *rank)
{
    bool hurried = rank->job->way == RIG_HURRIED;
    int code = GKPS_E_TIMEOUT;

    bring(rank, rank->params_there, rank->params); /* what a program leaves in its stream */
    while (code == GKPS_E_TIMEOUT) {
        rank->start = (struct gkps_start){.size = sizeof(rank->start),
                                          .timeout_ms = hurried ? 1 : 0,
                                          .initialise = initialise,
                                          .initialise_context = rank};
        code = gkps_start(rank->gkps, &rank->start);
    }
    rank->version = rank->start.step;
    fetch(rank);
    return keep(rank, code);
}

int rig_take_step(struct rig_rank *rank, struct gkps_step *step)
{
    int code;

    switch (rank->job->way) {
    case RIG_STEP:
        break;
    case RIG_PARTS:
        code = gkps_push(rank->gkps, step);
        code = code ? code : gkps_wait(rank->gkps, step);
        return code ? code : gkps_pull(rank->gkps);
    case RIG_HURRIED:
        step->timeout_ms = 1;
        code = gkps_step(rank->gkps, step);
        while (code == GKPS_E_TIMEOUT) {
            code = gkps_wait(rank->gkps, step);
        }
        return code;
    case RIG_OWN:
        return rig_push_own(rank, step);
    }
    return gkps_step(rank->gkps, step);
}

/* With optimizer `none` it is the program that steps. */
static void apply_means(struct rig_rank *rank)
{
    if (rank->job->optimizer && strcmp(rank->job->optimizer, "none") == 0) {
        for (uint64_t i = 0; i < RIG_PARAMS; i++) {
            rank->params[i] -= 0.05f * rank->gradient[i];
        }
        bring(rank, rank->params_there, rank->params);
    }
}

int rig_rank_step(struct rig_rank *rank)
{
    const struct rig_job *job = rank->job;
    struct gkps_step step = {.size = sizeof(step), .samples = 8 + rank->number};

    rig_gradient(rank);
    if (job->spoil) {
        job->spoil(rank);
    }
    if (job->skips && job->skips(rank->number, rank->version)) {
        step.flags |= GKPS_SKIP;
        step.samples = 0;
    }
    if (job->lr > 0) {
        step.flags |= GKPS_LR;
        step.lr = job->lr;
    }
    memcpy(rank->before, rank->params, sizeof(rank->params));
    bring(rank, rank->gradient_there, rank->gradient);
    rank->aux.steps++;
    if (keep(rank, rig_take_step(rank, &step))) {
        return rank->code;
    }
    fetch(rank);
    rank->version = step.version;
    rank->selected += step.selected;
    if (job->look) {
        job->look(rank, &step);
    }
    apply_means(rank);
    return GKPS_OK;
}

int rig_rank_train(struct rig_rank *rank)
{
    const struct rig_job *job = rank->job;
    uint64_t end = job->leaves ? job->leaves(rank->number) : job->steps;

    if ((!rank->gkps && rig_rank_open(rank)) || rig_rank_start(rank) || rank->start.left) {
        return rank->code;
    }
    while (rank->version < end) {
        if (rig_rank_step(rank)) {
            return rank->code;
        }
    }
    do {
        (void)keep(rank, gkps_leave(rank->gkps, job->way == RIG_HURRIED ? 1 : 0));
    } while (rank->code == GKPS_E_TIMEOUT);
    return rank->code;
}

static void *rank_main(void *argument)
{
    struct rig_rank *rank = argument;

    /* The others would wait for it. */
    rig_require(rig_rank_train(rank) == GKPS_OK, "rank %u: code %d, %s", rank->number, rank->code,
                rank->words);
    return NULL;
}

void rig_train(const struct rig_job *job, struct rig_rank *ranks, struct rig_end *ret_end)
{
    struct rig rig;

    rig_open(&rig, job->servers, job->workers);
    for (uint32_t i = 0; i < job->workers; i++) {
        ranks[i].job = job;
        ranks[i].number = i;
        ranks[i].addresses = rig.addresses;
        rig_require(pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]) == 0, "no thread");
    }
    for (uint32_t i = 0; i < job->workers; i++) {
        (void)pthread_join(ranks[i].thread, NULL);
    }
    for (uint32_t i = 0; i < job->workers; i++) {
        const char *words = gkps_error(ranks[i].gkps, NULL);

        rig_check(words[0] == '\0' || job->way == RIG_HURRIED, "words of no failure: %s", words);
        rig_rank_close(&ranks[i]);
    }
    rig_end(&rig, ret_end);
}
