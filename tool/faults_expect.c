#include "tool/faults_expect.h"

#include "common/exit.h"
#include "common/shown.h"
#include "tool/units.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

struct judge {
    const struct gk_faults *faults;
    const struct gk_faults_outcome *outcome;
    void (*fail)(void *context, uint32_t line, const char *words);
    void *context;
    uint32_t failed;
};

static void fail(struct judge *judge, uint32_t line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void fail(struct judge *judge, uint32_t line, const char *format, ...)
{
    char text[GK_WORDS_BYTES];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    judge->failed++;
    judge->fail(judge->context, line, text);
}

static void judge_end(struct judge *judge)
{
    const struct gk_faults_expect *expect = &judge->faults->expect;
    const struct gk_faults_outcome *outcome = judge->outcome;
    bool completed = outcome->exit_code == GK_EXIT_OK && outcome->told && outcome->complete;

    if (outcome->late) {
        fail(judge, expect->within_line, "within: it was not over after %s, and was ended",
             gk_unit_seconds((double)expect->within_us / 1e6).text);
        return; /* what follows would say the same again */
    }
    if (expect->completes_line > 0 && expect->completes != completed) {
        fail(judge, expect->completes_line, "completes: %s: the run ended with code %d%s",
             expect->completes ? "it did not" : "it did", outcome->exit_code,
             outcome->told && !outcome->complete ? ", and not every daemon summed up" : "");
    }
    if (expect->exit_code.line > 0 && ((uint64_t)outcome->exit_code < expect->exit_code.low ||
                                       (uint64_t)outcome->exit_code > expect->exit_code.high)) {
        fail(judge, expect->exit_code.line, "exit: the run ended with code %d", outcome->exit_code);
    }
}

static void judge_hash(struct judge *judge)
{
    const struct gk_faults_expect *expect = &judge->faults->expect;
    const struct gk_faults_outcome *outcome = judge->outcome;
    bool same = outcome->model_hash == outcome->undisturbed_hash;

    if (expect->hash_line == 0) {
        return;
    }
    if (!outcome->told || !outcome->hashed) {
        fail(judge, expect->hash_line, "same-hash: the run left no model to compare");
    } else if (!outcome->compared) {
        fail(judge, expect->hash_line, "same-hash: the undisturbed run left no model to compare");
    } else if (same != expect->same_hash) {
        fail(judge, expect->hash_line,
             same ? "same-hash: both models are %016" PRIx64
                  : "same-hash: the model is %016" PRIx64 ", without faults it is %016" PRIx64,
             outcome->model_hash, outcome->undisturbed_hash);
    }
}

static void judge_count(struct judge *judge, const struct gk_faults_bounds *bounds,
                        const char *name, uint64_t count)
{
    if (bounds->line == 0) {
        return;
    }
    if (!judge->outcome->told) {
        fail(judge, bounds->line, "%s: not known, because the launcher did not live to tell", name);
    } else if (count < bounds->low) {
        fail(judge, bounds->line, "%s: %" PRIu64 ", fewer than %" PRIu64, name, count, bounds->low);
    } else if (count > bounds->high) {
        fail(judge, bounds->line, "%s: %" PRIu64 ", more than %" PRIu64, name, count, bounds->high);
    }
}

static void judge_memory(struct judge *judge)
{
    const struct gk_faults_bounds *bounds = &judge->faults->expect.memory_mib;
    uint64_t bytes = judge->outcome->memory_bytes;

    if (bounds->line > 0 && (bytes > bounds->high << 20 || bytes < bounds->low << 20)) {
        fail(judge, bounds->line, "memory-mib: the largest process took %s",
             gk_unit_bytes(bytes).text);
    }
}

static void judge_says(struct judge *judge)
{
    const struct gk_faults_expect *expect = &judge->faults->expect;

    for (uint32_t i = 0; i < expect->says_count; i++) {
        if (!judge->outcome->said[i]) {
            fail(judge, expect->says_lines[i], "says: no line of the log holds '%s'",
                 gk_shown(expect->says[i]).text);
        }
    }
}

/* A script whose faults never happen shows nothing. */
static void judge_faults(struct judge *judge)
{
    const struct gk_faults *faults = judge->faults;

    for (uint32_t i = 0; i < faults->faults_count; i++) {
        const struct gk_fault_line *fault = &faults->faults[i];

        if (faults->expect.completes && judge->outcome->done[i] < fault->times) {
            fail(judge, fault->line, "%s: done %" PRIu64 " times of %u before the run was over",
                 gk_faults_do_name(fault->what), judge->outcome->done[i], fault->times);
        }
    }
}

uint32_t gk_faults_expect(const struct gk_faults *faults, const struct gk_faults_outcome *outcome,
                          void (*fail_fn)(void *context, uint32_t line, const char *words),
                          void *context)
{
    struct judge judge = {
        .faults = faults, .outcome = outcome, .fail = fail_fn, .context = context};

    judge_end(&judge);
    if (outcome->leaked.text[0]) {
        fail(&judge, 0, "leaks: %s outlived the run, and was killed", outcome->leaked.text);
    }
    judge_says(&judge);
    judge_memory(&judge);
    if (!outcome->late) {
        judge_hash(&judge);
        judge_count(&judge, &faults->expect.pushes_lost, "pushes-lost", outcome->lost);
        judge_count(&judge, &faults->expect.restarts, "restarts", outcome->restarts);
        judge_faults(&judge);
    }
    return judge.failed;
}

uint32_t gk_faults_expect_count(const struct gk_faults *faults)
{
    const struct gk_faults_expect *expect = &faults->expect;

    return 2u + (expect->completes_line > 0) + (expect->hash_line > 0) + expect->says_count +
           (expect->exit_code.line > 0) + (expect->memory_mib.line > 0) +
           (expect->pushes_lost.line > 0) + (expect->restarts.line > 0);
}
