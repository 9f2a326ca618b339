/* What every program does before anything else. */
#ifndef GK_COMMON_NET_PROCESS_H
#define GK_COMMON_NET_PROCESS_H

#include "common/err.h"
#include "common/words.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    /* Descriptors that a process needs beside those it was given: the loop, ZeroMQ and its threads,
     * data and state files; and for each socket that connects: itself, its monitor, a connection
     * and the next one. */
    GK_PROCESS_FILES = 40,
    GK_PROCESS_FILES_PER_SOCKET = 6,
    GK_PROCESS_FILES_PER_CHILD = 3, /* of the launcher: link, standard error, the pipe of exec */
};

/* Descriptors 0 to 2 that are closed become /dev/null: the event loop would get them otherwise,
 * refuse to close them, and log lines would go into a socket.  A file that reaches its size limit
 * becomes an error of a write rather than a signal.  Before threads start. */
void gk_process_begin(void);

/* See that `needed` more descriptors can be opened, and raise the soft limit where it is in the
 * way: ZeroMQ and libuv abort at the start when they get none.  GK_E_LIMIT: the hard limit is too
 * low; words say what is needed.  Before threads start. */
enum gk_err gk_process_files(uint32_t needed, struct gk_words *words);

/* Whether `count` more can be opened now, as far as the limit goes.  Any thread. */
bool gk_process_files_free(uint32_t count);

#endif
