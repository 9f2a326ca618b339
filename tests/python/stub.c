/* A libgkps that does what a test tells it: each call is counted, the next result of a function is
 * chosen by the test, and a step is plain SGD of one worker.  For what the Python package does by
 * itself: memory, waits, signals, errors. */
#include "worker/include/gkps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TENSORS_MAX = 64, CALLS_MAX = 4096, SETTINGS_BYTES = 4096 };

struct gkps {
    struct gkps_tensor tensors[TENSORS_MAX];
    uint64_t counts[TENSORS_MAX];
    size_t tensors_count;
    void (*log)(void *context, enum gkps_log_level level, const char *line);
    void *log_context;
    uint64_t version;
    struct gkps_step step;
};

static char calls[CALLS_MAX];
static char settings_given[SETTINGS_BYTES];
static char place_given[64]; /* device and stream */
static char failed_with[400];
static char next_function[64];
static int next_code, next_times;
static unsigned wait_ms;
static struct gkps_step last_step;
static uint64_t last_sparse;

GKPS_API const char *stub_calls(void);
GKPS_API const char *stub_settings(void);
GKPS_API const char *stub_place(void);
GKPS_API void stub_fail(const char *function, int code, int times);
GKPS_API void stub_wait_ms(unsigned ms);
GKPS_API const struct gkps_step *stub_last_step(void);
GKPS_API uint64_t stub_last_sparse(void);
GKPS_API const char *stub_failed_with(void);

/* Names of the calls since the last look. */
const char *stub_calls(void)
{
    static char copy[CALLS_MAX];

    memcpy(copy, calls, sizeof(copy));
    calls[0] = '\0';
    return copy;
}

const char *stub_settings(void)
{
    return settings_given;
}

const char *stub_place(void)
{
    return place_given;
}

/* The function of this name returns `code` in its next `times` calls. */
void stub_fail(const char *function, int code, int times)
{
    strncpy(next_function, function, sizeof(next_function) - 1);
    next_code = code;
    next_times = times;
}

/* A call that returns GKPS_E_TIMEOUT has waited at most so long. */
void stub_wait_ms(unsigned ms)
{
    wait_ms = ms;
}

const struct gkps_step *stub_last_step(void)
{
    return &last_step;
}

uint64_t stub_last_sparse(void)
{
    return last_sparse;
}

/* Exit code and words of gkps_fail(). */
const char *stub_failed_with(void)
{
    return failed_with;
}

static void append(char *text, size_t bytes, const char *words)
{
    size_t used = strlen(text);

    if (used + strlen(words) + 2 < bytes) {
        strncpy(text + used, words, bytes - used - 2);
        strncpy(text + strlen(text), " ", 2);
    }
}

static int called(const char *function, int64_t timeout_ms)
{
    append(calls, sizeof(calls), function);
    if (next_times > 0 && strcmp(next_function, function) == 0) {
        next_times--;
        if (next_code == GKPS_E_TIMEOUT) {
            int64_t ms = timeout_ms > 0 && timeout_ms < wait_ms ? timeout_ms : wait_ms;
            struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};

            nanosleep(&pause, NULL);
        }
        return next_code;
    }
    return GKPS_OK;
}

const char *gkps_version(void)
{
    return "stub";
}

uint32_t gkps_cuda_devices(void)
{
    return 2;
}

const char *gkps_error(const struct gkps *gkps, int *ret_exit_code)
{
    if (ret_exit_code) {
        *ret_exit_code = 60 + next_code;
    }
    return gkps ? "words of a handle" : "words without a handle";
}

int gkps_open(const struct gkps_config *config, struct gkps **ret_gkps)
{
    int code = called("open", 0);

    settings_given[0] = '\0';
    for (size_t i = 0; i < config->settings_count; i++) {
        append(settings_given, sizeof(settings_given), config->settings[i].key);
        append(settings_given, sizeof(settings_given), config->settings[i].value);
    }
    (void)snprintf(place_given, sizeof(place_given), "%s %ju", config->device ? config->device : "",
                   (uintmax_t)(uintptr_t)config->stream);
    *ret_gkps = code ? NULL : calloc(1, sizeof(**ret_gkps));
    if (!*ret_gkps) {
        return code ? code : GKPS_E_INTERNAL;
    }
    (*ret_gkps)->log = config->log;
    (*ret_gkps)->log_context = config->log_context;
    return GKPS_OK;
}

int gkps_tensors(struct gkps *gkps, const struct gkps_tensor *list, size_t count)
{
    for (size_t i = 0; i < count && i < TENSORS_MAX; i++) {
        gkps->tensors[i] = list[i];
        gkps->counts[i] = 1;
        for (uint32_t k = 0; k < list[i].dims_count; k++) {
            gkps->counts[i] *= list[i].dims[k];
        }
        gkps->tensors_count = i + 1;
    }
    return called("tensors", 0);
}

int gkps_bind(struct gkps *gkps, size_t index, float *params, float *gradient, uint64_t count)
{
    if (count != gkps->counts[index]) {
        return GKPS_E_ARGUMENT;
    }
    gkps->tensors[index].params = params ? params : gkps->tensors[index].params;
    gkps->tensors[index].gradient = gradient ? gradient : gkps->tensors[index].gradient;
    return called("bind", 0);
}

int gkps_aux(struct gkps *gkps, void *memory, size_t bytes)
{
    (void)gkps;
    memset(memory, 0, bytes);
    return called("aux", 0);
}

int gkps_start(struct gkps *gkps, struct gkps_start *start)
{
    if (gkps->log) {
        gkps->log(gkps->log_context, GKPS_LOG_WARN, "a line");
    }
    start->rank = 0;
    start->workers = 1;
    return called("start", start->timeout_ms);
}

int gkps_pull(struct gkps *gkps)
{
    (void)gkps;
    return called("pull", 0);
}

int gkps_push(struct gkps *gkps, const struct gkps_step *step)
{
    gkps->step = last_step = *step;
    return called("push", 0);
}

int gkps_push_sparse(struct gkps *gkps, const struct gkps_step *step,
                     const struct gkps_sparse *list)
{
    gkps->step = last_step = *step;
    last_sparse = 0;
    for (size_t i = 0; i < gkps->tensors_count; i++) {
        for (uint64_t k = 0; k < list[i].count; k++) {
            gkps->tensors[i].params[list[i].indices[k]] -= list[i].values[k];
        }
        last_sparse += list[i].count;
    }
    return called("push_sparse", 0);
}

static void take_step(struct gkps *gkps)
{
    for (size_t i = 0; i < gkps->tensors_count; i++) {
        const struct gkps_tensor *tensor = &gkps->tensors[i];

        for (uint64_t k = 0; k < gkps->counts[i]; k++) {
            if (!(gkps->step.flags & GKPS_SKIP) && !(tensor->flags & GKPS_FROZEN) &&
                tensor->gradient) {
                tensor->params[k] -= (float)gkps->step.lr * tensor->gradient[k];
            }
        }
    }
    gkps->version++;
}

int gkps_wait(struct gkps *gkps, struct gkps_step *step)
{
    int code = called("wait", step->timeout_ms);

    step->version = gkps->version;
    return code;
}

int gkps_step(struct gkps *gkps, struct gkps_step *step)
{
    int code = called("step", step->timeout_ms);

    gkps->step = last_step = *step;
    if (!code || code == GKPS_E_TIMEOUT) {
        take_step(gkps);
    }
    step->version = gkps->version;
    step->selected = 7;
    return code;
}

int gkps_stats(const struct gkps *gkps, struct gkps_stats *ret_stats)
{
    ret_stats->steps = gkps->version;
    ret_stats->pull_s = 0.5;
    return called("stats", 0);
}

int gkps_report(struct gkps *gkps, double accuracy, double loss)
{
    (void)gkps;
    (void)accuracy;
    (void)loss;
    return called("report", 0);
}

int gkps_note(struct gkps *gkps, const char *words)
{
    (void)gkps;
    (void)words;
    return called("note", 0);
}

int gkps_fail(struct gkps *gkps, int exit_code, const char *words)
{
    (void)gkps;
    snprintf(failed_with, sizeof(failed_with), "%d %s", exit_code, words);
    return called("fail", 0);
}

void gkps_stop(struct gkps *gkps, int exit_code)
{
    (void)gkps;
    (void)exit_code;
    (void)called("stop", 0);
}

int gkps_leave(struct gkps *gkps, int64_t timeout_ms)
{
    (void)gkps;
    return called("leave", timeout_ms);
}

void gkps_close(struct gkps *gkps)
{
    (void)called("close", 0);
    free(gkps);
}
