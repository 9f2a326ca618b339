#include "worker/lib/settings.h"

#include "common/backend.h"
#include "common/device.h"
#include "common/exit.h"
#include "common/limits.h"
#include "common/net/zsock.h"
#include "common/option_rows.h"
#include "cuda/backend.h"
#include "proto/msg.h"
#include "worker/select/select.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

bool gk_settings_list_operator(size_t i, const char **ret_name, const char **ret_explanation)
{
    uint32_t count;
    const struct gk_operator *const *operators = gk_operators(&count);

    if (i >= count) {
        return false;
    }
    *ret_name = operators[i]->name;
    *ret_explanation = operators[i]->summary;
    return true;
}

/* The words are about setting `name`. */
static enum gk_err blame(const struct gk_settings_place *place, const char *name, int *ret_exit,
                         struct gk_words *words)
{
    *ret_exit = gk_config_blame(place->config, name, words);
    return GK_E_CONFIG;
}

static enum gk_err check_state(const struct gk_settings_place *place, int *ret_exit,
                               struct gk_words *words)
{
    const struct gk_settings *values = place->values;

    if (values->state_dir && !values->state_dir[0]) {
        gk_words_set(words, "empty: expected a directory");
        return blame(place, "state-dir", ret_exit, words);
    }
    if (values->state_sync && !values->state_dir) {
        gk_words_set(words, "needs --state-dir");
        return blame(place, "state-sync", ret_exit, words);
    }
    return GK_OK;
}

static enum gk_err check_launcher(const struct gk_settings_place *place, int *ret_exit,
                                  struct gk_words *words)
{
    uint64_t fd = place->values->launcher_fd;
    int type;
    socklen_t bytes = sizeof(type);

    if (fd == 0 || getsockopt((int)fd, SOL_SOCKET, SO_TYPE, &type, &bytes) == 0) {
        return GK_OK;
    }
    gk_words_set(words, "the launcher's link: descriptor %" PRIu64 " is not an open socket", fd);
    return blame(place, "launcher-fd", ret_exit, words);
}

static enum gk_err check_operator(const struct gk_settings_place *place, int *ret_exit,
                                  struct gk_words *words)
{
    const char *name, *explanation;

    for (size_t i = 0; gk_settings_list_operator(i, &name, &explanation); i++) {
        if (strcmp(name, place->values->compressor) == 0) {
            return GK_OK;
        }
    }
    gk_words_set(words, "'%.60s' does not exist: %s", place->values->compressor,
                 gk_operator_choices());
    return blame(place, "compressor", ret_exit, words);
}

/* Without a number the ranks of one machine share its devices: each has the one of its rank. */
static uint32_t number_of(const struct gk_settings_place *place, const struct gk_device *device)
{
    const uint32_t count = gk_vector_cuda_count();
    struct gk_words words;
    uint32_t rank = 0;
    int code;

    if (device->numbered || count == 0) {
        return device->number;
    }
    if (gk_settings_rank(place, &rank, &code, &words) != GK_OK || rank == GK_RANK_ANY) {
        return 0;
    }
    return rank % count;
}

bool gk_settings_device(const struct gk_settings_place *place, uint32_t *ret_number)
{
    struct gk_device device;

    if (!gk_device_parse(place->values->backend, &device) || device.kind != GK_DEVICE_CUDA) {
        return false;
    }
    *ret_number = number_of(place, &device);
    return true;
}

enum gk_err gk_settings_table(const struct gk_settings_place *place,
                              const struct gk_vector_ops **ret_ops, int *ret_exit,
                              struct gk_words *words)
{
    const struct gk_vector_ops *ops = NULL;
    const char *blamed = "cpu";
    struct gk_device device;
    uint32_t number;

    if (!gk_device_parse(place->values->backend, &device)) {
        gk_words_set(words, "'%.60s': expected " GK_DEVICE_CHOICES, place->values->backend);
        return blame(place, "backend", ret_exit, words);
    }
    if (gk_settings_device(place, &number)) {
        blamed = "backend";
        ops = gk_vector_cuda_device(number, words);
    } else {
        (void)gk_vector_cpu((enum gk_cpu)place->values->cpu, &ops, words);
    }
    if (!ops) {
        (void)gk_config_blame(place->config, blamed, words);
        *ret_exit = GK_EXIT_CONFIG; /* of this machine: the wish is well written */
        return GK_E_UNSUPPORTED;
    }
    *ret_ops = ops;
    return GK_OK;
}

enum gk_err gk_settings_check(const struct gk_settings_place *place, int *ret_exit,
                              struct gk_words *words)
{
    struct gk_addresses addresses = {.count = 0};
    const struct gk_vector_ops *ops;
    struct gk_spec spec;
    uint32_t rank;
    enum gk_err err;

    if (gk_job_name_check(place->values->job, words)) {
        return blame(place, "job", ret_exit, words);
    }
    err = check_state(place, ret_exit, words);
    err = err ? err : check_launcher(place, ret_exit, words);
    err = err ? err : gk_settings_rank(place, &rank, ret_exit, words);
    err = err ? err : gk_settings_addresses(place, &addresses, ret_exit, words);
    err = err ? err : check_operator(place, ret_exit, words);
    err = err ? err : gk_settings_table(place, &ops, ret_exit, words);
    err = err ? err : gk_settings_spec(place, addresses.count, &spec, ret_exit, words);
    gk_addresses_fini(&addresses);
    return err;
}

enum gk_err gk_settings_rank(const struct gk_settings_place *place, uint32_t *ret_rank,
                             int *ret_exit, struct gk_words *words)
{
    const struct gk_settings *values = place->values;
    unsigned long long rank;
    char *end;

    if (!values->rank && values->workers > 1) {
        gk_words_set(words,
                     "needed with %" PRIu64 " workers: 0 to %" PRIu64
                     " or any (also GKPS_RANK, RANK, ...)",
                     values->workers, values->workers - 1);
        return blame(place, "rank", ret_exit, words);
    }
    if (!values->rank) {
        *ret_rank = 0;
        return GK_OK;
    }
    if (strcmp(values->rank, "any") == 0) {
        *ret_rank = GK_RANK_ANY;
        return GK_OK;
    }
    errno = 0;
    rank = strtoull(values->rank, &end, 10);
    if (errno || *values->rank < '0' || *values->rank > '9' || *end || rank >= values->workers) {
        gk_words_set(
            words, "'%.60s' must be any, or a number from 0 to %" PRIu64 " (workers: %" PRIu64 ")",
            values->rank, values->workers - 1, values->workers);
        return blame(place, "rank", ret_exit, words);
    }
    *ret_rank = (uint32_t)rank;
    return GK_OK;
}

void gk_addresses_fini(struct gk_addresses *addresses)
{
    free(addresses->text);
    free(addresses->list);
    memset(addresses, 0, sizeof(*addresses));
}

/* One address more.  GK_E_CONFIG, and words that say what is wrong with it. */
static enum gk_err add_address(struct gk_addresses *addresses, const char *address,
                               struct gk_words *words)
{
    if (gk_zsock_address_check(address, false, words)) {
        return GK_E_CONFIG;
    }
    for (uint32_t i = 0; i < addresses->count; i++) {
        if (strcmp(addresses->list[i], address) == 0) {
            gk_words_set(words, "'%s' stands there twice", address);
            return GK_E_CONFIG;
        }
    }
    if (addresses->count == GK_SERVERS_MAX) {
        gk_words_set(words, "'%s' is one server too many (%d at most)", address, GK_SERVERS_MAX);
        return GK_E_CONFIG;
    }
    addresses->list[addresses->count++] = address;
    return GK_OK;
}

enum gk_err gk_settings_addresses(const struct gk_settings_place *place, struct gk_addresses *ret,
                                  int *ret_exit, struct gk_words *words)
{
    struct gk_addresses addresses = {.count = 0};
    enum gk_err err = GK_OK;
    char *rest = NULL;

    addresses.text = strdup(place->values->servers);
    addresses.list = calloc(GK_SERVERS_MAX, sizeof(*addresses.list));
    if (!addresses.text || !addresses.list) {
        gk_words_set(words, "no memory for the addresses of --servers");
        *ret_exit = GK_EXIT_INTERNAL;
        err = GK_E_NOMEM;
        goto out;
    }
    for (char *at = strtok_r(addresses.text, ", ", &rest); at && !err;
         at = strtok_r(NULL, ", ", &rest)) {
        err = add_address(&addresses, at, words);
    }
    if (!err && addresses.count == 0) {
        gk_words_set(words, "empty: expected tcp://HOST:PORT[,tcp://HOST:PORT ...]");
        err = GK_E_CONFIG;
    }
    if (err) {
        err = blame(place, "servers", ret_exit, words);
        goto out;
    }
    *ret = addresses;
    return GK_OK;
out:
    gk_addresses_fini(&addresses);
    return err;
}

static enum gk_err parse_milestones(const char *text, struct gk_spec *spec, struct gk_words *words)
{
    while (*text) {
        char *end;
        unsigned long long value;

        errno = 0;
        value = strtoull(text, &end, 10);
        if (errno || *text < '0' || *text > '9' || (*end && *end != ',')) {
            gk_words_set(words, "'%.60s': expected rising step numbers like 500,750", text);
            return GK_E_CONFIG;
        }
        if (spec->milestones_count == GK_MILESTONES_MAX) {
            gk_words_set(words, "more than %d steps", GK_MILESTONES_MAX);
            return GK_E_CONFIG;
        }
        spec->milestones[spec->milestones_count++] = value;
        text = *end ? end + 1 : end;
    }
    return GK_OK;
}

/* A setting that the others would make silently idle: its name and words; NULL: there is none. */
static const char *idle_setting(const struct gk_settings *values, uint32_t optimizer,
                                uint32_t schedule, struct gk_words *words)
{
    bool adamw = optimizer == GK_OPTIMIZER_ADAMW;
    const struct {
        const char *name, *usual;
        double value;
        bool used;
        const char *needs;
    } of_optimizers[] = {
        {"momentum", GK_OPTION_MOMENTUM, values->momentum,
         optimizer >= GK_OPTIMIZER_MOMENTUM && !adamw,
         adamw ? "momentum or nesterov (adamw has --beta1)" : "momentum or nesterov"},
        {"beta1", GK_OPTION_BETA1, values->beta1, adamw, "adamw"},
        {"beta2", GK_OPTION_BETA2, values->beta2, adamw, "adamw"},
        {"epsilon", GK_OPTION_EPSILON, values->epsilon, adamw, "adamw"},
    };

    for (size_t i = 0; i < sizeof(of_optimizers) / sizeof(of_optimizers[0]); i++) {
        if (!of_optimizers[i].used &&
            of_optimizers[i].value != strtod(of_optimizers[i].usual, NULL)) {
            gk_words_set(words, "%g needs --optimizer %s", of_optimizers[i].value,
                         of_optimizers[i].needs);
            return of_optimizers[i].name;
        }
    }
    if (values->milestones[0] && schedule != GK_SCHEDULE_MILESTONES) {
        gk_words_set(words, "'%.60s' needs --schedule milestones", values->milestones);
        return "milestones";
    }
    if (values->lr_min > 0 && schedule != GK_SCHEDULE_COSINE) {
        gk_words_set(words, "%g needs --schedule cosine", values->lr_min);
        return "lr-min";
    }
    return NULL;
}

static void set_optimizer(const struct gk_settings *values, uint32_t optimizer,
                          struct gk_spec *spec)
{
    spec->optimizer = optimizer;
    spec->lr = (float)values->lr;
    spec->weight_decay = (float)values->weight_decay;
    if (optimizer == GK_OPTIMIZER_ADAMW) {
        spec->momentum = (float)values->beta1;
        spec->beta2 = (float)values->beta2;
        spec->epsilon = (float)values->epsilon;
    } else if (optimizer >= GK_OPTIMIZER_MOMENTUM) {
        spec->momentum = (float)values->momentum;
    }
}

enum gk_err gk_settings_spec(const struct gk_settings_place *place, uint32_t servers,
                             struct gk_spec *ret_spec, int *ret_exit, struct gk_words *words)
{
    static const uint32_t optimizers[] = {GK_OPTIMIZER_NONE, GK_OPTIMIZER_SGD,
                                          GK_OPTIMIZER_MOMENTUM, GK_OPTIMIZER_NESTEROV,
                                          GK_OPTIMIZER_ADAMW};
    static const uint32_t schedules[] = {GK_SCHEDULE_CONSTANT, GK_SCHEDULE_MILESTONES,
                                         GK_SCHEDULE_COSINE};
    const struct gk_settings *values = place->values;
    struct gk_spec spec = {.workers = (uint32_t)values->workers,
                           .servers = servers,
                           .mode = GK_MODE_BSP,
                           .lost_policy = GK_LOST_WAIT,
                           .nonfinite_policy = values->nonfinite,
                           .seed = values->seed,
                           .steps = values->steps,
                           .schedule = schedules[values->schedule],
                           .warmup_steps = values->warmup};
    const char *idle = idle_setting(values, optimizers[values->optimizer], spec.schedule, words);

    if (idle) {
        return blame(place, idle, ret_exit, words);
    }
    set_optimizer(values, optimizers[values->optimizer], &spec);
    if (spec.schedule == GK_SCHEDULE_MILESTONES) {
        spec.lr_gamma = (float)values->lr_gamma;
        if (parse_milestones(values->milestones, &spec, words)) {
            return blame(place, "milestones", ret_exit, words);
        }
    }
    spec.lr_min = spec.schedule == GK_SCHEDULE_COSINE ? (float)values->lr_min : 0;
    *ret_spec = spec;
    return GK_OK;
}
