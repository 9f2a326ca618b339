/* A conversation as a fuzzer sees it: what happens to one core, in order.
 *
 * In an input it is one byte that says what kind of core it is, then the events: one byte
 * (operation), one byte (who: a route of the server, a shard of the worker), then four bytes of
 * argument (TICK, DONE, STOP) or a message (wire.h). */
#ifndef GK_TESTS_FUZZ_SESSION_H
#define GK_TESTS_FUZZ_SESSION_H

#include "tests/fuzz/wire.h"

enum { FUZZ_EVENTS_MAX = 160 };

enum fuzz_op {
    FUZZ_MESSAGE,
    FUZZ_TICK, /* time goes on by `argument` microseconds */
    FUZZ_DONE, /* what was asked for longest is done; FUZZ_DONE_FAILS: it failed */
    FUZZ_UP,   /* worker: connected */
    FUZZ_DOWN, /* the connection is lost */
    FUZZ_STOP,
    FUZZ_RESTART, /* a new life; worker, `who` odd: without its slot */
    FUZZ_OPS,
};

enum { FUZZ_DONE_FAILS = 1 };

struct fuzz_event {
    enum fuzz_op op;
    uint8_t who;
    uint32_t argument;
    struct fuzz_message message;
};

struct fuzz_session {
    uint8_t setup;
    uint32_t count;
    struct fuzz_event events[FUZZ_EVENTS_MAX];
};

/* The number that stands for "the session that the shard gave this rank" or "the request that this
 * answers" in an input, so that what was recorded still fits after other events have changed. */
#define FUZZ_THE_SESSION UINT64_C(0x5e551015e55101)
#define FUZZ_THE_REQUEST UINT64_C(0x4e90e574e90e57) /* + n: the n-th newest one before it */

/* The next event; false: the input is at its end.  Clear its message. */
bool fuzz_event_read(struct fuzz_bytes *in, struct fuzz_event *ret);
size_t fuzz_event_write(const struct fuzz_event *event, uint8_t *ret, size_t room);

/* Cut after FUZZ_EVENTS_MAX events. */
void fuzz_session_read(const uint8_t *data, size_t size, struct fuzz_session *ret);

/* Events at the end that do not fit are left out. */
size_t fuzz_session_write(const struct fuzz_session *session, uint8_t *ret, size_t room);
void fuzz_session_clear(struct fuzz_session *session);

/* The two entry points of libFuzzer for all targets whose input is a session are in
 * session_mutate.c. */

#endif
