/* PIN: the parameters of one version, held still so that an export can read them while training
 * goes on.
 *
 *   FREE --PIN--> WAITING --its version is there--> COPYING --PIN_DONE--> HELD
 *
 * Whatever its state, a pin ends when it is released, when nobody has asked for it for GK_PIN_US,
 * or when its version passed before the copy began.  The copy is made by the thread that applies
 * updates, in the order of the actions, so it stands before the next APPLY and nothing waits for
 * it.  Requests come from anybody: a pin is bounded in number, memory and time. */
#include "common/assert.h"
#include "common/bits.h"
#include "server/core/state.h"

#include <inttypes.h>

static void fill(const struct gk_server *server, struct gk_header *ret, uint32_t kind,
                 const struct gk_header *h)
{
    *ret = (struct gk_header){
        .kind = kind,
        .req_id = h->req_id,
        .epoch = server->image->epoch,
        .rank = GK_RANK_ANY,
        .shard = server->config.shard,
        .incarnation = server->image->incarnation,
        .version = server->image->version,
        .durable_version = server->durable.durable_version,
    };
}

/* Not among the NACKs of the ledger: to be early is no mistake.  Whether the request may succeed
 * later follows from the code. */
void gk_server_pin_refuse(struct gk_server *server, uint64_t route, const struct gk_header *h,
                          enum gk_code code, const char *words)
{
    struct gk_server_action *action = gk_server_emit(server, GK_SERVER_SEND);

    action->route = route;
    fill(server, &action->msg.h, GK_KIND_NACK, h);
    action->msg.h.code = code;
    action->msg.h.flags =
        code == GK_CODE_NOT_READY || code == GK_CODE_DRAINING ? GK_FLAG_RETRYABLE : 0;
    gk_words_set(&action->msg.words, "%s", words);
}

static bool holds_memory(const struct gk_pin *pin)
{
    return pin->state != GK_PIN_FREE && pin->state != GK_PIN_FAILED;
}

uint64_t gk_server_pin_bytes(const struct gk_server *server)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < GK_PINS_MAX; i++) {
        bytes += holds_memory(&server->live.pins[i]) ? server->durable.setup.plane_bytes : 0;
    }
    return bytes;
}

static void drop(struct gk_server *server, struct gk_pin *pin)
{
    switch (pin->state) {
    case GK_PIN_COPYING:
        pin->state = GK_PIN_LEAVING;
        return;
    case GK_PIN_HELD:
        gk_server_emit(server, GK_SERVER_UNPIN)->u.unpin = pin->args.slot;
        break;
    case GK_PIN_LEAVING:
        return;
    case GK_PIN_FREE:
    case GK_PIN_WAITING:
    case GK_PIN_FAILED:
        break;
    }
    *pin = (struct gk_pin){0};
}

void gk_server_pin_watch(struct gk_server *server)
{
    for (uint32_t i = 0; i < GK_PINS_MAX; i++) {
        if (server->now_us >= server->live.pins[i].until_us) {
            drop(server, &server->live.pins[i]);
        }
    }
}

void gk_server_pin_paused(struct gk_server *server, uint64_t pause_us)
{
    for (uint32_t i = 0; i < GK_PINS_MAX; i++) {
        server->live.pins[i].until_us += pause_us;
    }
}

static bool copying(const struct gk_server *server)
{
    for (uint32_t i = 0; i < GK_PINS_MAX; i++) {
        if (server->live.pins[i].op != 0) {
            return true;
        }
    }
    return false;
}

void gk_server_pin_due(struct gk_server *server)
{
    const struct gk_server_durable *durable = &server->durable;

    for (uint32_t i = 0; i < GK_PINS_MAX; i++) {
        struct gk_pin *pin = &server->live.pins[i];
        struct gk_server_action *action;

        if (pin->state != GK_PIN_WAITING || pin->version != server->image->version ||
            server->live.round.state == GK_ROUND_APPLYING || copying(server)) {
            continue;
        }
        pin->args = (struct gk_pin_args){.slot = i,
                                         .x = durable->memory.planes[0],
                                         .n = durable->hi - durable->lo,
                                         .index0 = durable->lo};
        pin->state = GK_PIN_COPYING;
        action = gk_server_emit(server, GK_SERVER_PIN);
        action->u.pin = &pin->args;
        pin->op = gk_server_emit_op(server, action);
    }
}

bool gk_server_pin_awaits(const struct gk_server *server, uint64_t op)
{
    for (uint32_t i = 0; i < GK_PINS_MAX; i++) {
        if (server->live.pins[i].op == op) {
            return true;
        }
    }
    return false;
}

void gk_server_pin_done(struct gk_server *server, const struct gk_server_event *ev)
{
    for (uint32_t i = 0; i < GK_PINS_MAX; i++) {
        struct gk_pin *pin = &server->live.pins[i];
        bool wanted = pin->state == GK_PIN_COPYING;

        if (pin->op != ev->op) {
            continue;
        }
        pin->op = 0;
        pin->state = ev->err ? GK_PIN_FAILED : GK_PIN_HELD;
        if (!wanted) {
            drop(server, pin);
        }
    }
    gk_server_pin_due(server);
}

static struct gk_pin *find(struct gk_server *server, uint64_t req_id)
{
    for (uint32_t i = 0; i < GK_PINS_MAX; i++) {
        struct gk_pin *pin = &server->live.pins[i];

        if (pin->state != GK_PIN_FREE && pin->state != GK_PIN_LEAVING && pin->req_id == req_id) {
            return pin;
        }
    }
    return NULL;
}

/* True after an answer: the version cannot come any more. */
static bool refuse_version(struct gk_server *server, uint64_t route, const struct gk_header *h)
{
    uint64_t version = server->image->version;
    struct gk_words words;

    if (h->version < version) {
        gk_words_set(&words, "version %" PRIu64 " is past, this is %" PRIu64, h->version, version);
        gk_server_pin_refuse(server, route, h, GK_CODE_PAST, words.text);
        return true;
    }
    if (h->version > version && server->image->finished) {
        gk_words_set(&words, "the job finished at version %" PRIu64, version);
        gk_server_pin_refuse(server, route, h, GK_CODE_FINISHED, words.text);
        return true;
    }
    return false;
}

/* A slot for a new pin; NULL after an answer. */
static struct gk_pin *take_slot(struct gk_server *server, uint64_t route, const struct gk_header *h)
{
    const struct gk_server_setup *setup = &server->durable.setup;
    uint64_t budget = server->config.memory_bytes;
    struct gk_pin *slot = NULL;
    struct gk_words words;

    for (uint32_t i = 0; i < GK_PINS_MAX && !slot; i++) {
        slot = server->live.pins[i].state == GK_PIN_FREE ? &server->live.pins[i] : NULL;
    }
    if (!slot) {
        gk_words_set(&words, "%d exports are under way already", GK_PINS_MAX);
        gk_server_pin_refuse(server, route, h, GK_CODE_NOT_READY, words.text);
        return NULL;
    }
    if (budget > 0 &&
        setup->total_bytes + gk_server_pin_bytes(server) + setup->plane_bytes > budget) {
        gk_words_set(
            &words,
            "shard %" PRIu32 " needs %" PRIu64 " KiB more to hold a version still, beside "
            "the %" PRIu64 " KiB of the job, but may use %" PRIu64 " KiB; --memory would help",
            server->config.shard, setup->plane_bytes >> 10, setup->total_bytes >> 10, budget >> 10);
        gk_server_pin_refuse(server, route, h, GK_CODE_NO_MEMORY, words.text);
        return NULL;
    }
    *slot = (struct gk_pin){.state = GK_PIN_WAITING, .req_id = h->req_id, .version = h->version};
    return slot;
}

static void pinned(struct gk_server *server, uint64_t route, const struct gk_header *h,
                   const struct gk_pin *pin)
{
    const struct gk_server_durable *durable = &server->durable;
    struct gk_server_action *action = gk_server_emit(server, GK_SERVER_FRAME);

    action->route = route;
    action->u.bytes.data = durable->spec_bytes;
    action->u.bytes.count = durable->spec_bytes_count;
    fill(server, &action->msg.h, GK_KIND_PIN_OK, h);
    action->msg.h.version = pin->version;
    action->msg.h.durable_version = gk_min_u64(durable->durable_version, pin->version);
    action->msg.h.lo = durable->lo;
    action->msg.h.hi = durable->hi;
    action->msg.h.state_hash = pin->args.hash;
}

static void answer(struct gk_server *server, uint64_t route, const struct gk_header *h,
                   struct gk_pin *pin)
{
    struct gk_words words;

    switch (pin->state) {
    case GK_PIN_WAITING:
        if (refuse_version(server, route, h)) {
            drop(server, pin);
            return;
        }
        gk_words_set(&words, "this shard is at version %" PRIu64 ", not yet at %" PRIu64,
                     server->image->version, pin->version);
        gk_server_pin_refuse(server, route, h, GK_CODE_NOT_READY, words.text);
        return;
    case GK_PIN_COPYING:
        gk_server_pin_refuse(server, route, h, GK_CODE_NOT_READY, "the version is being copied");
        return;
    case GK_PIN_HELD:
        pinned(server, route, h, pin);
        return;
    case GK_PIN_FAILED:
        drop(server, pin);
        gk_words_set(&words, "the system refuses %" PRIu64 " KiB to hold a version still",
                     server->durable.setup.plane_bytes >> 10);
        gk_server_pin_refuse(server, route, h, GK_CODE_NO_MEMORY, words.text);
        return;
    case GK_PIN_FREE:
    case GK_PIN_LEAVING:
        break;
    }
    GK_ASSERT(false && "a pin that was asked for");
}

/* Another INIT may still replace version 0, plane and all, as long as nobody has pushed. */
static bool settled(const struct gk_server *server)
{
    return server->image->version > 0 || server->live.pushed || server->image->finished;
}

void gk_server_pin(struct gk_server *server, uint64_t route, const struct gk_header *h)
{
    struct gk_pin *pin = find(server, h->req_id);

    if (h->flags & GK_FLAG_RELEASE) {
        if (pin) {
            drop(server, pin);
        }
        return;
    }
    gk_server_pin_watch(server);
    pin = find(server, h->req_id);
    if (pin && pin->version != h->version) {
        drop(server, pin); /* the same export tries another version */
        pin = NULL;
    }
    if (!settled(server)) {
        gk_server_pin_refuse(server, route, h, GK_CODE_NOT_READY,
                             "training has not begun: version 0 may still be replaced");
        return;
    }
    if (!pin) {
        if (refuse_version(server, route, h)) {
            return;
        }
        pin = take_slot(server, route, h);
    }
    if (pin) {
        pin->until_us = server->now_us + GK_PIN_US;
        gk_server_pin_due(server);
        answer(server, route, h, pin);
    }
}

/* By version, not by export: what is there may be read by all. */
static struct gk_pin *pin_of(struct gk_server *server, uint64_t version, enum gk_pin_state state)
{
    for (uint32_t i = 0; i < GK_PINS_MAX; i++) {
        struct gk_pin *pin = &server->live.pins[i];

        if (pin->state == state && pin->version == version) {
            return pin;
        }
    }
    return NULL;
}

void gk_server_pin_pull(struct gk_server *server, uint64_t route, const struct gk_header *h)
{
    const struct gk_server_durable *durable = &server->durable;
    struct gk_pin *pin = pin_of(server, h->version, GK_PIN_HELD);
    struct gk_server_action *action;
    struct gk_words words;

    if (!pin && pin_of(server, h->version, GK_PIN_COPYING)) {
        gk_server_pin_refuse(server, route, h, GK_CODE_NOT_READY, "the version is being copied");
        return;
    }
    if (!pin) {
        gk_words_set(&words, "version %" PRIu64 " is not pinned (any more)", h->version);
        gk_server_pin_refuse(server, route, h, GK_CODE_PAST, words.text);
        return;
    }
    if (h->lo < durable->lo || h->hi > durable->hi) {
        gk_words_set(&words, "a pull of [%" PRIu64 ", %" PRIu64 ") from [%" PRIu64 ", %" PRIu64 ")",
                     h->lo, h->hi, durable->lo, durable->hi);
        gk_server_pin_refuse(server, route, h, GK_CODE_BAD_SHAPE, words.text);
        return;
    }
    pin->until_us = server->now_us + GK_PIN_US;
    action = gk_server_emit(server, GK_SERVER_FRAME);
    action->route = route;
    action->u.bytes.data = pin->args.values + (h->lo - durable->lo);
    action->u.bytes.count = (size_t)(h->hi - h->lo) * sizeof(float);
    fill(server, &action->msg.h, GK_KIND_PIN_PARAMS, h);
    action->msg.h.version = pin->version;
    action->msg.h.durable_version = gk_min_u64(durable->durable_version, pin->version);
    action->msg.h.lo = h->lo;
    action->msg.h.hi = h->hi;
    action->msg.h.count = h->hi - h->lo;
    action->msg.h.index_encoding = GK_INDEX_DENSE;
    action->msg.h.value_encoding = GK_VALUE_F32;
}

void gk_server_pin_check(const struct gk_server *server)
{
    uint64_t budget = server->config.memory_bytes;
    uint32_t ops = 0;

    for (uint32_t i = 0; i < GK_PINS_MAX; i++) {
        const struct gk_pin *pin = &server->live.pins[i];

        GK_ASSERT((pin->op != 0) == (pin->state == GK_PIN_COPYING || pin->state == GK_PIN_LEAVING));
        GK_ASSERT(pin->state == GK_PIN_FREE || server->image->initialised);
        GK_ASSERT(pin->state != GK_PIN_HELD || (pin->args.values && pin->args.slot == i));
        ops += pin->op != 0;
    }
    GK_ASSERT(ops <= 1);
    GK_ASSERT(budget == 0 || gk_server_pin_bytes(server) == 0 ||
              server->durable.setup.total_bytes + gk_server_pin_bytes(server) <= budget);
}
