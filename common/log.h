/* The log of the daemons and of the tool: one line an event, with a stable id, for people (`text`)
 * or machines (`json`).  Programs never parse it.  Only shells and mains log; cores emit TRACE
 * actions and libraries return words. */
#ifndef GK_COMMON_LOG_H
#define GK_COMMON_LOG_H

#include <stdbool.h>

enum gk_log_level { GK_LOG_DEBUG, GK_LOG_INFO, GK_LOG_WARN, GK_LOG_ERROR };
enum gk_log_format { GK_LOG_TEXT, GK_LOG_JSON };

enum {
    GK_LOG_RATE = 64,                  /* lines of one id */
    GK_LOG_RATE_US = 10 * 1000 * 1000, /* in so long */
    GK_LOG_WORDS_BYTES = 1024,         /* words of one line; more are cut */
};

/* Who logs ("server 0", "worker 3", "gkps"), how, from which level on; to file descriptor `fd` (2
 * in the programs).  Call before threads start.  `who` is copied.  Before it, lines go to 2 as text
 * from INFO on.  A line that cannot be written (a full non-blocking pipe, a full disk) is lost; the
 * next one that can says how many were. */
void gk_log_open(const char *who, enum gk_log_format format, enum gk_log_level level, int fd);

/* From here to the next gk_log_open() lines go to this function, whole and without newline, one at
 * a time; it must not log. */
void gk_log_divert(void (*write)(void *context, enum gk_log_level level, const char *line),
                   void *context);

/* Rename after start-up, e.g. when the rank is known.  Any thread. */
void gk_log_who(const char *who);

/* One line: `2026-01-31T12:00:00.123Z WARN  server 0 SERVER-ROUND-LATE words`, or an object with
 * ts, level, who, id, words and, where there are any, the counts suppressed and lost.  `id` is
 * stable and greppable, e.g. "SERVER-ROUND-LATE"; the format gives one line of words.  At most
 * GK_LOG_RATE lines of one id in ten seconds; the rest is counted and the count is said with the
 * next one.  ERROR is never suppressed.  Control characters in the words become '?'.  errno is
 * kept.  Any thread. */
void gk_log(enum gk_log_level level, const char *id, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* True when lines of that level are written. */
bool gk_log_enabled(enum gk_log_level level);

#endif
