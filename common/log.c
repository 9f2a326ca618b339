/* One lock covers everything, so that lines come whole and in the order of their times.  The line
 * is built in one buffer and leaves in one write: other processes may write to the same pipe or
 * terminal. */
#include "common/log.h"

#include "common/assert.h"
#include "common/log_rate.h"

#include <jansson.h>

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    LOG_WHO_BYTES = 64,
    LOG_ID_BYTES = 64,
    LOG_TIME_BYTES = 64,
    /* JSON doubles quotes; below PIPE_BUF, so that writes stay whole. */
    LOG_LINE_BYTES = 2 * GK_LOG_WORDS_BYTES + 512,
};

struct sink {
    char who[LOG_WHO_BYTES];
    enum gk_log_format format;
    int fd;
    void (*write)(void *context, enum gk_log_level level, const char *line); /* NULL: to fd */
    void *context;
    uint64_t lost; /* lines that could not be written */
    struct gk_log_rate rate;
};

struct line {
    enum gk_log_level level;
    const char *id;
    char time[LOG_TIME_BYTES];
    char words[GK_LOG_WORDS_BYTES];
    uint64_t suppressed;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Whoever holds it may call the function of gk_log_divert(): not `lock`, which fork() waits for,
 * for that function may wait for whoever forks (Python's interpreter does).  Taken before `lock`,
 * never within it. */
static pthread_mutex_t diverting = PTHREAD_MUTEX_INITIALIZER;
static struct sink sink = {.who = "gkps", .format = GK_LOG_TEXT, .fd = STDERR_FILENO};
static atomic_int lowest_level = GK_LOG_INFO;

static const char *const level_names[] = {"DEBUG", "INFO", "WARN", "ERROR"};

/* A child of fork() finds the lock free, whatever other threads were at. */
static pthread_once_t forks_once = PTHREAD_ONCE_INIT;

static void before_fork(void)
{
    (void)pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
    (void)pthread_mutex_unlock(&lock);
}

/* The thread that may have held it is not here. */
static void in_child(void)
{
    (void)pthread_mutex_init(&diverting, NULL);
    after_fork();
}

static void watch_forks(void)
{
    (void)pthread_atfork(before_fork, after_fork, in_child); /* fails without memory only */
}

static void make_printable(char *text)
{
    for (; *text; text++) {
        if ((unsigned char)*text < 32 || *text == 127) {
            *text = '?';
        }
    }
}

static void set_who(const char *who)
{
    (void)snprintf(sink.who, sizeof(sink.who), "%s", who);
    make_printable(sink.who);
}

void gk_log_open(const char *who, enum gk_log_format format, enum gk_log_level level, int fd)
{
    (void)pthread_once(&forks_once, watch_forks);
    (void)pthread_mutex_lock(&diverting);
    (void)pthread_mutex_lock(&lock); /* fails for a broken mutex only */
    set_who(who);
    sink.format = format;
    sink.fd = fd;
    sink.write = NULL;
    sink.lost = 0;
    memset(&sink.rate, 0, sizeof(sink.rate));
    atomic_store(&lowest_level, (int)level);
    (void)pthread_mutex_unlock(&lock);
    (void)pthread_mutex_unlock(&diverting);
}

void gk_log_divert(void (*write)(void *context, enum gk_log_level level, const char *line),
                   void *context)
{
    (void)pthread_mutex_lock(&diverting);
    (void)pthread_mutex_lock(&lock);
    sink.write = write;
    sink.context = context;
    (void)pthread_mutex_unlock(&lock);
    (void)pthread_mutex_unlock(&diverting);
}

void gk_log_who(const char *who)
{
    (void)pthread_mutex_lock(&lock);
    set_who(who);
    (void)pthread_mutex_unlock(&lock);
}

bool gk_log_enabled(enum gk_log_level level)
{
    return (int)level >= atomic_load_explicit(&lowest_level, memory_order_relaxed);
}

static void set_time(struct line *line)
{
    struct timespec now = {0};
    struct tm utc = {0};

    (void)clock_gettime(CLOCK_REALTIME, &now); /* cannot fail for this clock */
    (void)gmtime_r(&now.tv_sec, &utc);
    (void)snprintf(line->time, sizeof(line->time), "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ",
                   utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min,
                   utc.tm_sec, (int)(now.tv_nsec / 1000000));
}

static uint64_t monotonic_us(void)
{
    struct timespec now = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static void append(char *text, size_t bytes, const char *format, uint64_t count)
{
    size_t length = strlen(text);

    if (count > 0) {
        (void)snprintf(text + length, bytes - length, format, count);
    }
}

static size_t render_text(const struct line *line, char *ret_text, size_t bytes)
{
    (void)snprintf(ret_text, bytes, "%s %-5s %s %s %s", line->time, level_names[line->level],
                   sink.who, line->id, line->words);
    append(ret_text, bytes, " (%" PRIu64 " more of these were left out before)", line->suppressed);
    append(ret_text, bytes, " (%" PRIu64 " lines could not be written)", sink.lost);
    return strlen(ret_text);
}

/* JSON holds UTF-8 alone.  Words that quote bytes from elsewhere, or were cut inside a letter, lose
 * their letters beyond ASCII rather than the whole line. */
static json_t *new_string(const char *text)
{
    char ascii[GK_LOG_WORDS_BYTES];
    json_t *string = json_string(text);

    if (string) {
        return string;
    }
    (void)snprintf(ascii, sizeof(ascii), "%s", text);
    for (char *at = ascii; *at; at++) {
        if ((unsigned char)*at >= 128) {
            *at = '?';
        }
    }
    return json_string(ascii);
}

static int set_count(json_t *object, const char *name, uint64_t count)
{
    return count > 0 ? json_object_set_new(object, name, json_integer((json_int_t)count)) : 0;
}

/* The length; 0: out of memory. */
static size_t render_json(const struct line *line, char *ret_text, size_t bytes)
{
    json_t *object = json_object();
    size_t length = 0;
    int failed = 0;

    failed |= json_object_set_new(object, "ts", json_string(line->time));
    failed |= json_object_set_new(object, "level", json_string(level_names[line->level]));
    failed |= json_object_set_new(object, "who", new_string(sink.who));
    failed |= json_object_set_new(object, "id", new_string(line->id));
    failed |= json_object_set_new(object, "words", new_string(line->words));
    failed |= set_count(object, "suppressed", line->suppressed);
    failed |= set_count(object, "lost", sink.lost);
    if (!failed) {
        length = json_dumpb(object, ret_text, bytes, JSON_COMPACT);
        GK_ASSERT(length <= bytes);
    }
    json_decref(object);
    return length;
}

/* False: not written, or not all of it. */
static bool write_all(const char *text, size_t length)
{
    size_t done = 0;

    while (done < length) {
        ssize_t n = write(sink.fd, text + done, length - done);

        if (n > 0) {
            done += (size_t)n;
        } else if (n == 0 || errno != EINTR) {
            return false;
        }
    }
    return true;
}

/* The line, or "" where there was no memory for it; without newline. */
static size_t render(const struct line *line, char ret_text[LOG_LINE_BYTES])
{
    size_t room = LOG_LINE_BYTES - 1; /* for what ends it */
    size_t length = sink.format == GK_LOG_JSON ? render_json(line, ret_text, room)
                                               : render_text(line, ret_text, room);

    ret_text[length] = '\0';
    return length;
}

static void write_line(char *text, size_t length)
{
    text[length] = '\n';
    if (length > 0 && write_all(text, length + 1)) {
        sink.lost = 0;
    } else {
        sink.lost++; /* there is nobody left to tell; the next line says so */
    }
}

/* True: it is to be written. */
static bool admit(struct line *line)
{
    bool admitted = gk_log_rate_admit(&sink.rate, line->id, monotonic_us(),
                                      line->level == GK_LOG_ERROR, &line->suppressed);

    if (admitted) {
        set_time(line);
    }
    return admitted;
}

static void write_or_divert(struct line *line)
{
    char text[LOG_LINE_BYTES];
    size_t length = 0;
    bool diverted;

    (void)pthread_mutex_lock(&diverting);
    (void)pthread_mutex_lock(&lock);
    diverted = sink.write != NULL;
    if (admit(line)) {
        length = render(line, text);
        if (!diverted) {
            write_line(text, length);
        }
    }
    (void)pthread_mutex_unlock(&lock);
    if (diverted && length > 0) { /* what it is changes under `diverting` alone */
        sink.write(sink.context, line->level, text);
    }
    (void)pthread_mutex_unlock(&diverting);
}

void gk_log(enum gk_log_level level, const char *id, const char *format, ...)
{
    struct line line = {.level = level, .id = id};
    int kept_errno = errno;
    va_list args;

    GK_ASSERT(id[0] && strlen(id) < LOG_ID_BYTES);
    if (!gk_log_enabled(level)) {
        return;
    }
    va_start(args, format);
    (void)vsnprintf(line.words, sizeof(line.words), format, args);
    va_end(args);
    make_printable(line.words);
    write_or_divert(&line);
    errno = kept_errno;
}
