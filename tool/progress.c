#include "tool/progress.h"

#include "tool/units.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    BAR_MIN = 10,
    BAR_MAX = 40,
    IDLE_US = 2 * 1000 * 1000, /* longer without a step: the rate counts the silence */
};

void gk_progress_init(struct gk_progress *progress, uint64_t steps, uint64_t now_us)
{
    memset(progress, 0, sizeof(*progress));
    progress->steps = steps;
    progress->loss = (double)NAN;
    progress->accuracy = (double)NAN;
    progress->line_us = now_us;
}

static void add_sample(struct gk_progress *progress, uint64_t now_us)
{
    uint32_t last = (progress->samples_first + progress->samples_count - 1) % GK_PROGRESS_SAMPLES;
    uint32_t at;

    if (progress->samples_count > 1 &&
        now_us - progress->samples[last].us < GK_PROGRESS_SAMPLE_US) {
        return;
    }
    if (progress->samples_count == GK_PROGRESS_SAMPLES) {
        progress->samples_first = (progress->samples_first + 1) % GK_PROGRESS_SAMPLES;
        progress->samples_count--;
    }
    at = (progress->samples_first + progress->samples_count++) % GK_PROGRESS_SAMPLES;
    progress->samples[at].us = now_us;
    progress->samples[at].step = progress->step;
}

void gk_progress_set(struct gk_progress *progress, uint64_t step, double loss, uint64_t now_us)
{
    if (progress->steps > 0 && step > progress->steps) {
        step = progress->steps;
    }
    if (isfinite(loss)) {
        progress->loss = loss;
    }
    if (step <= progress->step) {
        return;
    }
    progress->step = step;
    progress->change_us = now_us;
    if (progress->start_us == 0) {
        progress->start_us = now_us;
    }
    add_sample(progress, now_us);
}

double gk_progress_rate(const struct gk_progress *progress, uint64_t now_us)
{
    uint64_t first_us, first_step, end_us = progress->change_us;

    if (progress->samples_count == 0) {
        return (double)NAN;
    }
    first_us = progress->samples[progress->samples_first].us;
    first_step = progress->samples[progress->samples_first].step;
    if (now_us > end_us + IDLE_US) {
        end_us = now_us;
    }
    if (end_us <= first_us || progress->step <= first_step) {
        return (double)NAN;
    }
    return (double)(progress->step - first_step) * 1e6 / (double)(end_us - first_us);
}

bool gk_progress_line_due(struct gk_progress *progress, uint64_t now_us)
{
    uint64_t tenth = progress->steps / 10 > 0 ? progress->steps / 10 : 1;
    uint64_t wait_us = GK_PROGRESS_LINE_US;
    bool crossed = progress->steps > 0 ? progress->step / tenth > progress->line_step / tenth
                                       : progress->line_step == 0;

    if (progress->step == progress->line_step) {
        return false;
    }
    if (progress->start_us > 0 && (now_us - progress->start_us) / 10 > wait_us) {
        wait_us = (now_us - progress->start_us) / 10;
    }
    if (wait_us > GK_PROGRESS_LINE_US_MAX) {
        wait_us = GK_PROGRESS_LINE_US_MAX;
    }
    if (!crossed && now_us - progress->line_us < wait_us) {
        return false;
    }
    progress->line_us = now_us;
    progress->line_step = progress->step;
    return true;
}

static void name_step(const struct gk_progress *progress, char *ret, size_t ret_bytes)
{
    if (progress->steps == 0) {
        (void)snprintf(ret, ret_bytes, "step %" PRIu64, progress->step);
        return;
    }
    (void)snprintf(ret, ret_bytes, "step %" PRIu64 "/%" PRIu64, progress->step, progress->steps);
}

static unsigned percent(const struct gk_progress *progress)
{
    return (unsigned)((double)progress->step * 100.0 / (double)progress->steps);
}

static void append(char *ret, size_t ret_bytes, const char *text, const char *more)
{
    size_t used = strlen(ret);

    (void)snprintf(ret + used, ret_bytes - used, "%s%s", text, more);
}

/* What is known beside the step: loss, accuracy, speed, time left. */
static void describe(const struct gk_progress *progress, uint64_t now_us, char *ret,
                     size_t ret_bytes)
{
    double rate = gk_progress_rate(progress, now_us);

    ret[0] = '\0';
    if (isfinite(progress->loss)) {
        append(ret, ret_bytes, "  loss ", gk_unit_number(progress->loss).text);
    }
    if (isfinite(progress->accuracy)) {
        append(ret, ret_bytes, "  accuracy ", gk_unit_percent(progress->accuracy).text);
    }
    if (isfinite(rate)) {
        append(ret, ret_bytes, "  ", gk_unit_rate(rate).text);
        append(ret, ret_bytes, " steps/s", "");
        if (progress->step < progress->steps) {
            double left = (double)(progress->steps - progress->step) / rate;

            append(ret, ret_bytes, "  ", gk_unit_seconds(left).text);
            append(ret, ret_bytes, " left", "");
        }
    }
}

void gk_progress_line(const struct gk_progress *progress, uint64_t now_us, char *ret,
                      size_t ret_bytes)
{
    char head[64], more[GK_PROGRESS_BYTES], part[16] = "";

    name_step(progress, head, sizeof(head));
    describe(progress, now_us, more, sizeof(more));
    if (progress->steps > 0) {
        (void)snprintf(part, sizeof(part), " (%u %%)", percent(progress));
    }
    (void)snprintf(ret, ret_bytes, "%s%s%s", head, part, more);
}

void gk_progress_bar(const struct gk_progress *progress, uint64_t now_us, unsigned columns,
                     char *ret, size_t ret_bytes)
{
    char head[64], more[GK_PROGRESS_BYTES], bar[BAR_MAX + 4] = "";
    size_t room = columns < ret_bytes ? columns + 1 : ret_bytes;
    size_t fixed, cells, full;

    if (ret_bytes == 0) {
        return;
    }
    name_step(progress, head, sizeof(head));
    if (progress->steps > 0) {
        size_t used = strlen(head);

        (void)snprintf(head + used, sizeof(head) - used, " %3u %%", percent(progress));
    }
    describe(progress, now_us, more, sizeof(more));
    fixed = strlen(head) + strlen(more) + 3; /* a blank and two brackets */
    cells = room > fixed + 1 ? room - 1 - fixed : 0;
    if (cells >= BAR_MIN && progress->steps > 0) {
        cells = cells > BAR_MAX ? BAR_MAX : cells;
        full = (size_t)((double)cells * (double)progress->step / (double)progress->steps);
        bar[0] = ' ';
        bar[1] = '[';
        memset(bar + 2, '#', full);
        memset(bar + 2 + full, '.', cells - full);
        bar[2 + cells] = ']';
        bar[3 + cells] = '\0';
    }
    (void)snprintf(ret, room, "%s%s%s", head, bar, more);
}
