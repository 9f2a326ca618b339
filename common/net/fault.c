/* Draw number `index` of a stream decides one question about one message: message n owns the
 * indices 16 n to 16 n + 15.  Delayed messages wait in one list, in the order of their times. */
#include "common/net/fault.h"

#include "common/assert.h"
#include "common/limits.h"
#include "common/net/clock.h"
#include "common/rng.h"

#include <uv.h>

#include <stdlib.h>
#include <string.h>

enum {
    DRAWS_PER_MESSAGE = 16, /* one a kind, then those that choose the bit */
    DRAW_PART = 8,
    DRAW_BIT = 5, /* in pairs: gk_rng_below() takes the draws 2 i and 2 i + 1 */
};

struct waiting {
    struct waiting *next;
    uint64_t due_us, route, bytes;
    enum gk_fault_way way;
    uint32_t parts_count;
    struct gk_buf *parts[GK_PARTS_MAX];
};

struct rule {
    double chance;
    uint64_t amount_us;
};

struct gk_fault {
    uv_timer_t timer;
    struct gk_fault_setup setup;
    uint64_t seed;
    struct rule rules[GK_FAULT_KINDS];
    uint64_t messages[2]; /* of either way: the number of the next draw */
    struct waiting *first;
    uint32_t waiting_count;
    uint64_t waiting_bytes;
    bool closing;
    struct gk_fault_stats stats;
};

static const char *const names[GK_FAULT_KINDS + 1] = {"partition", "drop",  "corrupt",
                                                      "duplicate", "delay", "heal"};

enum gk_err gk_fault_open(const struct gk_fault_setup *setup, struct gk_fault **ret_fault)
{
    struct gk_fault *fault = calloc(1, sizeof(*fault));

    if (!fault) {
        return GK_E_NOMEM;
    }
    fault->setup = *setup;
    (void)uv_timer_init(setup->loop, &fault->timer); /* cannot fail */
    fault->timer.data = fault;
    uv_unref((uv_handle_t *)&fault->timer); /* the socket keeps the loop running */
    *ret_fault = fault;
    return GK_OK;
}

static void waiting_free(struct waiting *waiting)
{
    for (uint32_t i = 0; i < waiting->parts_count; i++) {
        gk_buf_unref(waiting->parts[i]);
    }
    free(waiting);
}

static struct waiting *take_first(struct gk_fault *fault)
{
    struct waiting *first = fault->first;

    fault->first = first->next;
    fault->waiting_count--;
    fault->waiting_bytes -= first->bytes;
    return first;
}

static void on_closed(uv_handle_t *handle)
{
    free(handle->data);
}

void gk_fault_close(struct gk_fault *fault)
{
    if (!fault || fault->closing) {
        return;
    }
    fault->closing = true;
    while (fault->first) {
        waiting_free(take_first(fault));
    }
    uv_close((uv_handle_t *)&fault->timer, on_closed);
}

/* A number within [0, max], or the fallback where there is none. */
static bool read_number(const json_t *object, const char *key, double max, double *ret)
{
    const json_t *value = json_object_get(object, key);

    if (!value) {
        return true;
    }
    if (!json_is_number(value) || !(json_number_value(value) >= 0.0) ||
        json_number_value(value) > max) {
        return false;
    }
    *ret = json_number_value(value);
    return true;
}

enum gk_err gk_fault_command_read(const json_t *object, struct gk_fault_command *ret_command,
                                  struct gk_words *words)
{
    const char *name = json_string_value(json_object_get(object, "fault"));
    struct gk_fault_command command = {.kind = GK_FAULT_KINDS + 1, .peer = -1, .chance = 1.0};
    double peer = -1.0, amount_us = 0.0, seed = 0.0;

    for (uint32_t i = 0; name && i <= GK_FAULT_KINDS; i++) {
        command.kind = strcmp(name, names[i]) == 0 ? i : command.kind;
    }
    if (command.kind > GK_FAULT_KINDS) {
        gk_words_set(words, "there is no fault '%.40s'", name ? name : "");
        return GK_E_INVALID;
    }
    if (!read_number(object, "chance", 1.0, &command.chance) ||
        !read_number(object, "peer", GK_WORKERS_MAX, &peer) ||
        !read_number(object, "amount_us", 1e12, &amount_us) ||
        !read_number(object, "seed", 1e15, &seed)) {
        gk_words_set(words, "fault '%s': a number is out of range", name);
        return GK_E_INVALID;
    }
    command.peer = (int64_t)peer;
    command.amount_us = (uint64_t)amount_us;
    command.seed = (uint64_t)seed;
    *ret_command = command;
    return GK_OK;
}

void gk_fault_set(struct gk_fault *fault, const struct gk_fault_command *command)
{
    GK_ASSERT(command->kind <= GK_FAULT_KINDS);
    fault->seed = command->seed;
    if (command->kind == GK_FAULT_KINDS) {
        memset(fault->rules, 0, sizeof(fault->rules));
        return;
    }
    fault->rules[command->kind].chance = command->chance;
    fault->rules[command->kind].amount_us = command->amount_us;
}

/* Onwards, to the socket or to its owner. */
static void pass(struct gk_fault *fault, enum gk_fault_way way, uint64_t route,
                 struct gk_buf *const *parts, uint32_t parts_count)
{
    if (way == GK_FAULT_OUT) {
        fault->setup.out(fault->setup.context, route, parts, parts_count);
    } else {
        fault->setup.in(fault->setup.context, route, parts, parts_count);
    }
}

static void arm(struct gk_fault *fault);

static void on_timer(uv_timer_t *timer)
{
    struct gk_fault *fault = timer->data;
    uint64_t now_us = gk_now_us();

    /* The owner may close us from within its callback: memory stays until the timer is closed. */
    while (!fault->closing && fault->first && fault->first->due_us <= now_us) {
        struct waiting *waiting = take_first(fault);

        pass(fault, waiting->way, waiting->route, waiting->parts, waiting->parts_count);
        waiting_free(waiting);
    }
    if (!fault->closing) {
        arm(fault);
    }
}

/* libuv counts whole milliseconds and may be early by some; then on_timer() arms again. */
static void arm(struct gk_fault *fault)
{
    uint64_t now_us = gk_now_us();
    uint64_t wait_us;

    if (!fault->first) {
        (void)uv_timer_stop(&fault->timer);
        return;
    }
    wait_us = fault->first->due_us > now_us ? fault->first->due_us - now_us : 0;
    (void)uv_timer_start(&fault->timer, on_timer, (wait_us + 999) / 1000, 0);
}

/* False: no room for it. */
static bool wait_for(struct gk_fault *fault, enum gk_fault_way way, uint64_t route,
                     struct gk_buf *const *parts, uint32_t parts_count)
{
    struct waiting **link = &fault->first;
    struct waiting *waiting = calloc(1, sizeof(*waiting));

    if (!waiting || fault->waiting_count == GK_FAULT_QUEUE_MESSAGES_MAX) {
        free(waiting);
        return false;
    }
    waiting->way = way;
    waiting->route = route;
    waiting->due_us = gk_now_us() + fault->rules[GK_FAULT_DELAY].amount_us;
    for (uint32_t i = 0; i < parts_count; i++) {
        waiting->bytes += parts[i]->size;
    }
    if (fault->waiting_bytes + waiting->bytes > GK_FAULT_QUEUE_BYTES_MAX) {
        free(waiting);
        return false;
    }
    for (uint32_t i = 0; i < parts_count; i++) {
        waiting->parts[i] = gk_buf_ref(parts[i]);
    }
    waiting->parts_count = parts_count;
    while (*link && (*link)->due_us <= waiting->due_us) {
        link = &(*link)->next;
    }
    waiting->next = *link;
    *link = waiting;
    fault->waiting_count++;
    fault->waiting_bytes += waiting->bytes;
    arm(fault);
    return true;
}

/* A copy with one other bit: the buffer itself may be sent again.  NULL: there is no memory, or
 * nothing in it. */
static struct gk_buf *damaged(const struct gk_rng *rng, uint64_t message, const struct gk_buf *part)
{
    struct gk_buf *copy = part->size > 0 ? gk_buf_copy(part->data, part->size) : NULL;
    uint64_t bit;

    if (copy) {
        bit = gk_rng_below(rng, message * DRAWS_PER_MESSAGE / 2 + DRAW_BIT, part->size * 8);
        copy->data[bit / 8] = (uint8_t)(copy->data[bit / 8] ^ (1u << bit % 8));
    }
    return copy;
}

static bool drawn(struct gk_fault *fault, const struct gk_rng *rng, uint64_t message,
                  enum gk_fault_kind kind)
{
    double chance = fault->rules[kind].chance;
    bool hit = chance > 0.0 &&
               (double)gk_rng_float(rng, message * DRAWS_PER_MESSAGE + (uint64_t)kind) < chance;

    fault->stats.done[kind] += hit;
    return hit;
}

void gk_fault_message(struct gk_fault *fault, enum gk_fault_way way, uint64_t route,
                      struct gk_buf *const *parts, uint32_t parts_count)
{
    const struct gk_rng rng = {.seed = fault->seed,
                               .purpose = GK_RNG_FAULT,
                               .a = fault->setup.us,
                               .b = fault->setup.peer * UINT64_C(2) + (uint64_t)way};
    uint64_t message = fault->messages[way]++;
    struct gk_buf *mine[GK_PARTS_MAX], *copy = NULL;
    uint32_t copies, which = 0;

    GK_ASSERT(parts_count > 0 && parts_count <= GK_PARTS_MAX && !fault->closing);
    fault->stats.messages++;
    if (drawn(fault, &rng, message, GK_FAULT_PARTITION) ||
        drawn(fault, &rng, message, GK_FAULT_DROP)) {
        return;
    }
    memcpy(mine, parts, parts_count * sizeof(*parts));
    if (drawn(fault, &rng, message, GK_FAULT_CORRUPT)) {
        which = gk_rng_u32(&rng, message * DRAWS_PER_MESSAGE + DRAW_PART) % parts_count;
        copy = damaged(&rng, message, parts[which]);
        mine[which] = copy ? copy : mine[which];
    }
    copies = drawn(fault, &rng, message, GK_FAULT_DUPLICATE) ? 2 : 1;
    for (uint32_t i = 0; i < copies && !fault->closing; i++) {
        if (!drawn(fault, &rng, message, GK_FAULT_DELAY)) {
            pass(fault, way, route, mine, parts_count);
        } else if (!wait_for(fault, way, route, mine, parts_count)) {
            fault->stats.overflowed++;
        }
    }
    gk_buf_unref(copy);
}

const struct gk_fault_stats *gk_fault_stats(const struct gk_fault *fault)
{
    return &fault->stats;
}
