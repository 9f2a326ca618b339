#include "worker/report.h"

#include "common/exit.h"
#include "common/log.h"

#include <math.h>
#include <unistd.h>

enum { PROGRESS_US = 200 * 1000 };

/* Takes the object. */
static void tell(const struct gk_worker_report *report, json_t *line)
{
    if (line) {
        gk_link_send(report->link, line);
        json_decref(line);
    }
}

/* JSON has no NaN and no infinity. */
static json_t *number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static double seconds(uint64_t us)
{
    return (double)us / 1e6;
}

void gk_report_step(struct gk_worker_report *report, const struct gk_trainer_step *step,
                    uint64_t now_us)
{
    report->steps++;
    report->loss = report->steps == 1 ? step->loss : 0.9 * report->loss + 0.1 * step->loss;
    report->selected += step->selected;
    report->compute_us += step->compute_us;
    report->select_us += step->select_us;
    if (now_us - report->told_us >= PROGRESS_US) {
        report->told_us = now_us;
        tell(report, json_pack("{s:s, s:I, s:o}", "event", "progress", "step",
                               (json_int_t)(step->step + 1), "loss", number(report->loss)));
    }
}

void gk_report_eval(struct gk_worker_report *report, const struct gk_trainer_eval *eval)
{
    report->evaluated = true;
    report->accuracy = eval->accuracy;
    report->test_loss = eval->loss;
    tell(report, json_pack("{s:s, s:I, s:f, s:o}", "event", "eval", "step", (json_int_t)eval->step,
                           "accuracy", eval->accuracy, "loss", number(eval->loss)));
}

void gk_report_summary(const struct gk_worker_report *report, const struct gk_worker_stats *stats)
{
    /* Dense training moves every gradient and every parameter once a step. */
    uint64_t bytes_dense = report->steps * 2 * sizeof(float) * report->params_count;
    json_t *time = json_pack("{s:f, s:f, s:f, s:f, s:f}", "compute", seconds(report->compute_us),
                             "select", seconds(report->select_us), "push", seconds(stats->push_us),
                             "wait", seconds(stats->wait_us), "pull", seconds(stats->pull_us));
    json_t *line = json_pack(
        "{s:s, s:s, s:I, s:I, s:I, s:f, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "event",
        "summary", "role", "worker", "rank", (json_int_t)report->rank, "steps",
        (json_int_t)report->steps, "samples", (json_int_t)(report->steps * report->batch),
        "seconds", seconds(report->ended_us - report->started_us), "loss", number(report->loss),
        "bytes_pushed", (json_int_t)report->bytes_pushed, "bytes_pulled",
        (json_int_t)report->bytes_pulled, "bytes_headers", (json_int_t)report->bytes_headers,
        "bytes_dense", (json_int_t)bytes_dense, "selected", (json_int_t)report->selected, "retries",
        (json_int_t)stats->retries, "time", time);

    if (line && report->evaluated) {
        (void)json_object_set_new(line, "accuracy", json_real(report->accuracy));
        (void)json_object_set_new(line, "test_loss", number(report->test_loss));
    }
    tell(report, line);
}

/* One line in all: the launcher prints the words, so the log repeats them at DEBUG only.  Being
 * stopped is no error. */
static void log_death(bool linked, int exit_code, const char *words)
{
    bool stopped = exit_code == GK_EXIT_SIGINT || exit_code == GK_EXIT_SIGTERM;
    enum gk_log_level level = linked ? GK_LOG_DEBUG : stopped ? GK_LOG_INFO : GK_LOG_ERROR;

    gk_log(level, "WORKER-EXIT", "%s (exit code %d)", words, exit_code);
}

void gk_report_note(const struct gk_worker_report *report, const char *words)
{
    tell(report, json_pack("{s:s, s:s}", "event", "note", "words", words));
}

void gk_report_death(const struct gk_worker_report *report, int exit_code, const char *words)
{
    log_death(report->link != NULL, exit_code, words);
    tell(report, json_pack("{s:s, s:i, s:s}", "event", "death", "code", exit_code, "words", words));
}

void gk_report_early_death(int launcher_fd, int exit_code, const char *words)
{
    json_t *line =
        json_pack("{s:s, s:i, s:s}", "event", "death", "code", exit_code, "words", words);
    bool told = line && launcher_fd > 0 && json_dumpfd(line, launcher_fd, JSON_COMPACT) == 0 &&
                write(launcher_fd, "\n", 1) == 1;

    log_death(told, exit_code, words);
    json_decref(line);
}
