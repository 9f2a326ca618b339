/* A plain ROUTER on a thread of its own that sends back what it receives. */
#ifndef GK_TESTS_NET_ECHO_H
#define GK_TESTS_NET_ECHO_H

struct echo;

/* Exits the program when it cannot start. */
struct echo *echo_start(void);

const char *echo_address(const struct echo *echo);

/* Stop, join, free. */
void echo_stop(struct echo *echo);

#endif
