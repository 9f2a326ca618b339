#include "worker/core/window.h"

#include "common/assert.h"
#include "common/bits.h"
#include "common/limits.h"

#include <string.h>

void gk_window_start(struct gk_window *window, uint32_t chunks, uint32_t limit)
{
    GK_ASSERT(chunks > 0 && limit > 0 && limit <= GK_PULL_WINDOW);
    memset(window, 0, sizeof(*window));
    window->chunks = chunks;
    window->limit = limit;
}

void gk_window_stop(struct gk_window *window)
{
    memset(window, 0, sizeof(*window));
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

bool gk_window_send(struct gk_window *window, uint64_t now_us, uint64_t *req_ids,
                    uint32_t *ret_chunk, uint64_t *ret_req_id, bool *ret_again)
{
    struct gk_window_slot *slot;

    for (uint32_t i = 0; i < window->limit; i++) {
        slot = &window->slots[i];
        if (slot->active && slot->retry_us <= now_us) {
            slot->backoff_us = gk_min_u64(2 * slot->backoff_us, GK_RETRY_US_MAX);
            slot->retry_us = now_us + slot->backoff_us;
            *ret_chunk = slot->chunk;
            *ret_req_id = slot->req_id;
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
    slot->active = true;
    slot->chunk = window->next++;
    slot->req_id = ++*req_ids;
    slot->backoff_us = GK_RETRY_BULK_US_MIN;
    slot->retry_us = now_us + slot->backoff_us;
    *ret_chunk = slot->chunk;
    *ret_req_id = slot->req_id;
    *ret_again = false;
    return true;
}

bool gk_window_answer(struct gk_window *window, uint64_t req_id, uint64_t now_us,
                      uint32_t *ret_chunk)
{
    bool found = false;

    for (uint32_t i = 0; i < window->limit; i++) {
        struct gk_window_slot *slot = &window->slots[i];

        if (slot->active && slot->req_id == req_id) {
            *ret_chunk = slot->chunk;
            slot->active = false;
            window->done++;
            found = true;
        }
    }
    for (uint32_t i = 0; found && i < window->limit; i++) {
        struct gk_window_slot *slot = &window->slots[i];

        slot->retry_us = gk_max_u64(slot->retry_us, now_us + slot->backoff_us);
    }
    return found;
}

bool gk_window_holds(const struct gk_window *window, uint64_t req_id)
{
    for (uint32_t i = 0; i < window->limit; i++) {
        if (window->slots[i].active && window->slots[i].req_id == req_id) {
            return true;
        }
    }
    return false;
}

void gk_window_resend(struct gk_window *window, uint64_t now_us)
{
    for (uint32_t i = 0; i < window->limit; i++) {
        window->slots[i].retry_us = now_us;
        window->slots[i].backoff_us = GK_RETRY_BULK_US_MIN / 2;
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
