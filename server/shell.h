/* The server daemon: sockets, timer, signals and threads around the pure core. */
#ifndef GK_SERVER_SHELL_H
#define GK_SERVER_SHELL_H

#include "server/options.h"

/* Runs until the core exits; returns the exit code of the process.  Everything is said in the log
 * and on the launcher's line. */
int gk_server_run(const struct gk_server_options *options);

#endif
