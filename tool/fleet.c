#include "tool/fleet.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { FILES_OF_OUR_OWN = 64, FILES_PER_CHILD = 4 }; /* link, error pipe; and those of a start */

/* The usual soft limit of 1024 is too low for large runs, the hard one is not. */
static void raise_files_limit(uint32_t children)
{
    struct rlimit limit;
    rlim_t needed = FILES_OF_OUR_OWN + FILES_PER_CHILD * (rlim_t)children;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < needed) {
        limit.rlim_cur = needed < limit.rlim_max ? needed : limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit); /* a start that fails says so */
    }
}

enum gk_err gk_fleet_init(struct gk_fleet *fleet, uint32_t servers, uint32_t workers)
{
    fleet->servers_count = servers;
    fleet->children_count = servers + workers;
    fleet->children = calloc(fleet->children_count, sizeof(*fleet->children));
    if (!fleet->children) {
        return GK_E_NOMEM;
    }
    for (uint32_t i = 0; i < fleet->children_count; i++) {
        fleet->children[i].role = i < servers ? GK_ROLE_SERVER : GK_ROLE_WORKER;
        fleet->children[i].index = i < servers ? i : i - servers;
        fleet->children[i].done = true;
    }
    raise_files_limit(fleet->children_count);
    return GK_OK;
}

void gk_fleet_fini(struct gk_fleet *fleet)
{
    free(fleet->children);
    memset(fleet, 0, sizeof(*fleet));
}

uint32_t gk_fleet_running(const struct gk_fleet *fleet, enum gk_role role)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < fleet->children_count; i++) {
        count += fleet->children[i].role == role && !fleet->children[i].done;
    }
    return count;
}

uint32_t gk_fleet_restarting(const struct gk_fleet *fleet, enum gk_role role)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < fleet->children_count; i++) {
        count += fleet->children[i].role == role && fleet->children[i].restart.due_us > 0;
    }
    return count;
}

void gk_fleet_cancel(struct gk_fleet *fleet)
{
    for (uint32_t i = 0; i < fleet->children_count; i++) {
        gk_restart_cancel(&fleet->children[i].restart);
    }
}

bool gk_fleet_empty(const struct gk_fleet *fleet)
{
    return gk_fleet_running(fleet, GK_ROLE_WORKER) + gk_fleet_running(fleet, GK_ROLE_SERVER) == 0;
}

void gk_fleet_signal(struct gk_fleet *fleet, enum gk_role role, int number)
{
    for (uint32_t i = 0; i < fleet->children_count; i++) {
        if (fleet->children[i].role == role) {
            gk_child_signal(&fleet->children[i], number);
        }
    }
}

void gk_fleet_tick(struct gk_fleet *fleet, uint64_t now_us)
{
    for (uint32_t i = 0; i < fleet->children_count; i++) {
        gk_child_tick(&fleet->children[i], now_us);
    }
}

uint32_t gk_fleet_endpoints(const struct gk_fleet *fleet)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < fleet->servers_count; i++) {
        count += fleet->children[i].address[0] != '\0';
    }
    return count;
}

void gk_fleet_name(const struct gk_fleet *fleet,
                   bool (*missing)(const void *context, const struct gk_child *child),
                   const void *context, char *ret, size_t ret_bytes)
{
    const struct gk_child *first = NULL;
    uint32_t count = 0;
    size_t used;

    for (uint32_t i = 0; i < fleet->children_count; i++) {
        if (missing(context, &fleet->children[i])) {
            first = first ? first : &fleet->children[i];
            count++;
        }
    }
    if (!first) {
        (void)snprintf(ret, ret_bytes, "nobody");
        return;
    }
    gk_child_name(first, ret, ret_bytes);
    used = strlen(ret);
    if (count > 1) {
        (void)snprintf(ret + used, ret_bytes - used, " and %u more", count - 1);
    }
}
