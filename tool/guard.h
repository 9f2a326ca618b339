/* `gkps guard COMMAND ...`: the parent that `gkps run` gives to each copy of a user's program, so
 * that all of its tree ends with it.  Hidden: nobody types it.
 *
 *   launcher --+-- guard --- program --- whatever it starts
 *              +-- guard --- program --- ...
 *
 * The program leads a process group of its own.  As "subreaper" of the system the guard inherits
 * whoever loses his parent below it, also those that have left the group, so that nobody gets out
 * of its sight.
 *
 * - It ends when the program has ended and nobody is left, in the way of the program: by its exit
 *   code, or by its signal.  Whoever outlives the program is told to end, and then killed.
 * - The link of the program to the launcher (descriptor 3) ends when the launcher does, however
 *   that dies: then the program is told to end, and all that is left is killed.
 * - When the guard itself is killed, the system kills the program, and the launcher inherits and
 *   kills the rest.
 *
 * The launcher cannot send what no process can catch, so others stand for it (GK_GUARD_*).  Before
 * the guard listens they end it, when nothing has been started yet, or are ignored. */
#ifndef GK_TOOL_GUARD_H
#define GK_TOOL_GUARD_H

#include <signal.h>

enum {
    GK_GUARD_KILL = SIGUSR1,              /* SIGKILL to everybody */
    GK_GUARD_STOP = SIGTSTP,              /* SIGSTOP to the group; SIGCONT stands for itself */
    GK_GUARD_GRACE_US = 5 * 1000 * 1000,  /* without a launcher: from SIGTERM to SIGKILL */
    GK_GUARD_OUTLIVE_US = 1 * 1000 * 1000 /* the same for who outlives the program */
};

#define GK_GUARD_NAME "guard" /* of the command */

/* Blocks until all is over.  argv[0] is its name, the command follows.  The exit code of the
 * program; 78 when it cannot be started. */
int gk_tool_guard(int argc, char **argv);

#endif
