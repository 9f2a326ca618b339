/* All children of one run: S servers, then N workers. */
#ifndef GK_TOOL_FLEET_H
#define GK_TOOL_FLEET_H

#include "common/err.h"
#include "tool/child.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gk_fleet {
    struct gk_child *children; /* each is `done` until it is started */
    uint32_t children_count;
    uint32_t servers_count;
};

/* GK_E_NOMEM.  Raises the soft limit of open files where so many children need it. */
enum gk_err gk_fleet_init(struct gk_fleet *fleet, uint32_t servers, uint32_t workers);
void gk_fleet_fini(struct gk_fleet *fleet); /* after the loop has closed the children's handles */

uint32_t gk_fleet_running(const struct gk_fleet *fleet, enum gk_role role);
uint32_t gk_fleet_restarting(const struct gk_fleet *fleet,
                             enum gk_role role);   /* a new life is due */
void gk_fleet_cancel(struct gk_fleet *fleet);      /* no new lives any more */
bool gk_fleet_empty(const struct gk_fleet *fleet); /* nobody runs */
void gk_fleet_signal(struct gk_fleet *fleet, enum gk_role role, int number);
void gk_fleet_tick(struct gk_fleet *fleet, uint64_t now_us);

/* Servers that have told their address. */
uint32_t gk_fleet_endpoints(const struct gk_fleet *fleet);

/* Write who is waited for: "worker 3 and 2 more"; "nobody". */
void gk_fleet_name(const struct gk_fleet *fleet,
                   bool (*missing)(const void *context, const struct gk_child *child),
                   const void *context, char *ret, size_t ret_bytes);

#endif
