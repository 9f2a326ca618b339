/* Mutations of conversations: of one message, of the order of events, of two conversations. */
#include "tests/fuzz/mutate.h"
#include "tests/fuzz/session.h"

#include <string.h>

/* Kept between calls: a session is too large for the stack. */
static struct fuzz_session first, second;

static uint32_t any_event(const struct fuzz_session *session, struct fuzz_random *random)
{
    return fuzz_below(random, session->count);
}

/* A message among the events; the first event when there is none. */
static struct fuzz_event *any_message(struct fuzz_session *session, struct fuzz_random *random)
{
    uint32_t from = any_event(session, random);

    for (uint32_t i = 0; i < session->count; i++) {
        struct fuzz_event *event = &session->events[(from + i) % session->count];

        if (event->op == FUZZ_MESSAGE) {
            return event;
        }
    }
    return &session->events[0];
}

/* Room for one event at `at`; false: there is none. */
static bool open_gap(struct fuzz_session *session, uint32_t at)
{
    if (session->count == FUZZ_EVENTS_MAX) {
        return false;
    }
    memmove(&session->events[at + 1], &session->events[at],
            (session->count - at) * sizeof(session->events[0]));
    memset(&session->events[at], 0, sizeof(session->events[0]));
    session->count++;
    return true;
}

static void drop(struct fuzz_session *session, uint32_t at)
{
    fuzz_message_clear(&session->events[at].message);
    memmove(&session->events[at], &session->events[at + 1],
            (session->count - at - 1) * sizeof(session->events[0]));
    session->count--;
}

static void copy_event(struct fuzz_event *to, const struct fuzz_event *from)
{
    *to = *from;
    memset(&to->message, 0, sizeof(to->message));
    to->message.skewed = from->message.skewed;
    for (uint32_t i = 0; i < from->message.count; i++) {
        fuzz_message_add(&to->message, from->message.parts[i].bytes, from->message.parts[i].size);
    }
}

/* The same event once more, at once or later. */
static void repeat(struct fuzz_session *session, struct fuzz_random *random)
{
    uint32_t from = any_event(session, random);
    uint32_t to = from + fuzz_below(random, session->count - from) + 1;

    if (open_gap(session, to)) {
        copy_event(&session->events[to], &session->events[from]);
    }
}

static void swap(struct fuzz_session *session, struct fuzz_random *random)
{
    static struct fuzz_event held;
    uint32_t from = any_event(session, random);
    uint32_t to = fuzz_below(random, 2) ? any_event(session, random) : from + 1;

    if (to < session->count) {
        held = session->events[from];
        session->events[from] = session->events[to];
        session->events[to] = held;
    }
}

/* Something that is no message: time, an end of work, a connection. */
static void insert(struct fuzz_session *session, struct fuzz_random *random)
{
    static const uint32_t times_us[] = {0,         1,         50000,     200000,  500000,
                                        1000000,   2000000,   3000001,   5000000, 10000000,
                                        119000000, 121000000, 3600000000};
    uint32_t at = fuzz_below(random, session->count + 1);
    struct fuzz_event *event = &session->events[at];

    if (!open_gap(session, at)) {
        return;
    }
    event->op = (enum fuzz_op)(FUZZ_TICK + fuzz_below(random, FUZZ_OPS - FUZZ_TICK));
    if (fuzz_below(random, 2)) { /* the rare ones end most conversations */
        event->op = fuzz_below(random, 2) ? FUZZ_TICK : FUZZ_DONE;
    }
    event->who = (uint8_t)fuzz_below(random, 4);
    if (event->op == FUZZ_TICK) {
        event->argument = times_us[fuzz_below(random, sizeof(times_us) / sizeof(times_us[0]))];
    } else if (event->op == FUZZ_DONE) {
        event->argument = fuzz_below(random, 4) == 0 ? FUZZ_DONE_FAILS : 0;
    }
}

/* All work is done as soon as it is asked for, as far as this is known. */
static void insert_dones(struct fuzz_session *session, struct fuzz_random *random)
{
    for (uint32_t at = any_event(session, random); at < session->count; at += 2) {
        if (!open_gap(session, at)) {
            return;
        }
        session->events[at].op = FUZZ_DONE;
    }
}

static void mutate_event(struct fuzz_session *session, struct fuzz_random *random)
{
    struct fuzz_event *event = &session->events[any_event(session, random)];

    switch (fuzz_below(random, 3)) {
    case 0:
        event->who = (uint8_t)fuzz_interesting(random, event->who);
        break;
    case 1:
        event->argument = (uint32_t)fuzz_interesting(random, event->argument);
        break;
    default:
        session->setup = (uint8_t)fuzz_interesting(random, session->setup);
        break;
    }
}

static void mutate_session(struct fuzz_session *session, struct fuzz_random *random)
{
    struct fuzz_event *event, *other;

    if (session->count == 0) {
        insert(session, random);
        return;
    }
    event = any_message(session, random);
    other = any_message(session, random);
    switch (fuzz_below(random, 16)) {
    case 0:
        repeat(session, random);
        break;
    case 1:
        drop(session, any_event(session, random));
        break;
    case 2:
        swap(session, random);
        break;
    case 3:
    case 4:
        insert(session, random);
        break;
    case 5:
        mutate_event(session, random);
        break;
    case 6:
        insert_dones(session, random);
        break;
    case 7:
    case 8:
        if (event->op == FUZZ_MESSAGE && other->op == FUZZ_MESSAGE) {
            fuzz_message_borrow(&event->message, &other->message, random);
        }
        break;
    default:
        if (event->op == FUZZ_MESSAGE) {
            fuzz_message_mutate(&event->message, random);
        }
        break;
    }
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    struct fuzz_random random = {.state = seed};

    fuzz_session_read(data, size, &first);
    do {
        mutate_session(&first, &random);
    } while (fuzz_below(&random, 2) == 0);
    size = fuzz_session_write(&first, data, max_size);
    fuzz_session_clear(&first);
    return size;
}

/* The beginning of one conversation, then the end of another. */
size_t LLVMFuzzerCustomCrossOver(const uint8_t *data1, size_t size1, const uint8_t *data2,
                                 size_t size2, uint8_t *out, size_t max_out_size, unsigned int seed)
{
    struct fuzz_random random = {.state = seed};
    uint32_t cut, from;
    size_t size;

    fuzz_session_read(data1, size1, &first);
    fuzz_session_read(data2, size2, &second);
    cut = fuzz_below(&random, first.count + 1);
    from = fuzz_below(&random, second.count + 1);
    while (first.count > cut) {
        drop(&first, first.count - 1);
    }
    while (from < second.count && first.count < FUZZ_EVENTS_MAX) {
        copy_event(&first.events[first.count++], &second.events[from++]);
    }
    size = fuzz_session_write(&first, out, max_out_size);
    fuzz_session_clear(&first);
    fuzz_session_clear(&second);
    return size;
}
