/* What answers at the address of a server that does not come up: for the words of `gkps status`,
 * which else would call everything "no server". */
#ifndef GK_TOOL_PROBE_H
#define GK_TOOL_PROBE_H

#include <stdint.h>

enum gk_probe_result {
    GK_PROBE_UNKNOWN,     /* not found out: no descriptors, or an error of its own kind */
    GK_PROBE_NAME,        /* the host's name has no address */
    GK_PROBE_REFUSED,     /* nobody listens on the port */
    GK_PROBE_UNREACHABLE, /* no way there, or no answer at all */
    GK_PROBE_SILENT,      /* a connection, and then nothing: stopped, or another protocol */
    GK_PROBE_CLOSED,      /* a connection that is ended at once */
    GK_PROBE_ZMTP,        /* ZeroMQ is there, but does not finish its handshake */
    GK_PROBE_OTHER,       /* another protocol */
};

struct gk_probe {
    const char *address;          /* "tcp://HOST:PORT", borrowed */
    enum gk_probe_result *result; /* set */
};

/* Connect to all of them at once, say the first bytes of ZeroMQ's greeting and look at what comes,
 * for at most `wait_ms` in all, but for the resolver. */
void gk_probe(const struct gk_probe *probes, uint32_t count, int wait_ms);

/* What to say behind the address: ": nobody listens there ...". */
const char *gk_probe_words(enum gk_probe_result result);

#endif
