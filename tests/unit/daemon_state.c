/* Goal: a worker whose residual lies in a slot makes the same pushes, bit for bit, as one whose
 * residual lies in memory, also when it is closed and opened again in between; what was not
 * persisted is made again; and the start says in one line what was found.
 * Method: two real ones side by side on one model, without any server. */
#include "common/exit.h"
#include "common/log.h"
#include "worker/lib/keeper.h"
#include "worker/trainer.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[] = "/tmp/gkps-state-XXXXXX";
static char flag[96], path[64];

struct side {
    struct gk_worker_options options;
    struct gk_config *config;
    struct gk_settings_place place;
    struct gk_trainer *trainer;
    struct gk_flat_tensor *tensors;
    struct gk_flat *flat;
    struct gk_worker_config core_config;
    struct gk_worker *core;
    struct gk_keeper keeper;
    uint32_t rank;
    struct gk_words words;
    uint32_t kept;
};

static void on_kept(void *context)
{
    struct side *side = context;

    side->kept++;
}

static void on_failed(void *context, int exit_code, const char *words)
{
    (void)context;
    cr_assert(false, "%d: %s", exit_code, words);
}

static void bind_tensors(struct side *side, uint32_t *ret_count)
{
    const struct gk_tensor *table = gk_trainer_tensors(side->trainer, ret_count);

    side->tensors = calloc(*ret_count, sizeof(*side->tensors));
    cr_assert(side->tensors != NULL);
    for (uint32_t i = 0; i < *ret_count; i++) {
        struct gk_flat_tensor *tensor = &side->tensors[i];

        memcpy(tensor->name, table[i].name, sizeof(tensor->name));
        memcpy(tensor->dims, table[i].dims, sizeof(tensor->dims));
        tensor->dims_count = table[i].dims_count;
        tensor->count = table[i].count;
        tensor->params = gk_trainer_params(side->trainer) + table[i].offset;
        tensor->gradient = gk_trainer_gradient(side->trainer) + table[i].offset;
    }
}

/* The parameters are those of version 0, at every step. */
static void open_side(struct side *side, bool slot)
{
    char *argv[] = {(char *)(uintptr_t) "worker", (char *)(uintptr_t) "--model=softmax",
                    (char *)(uintptr_t) "--density=0.02", slot ? flag : NULL};
    struct gk_config_args args = {.program = gk_worker_program(),
                                  .argc = slot ? 4 : 3,
                                  .argv = argv,
                                  .values = &side->options,
                                  .values_bytes = sizeof(side->options)};
    struct gk_flat_setup setup = {.place = &side->place, .servers = 2, .model = "softmax"};
    size_t bytes;
    int exit_code;

    memset(side, 0, sizeof(*side));
    cr_assert(gk_config_load(&args, &side->config, &exit_code, &side->words) == GK_OK, "%s",
              side->words.text);
    side->options.config = side->config;
    side->place =
        (struct gk_settings_place){.values = &side->options.settings, .config = side->config};
    cr_assert(gk_trainer_open(&side->options, &side->trainer, &exit_code, &side->words) == GK_OK);
    bind_tensors(side, &setup.tensors_count);
    setup.tensors = side->tensors;
    cr_assert(gk_flat_open(&setup, &side->flat, &exit_code, &side->words) == GK_OK);
    side->core_config = (struct gk_worker_config){
        .job = "state", .servers = 2, .workers = 1, .spec = gk_flat_spec(side->flat)};
    (void)gk_flat_spec_bytes(side->flat, &bytes, &side->core_config.spec_hash);
    cr_assert(gk_worker_new(&side->core_config, &side->core) == GK_OK);
    side->keeper = (struct gk_keeper){.flat = side->flat,
                                      .settings = side->place.values,
                                      .kept = on_kept,
                                      .failed = on_failed,
                                      .context = side};
    cr_assert(gk_keeper_open(&side->keeper, &side->core_config, side->core, &side->rank,
                             &side->words) == GK_OK,
              "%s", side->words.text);
    cr_assert(gk_flat_set_rank(side->flat, side->rank, &side->words) == GK_OK);
    cr_assert(gk_trainer_set_rank(side->trainer, side->rank, &side->words) == GK_OK);
    cr_assert(gk_trainer_initialise(side->trainer, &side->words) == GK_OK);
}

static void close_side(struct side *side)
{
    gk_worker_free(side->core);
    gk_keeper_close(&side->keeper);
    gk_flat_close(side->flat);
    gk_trainer_close(side->trainer);
    free(side->tensors);
    gk_config_free(side->config);
}

static struct gk_push *step(struct side *side, uint64_t t)
{
    struct gk_flat_step made = {.step = t, .samples = side->options.batch};
    struct gk_trainer_result result;

    cr_assert(gk_trainer_compute(side->trainer, t, &result, &side->words) == GK_OK);
    gk_flat_step(side->flat, &made);
    cr_assert(made.push != NULL, "%s", made.words.text);
    return made.push;
}

/* What the daemon does for PERSIST, without its thread. */
static void persist(struct side *side, uint64_t t)
{
    struct gk_worker_memory memory = {.step = t, .incarnation = 1};

    cr_assert(gk_flat_persist(side->flat, &memory, &side->words) == GK_OK);
}

static void join(struct side *side)
{
    struct gk_worker_identity identity = {
        .incarnation = 1, .joined_incarnation = 1, .job_uid = {.hi = 1, .lo = 2}, .init_id = 3};

    gk_keeper_remember(&side->keeper, &identity);
}

static void compare(struct side *memory, struct side *slot, uint64_t t)
{
    struct gk_push *a = step(memory, t), *b = step(slot, t);

    for (uint32_t s = 0; s < 2; s++) {
        cr_assert_eq(a->slices[s].id, b->slices[s].id, "step %llu", (unsigned long long)t);
    }
    gk_push_free(a);
    gk_push_free(b);
}

static void begin(void)
{
    cr_assert(mkdtemp(folder) != NULL);
    (void)snprintf(path, sizeof(path), "%s/w", folder);
    (void)snprintf(flag, sizeof(flag), "--state-dir=%s", path);
}

static void end(void)
{
    static const char *const names[] = {"w/slot", "w/LOCK", "log"};
    char name[96];

    for (size_t i = 0; i < 3; i++) {
        (void)snprintf(name, sizeof(name), "%s/%s", folder, names[i]);
        (void)unlink(name);
    }
    (void)rmdir(path);
    cr_assert(rmdir(folder) == 0);
}

Test(state, same_bits_across_lives, .init = begin, .fini = end)
{
    struct side memory, slot;

    open_side(&memory, false);
    open_side(&slot, true);
    join(&slot);
    for (uint64_t t = 0; t < 8; t++) {
        compare(&memory, &slot, t);
        persist(&slot, t);
        if (t % 3 == 2) {
            close_side(&slot);
            open_side(&slot, true);
        }
    }
    close_side(&slot);
    close_side(&memory);
}

/* Computed and not persisted: the next life makes the same push again. */
Test(state, step_that_did_not_count, .init = begin, .fini = end)
{
    struct side memory, slot;

    open_side(&memory, false);
    open_side(&slot, true);
    join(&slot);
    for (uint64_t t = 0; t < 6; t++) {
        gk_push_free(step(&slot, t));
        close_side(&slot);
        open_side(&slot, true);
        compare(&memory, &slot, t);
        persist(&slot, t);
    }
    close_side(&slot);
    close_side(&memory);
}

Test(state, reset, .init = begin, .fini = end)
{
    struct side memory, slot;

    open_side(&memory, false);
    open_side(&slot, true);
    join(&slot);
    for (uint64_t t = 0; t < 3; t++) {
        compare(&memory, &slot, t);
        persist(&slot, t);
    }
    gk_keeper_reset(&slot.keeper);
    gk_keeper_reset(&memory.keeper);
    compare(&memory, &slot, 7);
    close_side(&slot);
    open_side(&slot, true);
    gk_keeper_reset(&memory.keeper);
    compare(&memory, &slot, 7);
    close_side(&slot);
    close_side(&memory);
}

/* Without a directory PERSIST is answered at once, and nothing else happens. */
Test(state, without_a_directory)
{
    struct side side;
    struct gk_worker_memory memory = {.step = 0};

    open_side(&side, false);
    cr_assert(side.keeper.slot == NULL);
    gk_keeper_persist(&side.keeper, NULL, &memory);
    cr_assert_eq(side.kept, 1);
    join(&side);
    close_side(&side);
}

static void expect_said(const char *words)
{
    char name[96], text[4096];
    FILE *file;
    size_t size;

    (void)snprintf(name, sizeof(name), "%s/log", folder);
    file = fopen(name, "r");
    cr_assert(file != NULL);
    size = fread(text, 1, sizeof(text) - 1, file);
    text[size] = '\0';
    (void)fclose(file);
    cr_assert(strstr(text, words) && strstr(text, path), "%s, not %s", text, words);
    cr_assert(truncate(name, 0) == 0);
}

Test(state, what_was_found, .init = begin, .fini = end)
{
    struct gk_worker_identity left = {.incarnation = 2,
                                      .joined_incarnation = 2,
                                      .job_uid = {.hi = 1, .lo = 2},
                                      .init_id = 3,
                                      .left_at = 1000};
    struct side side;
    char name[96];
    int log;

    (void)snprintf(name, sizeof(name), "%s/log", folder);
    log = open(name, O_WRONLY | O_CREAT | O_APPEND, 0600);
    cr_assert(log >= 0);
    gk_log_open("worker", GK_LOG_TEXT, GK_LOG_INFO, log);
    open_side(&side, true);
    expect_said("INFO  worker WORKER-STATE new state in ");
    close_side(&side);
    open_side(&side, true);
    expect_said("WORKER-STATE going on with an empty residual in ");
    join(&side);
    gk_push_free(step(&side, 0));
    persist(&side, 0);
    close_side(&side);
    open_side(&side, true);
    expect_said("WORKER-STATE resuming rank 0 at step 1 from ");
    gk_keeper_remember(&side.keeper, &left);
    close_side(&side);
    open_side(&side, true);
    expect_said("WORKER-STATE rank 0 had left at step 1000, says ");
    close_side(&side);
    (void)close(log);
}

Test(state, options)
{
    static const struct {
        const char *flag;
        const char *words; /* NULL: fine */
    } cases[] = {{"--state-dir=x", NULL},
                 {"--no-state-sync", NULL},
                 {"--state-sync", "--state-sync: needs --state-dir"},
                 {"--state-dir=", "--state-dir: empty: expected a directory"}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *argv[] = {(char *)(uintptr_t) "worker", (char *)(uintptr_t)cases[i].flag};
        struct gk_worker_options options;
        struct gk_config *config;
        struct gk_words words = {.text = ""};
        struct gk_config_args args = {.program = gk_worker_program(),
                                      .argc = 2,
                                      .argv = argv,
                                      .values = &options,
                                      .values_bytes = sizeof(options)};
        int exit_code = -1;

        cr_assert(gk_config_load(&args, &config, &exit_code, &words) == GK_OK);
        cr_assert_eq(gk_settings_check(
                         &(struct gk_settings_place){.values = &options.settings, .config = config},
                         &exit_code, &words),
                     cases[i].words ? GK_E_CONFIG : GK_OK, "%s", cases[i].flag);
        if (cases[i].words) {
            cr_assert_str_eq(words.text, cases[i].words);
            cr_assert_eq(exit_code, GK_EXIT_USAGE);
        }
        gk_config_free(config);
    }
}
