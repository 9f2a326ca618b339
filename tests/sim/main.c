/* The command line.  Whatever fails prints the one line that replays it; the last line counts. */
#include "common/assert.h"
#include "tests/sim/crashes.h"
#include "tests/sim/enumerate.h"
#include "tests/sim/sim.h"
#include "tests/sim/stories.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_USAGE = 64, WORDS_BYTES = 160 };

struct plant {
    const char *name;
    struct gk_sim_plants plants;
    const char *what;
};

static const struct plant plants[] = {
    {"no-dedup", {GK_SERVER_PLANT_NO_DEDUP, 0, 0}, "a push of a decided step counts again"},
    {"stale-first", {GK_SERVER_PLANT_STALE_FIRST, 0, 0}, "staleness is judged before duplicates"},
    {"arrival-order", {GK_SERVER_PLANT_ARRIVAL_ORDER, 0, 0}, "sums run in the order of arrival"},
    {"old-acks",
     {GK_SERVER_PLANT_SAME_SESSION, GK_WORKER_PLANT_OLD_ACKS, 0},
     "acknowledgements count across sessions"},
    {"mixed-chunks", {GK_SERVER_PLANT_MIXED_CHUNKS, 0, 0}, "chunks of two pushes become one"},
    {"forget-leave", {GK_SERVER_PLANT_FORGET_LEAVE, 0, 0}, "LEAVE is confirmed and not recorded"},
    {"leave-unheard", {0, GK_WORKER_PLANT_FORGET_LEAVE, 0}, "a worker leaves without LEAVE_OK"},
    {"mixed-pull", {0, GK_WORKER_PLANT_MIXED_PULL, 0}, "parameters of two versions are installed"},
    {"send-before-flip",
     {0, 0, GK_SIM_PLANT_SEND_BEFORE_FLIP},
     "a push is sent before the slot is complete"},
    {"no-fsync", {0, 0, GK_SIM_PLANT_NO_SYNC}, "records are confirmed and not synced"},
};

enum { PLANTS_COUNT = sizeof(plants) / sizeof(plants[0]) };

struct arguments {
    uint64_t seeds, from, crash;
    bool has_seeds, one, trace, twice, all_stories, enumerate, crashes, all_crashes, disks;
    bool expect_failure;
    const char *story;
    const struct plant *plant;
};

struct counts {
    uint64_t passed, failed;
};

/* For the handler of SIGABRT: how to come back to where an assertion failed. */
static char replay[WORDS_BYTES];
static bool abort_is_wanted;

static void on_abort(int number)
{
    const char *found = abort_is_wanted ? "caught an assertion; " : "FAIL an assertion; ";
    const char *counts = abort_is_wanted ? "1 passed, 0 failed\n" : "0 passed, 1 failed\n";

    (void)number;
    (void)!write(STDOUT_FILENO, found, strlen(found));
    (void)!write(STDOUT_FILENO, replay, strlen(replay));
    (void)!write(STDOUT_FILENO, counts, strlen(counts));
    _exit(abort_is_wanted ? 0 : 1);
}

static void set_replay(const char *what, const struct plant *plant)
{
    (void)snprintf(replay, sizeof(replay), "replay: gk_sim %s%s%s --trace\n", what,
                   plant ? " --plant " : "", plant ? plant->name : "");
}

/* One run; its digest, and its numbers into `sum`.  False: it failed, and has said so. */
static bool run_seed(struct gk_sim *sim, uint64_t seed, const struct arguments *args,
                     struct gk_sim_stats *sum, uint64_t *ret_digest)
{
    struct gk_sim_options options;
    char what[WORDS_BYTES / 2];
    bool passed;

    (void)snprintf(what, sizeof(what), "--seed 0x%" PRIx64 "%s", seed,
                   args->disks ? " --disks" : "");
    set_replay(what, args->plant);
    gk_sim_options_draw(&options, seed);
    if (args->plant) {
        options.plants = args->plant->plants;
    }
    options.store.disks = options.store.disks || args->disks;
    if (args->trace) {
        gk_sim_options_print(&options);
    }
    if (gk_sim_init(sim, &options)) {
        sim->trace = args->trace;
        gk_sim_finish(sim);
    }
    passed = !gk_sim_failed(sim);
    if (!passed) {
        printf("%s seed=0x%" PRIx64 " at %.6f s: %s: %s\n",
               args->expect_failure ? "caught" : "FAIL", seed, (double)sim->failure.at_us / 1e6,
               sim->failure.checker, sim->failure.words.text);
        fputs(replay, stdout);
    }
    *ret_digest = sim->digest;
    gk_sim_stats_add(sum, &sim->stats);
    gk_sim_fini(sim);
    return passed;
}

static void run_seeds(struct gk_sim *sim, const struct arguments *args, struct counts *counts)
{
    struct gk_sim_stats sum = {0};

    for (uint64_t i = 0; i < args->seeds; i++) {
        uint64_t seed = args->from + i, digest, again;
        bool passed = run_seed(sim, seed, args, &sum, &digest);

        if (args->expect_failure && !passed) {
            counts->passed++;
            return;
        }
        if (passed && args->twice && run_seed(sim, seed, args, &sum, &again) && again != digest) {
            printf("FAIL seed=0x%" PRIx64 ": P3: two runs differ\n%s", seed, replay);
            passed = false;
        }
        counts->passed += passed && !args->expect_failure;
        counts->failed += !passed;
    }
    gk_sim_stats_print(&sum);
    if (args->expect_failure) {
        printf("%s: not caught in %" PRIu64 " seeds\n", args->plant ? args->plant->name : "nothing",
               args->seeds);
        counts->failed++;
    }
}

static void run_stories(struct gk_sim *sim, const struct arguments *args, struct counts *counts)
{
    uint32_t count;
    const struct gk_sim_story *stories = gk_sim_stories(&count);
    struct gk_sim_setup setup = {.trace = args->trace, .disks = args->disks};
    bool found = false;

    if (args->plant) {
        setup.plants = args->plant->plants;
    }
    for (uint32_t i = 0; i < count; i++) {
        char what[WORDS_BYTES / 2];
        bool passed;

        if (args->story && strcmp(args->story, stories[i].name) != 0) {
            continue;
        }
        found = true;
        (void)snprintf(what, sizeof(what), "--story %s%s", stories[i].name,
                       args->disks ? " --disks" : "");
        set_replay(what, args->plant);
        passed = gk_sim_story_run(sim, &stories[i], &setup);
        printf("%s %s: %s\n", passed ? "ok  " : "FAIL", stories[i].name, stories[i].what);
        if (!passed) {
            printf("     %s: %s\n%s", sim->failure.checker, sim->failure.words.text, replay);
        }
        gk_sim_fini(sim);
        counts->passed += passed;
        counts->failed += !passed;
    }
    if (!found) {
        printf("no story '%s'; --stories tells them all\n", args->story);
        counts->failed++;
    }
}

static void run_enumeration(struct gk_sim *sim, const struct arguments *args, struct counts *counts)
{
    uint32_t count;
    const struct gk_sim_cluster *clusters = gk_sim_clusters(&count);

    set_replay("--exhaustive", NULL);
    for (uint32_t i = 0; i < count; i++) {
        bool passed = gk_sim_enumerate(sim, &clusters[i], args->trace);

        counts->passed += passed;
        counts->failed += !passed;
    }
}

static void run_crashes(struct gk_sim *sim, const struct arguments *args, struct counts *counts)
{
    const struct gk_sim_crashes which = {
        .seed = args->from, .only = args->crash, .all = args->all_crashes, .trace = args->trace};
    bool passed;

    set_replay("--all-crashes", NULL);
    passed = gk_sim_crashes(sim, &which);
    counts->passed += passed;
    counts->failed += !passed;
}

static void usage(void)
{
    printf("usage: gk_sim [--seeds N] [--from X | --commit HEX] [--disks] [--plant NAME] "
           "[--expect-failure] [--twice]\n"
           "       gk_sim --seed X [--disks] [--plant NAME] [--trace]\n"
           "       gk_sim --stories | --story NAME [--trace]\n"
           "       gk_sim --exhaustive\n"
           "       gk_sim --crashes | --all-crashes [--from X] [--crash N --trace]\n\n"
           "Runs whole clusters in virtual time, with faults drawn from seeds; docs/simulator.md "
           "tells more.\nPlanted bugs, each to be caught:\n");
    for (size_t i = 0; i < PLANTS_COUNT; i++) {
        printf("  %-17s %s\n", plants[i].name, plants[i].what);
    }
}

static bool number(const char *text, int base, uint64_t *ret)
{
    char *end;

    errno = 0;
    *ret = strtoull(text, &end, base);
    return errno == 0 && end != text && *end == '\0' && *text != '-';
}

/* A commit hash names as many seeds as it is asked for, new ones with each commit. */
static bool commit_seed(const char *text, uint64_t *ret)
{
    char head[17];

    (void)snprintf(head, sizeof(head), "%s", text);
    return strlen(text) >= 4 && number(head, 16, ret);
}

static bool find_plant(const char *name, const struct plant **ret)
{
    for (size_t i = 0; i < PLANTS_COUNT; i++) {
        if (strcmp(name, plants[i].name) == 0) {
            *ret = &plants[i];
            return true;
        }
    }
    return false;
}

/* An argument with a value; false: it is none of them, or the value is wrong. */
static bool parse_pair(struct arguments *args, const char *name, const char *value)
{
    if (strcmp(name, "--seeds") == 0) {
        args->has_seeds = true;
        return number(value, 0, &args->seeds);
    }
    if (strcmp(name, "--seed") == 0) {
        args->one = args->has_seeds = true;
        args->seeds = 1;
        return number(value, 0, &args->from);
    }
    if (strcmp(name, "--from") == 0) {
        return number(value, 0, &args->from);
    }
    if (strcmp(name, "--crash") == 0) {
        return number(value, 0, &args->crash);
    }
    if (strcmp(name, "--commit") == 0) {
        return commit_seed(value, &args->from);
    }
    if (strcmp(name, "--story") == 0) {
        args->story = value;
        return true;
    }
    return strcmp(name, "--plant") == 0 && find_plant(value, &args->plant);
}

static bool parse_flag(struct arguments *args, const char *name)
{
    const struct {
        const char *name;
        bool *flag;
    } flags[] = {
        {"--trace", &args->trace},         {"--twice", &args->twice},
        {"--stories", &args->all_stories}, {"--exhaustive", &args->enumerate},
        {"--crashes", &args->crashes},     {"--all-crashes", &args->all_crashes},
        {"--disks", &args->disks},         {"--expect-failure", &args->expect_failure},
    };

    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
        if (strcmp(name, flags[i].name) == 0) {
            *flags[i].flag = true;
            return true;
        }
    }
    return false;
}

static bool parse(struct arguments *args, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (parse_flag(args, argv[i])) {
            continue;
        }
        if (i + 1 == argc || !parse_pair(args, argv[i], argv[i + 1])) {
            printf("gk_sim: '%s%s%s' is not understood\n", argv[i], i + 1 < argc ? " " : "",
                   i + 1 < argc ? argv[i + 1] : "");
            return false;
        }
        i++;
    }
    return true;
}

int main(int argc, char **argv)
{
    struct arguments args = {.seeds = 1000, .crash = GK_SIM_CRASHES_ALL};
    struct counts counts = {0};
    struct gk_sim *sim;

    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        usage();
        return 0;
    }
    if (!parse(&args, argc, argv)) {
        usage();
        return EXIT_USAGE;
    }
    abort_is_wanted = args.expect_failure;
    (void)signal(SIGABRT, on_abort);
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    sim = gk_sim_new();
    if (args.story || args.all_stories) {
        run_stories(sim, &args, &counts);
    }
    if (args.enumerate) {
        run_enumeration(sim, &args, &counts);
    }
    if (args.crashes || args.all_crashes) {
        run_crashes(sim, &args, &counts);
    }
    if (args.has_seeds || (!args.story && !args.all_stories && !args.enumerate && !args.crashes &&
                           !args.all_crashes)) {
        printf("seeds 0x%" PRIx64 " to 0x%" PRIx64 "\n", args.from, args.from + args.seeds - 1);
        run_seeds(sim, &args, &counts);
    }
    gk_sim_free(sim);
    printf("%" PRIu64 " passed, %" PRIu64 " failed\n", counts.passed, counts.failed);
    return counts.failed > 0;
}
