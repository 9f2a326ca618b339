/* Goal: every way through the library is the same training: parts of a step or all of it, timeouts
 * on the way, a selection of the program's own, any number of servers; and what is said of flags,
 * densities, skipped steps, ranks that leave and optimizer `none` holds.
 * Method: jobs on real servers, all ranks as threads of this process, compared by the model hash of
 * the servers and by the bound memory of the ranks. */
#include "tests/lib/rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct rig_job usual = {.servers = 2, .workers = 2, .steps = 12};

/* The job, and that all ranks end with the same parameters. */
static struct rig_end train(const char *name, const struct rig_job *job,
                            struct rig_rank **ret_ranks)
{
    struct rig_rank *ranks = rig_ranks();
    struct rig_end end;

    rig_case(name);
    rig_train(job, ranks, &end);
    for (uint32_t i = 1; i < job->workers && !job->leaves; i++) {
        rig_check(memcmp(ranks[0].params, ranks[i].params, sizeof(ranks[0].params)) == 0,
                  "rank %u has other parameters than rank 0", i);
    }
    rig_check(end.lost == 0 && end.returned == 0, "lost %llu, returned %llu",
              (unsigned long long)end.lost, (unsigned long long)end.returned);
    if (ret_ranks) {
        *ret_ranks = ranks;
    } else {
        free(ranks);
    }
    return end;
}

static void test_ways(void)
{
    struct rig_job job = usual;
    struct rig_end step, other;

    step = train("gkps_step", &job, NULL);
    rig_check(step.version == job.steps, "ended at version %llu", (unsigned long long)step.version);
    job.way = RIG_PARTS;
    other = train("push, wait, pull", &job, NULL);
    rig_check(other.hash == step.hash, "another model than with gkps_step");
    job.way = RIG_HURRIED;
    other = train("timeouts", &job, NULL);
    rig_check(other.hash == step.hash, "another model than with gkps_step");
}

static void test_own_selector(void)
{
    struct rig_job job = usual;
    struct rig_end topk, own;

    job.compressor = "topk";
    topk = train("topk", &job, NULL);
    job.way = RIG_OWN;
    own = train("push_sparse", &job, NULL);
    rig_check(own.hash == topk.hash, "another model than with the operator topk");
}

static bool skips_one(uint32_t rank, uint64_t step)
{
    return rank == 1 && step % 3 == 1;
}

static bool skips_all(uint32_t rank, uint64_t step)
{
    (void)rank;
    return step == 4;
}

static void look_at_skip(struct rig_rank *rank, const struct gkps_step *step)
{
    bool same = memcmp(rank->before, rank->params, sizeof(rank->params)) == 0;

    rig_check(same == (step->version == 5), "parameters at version %llu",
              (unsigned long long)step->version);
}

static void test_skips(void)
{
    struct rig_job job = usual;
    struct rig_end all;

    job.skips = skips_one;
    all = train("one rank skips", &job, NULL);
    rig_check(all.version == job.steps && all.applied == 2 * 2 * job.steps,
              "ended at version %llu, %llu pushes applied", (unsigned long long)all.version,
              (unsigned long long)all.applied);
    job.skips = skips_all;
    job.look = look_at_skip;
    job.optimizer = "sgd";
    all = train("all ranks skip a step", &job, NULL);
    rig_check(all.applied == 2 * 2 * job.steps, "%llu pushes applied",
              (unsigned long long)all.applied);
}

/* Tensor 0 is frozen, 1 dense, 2 common, 3 has a density of its own. */
static const struct rig_job flagged = {.servers = 2,
                                       .workers = 2,
                                       .steps = 12,
                                       .optimizer = "sgd",
                                       .flags = {GKPS_FROZEN, GKPS_DENSE | GKPS_NO_DECAY, 0, 0},
                                       .densities = {0, 0, 0, 0.1}};

static uint64_t changed(const struct rig_rank *rank, uint32_t tensor)
{
    uint64_t count, n = 0;
    uint64_t at = rig_tensor_at(tensor, &count);

    for (uint64_t i = at; i < at + count; i++) {
        n += rank->before[i] != rank->params[i];
    }
    return n;
}

/* No weight decay on these, so that what changes is what was pushed. */
static void look_at_flags(struct rig_rank *rank, const struct gkps_step *step)
{
    rig_check(changed(rank, 0) == 0, "frozen: %llu have changed",
              (unsigned long long)changed(rank, 0));
    rig_check(changed(rank, 1) == 50, "dense: %llu have changed",
              (unsigned long long)changed(rank, 1));
    /* 1 of the common scalar, 6 of 69, all of 50. */
    rig_check(step->selected == 50 + 6 + 1, "%llu entries were selected",
              (unsigned long long)step->selected);
}

/* Nobody looks at the gradient of what is frozen. */
static void spoil_frozen(struct rig_rank *rank)
{
    uint64_t count;
    uint64_t at = rig_tensor_at(0, &count);

    for (uint64_t i = at; i < at + count; i++) {
        rank->gradient[i] = (float)NAN;
    }
}

static void test_flags(void)
{
    struct rig_job job = flagged;
    struct rig_end end, one;

    job.look = look_at_flags;
    job.spoil = spoil_frozen;
    end = train("flags and densities", &job, NULL);
    for (job.servers = 1; job.servers <= RIG_SERVERS_MAX; job.servers += 2) {
        one = train("the same on other servers", &job, NULL);
        rig_check(one.hash == end.hash, "another model on %u servers", job.servers);
    }
    job = usual;
    end = train("usual", &job, NULL);
    job.servers = 3;
    one = train("usual on 3 servers", &job, NULL);
    rig_check(one.hash == end.hash, "another model on 3 servers");
}

static uint64_t leaves_early(uint32_t rank)
{
    return rank == 1 ? 5 : 12;
}

static void test_leaving(void)
{
    struct rig_job job = usual;
    struct rig_rank *ranks;
    struct rig_end end;

    job.workers = 3;
    job.leaves = leaves_early;
    end = train("a rank leaves early", &job, &ranks);
    rig_check(end.version == 12 && ranks[1].version == 5, "ended at versions %llu and %llu",
              (unsigned long long)end.version, (unsigned long long)ranks[1].version);
    rig_check(memcmp(ranks[0].params, ranks[2].params, sizeof(ranks[0].params)) == 0,
              "those that stayed have other parameters");
    free(ranks);
}

/* The means of the last step, for comparison between the ranks. */
static float means[RIG_RANKS_MAX][RIG_PARAMS];

static void look_at_means(struct rig_rank *rank, const struct gkps_step *step)
{
    float largest = 0;

    memcpy(means[rank->number], rank->gradient, sizeof(means[0]));
    for (uint64_t i = 0; i < RIG_PARAMS; i++) {
        largest = fmaxf(largest, fabsf(rank->gradient[i]));
    }
    rig_check((largest > 0) == (step->version != 5), "the largest mean of version %llu is %g",
              (unsigned long long)step->version, (double)largest);
}

static void test_means(void)
{
    struct rig_job job = usual;
    struct rig_rank *ranks;
    struct rig_end end;
    double samples = 8 + 9;
    uint64_t wrong = 0;

    job.optimizer = "none";
    job.compressor = "dense";
    job.density = "1";
    job.look = look_at_means;
    job.skips = skips_all;
    for (job.way = RIG_STEP; job.way <= RIG_PARTS; job.way++) {
        end = train("optimizer none", &job, &ranks);
        rig_check(memcmp(means[0], means[1], sizeof(means[0])) == 0, "the ranks have other means");
        rig_check(end.version == 12, "ended at version %llu", (unsigned long long)end.version);
        for (uint32_t i = 0; i < 2; i++) { /* what each of them had pushed at that step */
            memcpy(ranks[i].params, ranks[i].before, sizeof(ranks[i].params));
            ranks[i].version = 11;
            rig_gradient(&ranks[i]);
        }
        for (uint64_t i = 0; i < RIG_PARAMS; i++) {
            double mean =
                (8 * (double)ranks[0].gradient[i] + 9 * (double)ranks[1].gradient[i]) / samples;

            wrong += !(fabs(mean - (double)means[0][i]) < 1e-5);
        }
        rig_check(wrong == 0, "%llu means are wrong", (unsigned long long)wrong);
        free(ranks);
    }
}

static void test_own_rate(void)
{
    struct rig_job job = usual;
    struct rig_end by_schedule, given;

    by_schedule = train("rate of the schedule", &job, NULL);
    job.lr = (double)0.05f;
    given = train("the same rate, given", &job, NULL);
    rig_check(given.hash == by_schedule.hash, "another model");
    job.lr = 0.01;
    given = train("another rate, given", &job, NULL);
    rig_check(given.hash != by_schedule.hash, "the given rate was not looked at");
}

#ifdef RIG_ELSEWHERE /* compiled once more, over memory of a device (tests/simt/place.cpp) */
extern const struct rig_place rig_elsewhere;

static void test_place(void)
{
    struct rig_job job = usual;
    const char *const compressors[] = {"gaussk", "gaussk-paper", "randk", "dense"};

    for (size_t i = 0; i < sizeof(compressors) / sizeof(compressors[0]); i++) {
        struct rig_end here, there;

        job.compressor = compressors[i];
        rig_bind_at(NULL);
        here = train("memory of the host", &job, NULL);
        rig_bind_at(&rig_elsewhere);
        there = train("memory elsewhere", &job, NULL);
        rig_check(there.hash == here.hash, "%s: another model", compressors[i]);
    }
}

/* A job of one rank, opened. */
static struct rig_rank *open_alone(struct rig *rig, const char *name)
{
    static const struct rig_job job = {.servers = 1, .workers = 1, .steps = 3};
    struct rig_rank *rank = rig_ranks();

    rig_case(name);
    rig_open(rig, 1, 1);
    rank->job = &job;
    rank->addresses = rig->addresses;
    rig_require(rig_rank_open(rank) == GKPS_OK, "%s", rank->words);
    return rank;
}

static void close_alone(struct rig *rig, struct rig_rank *rank)
{
    rig_rank_close(rank);
    rig_kill(rig);
    free(rank);
}

static void refused(struct rig_rank *rank, int code, const char *words)
{
    rig_check(code == GKPS_E_ARGUMENT && strstr(gkps_error(rank->gkps, NULL), words) != NULL,
              "code %d: %s", code, gkps_error(rank->gkps, NULL));
}

/* Memory on the wrong side is found when it is bound, whatever is done with it later. */
static void test_wrong_place(void)
{
    const char *words = "does not lie on cuda:0";
    struct rig rig;
    struct rig_rank *rank = open_alone(&rig, "memory of the host at a device");

    refused(rank, gkps_bind(rank->gkps, 1, rank->params, NULL, 50), words);
    rig_require(rig_rank_start(rank) == GKPS_OK && rig_rank_step(rank) == GKPS_OK, "%s",
                rank->words);
    refused(rank, gkps_bind(rank->gkps, 1, rank->params, NULL, 50), words);
    refused(rank, gkps_bind(rank->gkps, 1, NULL, rank->gradient, 50), words);
    rig_check(rig_rank_step(rank) == GKPS_OK, "%s", rank->words);
    close_alone(&rig, rank);
}

/* The other way round: nobody would wait for the program's stream. */
static void test_unnamed_place(void)
{
    const struct gkps_setting setting = {.key = "backend", .value = "cuda"};
    const struct gkps_config config = {.size = sizeof(config),
                                       .flags = GKPS_NO_ENVIRONMENT,
                                       .settings = &setting,
                                       .settings_count = 1};
    struct gkps_tensor tensor = {.size = sizeof(tensor), .name = "w"};
    struct gkps_start start = {.size = sizeof(start)};
    struct rig_rank *rank = rig_ranks();
    float *gradient;

    rig_case("memory of a device that was not named");
    rig_elsewhere.open(&rank->stream, &tensor.params, &gradient);
    rig_require(gkps_open(&config, &rank->gkps) == GKPS_OK &&
                    gkps_tensors(rank->gkps, &tensor, 1) == GKPS_OK,
                "%s", gkps_error(rank->gkps, NULL));
    refused(rank, gkps_start(rank->gkps, &start), "gkps_open was told of none");
    gkps_close(rank->gkps);
    rig_elsewhere.close(rank->stream, tensor.params, gradient);
    free(rank);
}

/* What the program's stream has come to is said before the rank ends. */
static void test_failed_stream(void)
{
    const char *words = "waiting for what the program computes on cuda:0";
    struct rig rig;
    struct rig_rank *rank = open_alone(&rig, "a stream that fails");

    rig_require(rig_rank_start(rank) == GKPS_OK, "%s", rank->words);
    rig_elsewhere.break_off(0);
    (void)rig_rank_step(rank);
    rig_check(rank->code == GKPS_E_INTERNAL && rank->exit_code == 70 &&
                  strstr(rank->words, words) != NULL && rig_logged(words),
              "code %d: %s", rank->code, rank->words);
    close_alone(&rig, rank);
}

/* It is blamed itself, not the setting that follows from it. */
static void test_no_such_device(void)
{
    const struct gkps_config config = {
        .size = sizeof(config), .flags = GKPS_NO_ENVIRONMENT, .device = "cuda:3"};
    struct gkps *gkps;
    int exit_code = 0;
    int code = gkps_open(&config, &gkps);

    rig_case("a device that is not there");
    rig_check(code == GKPS_E_CONFIG && !gkps &&
                  strcmp(gkps_error(NULL, &exit_code), "the device of gkps_open: no CUDA device 3: "
                                                       "this machine has 1, counted from 0") == 0,
              "code %d: %s", code, gkps_error(NULL, NULL));
    rig_check(exit_code == 78, "exit code %d", exit_code);
}

/* Settings that contradict the device. */
static void test_wrong_backend(void)
{
    struct rig_rank *rank = rig_ranks();

    rig_case("another backend than the device");
    rank->job = &usual;
    rank->addresses = "tcp://127.0.0.1:9";
    rank->more_key = "backend";
    rank->more_value = "cpu";
    (void)rig_rank_open(rank);
    rig_check(rank->code == GKPS_E_CONFIG &&
                  strstr(rank->words, "this program's memory lies on cuda:0") != NULL,
              "code %d: %s", rank->code, rank->words);
    rig_rank_close(rank);
    free(rank);
}

/* What the program has put into its stream before gkps_pull() is done before it, too. */
static void test_pull_after_the_stream(void)
{
    static const float zeros[RIG_PARAMS];
    const struct rig_job job = {.servers = 1, .workers = 1, .steps = 2};
    struct rig_rank *rank = rig_ranks();
    struct gkps_step step = {.size = sizeof(step), .samples = 8};
    struct rig rig;

    rig_case("pulling behind what the stream holds");
    rig_open(&rig, 1, 1);
    rank->job = &job;
    rank->addresses = rig.addresses;
    rig_require(rig_rank_open(rank) == GKPS_OK && rig_rank_start(rank) == GKPS_OK, "%s",
                rank->words);
    rig_require(gkps_push(rank->gkps, &step) == GKPS_OK && gkps_wait(rank->gkps, &step) == GKPS_OK,
                "%s", gkps_error(rank->gkps, NULL));
    rig_elsewhere.copy(rank->stream, rank->params_there, zeros, false);
    rig_check(gkps_pull(rank->gkps) == GKPS_OK, "%s", gkps_error(rank->gkps, NULL));
    rig_elsewhere.copy(rank->stream, rank->params, rank->params_there, true);
    rig_check(memcmp(rank->params, zeros, sizeof(zeros)) != 0, "the stream came later");
    rig_rank_close(rank);
    rig_kill(&rig);
    free(rank);
}

/* A step of which the device refuses one copy; the code, and the words in the rank. */
static int step_with_refusal(struct rig_rank *rank, enum rig_way way, int64_t after)
{
    const struct rig_job job = {.servers = 1, .workers = 1, .steps = 2, .way = way};
    struct gkps_step step = {.size = sizeof(step), .samples = 8};
    struct rig rig;

    rig_open(&rig, 1, 1);
    memset(rank, 0, sizeof(*rank));
    rank->job = &job;
    rank->addresses = rig.addresses;
    rig_require(rig_rank_open(rank) == GKPS_OK && rig_rank_start(rank) == GKPS_OK, "%s",
                rank->words);
    rig_elsewhere.refuse(after);
    rank->code = rig_take_step(rank, &step);
    rig_elsewhere.refuse(-1);
    (void)snprintf(rank->words, sizeof(rank->words), "%s", gkps_error(rank->gkps, NULL));
    rig_rank_close(rank);
    rig_kill(&rig);
    return rank->code;
}

/* Each of a step's copies in turn; the last ones bring what was pulled. */
static void test_refused_copies(enum rig_way way)
{
    struct rig_rank *rank = rig_ranks();
    unsigned pulled = 0;
    int64_t after = 0;

    rig_case("copies that the device refuses");
    for (; after < 100 && step_with_refusal(rank, way, after) != GKPS_OK; after++) {
        pulled += strstr(rank->words, "what was pulled cannot be copied to cuda:0 ") != NULL;
        rig_check(rank->code == GKPS_E_INTERNAL &&
                      strstr(rank->words, "input or output failed") != NULL,
                  "copy %d: code %d: %s", (int)after, rank->code, rank->words);
    }
    rig_check(after < 100 && pulled == RIG_TENSORS, "%u of %d copies were of what was pulled",
              pulled, (int)after);
    free(rank);
}

static void test_more(void)
{
    test_place(); /* and all that follows binds there */
    test_pull_after_the_stream();
    test_refused_copies(RIG_STEP);
    test_refused_copies(RIG_PARTS);
    test_refused_copies(RIG_HURRIED);
    test_wrong_place();
    test_unnamed_place();
    test_failed_stream();
    test_wrong_backend();
    test_no_such_device();
}
#else
static void fill(struct rig_rank *rank, float value)
{
    for (uint64_t i = 0; i < RIG_PARAMS; i++) {
        rank->gradient[i] = value;
    }
}

/* Means that were not pulled are forgotten, and never lie over the next gradient. */
static void test_no_pull(void)
{
    struct rig_job job = usual;
    struct rig_rank *rank = rig_ranks();
    struct gkps_step step = {.size = sizeof(step), .samples = 1};
    struct rig rig;

    rig_case("wait without pull");
    job.servers = job.workers = 1;
    job.optimizer = "none";
    job.compressor = "dense";
    job.density = "1";
    rig_open(&rig, job.servers, job.workers);
    rank->job = &job;
    rank->addresses = rig.addresses;
    rig_require(rig_rank_open(rank) == GKPS_OK && rig_rank_start(rank) == GKPS_OK, "%s",
                rank->words);
    for (float value = 1; value < 6; value += 2) {
        fill(rank, value);
        rig_check(gkps_push(rank->gkps, &step) == GKPS_OK &&
                      gkps_wait(rank->gkps, &step) == GKPS_OK,
                  "%s", gkps_error(rank->gkps, NULL));
        fill(rank, value + 1);
        rig_check(gkps_step(rank->gkps, &step) == GKPS_OK, "%s", gkps_error(rank->gkps, NULL));
        rig_check(rank->gradient[0] == value + 1 && rank->gradient[RIG_PARAMS - 1] == value + 1,
                  "the mean of %g is %g", (double)(value + 1), (double)rank->gradient[0]);
    }
    gkps_close(rank->gkps);
    rig_kill(&rig);
    free(rank);
}

static void test_more(void)
{
    test_no_pull();
}
#endif

int main(int argc, char **argv)
{
    rig_require(argc == 2, "usage: lib_train GKPS-SERVER");
    rig_use(argv[1]);
    test_more();
    test_ways();
    test_own_selector();
    test_skips();
    test_flags();
    test_leaving();
    test_means();
    test_own_rate();
    return rig_result();
}
