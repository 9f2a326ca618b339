/* What servers answered to STATUS, put together and shown.  Pure but for the FILE that it is given.
 * The answers come from the network: any JSON is shown as far as it makes sense. */
#ifndef GK_TOOL_STATUS_VIEW_H
#define GK_TOOL_STATUS_VIEW_H

#include <jansson.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct gk_status_server {
    const char *address;  /* borrowed, like all here */
    const json_t *status; /* NULL: no answer */
    const char *words;    /* why there is none */
};

struct gk_status_total {
    uint32_t answers;    /* servers that answered */
    bool one_job;        /* all of one job uid */
    bool whole;          /* every shard of the job answered, once */
    bool hashed;         /* whole, and all hashes are of one version */
    uint64_t model_hash; /* of the whole model */
    uint64_t hash_version;
    bool balanced; /* on every shard */
};

void gk_status_total(const struct gk_status_server *servers, uint32_t count,
                     struct gk_status_total *ret_total);

/* pushes - (applied + returned + skipped + lost + pending) of one answer: 0 when the ledger
 * balances. */
int64_t gk_status_imbalance(const json_t *status);

/* 0; GK_EXIT_PEER when a server did not answer; GK_EXIT_INTERNAL when a ledger does not balance. */
int gk_status_code(const struct gk_status_server *servers, uint32_t count);

/* Tables for people. */
void gk_status_print(const struct gk_status_server *servers, uint32_t count, FILE *out);

/* One object: what follows from the answers, and the answers.  NULL: out of memory. */
json_t *gk_status_json(const struct gk_status_server *servers, uint32_t count);

#endif
