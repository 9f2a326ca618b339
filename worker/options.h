/* The option table of gkps-worker: the settings of the library, and what its models need. */
#ifndef GK_WORKER_OPTIONS_H
#define GK_WORKER_OPTIONS_H

#include "worker/lib/settings.h"

/* Filled by gk_config_load(); strings belong to the config. */
struct gk_worker_options {
    const struct gk_config *config; /* where the values came from; set after loading */
    struct gk_settings settings;
    const char *model, *data;
    uint64_t batch;
    const char *init; /* a file of tensors; NULL: from the seed */
    uint64_t eval_every;
};

/* A row that the library has too. */
bool gk_worker_is_setting(const char *name);

/* The table, with names, defaults and bounds.  Static. */
const struct gk_program *gk_worker_program(void);

#endif
