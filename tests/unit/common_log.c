/* Goal: one event is one whole line in one write, in both formats, whoever logs and whatever is
 * quoted, and a flood of one id is held back and counted.  Method: logging into a datagram socket,
 * where every write is a message of its own, into a full pipe and into a file from several threads;
 * the rate limit also alone, with times of the test's own. */
#include "common/log.h"
#include "common/log_rate.h"

#include <jansson.h>

#include <criterion/criterion.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES = 8192 };

static int sockets[2];

static void open_log(enum gk_log_format format, enum gk_log_level level)
{
    cr_assert_eq(socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets), 0);
    gk_log_open("server 0", format, level, sockets[1]);
}

/* The next message, without its newline; NULL: there is none. */
static const char *next_line(void)
{
    static char line[LINE_BYTES];
    ssize_t length = recv(sockets[0], line, sizeof(line) - 1, MSG_DONTWAIT);

    if (length < 0) {
        cr_assert(errno == EAGAIN || errno == EWOULDBLOCK);
        return NULL;
    }
    line[length] = '\0';
    cr_assert(length > 0 && line[length - 1] == '\n', "one write is one line");
    line[length - 1] = '\0';
    cr_assert_null(strchr(line, '\n'), "one line is one line");
    return line;
}

/* The line behind its time. */
static const char *next_text(void)
{
    const char *line = next_line();

    return line ? line + strlen("2026-01-31T12:00:00.123Z ") : NULL;
}

static bool is_time(const char *text)
{
    static const char pattern[] = "dddd-dd-ddTdd:dd:dd.dddZ";

    for (size_t i = 0; pattern[i]; i++) {
        bool digit = text[i] >= '0' && text[i] <= '9';

        if (pattern[i] == 'd' ? !digit : text[i] != pattern[i]) {
            return false;
        }
    }
    return true;
}

Test(log, text_line)
{
    const char *line;

    open_log(GK_LOG_TEXT, GK_LOG_DEBUG);
    gk_log(GK_LOG_WARN, "SERVER-ROUND-LATE", "step=%d", 12);
    line = next_line();
    cr_assert(is_time(line), "%s", line);
    cr_assert_str_eq(line + 24, " WARN  server 0 SERVER-ROUND-LATE step=12");
    gk_log(GK_LOG_ERROR, "A", "%s", "");
    cr_assert_str_eq(next_text(), "ERROR server 0 A ");
    gk_log(GK_LOG_INFO, "A-B", "x");
    cr_assert_str_eq(next_text(), "INFO  server 0 A-B x");
    gk_log(GK_LOG_DEBUG, "A-B", "x");
    cr_assert_str_eq(next_text(), "DEBUG server 0 A-B x");
    gk_log_who("server 1");
    gk_log(GK_LOG_INFO, "A-B", "x");
    cr_assert_str_eq(next_text(), "INFO  server 1 A-B x");
    cr_assert_null(next_line());
}

Test(log, time_is_utc_now)
{
    struct timespec before, after;
    struct tm tm;
    char early[32], late[32];
    const char *line;

    setenv("TZ", "Asia/Tokyo", 1);
    tzset();
    open_log(GK_LOG_TEXT, GK_LOG_INFO);
    clock_gettime(CLOCK_REALTIME, &before);
    gk_log(GK_LOG_INFO, "T", "x");
    clock_gettime(CLOCK_REALTIME, &after);
    line = next_line();
    strftime(early, sizeof(early), "%Y-%m-%dT%H:%M:%S", gmtime_r(&before.tv_sec, &tm));
    strftime(late, sizeof(late), "%Y-%m-%dT%H:%M:%S", gmtime_r(&after.tv_sec, &tm));
    cr_assert(strncmp(line, early, strlen(early)) >= 0 && strncmp(line, late, strlen(late)) <= 0,
              "%s", line);
}

Test(log, levels_below_are_not_written)
{
    for (int lowest = GK_LOG_DEBUG; lowest <= GK_LOG_ERROR; lowest++) {
        open_log(GK_LOG_TEXT, (enum gk_log_level)lowest);
        for (int level = GK_LOG_DEBUG; level <= GK_LOG_ERROR; level++) {
            cr_assert_eq(gk_log_enabled((enum gk_log_level)level), level >= lowest);
            gk_log((enum gk_log_level)level, "L", "x");
            cr_assert_eq(next_line() != NULL, level >= lowest);
        }
        close(sockets[0]);
        close(sockets[1]);
    }
}

static void check_string(json_t *object, const char *name, const char *expected)
{
    const char *value = json_string_value(json_object_get(object, name));

    cr_assert(value && strcmp(value, expected) == 0, "%s: %s", name, value ? value : "(none)");
}

Test(log, json_line)
{
    const char *line;
    json_t *object;

    open_log(GK_LOG_JSON, GK_LOG_INFO);
    gk_log(GK_LOG_WARN, "SERVER-ROUND-LATE", "rank \"%s\" \\ \xc3\xa4", "3\n");
    line = next_line();
    cr_assert(strncmp(line, "{\"ts\":\"", 7) == 0, "ts comes first: %s", line);
    object = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
    cr_assert_not_null(object);
    cr_assert_eq(json_object_size(object), 5);
    cr_assert(is_time(json_string_value(json_object_get(object, "ts"))));
    check_string(object, "level", "WARN");
    check_string(object, "who", "server 0");
    check_string(object, "id", "SERVER-ROUND-LATE");
    check_string(object, "words", "rank \"3?\" \\ \xc3\xa4");
    json_decref(object);
}

Test(log, json_survives_bytes_that_are_no_utf8)
{
    json_t *object;

    open_log(GK_LOG_JSON, GK_LOG_INFO);
    gk_log_who("w\xff");
    gk_log(GK_LOG_INFO, "BYTES", "a%sb", "\xc3\x28\xff\x80");
    object = json_loads(next_line(), 0, NULL);
    cr_assert_not_null(object);
    check_string(object, "words", "a?(\?\?b");
    check_string(object, "who", "w?");
    json_decref(object);
}

Test(log, control_characters_do_not_break_the_line)
{
    open_log(GK_LOG_TEXT, GK_LOG_INFO);
    gk_log_who("a\nb");
    gk_log(GK_LOG_INFO, "C", "1\n2\r3\t4\x1b[0m5\x7f");
    cr_assert_str_eq(next_text(), "INFO  a?b C 1?2?3?4?[0m5?");
}

Test(log, long_words_are_cut)
{
    static char words[10000];
    const char *line;
    json_t *object;

    memset(words, '"',
           sizeof(words) - 1); /* JSON writes each as two characters: the longest line there is */
    for (int format = GK_LOG_TEXT; format <= GK_LOG_JSON; format++) {
        open_log((enum gk_log_format)format, GK_LOG_INFO);
        gk_log_who(words);
        gk_log(GK_LOG_INFO, "AN-ID-THAT-IS-AS-LONG-AS-AN-ID-CAN-BE-63-LETTERS-IN-ALL-WITH-XX", "%s",
               words);
        line = next_line();
        cr_assert_not_null(line);
        if (format == GK_LOG_JSON) {
            object = json_loads(line, 0, NULL);
            cr_assert_not_null(object);
            cr_assert_eq(strlen(json_string_value(json_object_get(object, "words"))),
                         GK_LOG_WORDS_BYTES - 1);
            json_decref(object);
        }
        close(sockets[0]);
        close(sockets[1]);
    }
}

Test(log, errno_is_kept)
{
    open_log(GK_LOG_TEXT, GK_LOG_INFO);
    close(sockets[1]);
    errno = ENOSPC;
    gk_log(GK_LOG_INFO, "E", "cannot be written");
    cr_assert_eq(errno, ENOSPC);
}

Test(log, flood_of_one_id_is_held_back)
{
    open_log(GK_LOG_TEXT, GK_LOG_INFO);
    for (int i = 0; i < 2 * GK_LOG_RATE; i++) {
        gk_log(GK_LOG_WARN, "FLOOD", "%d", i);
        cr_assert_eq(next_line() != NULL, i < GK_LOG_RATE, "line %d", i);
    }
    gk_log(GK_LOG_WARN, "OTHER", "x");
    cr_assert_str_eq(next_text(), "WARN  server 0 OTHER x");
    gk_log(GK_LOG_ERROR, "FLOOD", "x");
    cr_assert_str_eq(next_text(), "ERROR server 0 FLOOD x (64 more of these were left out before)");
    for (int i = 0; i < 2 * GK_LOG_RATE; i++) {
        gk_log(GK_LOG_ERROR, "FLOOD", "x");
        cr_assert_str_eq(next_text(), "ERROR server 0 FLOOD x");
    }
}

Test(log, json_says_what_was_held_back)
{
    json_t *object;

    open_log(GK_LOG_JSON, GK_LOG_INFO);
    for (int i = 0; i < GK_LOG_RATE + 3; i++) {
        gk_log(GK_LOG_WARN, "FLOOD", "x");
        (void)next_line();
    }
    gk_log(GK_LOG_ERROR, "FLOOD", "x");
    object = json_loads(next_line(), 0, NULL);
    cr_assert_eq(json_integer_value(json_object_get(object, "suppressed")), 3);
    json_decref(object);
}

Test(log, lines_that_do_not_fit_are_counted)
{
    static char buffer[1 << 16];
    int fds[2];
    ssize_t n;

    cr_assert_eq(pipe(fds), 0);
    fcntl(fds[1], F_SETFL, O_NONBLOCK);
    fcntl(fds[0], F_SETFL, O_NONBLOCK);
    while (write(fds[1], buffer, sizeof(buffer)) > 0) {
    }
    while (write(fds[1], buffer, 1) > 0) {
    }
    gk_log_open("gkps", GK_LOG_TEXT, GK_LOG_INFO, fds[1]);
    gk_log(GK_LOG_INFO, "LOST", "1");
    gk_log(GK_LOG_INFO, "LOST", "2");
    while (read(fds[0], buffer, sizeof(buffer)) > 0) {
    }
    for (int i = 0; i < 2; i++) {
        gk_log(GK_LOG_INFO, "KEPT", "3");
        n = read(fds[0], buffer, sizeof(buffer) - 1);
        cr_assert(n > 24);
        buffer[n] = '\0';
        cr_assert_str_eq(buffer + 24, i == 0 ? " INFO  gkps KEPT 3 (2 lines could not be written)\n"
                                             : " INFO  gkps KEPT 3\n");
    }
}

enum { THREADS = 4, LINES = 500 };

static void *log_much(void *argument)
{
    int thread = *(int *)argument;

    for (int i = 0; i < LINES; i++) {
        gk_log(GK_LOG_ERROR, "THREAD", "%d %d end", thread, i);
    }
    return NULL;
}

Test(log, threads_write_whole_lines)
{
    FILE *file = tmpfile();
    pthread_t threads[THREADS];
    int numbers[THREADS], next[THREADS] = {0};
    char line[LINE_BYTES];
    int lines = 0;

    gk_log_open("x", GK_LOG_TEXT, GK_LOG_INFO, fileno(file));
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        cr_assert_eq(pthread_create(&threads[i], NULL, log_much, &numbers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        gk_log_who("x"); /* while they log */
        cr_assert_eq(pthread_join(threads[i], NULL), 0);
    }
    rewind(file);
    while (fgets(line, sizeof(line), file)) {
        int thread, number, length = 0;

        cr_assert(is_time(line));
        cr_assert_eq(sscanf(line + 24, " ERROR x THREAD %d %d end\n%n", &thread, &number, &length),
                     2);
        cr_assert_eq((size_t)length, strlen(line + 24));
        cr_assert_eq(number, next[thread]++, "each thread's lines are in order");
        lines++;
    }
    cr_assert_eq(lines, THREADS * LINES);
    fclose(file);
}

static sem_t in_callback, let_go;

static void blocks(void *context, enum gk_log_level level, const char *line)
{
    (void)level;
    (void)line;
    if (context) {
        cr_assert_eq(sem_post(&in_callback), 0);
        cr_assert_eq(sem_wait(&let_go), 0);
    }
}

static void *log_once(void *unused)
{
    gk_log(GK_LOG_INFO, "LOG-FORK", "while another thread forks");
    return unused;
}

/* Where lines go may wait for the thread that forks: Python's interpreter lock does that.  The
 * child can log all the same. */
Test(log, fork_while_a_line_is_diverted, .timeout = 20)
{
    pthread_t thread;
    int status;
    pid_t child;

    gk_log_open("server 0", GK_LOG_TEXT, GK_LOG_INFO, STDERR_FILENO);
    gk_log_divert(blocks, &in_callback);
    cr_assert(sem_init(&in_callback, 0, 0) == 0 && sem_init(&let_go, 0, 0) == 0);
    cr_assert_eq(pthread_create(&thread, NULL, log_once, NULL), 0);
    cr_assert_eq(sem_wait(&in_callback), 0);
    child = fork();
    cr_assert(child >= 0);
    if (child == 0) {
        (void)alarm(10);
        gk_log_divert(blocks, NULL);
        gk_log(GK_LOG_INFO, "LOG-FORK", "in the child");
        _exit(7);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 7, "%d", status);
    cr_assert_eq(sem_post(&let_go), 0);
    cr_assert_eq(pthread_join(thread, NULL), 0);
}

Test(log, id_without_letters_is_our_bug, .signal = SIGABRT)
{
    gk_log(GK_LOG_INFO, "", "x");
}

Test(log_rate, window_starts_with_the_first_line)
{
    static struct gk_log_rate rate;
    uint64_t suppressed = 99, start = 12345;

    for (uint64_t i = 0; i < GK_LOG_RATE; i++) {
        cr_assert(gk_log_rate_admit(&rate, "A", start + i, false, &suppressed));
        cr_assert_eq(suppressed, 0);
    }
    suppressed = 99;
    cr_assert_not(gk_log_rate_admit(&rate, "A", start + GK_LOG_RATE, false, &suppressed));
    cr_assert_not(gk_log_rate_admit(&rate, "A", start + GK_LOG_RATE_US - 1, false, &suppressed));
    cr_assert_eq(suppressed, 99, "untouched when nothing is admitted");
    cr_assert(gk_log_rate_admit(&rate, "A", start + GK_LOG_RATE_US, false, &suppressed));
    cr_assert_eq(suppressed, 2);
    for (int i = 1; i < GK_LOG_RATE; i++) {
        cr_assert(gk_log_rate_admit(&rate, "A", start + GK_LOG_RATE_US, false, &suppressed));
        cr_assert_eq(suppressed, 0);
    }
    cr_assert_not(gk_log_rate_admit(&rate, "A", start + GK_LOG_RATE_US, false, &suppressed));
}

Test(log_rate, forced_lines_are_free)
{
    static struct gk_log_rate rate;
    uint64_t suppressed;

    for (int i = 0; i < 3 * GK_LOG_RATE; i++) {
        cr_assert(gk_log_rate_admit(&rate, "A", 5, true, &suppressed));
    }
    for (int i = 0; i < GK_LOG_RATE; i++) {
        cr_assert(gk_log_rate_admit(&rate, "A", 5, false, &suppressed), "line %d", i);
    }
    cr_assert_not(gk_log_rate_admit(&rate, "A", 5, false, &suppressed));
    cr_assert(gk_log_rate_admit(&rate, "A", 5, true, &suppressed));
    cr_assert_eq(suppressed, 1);
}

Test(log_rate, ids_beyond_the_table_share_one_place)
{
    static struct gk_log_rate rate;
    uint64_t suppressed;
    char id[32];

    for (int round = 0; round < GK_LOG_RATE; round++) {
        for (int i = 0; i < GK_LOG_IDS_MAX; i++) {
            snprintf(id, sizeof(id), "ID-%d", i);
            cr_assert(gk_log_rate_admit(&rate, id, 0, false, &suppressed));
        }
    }
    for (int i = 0; i < 2 * GK_LOG_RATE; i++) {
        snprintf(id, sizeof(id), "MORE-%d", i);
        cr_assert_eq(gk_log_rate_admit(&rate, id, 0, false, &suppressed), i < GK_LOG_RATE);
    }
    for (int i = 0; i < GK_LOG_IDS_MAX; i++) {
        snprintf(id, sizeof(id), "ID-%d", i);
        cr_assert_not(gk_log_rate_admit(&rate, id, 0, false, &suppressed),
                      "each counted for itself");
    }
}
