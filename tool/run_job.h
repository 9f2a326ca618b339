/* What makes the job of a state directory: the options that may not change between its runs, kept
 * in DIR/job.json, so that `gkps run --state-dir DIR` alone goes on with it. */
#ifndef GK_TOOL_RUN_JOB_H
#define GK_TOOL_RUN_JOB_H

#include "tool/run_options.h"

/* The names of those options. */
extern const char *const gk_run_job_options[];
extern const size_t gk_run_job_options_count;

/* DIR/job.json as flags, "--name=TEXT", and "--" with the command, appended to `ret_args`.
 * GK_E_NOTFOUND: there is none. GK_E_CORRUPT with words; GK_E_IO, GK_E_NOMEM. */
enum gk_err gk_run_job_read(const char *dir, struct gk_args *ret_args, struct gk_words *words);

/* Write it.  GK_E_IO, GK_E_NOMEM. */
enum gk_err gk_run_job_write(const struct gk_run_config *run, struct gk_words *words);

/* Does the run want another job than `stored`?  An option that was left at its default wants
 * nothing, nor does a command that is not there.  The name of one that differs, "command" of the
 * command; NULL: none. */
const char *gk_run_job_differs(const struct gk_run_config *run, const struct gk_run_config *stored);

/* What then is said: what the job in the state directory has there, and what would help. */
void gk_run_job_refuse(const struct gk_run_config *run, const struct gk_run_config *stored,
                       const char *differs, struct gk_words *words);

#endif
