#include "worker/lib/handle.h"

#include "common/device.h"
#include "common/exit.h"
#include "common/limits.h"
#include "common/log.h"
#include "common/net/daemon.h"
#include "common/net/process.h"
#include "common/option_rows.h"
#include "cuda/backend.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define AT(field)                                                                                  \
    (offsetof(struct gk_library_options, settings) + offsetof(struct gk_settings, field))
#define STEPS_DEFAULT "4294967295"

/* clang-format off: the rows of the list keep their own lines. */
static const struct gk_option rows[] = {
    {"model", GK_OPTION_STRING, offsetof(struct gk_library_options, model), "custom", NULL, 0, 0,
     "NAME", "Name of the model, for people.", NULL, "Training"},
#include "worker/lib/settings_rows.inc"
};
/* clang-format on */

/* Of gkps_open() in this thread, which has no handle to keep it. */
static _Thread_local struct {
    int exit_code;
    struct gk_words words;
} opening;

/* Whose function has the log; NULL: standard error. */
static struct gkps *_Atomic log_owner;

const struct gk_program *gk_library_program(void)
{
    static const struct gk_program program = {
        .name = "libgkps", .options = rows, .options_count = sizeof(rows) / sizeof(rows[0])};

    return &program;
}

const char *gkps_version(void)
{
    return GK_VERSION;
}

uint32_t gkps_cuda_devices(void)
{
    return gk_vector_cuda_count();
}

const char *gkps_error(const struct gkps *gkps, int *ret_exit_code)
{
    if (ret_exit_code) {
        *ret_exit_code = gkps ? gkps->exit_code : opening.exit_code;
    }
    return gkps ? gkps->words.text : opening.words.text;
}

int gk_handle_fail(struct gkps *gkps, enum gkps_code code, int exit_code)
{
    gkps->code = (int)code;
    gkps->exit_code = exit_code;
    if (code != GKPS_E_ARGUMENT && code != GKPS_E_TIMEOUT && code != GKPS_E_FORKED) {
        gkps->stage = GK_STAGE_FAILED;
    }
    return (int)code;
}

int gk_handle_misuse(struct gkps *gkps, const char *format, ...)
{
    char text[GK_WORDS_BYTES];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    gk_words_set(&gkps->words, "%s", text);
    return gk_handle_fail(gkps, GKPS_E_ARGUMENT, GK_EXIT_USAGE);
}

int gk_handle_timed_out(struct gkps *gkps, const char *call, int64_t timeout_ms)
{
    gk_words_set(&gkps->words,
                 "%s: not after %" PRId64 " ms; the log says whom it waits for, and the same wait "
                 "may go on",
                 call, timeout_ms);
    return gk_handle_fail(gkps, GKPS_E_TIMEOUT, GK_EXIT_PEER);
}

int gk_handle_out_of(struct gkps *gkps, const char *what)
{
    gk_words_set(&gkps->words, "no memory for %s", what);
    return gk_handle_fail(gkps, GKPS_E_INTERNAL, GK_EXIT_INTERNAL);
}

int gk_handle_enter(struct gkps *gkps, const char *call, unsigned stages)
{
    static const char *const states[] = {
        [GK_STAGE_OPEN] = "gkps_start() has not been called",
        [GK_STAGE_STARTING] = "gkps_start() has not come to an end",
        [GK_STAGE_INITIALISING] = "not from within `initialise`",
        [GK_STAGE_READY] = "no step is under way",
        [GK_STAGE_PUSHED] = "a step is under way: gkps_wait() first",
        [GK_STAGE_LEAVING] = "the rank is leaving",
        [GK_STAGE_LEFT] = "the rank has left",
    };

    if (!gkps) {
        opening.exit_code = GK_EXIT_USAGE;
        gk_words_set(&opening.words, "%s: NULL is no handle", call);
        return GKPS_E_ARGUMENT;
    }
    if (gkps->owner != getpid()) {
        gk_words_set(&gkps->words,
                     "%s: this handle belongs to process %ld, and this is %ld, its child: open one "
                     "here, or keep the calls there",
                     call, (long)gkps->owner, (long)getpid());
        return gk_handle_fail(gkps, GKPS_E_FORKED, GK_EXIT_INTERNAL);
    }
    if (gkps->stage == GK_STAGE_FAILED) {
        return gkps->code;
    }
    if (!(stages >> gkps->stage & 1)) {
        return gk_handle_misuse(gkps, "%s: %s", call, states[gkps->stage]);
    }
    return GKPS_OK;
}

static enum gkps_code code_of(int exit_code)
{
    switch (exit_code) {
    case GK_EXIT_USAGE:
        return GKPS_E_CONFIG; /* GKPS_E_ARGUMENT would say that the handle can go on */
    case GK_EXIT_DATA:
        return GKPS_E_DATA;
    case GK_EXIT_PEER:
        return GKPS_E_PEER;
    case GK_EXIT_RETRY:
        return GKPS_E_RETRY;
    case GK_EXIT_FENCED:
        return GKPS_E_FENCED;
    case GK_EXIT_REFUSED:
        return GKPS_E_REFUSED;
    case GK_EXIT_CONFIG:
        return GKPS_E_STATE;
    default:
        return GKPS_E_INTERNAL;
    }
}

int gk_handle_ended(struct gkps *gkps, const struct gk_engine_view *view)
{
    if (view->exit_code == GK_EXIT_OK) {
        gkps->stage = GK_STAGE_LEFT;
        return GKPS_OK;
    }
    gkps->words = view->words;
    return gk_handle_fail(gkps, view->stopped ? GKPS_E_STOPPED : code_of(view->exit_code),
                          view->exit_code);
}

bool gk_handle_take(void *ret, size_t known, size_t least, const void *given)
{
    size_t size;

    memset(ret, 0, known);
    memcpy(&size, given, sizeof(size));
    if (size < least || size > known) {
        return false;
    }
    memcpy(ret, given, size);
    return true;
}

/* Opening. */

/* Also where the settings could not be loaded: whoever launched us wants to know that.  0: nobody.
 */
static int launcher_of(const struct gkps *gkps, uint32_t flags)
{
    const char *text = flags & GKPS_NO_ENVIRONMENT ? NULL : getenv("GKPS_LAUNCHER_FD");

    if (gkps && gkps->config) {
        return (int)gkps->options->settings.launcher_fd;
    }
    return text && strspn(text, "0123456789") == strlen(text) && strlen(text) <= 5 ? atoi(text) : 0;
}

static int refuse_open(struct gkps *gkps, uint32_t flags, enum gkps_code code, int exit_code)
{
    int launcher = launcher_of(gkps, flags);

    opening.exit_code = exit_code;
    if (launcher > 0) { /* else gkps_error() is all that is to be said */
        gk_daemon_early_death(launcher, "WORKER-EXIT", exit_code, opening.words.text);
    }
    if (gkps) {
        gkps_close(gkps);
    }
    return (int)code;
}

static enum gk_err load(struct gkps *gkps, const struct gkps_config *config, int *ret_exit)
{
    struct gk_config_given *given = calloc(config->settings_count + 1, sizeof(*given));
    struct gk_config_args args = {.program = gk_library_program(),
                                  .values = gkps->options,
                                  .values_bytes = sizeof(*gkps->options),
                                  .given = given,
                                  .given_count = config->settings_count,
                                  .no_environment = config->flags & GKPS_NO_ENVIRONMENT};
    enum gk_err err = GK_OK;

    if (!given) {
        gk_words_set(&opening.words, "no memory for %zu settings", config->settings_count);
        return GK_E_NOMEM;
    }
    for (size_t i = 0; i < config->settings_count && !err; i++) {
        given[i] = (struct gk_config_given){.name = config->settings[i].key,
                                            .text = config->settings[i].value};
        if (!given[i].name || !given[i].text) {
            gk_words_set(&opening.words, "setting %zu: key or value is NULL", i);
            *ret_exit = GK_EXIT_USAGE;
            err = GK_E_CONFIG;
        }
    }
    err = err ? err : gk_config_load(&args, &gkps->config, ret_exit, &opening.words);
    free(given);
    gkps->place =
        (struct gk_settings_place){.values = &gkps->options->settings, .config = gkps->config};
    return err;
}

/* A variable that overrides what the program says is said, once. */
static void say_overridden(const struct gkps *gkps, const struct gkps_config *config)
{
    for (size_t i = 0; i < config->settings_count; i++) {
        const char *key = config->settings[i].key;
        const char *source = gk_config_source(gkps->config, key);
        const char *text = gk_config_text(gkps->config, key);

        if (strcmp(source, "given") != 0 && text && strcmp(text, config->settings[i].value) != 0) {
            gk_log(GK_LOG_INFO, "WORKER-OVERRIDDEN", "%s is %s by %s, not %s as the program says",
                   key, text, source, config->settings[i].value);
        }
    }
}

/* Selection runs where bound memory lies, unless that is the host.  The number is blamed here, for
 * the setting that follows from it was given by nobody. */
static enum gk_err check_device(struct gkps *gkps, int *ret_exit)
{
    struct gk_settings *settings = &gkps->options->settings;
    struct gk_device wish;
    struct gk_words words;

    if (!gkps->bound_on_device || !gk_device_parse(settings->backend, &wish)) {
        return GK_OK; /* a wish that is none is refused with the other settings */
    }
    if (wish.kind == GK_DEVICE_CPU || (wish.numbered && wish.number != gkps->device)) {
        gk_words_set(&opening.words, "'%.20s', but this program's memory lies on cuda:%" PRIu32,
                     settings->backend, gkps->device);
        *ret_exit = gk_config_blame(gkps->config, "backend", &opening.words);
        return GK_E_CONFIG;
    }
    if (!gk_vector_cuda_device(gkps->device, &words)) {
        gk_words_set(&opening.words, "the device of gkps_open: %s", words.text);
        *ret_exit = GK_EXIT_CONFIG;
        return GK_E_UNSUPPORTED;
    }
    (void)snprintf(gkps->backend, sizeof(gkps->backend), "cuda:%" PRIu32, gkps->device);
    settings->backend = gkps->backend;
    return GK_OK;
}

static enum gk_err check_settings(struct gkps *gkps, int *ret_exit)
{
    enum gk_err err = check_device(gkps, ret_exit);

    err = err ? err : gk_settings_check(&gkps->place, ret_exit, &opening.words);
    err = err ? err : gk_settings_rank(&gkps->place, &gkps->rank, ret_exit, &opening.words);
    err =
        err ? err : gk_settings_addresses(&gkps->place, &gkps->addresses, ret_exit, &opening.words);
    if (!err && !gkps->options->model[0]) {
        gk_words_set(&opening.words, "model: empty");
        *ret_exit = GK_EXIT_USAGE;
        err = GK_E_CONFIG;
    }
    if (!err &&
        gk_process_files(GK_PROCESS_FILES + GK_PROCESS_FILES_PER_SOCKET * gkps->addresses.count,
                         &opening.words)) {
        *ret_exit = GK_EXIT_RETRY;
        err = GK_E_LIMIT;
    }
    return err;
}

/* The log is the process's, and the last gkps_open() says where it goes; so the lines of a handle
 * that is closed must not go to a function that may be gone. */
static void begin_log(struct gkps *gkps, const struct gkps_config *config)
{
    const struct gk_settings *settings = &gkps->options->settings;

    gk_log_open("worker", (enum gk_log_format)settings->log_format,
                (enum gk_log_level)settings->log_level, STDERR_FILENO);
    if (config->log) {
        gk_log_divert(
            (void (*)(void *, enum gk_log_level, const char *))(void (*)(void))config->log,
            config->log_context);
    }
    atomic_store(&log_owner, config->log ? gkps : NULL);
}

static void name_log(const struct gkps *gkps)
{
    char who[32];

    if (gkps->rank != GK_RANK_ANY) {
        (void)snprintf(who, sizeof(who), "worker %" PRIu32, gkps->rank);
        gk_log_who(who);
    }
}

static void end_log(struct gkps *gkps)
{
    if (atomic_compare_exchange_strong(&log_owner, &(struct gkps *){gkps}, NULL)) {
        gk_log_divert(NULL, NULL);
    }
}

static int misuse_open(const char *words)
{
    opening.exit_code = GK_EXIT_USAGE;
    gk_words_set(&opening.words, "gkps_open: %s", words);
    return GKPS_E_ARGUMENT;
}

int gkps_open(const struct gkps_config *config, struct gkps **ret_gkps)
{
    struct gk_device device = {.kind = GK_DEVICE_CPU};
    struct gkps_config given;
    struct gkps *gkps;
    int exit_code = GK_EXIT_INTERNAL;
    enum gk_err err;

    opening.words.text[0] = '\0';
    opening.exit_code = GK_EXIT_OK;
    if (!config || !ret_gkps) {
        return misuse_open("NULL");
    }
    *ret_gkps = NULL;
    if (!gk_handle_take(&given, sizeof(given), sizeof(given), config)) {
        return misuse_open("a struct gkps_config of a size that this library does not know (is "
                           "`size` set?)");
    }
    if (given.flags & ~(uint32_t)GKPS_NO_ENVIRONMENT) {
        return misuse_open("a flag that this library does not know");
    }
    if (given.device &&
        (!gk_device_parse(given.device, &device) || device.kind == GK_DEVICE_AUTO)) {
        return misuse_open("the device is not cpu, cuda or cuda:N");
    }
    if (given.stream && device.kind != GK_DEVICE_CUDA) {
        return misuse_open("a stream, but the device is not a CUDA one");
    }
    if (given.settings_count > 0 && !given.settings) {
        return misuse_open("settings are NULL");
    }
    gkps = calloc(1, sizeof(*gkps));
    if (gkps) {
        gkps->owner = getpid();
        gkps->options = calloc(1, sizeof(*gkps->options));
        gkps->arithmetic = strdup(given.arithmetic ? given.arithmetic : "");
    }
    if (!gkps || !gkps->options || !gkps->arithmetic) {
        gk_words_set(&opening.words, "no memory for a handle");
        return refuse_open(gkps, given.flags, GKPS_E_INTERNAL, GK_EXIT_INTERNAL);
    }
    gkps->bound_on_device = device.kind == GK_DEVICE_CUDA;
    gkps->device = device.number;
    gkps->stream = given.stream;
    gkps->ended = given.ended;
    gkps->ended_context = given.ended_context;
    err = load(gkps, &given, &exit_code);
    if (!err) {
        begin_log(gkps, &given);
        err = check_settings(gkps, &exit_code);
    }
    if (err) {
        return refuse_open(gkps, given.flags,
                           err == GK_E_NOMEM   ? GKPS_E_INTERNAL
                           : err == GK_E_LIMIT ? GKPS_E_RETRY
                                               : GKPS_E_CONFIG,
                           exit_code);
    }
    opening.words.text[0] = '\0'; /* of failures alone */
    name_log(gkps);
    say_overridden(gkps, &given);
    *ret_gkps = gkps;
    return GKPS_OK;
}

void gkps_close(struct gkps *gkps)
{
    if (!gkps) {
        return;
    }
    if (gkps->owner != getpid()) {
        return; /* its threads are not here; what they hold locked cannot be freed */
    }
    gk_engine_close(gkps->engine);
    end_log(gkps);
    gk_flat_close(gkps->flat);
    gk_addresses_fini(&gkps->addresses);
    gk_config_free(gkps->config);
    free(gkps->options);
    free(gkps->arithmetic);
    free(gkps->tensors);
    free(gkps->aux_copy);
    free(gkps->lists);
    free(gkps->notes);
    free(gkps);
}
