/* A shell for the server core that does what a fuzzer's session says, and checks what the core may
 * ask of a shell: every message can be sent and would be accepted, memory is used only while it is
 * lent, EXIT is the last action.  gk_server_check() follows each step. */
#ifndef GK_TESTS_FUZZ_SERVER_SHELL_H
#define GK_TESTS_FUZZ_SERVER_SHELL_H

#include "server/core/server.h"
#include "tests/fuzz/session.h"

enum {
    FUZZ_SERVER_WORKERS_MAX = 4,
    FUZZ_SERVER_PENDING_MAX = 8,
    /* Bits of the setup byte.  Bits 0 and 1: workers - 1. */
    FUZZ_SERVER_TWO = 1 << 2,    /* servers */
    FUZZ_SERVER_SECOND = 1 << 3, /* this is shard 1 of them */
    FUZZ_SERVER_REMOTE = 1 << 4, /* DRAIN is refused */
    FUZZ_SERVER_SMALL = 1 << 5,  /* a budget that the job does not fit */
};

struct server_shell {
    struct gk_server_config config;
    struct gk_server *core;
    struct gk_server_actions *actions;
    const struct gk_vector_ops *ops;
    struct gk_queue *queue;
    struct gk_server_memory memory;
    float *pins[GK_PINS_MAX];
    struct gk_server_action pending[FUZZ_SERVER_PENDING_MAX];
    uint32_t pending_count;
    uint64_t session[FUZZ_SERVER_WORKERS_MAX]; /* as the last WELCOME said */
    uint64_t now_us, timer_us;
    bool exited, diverged;
    /* Who hears what is sent, or NULL: takes the message. */
    void (*sent)(void *context, uint64_t route, const struct fuzz_message *message);
    void *context;
};

/* With START given. */
void server_shell_init(struct server_shell *shell, uint8_t setup);
void server_shell_fini(struct server_shell *shell);
void server_shell_apply(struct server_shell *shell, const struct fuzz_event *event);

#endif
