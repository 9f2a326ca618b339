#include "worker/lib/report.h"

#include "common/json.h"

#include <math.h>

enum { PROGRESS_US = 200 * 1000 };

static double seconds(uint64_t us)
{
    return (double)us / 1e6;
}

static void take_loss(struct gk_worker_report *report, double loss)
{
    if (!isnan(loss)) {
        report->loss = report->has_loss ? 0.9 * report->loss + 0.1 * loss : loss;
        report->has_loss = true;
    }
}

/* null where none is known. */
static json_t *loss_of(const struct gk_worker_report *report)
{
    return report->has_loss ? gk_json_real(report->loss) : json_null();
}

void gk_report_open(const struct gk_worker_report *report)
{
    gk_daemon_tell(report->daemon, json_pack("{s:s}", "event", "open"));
}

void gk_report_step(struct gk_worker_report *report, const struct gk_report_step *step,
                    uint64_t now_us)
{
    report->steps++;
    report->samples += step->samples;
    take_loss(report, step->loss);
    report->selected += step->selected;
    report->compute_us += step->compute_us;
    report->select_us += step->select_us;
    if (report->every_step || now_us - report->told_us >= PROGRESS_US) {
        report->told_us = now_us;
        gk_daemon_mention(report->daemon,
                          json_pack("{s:s, s:o, s:o}", "event", "progress", "step",
                                    gk_json_integer(step->step + 1), "loss", loss_of(report)));
    }
}

void gk_report_eval(struct gk_worker_report *report, const struct gk_report_eval *eval)
{
    report->evaluated = true;
    report->accuracy = eval->accuracy;
    report->test_loss = eval->loss;
    gk_daemon_mention(report->daemon,
                      json_pack("{s:s, s:o, s:o, s:o}", "event", "eval", "step",
                                gk_json_integer(eval->step), "accuracy",
                                gk_json_real(eval->accuracy), "loss", gk_json_real(eval->loss)));
}

void gk_report_message(struct gk_worker_report *report, const struct gk_msg *msg,
                       struct gk_buf *const *parts, uint32_t parts_count)
{
    uint64_t all = 0, arrays = 0;

    for (uint32_t i = 0; i < parts_count; i++) {
        all += parts[i]->size;
    }
    for (uint32_t i = 0; i < msg->frames_count; i++) {
        arrays += msg->frame[i]->size;
    }
    if (msg->h.kind == GK_KIND_PUSH) {
        report->bytes_pushed += arrays;
    } else if (msg->h.kind == GK_KIND_PARAMS) {
        report->bytes_pulled += arrays;
    } else {
        arrays = 0; /* INIT: neither pushed nor pulled, but moved all the same */
    }
    report->bytes_headers += all - arrays;
}

uint64_t gk_report_bytes_dense(const struct gk_worker_report *report)
{
    return report->steps * 2 * sizeof(float) * report->params_count;
}

void gk_report_summary(const struct gk_worker_report *report, const struct gk_worker_stats *stats)
{
    uint64_t bytes_dense = gk_report_bytes_dense(report);
    json_t *time = json_pack("{s:f, s:f, s:f, s:f, s:f}", "compute", seconds(report->compute_us),
                             "select", seconds(report->select_us), "push", seconds(stats->push_us),
                             "wait", seconds(stats->wait_us), "pull", seconds(stats->pull_us));
    json_t *line =
        json_pack("{s:s, s:s, s:o, s:o, s:o, s:f, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "event",
                  "summary", "role", "worker", "rank", gk_json_integer(report->rank), "steps",
                  gk_json_integer(report->steps), "samples", gk_json_integer(report->samples),
                  "seconds", seconds(report->ended_us - report->started_us), "loss",
                  loss_of(report), "bytes_pushed", gk_json_integer(report->bytes_pushed),
                  "bytes_pulled", gk_json_integer(report->bytes_pulled), "bytes_headers",
                  gk_json_integer(report->bytes_headers), "bytes_dense",
                  gk_json_integer(bytes_dense), "selected", gk_json_integer(report->selected),
                  "retries", gk_json_integer(stats->retries), "time", time);

    if (line) { /* what a comparison with another run needs to know */
        (void)json_object_set_new(line, "parameters", gk_json_integer(report->params_count));
        if (report->arithmetic) {
            (void)json_object_set_new(line, "blas", json_string(report->arithmetic));
        }
    }
    if (line) { /* what a look at the run as a whole needs to know */
        (void)json_object_set_new(line, "residuals_lost", gk_json_integer(stats->residuals_lost));
        (void)json_object_set_new(line, "left_before", json_boolean(report->left_before));
    }
    if (line && report->evaluated) {
        (void)json_object_set_new(line, "accuracy", gk_json_real(report->accuracy));
        (void)json_object_set_new(line, "test_loss", gk_json_real(report->test_loss));
    }
    gk_daemon_tell(report->daemon, line);
}

void gk_report_note(const struct gk_worker_report *report, const char *words)
{
    gk_daemon_tell(report->daemon, json_pack("{s:s, s:s}", "event", "note", "words", words));
}
