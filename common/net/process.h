/* What every program does before anything else. */
#ifndef GK_COMMON_NET_PROCESS_H
#define GK_COMMON_NET_PROCESS_H

/* Descriptors 0 to 2 that are closed become /dev/null: the event loop would get them otherwise,
 * refuse to close them, and log lines would go into a socket.  A file that reaches its size limit
 * becomes an error of a write rather than a signal.  Before threads start. */
void gk_process_begin(void);

#endif
