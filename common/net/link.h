/* The line between the launcher and a daemon: a socketpair that the child inherits, JSON lines both
 * ways.  End of file on the child's side means that the launcher died: drain and exit.
 *
 * Child to launcher: {"event":"endpoint","address":...}, "progress", "summary", "death" (with
 * words and exit code).  Any line of a user's program tells that it has opened gkps.  Launcher to
 * child: its presence, and under a fault script what goes wrong on purpose: {"fault":"drop",...}
 * (common/net/fault.h), {"fault":"disk-full","on":true}. */
#ifndef GK_COMMON_NET_LINK_H
#define GK_COMMON_NET_LINK_H

#include "common/err.h"
#include "common/words.h"

#include <jansson.h>

#include <stdbool.h>

struct uv_loop_s;
struct gk_link;

enum { GK_LINK_LINE_BYTES_MAX = 64 * 1024 };

struct gk_link_callbacks {
    /* Borrowed; every line that is one JSON object. */
    void (*line)(void *context, const json_t *object);
    void (*ended)(void *context); /* end of file or an error; once */
};

/* Child side: take over the inherited descriptor (closed with the link; made close-on-exec).
 * GK_E_INVALID: it is not an open socket.  The launcher may use the same on its end. */
enum gk_err gk_link_open(struct uv_loop_s *loop, int fd, const struct gk_link_callbacks *callbacks,
                         void *context, struct gk_link **ret_link, struct gk_words *words);

/* One line; borrows the object.  Dropped silently when the other side is gone.  Accepts a NULL
 * link. */
void gk_link_send(struct gk_link *link, const json_t *object);

/* False while the other side has many lines still to read, as a launcher that is stopped does: what
 * can be done without is not sent then, so that there is room for what cannot.  A NULL link: true.
 */
bool gk_link_heard(const struct gk_link *link);

/* Idempotent; what was sent is written first, for a second at most.  Accepts NULL. */
void gk_link_close(struct gk_link *link, void (*closed)(void *context));

/* The same, but as long as the other side lives: it may be stopped for minutes. */
void gk_link_finish(struct gk_link *link, void (*closed)(void *context));

#endif
