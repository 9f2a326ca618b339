/* The model of a running job, read from its servers: all shards at one version, while training goes
 * on. */
#ifndef GK_TOOL_EXPORT_LIVE_H
#define GK_TOOL_EXPORT_LIVE_H

#include "common/limits.h"
#include "common/words.h"
#include "proto/spec.h"

#include <stdbool.h>
#include <stdint.h>

struct gk_live_wish {
    const char *servers; /* ADDR[,ADDR...] */
    uint64_t timeout_us;
    bool at_given;
    uint64_t at; /* the version; not given: a little ahead of the job */
};

struct gk_live_model {
    char job[GK_JOB_NAME_BYTES];
    uint32_t epoch;
    uint64_t version, model_hash;
    struct gk_spec spec;
    float *params; /* spec.params_count */
};

/* Exit code, and words unless it is 0: 69 a server did not answer in time, 75 the job has no
 * version yet or ran away from us, 77 a server refuses, 78 the addresses are not all the shards of
 * one job, 65 what came is not what was promised.  Free the model with gk_live_model_clear() in any
 * case. */
int gk_export_live(const struct gk_live_wish *wish, struct gk_live_model *ret,
                   struct gk_words *words);
void gk_live_model_clear(struct gk_live_model *model);

#endif
