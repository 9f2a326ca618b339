/* How far a run is, as one line of text.  Pure: every function is told the time. */
#ifndef GK_TOOL_PROGRESS_H
#define GK_TOOL_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    GK_PROGRESS_SAMPLES = 32,
    GK_PROGRESS_BYTES = 192, /* of a line or a bar */
    GK_PROGRESS_SAMPLE_US =
        300 * 1000, /* the rate is taken over the last 32 of these: about 10 s */
    GK_PROGRESS_LINE_US = 2 * 1000 * 1000,      /* at least so long between two plain lines ... */
    GK_PROGRESS_LINE_US_MAX = 60 * 1000 * 1000, /* ... more in a long run, up to this */
};

struct gk_progress {
    uint64_t steps; /* in all; 0: nobody knows */
    uint64_t step;  /* done by every worker */
    double loss;    /* NAN: not known yet */
    double accuracy;
    uint64_t start_us;  /* of the first step that was seen; 0: none yet */
    uint64_t change_us; /* when step last grew */
    uint64_t line_us;
    uint64_t line_step;
    struct {
        uint64_t us, step;
    } samples[GK_PROGRESS_SAMPLES]; /* ring */
    uint32_t samples_first, samples_count;
};

void gk_progress_init(struct gk_progress *progress, uint64_t steps, uint64_t now_us);

/* Every worker has done `step` steps.  A step below the last one is ignored: a late report. */
void gk_progress_set(struct gk_progress *progress, uint64_t step, double loss, uint64_t now_us);

/* Steps per second of late; NAN when unknown.  Falls while nothing moves. */
double gk_progress_rate(const struct gk_progress *progress, uint64_t now_us);

/* For logs: true when a tenth of the steps, or two seconds (a tenth of the time so far when that is
 * more, a minute at most), have gone by since the last line and there is something new to say. True
 * counts as printed. */
bool gk_progress_line_due(struct gk_progress *progress, uint64_t now_us);

/* "step 500/1000 (50 %)  loss 0.1234  accuracy 96.10 %  208 steps/s  2.4 s left"; "step 500  ..."
 * where nobody knows how many there will be. */
void gk_progress_line(const struct gk_progress *progress, uint64_t now_us, char *ret,
                      size_t ret_bytes);

/* The same with a bar that takes what is left of `columns`; never longer than that. */
void gk_progress_bar(const struct gk_progress *progress, uint64_t now_us, unsigned columns,
                     char *ret, size_t ret_bytes);

#endif
