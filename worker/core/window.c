#include "worker/core/window.h"

#include "common/assert.h"
#include "common/bits.h"
#include "common/limits.h"

_Static_assert((uint64_t)GK_WINDOW_TRIES_MAX << GK_WINDOW_TRY_SHIFT == 0, "no room in an id");

/* The number of the try that an id belongs to, and the id of the first one. */
static uint32_t try_of(uint64_t req_id)
{
    return (uint32_t)(req_id >> GK_WINDOW_TRY_SHIFT);
}

static uint64_t first_id(uint64_t req_id)
{
    return req_id & ((UINT64_C(1) << GK_WINDOW_TRY_SHIFT) - 1);
}

void gk_window_stop(struct gk_window *window)
{
    struct gk_window kept = {.answer_us = window->answer_us};

    *window = kept;
}

void gk_window_start(struct gk_window *window, uint32_t chunks, uint32_t limit)
{
    GK_ASSERT(chunks > 0 && limit > 0 && limit <= GK_PULL_WINDOW);
    gk_window_stop(window);
    window->chunks = chunks;
    window->limit = limit;
}

static struct gk_window_slot *free_slot(struct gk_window *window)
{
    for (uint32_t i = 0; i < window->limit; i++) {
        if (!window->slots[i].active) {
            return &window->slots[i];
        }
    }
    return NULL;
}

static uint64_t first_backoff_us(const struct gk_window *window)
{
    return gk_max_u64(GK_RETRY_BULK_US_MIN,
                      gk_min_u64(2 * window->answer_us, GK_RETRY_BULK_US_MAX));
}

/* The id of the try that is made now. */
static uint64_t try_now(struct gk_window_slot *slot, uint64_t now_us)
{
    uint64_t number = gk_min_u64(slot->tries, GK_WINDOW_TRIES_MAX - 1);

    slot->tries++;
    slot->tried_us[number] = now_us;
    slot->retry_us = now_us + slot->backoff_us;
    return slot->req_id | number << GK_WINDOW_TRY_SHIFT;
}

bool gk_window_send(struct gk_window *window, uint64_t now_us, uint64_t *req_ids,
                    uint32_t *ret_chunk, uint64_t *ret_req_id, bool *ret_again)
{
    struct gk_window_slot *slot;

    for (uint32_t i = 0; i < window->limit; i++) {
        slot = &window->slots[i];
        if (slot->active && slot->retry_us <= now_us) {
            slot->backoff_us = gk_min_u64(2 * slot->backoff_us, GK_RETRY_BULK_US_MAX);
            *ret_chunk = slot->chunk;
            *ret_req_id = try_now(slot, now_us);
            *ret_again = true;
            return true;
        }
    }
    if (window->next == window->chunks) {
        return false;
    }
    slot = free_slot(window);
    if (!slot) {
        return false;
    }
    ++*req_ids;
    *slot = (struct gk_window_slot){
        .active = true,
        .chunk = window->next,
        .req_id = first_id(*req_ids),
        .backoff_us = first_backoff_us(window),
    };
    window->next++;
    *ret_chunk = slot->chunk;
    *ret_req_id = try_now(slot, now_us);
    *ret_again = false;
    return true;
}

static void learn(struct gk_window *window, uint64_t tried_us, uint64_t now_us)
{
    uint64_t took_us = now_us - gk_min_u64(now_us, tried_us);
    bool longer = window->answer_us > 0 && took_us > window->answer_us;

    window->answer_us = longer ? (window->answer_us + took_us) / 2 : took_us;
}

void gk_window_heard(struct gk_window *window, uint64_t now_us)
{
    for (uint32_t i = 0; i < window->limit; i++) {
        struct gk_window_slot *slot = &window->slots[i];

        slot->retry_us = gk_max_u64(slot->retry_us, now_us + slot->backoff_us);
    }
}

bool gk_window_slot_has(const struct gk_window_slot *slot, uint64_t req_id)
{
    return slot->active && slot->req_id == first_id(req_id) && try_of(req_id) < slot->tries;
}

bool gk_window_answer(struct gk_window *window, uint64_t req_id, uint64_t now_us,
                      uint32_t *ret_chunk)
{
    bool found = false;

    for (uint32_t i = 0; i < window->limit; i++) {
        struct gk_window_slot *slot = &window->slots[i];

        if (gk_window_slot_has(slot, req_id)) {
            *ret_chunk = slot->chunk;
            slot->active = false;
            learn(window, slot->tried_us[try_of(req_id)], now_us);
            window->done++;
            found = true;
        }
    }
    gk_window_heard(window, now_us);
    return found;
}

bool gk_window_holds(const struct gk_window *window, uint64_t req_id)
{
    for (uint32_t i = 0; i < window->limit; i++) {
        if (gk_window_slot_has(&window->slots[i], req_id)) {
            return true;
        }
    }
    return false;
}

void gk_window_resend(struct gk_window *window, uint64_t now_us)
{
    for (uint32_t i = 0; i < window->limit; i++) {
        struct gk_window_slot *slot = &window->slots[i];

        slot->retry_us = now_us;
        slot->backoff_us = GK_RETRY_BULK_US_MIN / 2;
        for (uint32_t number = 0; number < GK_WINDOW_TRIES_MAX; number++) {
            slot->tried_us[number] = now_us; /* the time without a connection tells nothing */
        }
    }
}

uint64_t gk_window_due_us(const struct gk_window *window, uint64_t now_us)
{
    uint64_t due_us = UINT64_MAX;
    bool room = false;

    for (uint32_t i = 0; i < window->limit; i++) {
        if (window->slots[i].active) {
            due_us = gk_min_u64(due_us, window->slots[i].retry_us);
        } else {
            room = true;
        }
    }
    return room && window->next < window->chunks ? now_us : due_us;
}
