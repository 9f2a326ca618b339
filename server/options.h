/* The server's option table and what its values mean together. */
#ifndef GK_SERVER_OPTIONS_H
#define GK_SERVER_OPTIONS_H

#include "common/config.h"

struct gk_server_options {
    const char *bind;
    const char *job;
    uint64_t shard, servers, workers;
    uint64_t memory_bytes; /* 0: half of what this machine, or its container, has */
    uint64_t deadline_s;
    bool insecure;
    uint64_t launcher_fd; /* 0: none */
    uint32_t cpu;         /* enum gk_cpu */
    uint32_t log_format, log_level;
};

const struct gk_program *gk_server_program(void);

/* Values that contradict each other: shard and servers, the length of the job's name.  GK_E_CONFIG
 * and words; the program ends with GK_EXIT_USAGE. */
enum gk_err gk_server_options_check(const struct gk_server_options *options,
                                    struct gk_words *words);

enum { GK_SERVER_ADDRESS_BYTES = 128 };

/* Where to bind: names become numbers, which is what ZeroMQ binds to.  *ret_local: reachable from
 * this machine only.  GK_E_CONFIG: malformed, does not resolve, or beyond
 * loopback without --insecure; with words. */
enum gk_err gk_server_options_address(const struct gk_server_options *options, char *ret_address,
                                      bool *ret_local, struct gk_words *words);

/* The budget in force. */
uint64_t gk_server_options_memory(const struct gk_server_options *options);

#endif
