#include "tests/fuzz/session.h"

#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

static bool has_argument(enum fuzz_op op)
{
    return op == FUZZ_TICK || op == FUZZ_DONE || op == FUZZ_STOP;
}

bool fuzz_event_read(struct fuzz_bytes *in, struct fuzz_event *ret)
{
    if (in->left == 0) {
        return false;
    }
    *ret = (struct fuzz_event){.op = (enum fuzz_op)(fuzz_take_u8(in) % FUZZ_OPS)};
    ret->who = fuzz_take_u8(in);
    if (has_argument(ret->op)) {
        ret->argument = fuzz_take_u32(in);
    } else if (ret->op == FUZZ_MESSAGE) {
        fuzz_message_read(in, &ret->message);
    }
    return true;
}

size_t fuzz_event_write(const struct fuzz_event *event, uint8_t *ret, size_t room)
{
    size_t size = 2;

    if (room < 6) {
        return 0;
    }
    ret[0] = (uint8_t)event->op;
    ret[1] = event->who;
    if (has_argument(event->op)) {
        for (uint32_t b = 0; b < 4; b++) {
            ret[size++] = (uint8_t)(event->argument >> 8 * b);
        }
    } else if (event->op == FUZZ_MESSAGE) {
        size_t more = fuzz_message_write(&event->message, ret + size, room - size);

        size = more > 0 ? size + more : 0;
    }
    return size;
}

void fuzz_session_read(const uint8_t *data, size_t size, struct fuzz_session *ret)
{
    struct fuzz_bytes in = {.at = data, .left = size};

    ret->setup = fuzz_take_u8(&in);
    ret->count = 0;
    while (ret->count < FUZZ_EVENTS_MAX && fuzz_event_read(&in, &ret->events[ret->count])) {
        ret->count++;
    }
}

size_t fuzz_session_write(const struct fuzz_session *session, uint8_t *ret, size_t room)
{
    size_t size = 1;

    if (room == 0) {
        return 0;
    }
    ret[0] = session->setup;
    for (uint32_t i = 0; i < session->count; i++) {
        size_t more = fuzz_event_write(&session->events[i], ret + size, room - size);

        if (more == 0) {
            break;
        }
        size += more;
    }
    return size;
}

void fuzz_session_clear(struct fuzz_session *session)
{
    for (uint32_t i = 0; i < session->count; i++) {
        fuzz_message_clear(&session->events[i].message);
    }
    session->count = 0;
}
