/* The server's option table and what its values mean together. */
#ifndef GK_SERVER_OPTIONS_H
#define GK_SERVER_OPTIONS_H

#include "common/config.h"

/* Filled by gk_config_load(); strings belong to the config. */
struct gk_server_options {
    const struct gk_config *config; /* where the values came from; set after loading */
    const char *bind;
    const char *job;
    uint64_t shard, servers, workers;
    const char *state_dir; /* NULL: state in memory only */
    uint32_t sync;         /* enum gk_sync_policy */
    uint64_t fold_every;   /* versions */
    uint64_t log_bytes;    /* of all log files together */
    uint64_t keep_versions;
    uint64_t memory_bytes; /* 0: half of what this machine, or its container, has */
    uint64_t deadline_s;
    bool insecure;
    uint64_t launcher_fd; /* 0: none */
    bool allow_faults;
    uint32_t cpu; /* enum gk_cpu */
    uint32_t log_format, log_level;
};

/* The table, with names, defaults and bounds.  Static. */
const struct gk_program *gk_server_program(void);

/* Values that the table lets through: shard and servers contradict each other, the job's name is
 * none.  GK_E_CONFIG, words that say where the value came from, and the exit code that goes with
 * it.  Any thread. */
enum gk_err gk_server_options_check(const struct gk_server_options *options, int *ret_exit,
                                    struct gk_words *words);

enum { GK_SERVER_ADDRESS_BYTES = 128 };

/* Where to bind, into `ret_address` of GK_SERVER_ADDRESS_BYTES: names of either family become
 * numbers, which is what ZeroMQ binds to; * is all of IPv4, [::] all of both.  *ret_local:
 * reachable from this machine only.  GK_E_CONFIG, words, and the exit code: 64 malformed; 78 does
 * not resolve, or beyond loopback without --insecure.  May ask the resolver, and so block. */
enum gk_err gk_server_options_address(const struct gk_server_options *options, char *ret_address,
                                      bool *ret_local, int *ret_exit, struct gk_words *words);

/* What a process of this machine connects to, into GK_SERVER_ADDRESS_BYTES: the bound address, with
 * loopback for "all". */
void gk_server_options_endpoint(const char *bound, char *ret_address);

/* The budget in force in bytes; 0: none is known. */
uint64_t gk_server_options_memory(const struct gk_server_options *options);

#endif
