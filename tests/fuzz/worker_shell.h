/* A shell for the worker core that does what a fuzzer's session says, and checks what the core may
 * ask of a shell: every message can be sent and would be accepted, parameters are installed whole
 * and of the version that was asked for, EXIT is the last action.  gk_worker_step() itself ends
 * with gk_worker_check(). */
#ifndef GK_TESTS_FUZZ_WORKER_SHELL_H
#define GK_TESTS_FUZZ_WORKER_SHELL_H

#include "tests/fuzz/job.h"
#include "tests/fuzz/session.h"
#include "worker/core/worker.h"

enum {
    FUZZ_WORKERS = 2,
    FUZZ_WORKER_SERVERS_MAX = 2,
    FUZZ_WORKER_PENDING_MAX = 4,
    FUZZ_WORKER_REQUESTS_MAX = 16, /* remembered per shard */
    /* Bits of the setup byte.  Bit 0: rank. */
    FUZZ_WORKER_TWO = 1 << 1,       /* servers */
    FUZZ_WORKER_PATIENT = 1 << 2,   /* no deadline */
    FUZZ_WORKER_EVALUATES = 1 << 3, /* after every step */
    FUZZ_WORKER_TAKEOVER = 1 << 4,
    FUZZ_WORKER_SECOND_LIFE = 1 << 5, /* another nonce */
    FUZZ_WORKER_ANY = 1 << 6,         /* the rank is assigned */
    FUZZ_WORKER_HUGE = 1 << 7,        /* two of its values overflow when they are added */
};

struct worker_request {
    uint32_t kind;
    uint64_t req_id;
};

struct worker_shell {
    struct job job;
    struct gk_worker_config config;
    struct gk_worker *core;
    struct gk_worker_actions *actions;
    enum gk_worker_action_kind pending[FUZZ_WORKER_PENDING_MAX];
    uint64_t pending_step[FUZZ_WORKER_PENDING_MAX];
    uint32_t pending_count;
    struct worker_request requests[FUZZ_WORKER_SERVERS_MAX][FUZZ_WORKER_REQUESTS_MAX];
    uint64_t requests_count[FUZZ_WORKER_SERVERS_MAX];
    uint32_t rank;
    bool huge;
    bool stepped;  /* in this life */
    uint64_t slot; /* step of the last push that was persisted, + 1; 0: nothing */
    uint64_t now_us, timer_us;
    bool exited;
    int exit_code;
    /* Who hears what is sent, or NULL: takes the message. */
    void (*sent)(void *context, uint32_t shard, const struct fuzz_message *message);
    void *context;
};

/* With START given. */
void worker_shell_init(struct worker_shell *shell, uint8_t setup);
void worker_shell_fini(struct worker_shell *shell);
void worker_shell_apply(struct worker_shell *shell, const struct fuzz_event *event);

/* How an input names the request that this message answers (FUZZ_THE_REQUEST); the id itself when
 * there is none. */
uint64_t worker_shell_alias(const struct worker_shell *shell, uint32_t shard,
                            const struct gk_header *h);

#endif
