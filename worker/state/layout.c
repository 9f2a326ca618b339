#include "common/bits.h"
#include "common/hash.h"
#include "worker/state/format.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static uint64_t whole_pages(uint64_t bytes)
{
    return (bytes + GK_SLOT_PAGE - 1) / GK_SLOT_PAGE * GK_SLOT_PAGE;
}

void gk_slot_layout(const struct gk_slot_setup *setup, struct gk_slot_header *ret)
{
    memset(ret, 0, sizeof(*ret));
    memcpy(ret->magic, "gkpsslot", sizeof(ret->magic));
    ret->format = GK_SLOT_FORMAT;
    (void)snprintf(ret->job, sizeof(ret->job), "%s", setup->job);
    ret->workers = setup->workers;
    ret->servers = setup->servers;
    ret->params_count = setup->params_count;
    ret->push_max = gk_min_u64(setup->push_max, setup->params_count);
    ret->spec_hash = setup->spec_hash;
    ret->model_signature = setup->model_signature;
    ret->ring_entries = GK_RING_ENTRIES;
    ret->chunk_floats = setup->chunk_floats;
    ret->aux_bytes = setup->aux_bytes;
    ret->entry_bytes = whole_pages(gk_slot_entry_bytes(ret));
    ret->residual_bytes = whole_pages(ret->params_count * sizeof(float) + ret->aux_bytes);
    ret->file_bytes =
        GK_SLOT_RING_AT + GK_RING_ENTRIES * ret->entry_bytes + GK_SLOT_COPIES * ret->residual_bytes;
    ret->crc = gk_slot_header_crc(ret);
}

uint64_t gk_slot_bytes(const struct gk_slot_setup *setup)
{
    struct gk_slot_header header;

    gk_slot_layout(setup, &header);
    return header.file_bytes;
}

uint32_t gk_slot_header_crc(const struct gk_slot_header *header)
{
    struct gk_slot_header copy = *header;

    copy.crc = 0;
    return gk_crc32c(&copy, sizeof(copy));
}

void *gk_slot_identity_at(const struct gk_slot *slot, uint32_t copy)
{
    return slot->map + GK_SLOT_IDENTITY_AT + copy * GK_SLOT_PAGE;
}

void *gk_slot_residual_at(const struct gk_slot *slot, uint32_t copy)
{
    return slot->map + GK_SLOT_RESIDUAL_AT + copy * GK_SLOT_PAGE;
}

/* The pushes in the ring are of steps that follow each other, so each has a place of its own. */
void *gk_slot_entry_at(const struct gk_slot *slot, uint64_t step)
{
    return slot->map + GK_SLOT_RING_AT + step % GK_RING_ENTRIES * slot->header.entry_bytes;
}

float *gk_slot_floats_at(const struct gk_slot *slot, uint32_t copy)
{
    return (float *)(void *)(slot->map + GK_SLOT_RING_AT +
                             GK_RING_ENTRIES * slot->header.entry_bytes +
                             copy * slot->header.residual_bytes);
}

void gk_slot_say(const struct gk_slot *slot, const char *where)
{
    if (slot->hook) {
        slot->hook(slot->hook_context, where);
    }
}

/* The fences keep the compiler from moving stores across, and make streaming stores arrive. */
static void store_seq(void *at, uint64_t seq)
{
    atomic_thread_fence(memory_order_seq_cst);
    atomic_store_explicit((_Atomic uint64_t *)at, seq, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst);
}

void gk_slot_unseal(const struct gk_slot *slot, void *at)
{
    store_seq(at, 0);
    gk_slot_say(slot, "unsealed");
}

void gk_slot_seal(const struct gk_slot *slot, void *at, void *record, size_t size)
{
    struct gk_slot_seal *seal = record;
    size_t half = size / 2;

    seal->crc = 0;
    seal->crc = gk_crc32c(record, size);
    gk_slot_unseal(slot, at);
    memcpy((uint8_t *)at + sizeof(seal->seq), (uint8_t *)record + sizeof(seal->seq),
           half - sizeof(seal->seq));
    gk_slot_say(slot, "half a record");
    memcpy((uint8_t *)at + half, (uint8_t *)record + half, size - half);
    gk_slot_say(slot, "before the seal");
    store_seq(at, seal->seq);
    gk_slot_say(slot, "sealed");
}

bool gk_slot_unsealed(const void *at, enum gk_slot_record kind, void *ret_record, size_t size)
{
    struct gk_slot_seal *seal = ret_record;
    uint32_t crc;
    bool whole;

    memcpy(ret_record, at, size);
    if (seal->seq == 0) {
        return false;
    }
    crc = seal->crc;
    seal->crc = 0;
    whole = gk_crc32c(ret_record, size) == crc && seal->kind == (uint32_t)kind;
    seal->crc = crc;
    return whole;
}
