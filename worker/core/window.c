#include "worker/core/window.h"

#include "common/assert.h"
#include "common/bits.h"
#include "common/limits.h"

void gk_window_stop(struct gk_window *window)
{
    struct gk_window kept = {.answer_us = window->answer_us, .copied = window->copied};

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

bool gk_window_send(struct gk_window *window, uint64_t now_us, uint64_t *req_ids,
                    uint32_t *ret_chunk, uint64_t *ret_req_id, bool *ret_again)
{
    struct gk_window_slot *slot;

    for (uint32_t i = 0; i < window->limit; i++) {
        slot = &window->slots[i];
        if (slot->active && slot->retry_us <= now_us) {
            slot->backoff_us = gk_min_u64(2 * slot->backoff_us, GK_RETRY_BULK_US_MAX);
            slot->tried_us = now_us;
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
    slot->sent_us = slot->tried_us = now_us;
    slot->backoff_us = first_backoff_us(window);
    slot->retry_us = now_us + slot->backoff_us;
    *ret_chunk = slot->chunk;
    *ret_req_id = slot->req_id;
    *ret_again = false;
    return true;
}

/* Of a request that was sent again nobody knows which copy was answered (Karn and Partridge 1987):
 * the last one, as where messages are lost, or the first, where a copy was answered too. */
static void learn(struct gk_window *window, const struct gk_window_slot *slot, uint64_t now_us)
{
    uint64_t took_us = now_us - gk_min_u64(now_us, window->copied ? slot->sent_us : slot->tried_us);
    bool longer = window->answer_us > 0 && took_us > window->answer_us;

    window->answer_us = longer ? (window->answer_us + took_us) / 2 : took_us;
    window->copied = window->copied && took_us > GK_RETRY_BULK_US_MIN;
}

static void push_back(struct gk_window *window, uint64_t now_us)
{
    for (uint32_t i = 0; i < window->limit; i++) {
        struct gk_window_slot *slot = &window->slots[i];

        slot->retry_us = gk_max_u64(slot->retry_us, now_us + slot->backoff_us);
    }
}

void gk_window_heard(struct gk_window *window, uint64_t now_us)
{
    window->copied = true;
    push_back(window, now_us);
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
            learn(window, slot, now_us);
            window->done++;
            found = true;
        }
    }
    if (found) {
        push_back(window, now_us);
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
        window->slots[i].sent_us = window->slots[i].tried_us = now_us;
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
