/* STATUS as JSON: the core's view, and what only the shell knows. */
#ifndef GK_SERVER_STATUS_H
#define GK_SERVER_STATUS_H

#include "common/buf.h"
#include "common/net/zsock.h"
#include "server/core/server.h"
#include "server/store/store.h"

#include <jansson.h>

enum { GK_SERVER_STATUS_RANKS_MAX = 256 }; /* listed; more are counted in "ranks_omitted" */

struct gk_server_facts {
    const struct gk_server_config *config;
    const struct gk_server *core;
    uint64_t now_us, started_us;
    const struct gk_zsock_stats *net;
    uint64_t mode_corrections; /* of the compute thread */
    const char *state_dir;     /* NULL: state in memory only */
    struct gk_store_stats store;
};

/* At most GK_STATUS_BYTES_MAX bytes of JSON; NULL: no memory.  Gives a reference. */
struct gk_buf *gk_server_status(const struct gk_server_facts *facts);

/* {"event":"summary",...}: what the launcher adds up.  NULL: no memory. */
json_t *gk_server_summary(const struct gk_server_config *config, const struct gk_server *core);

#endif
