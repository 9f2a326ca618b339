#include "server/core/assembly.h"

#include "common/assert.h"

#include <inttypes.h>
#include <string.h>

void gk_assembly_clear(struct gk_assembly *assembly)
{
    for (uint32_t i = 0; i < assembly->chunks; i++) {
        gk_buf_unref(assembly->pieces[i].idx);
        gk_buf_unref(assembly->pieces[i].val);
    }
    if (assembly->chunks > 0) {
        memset(assembly->pieces, 0, assembly->chunks * sizeof(*assembly->pieces));
    }
    assembly->chunks = 0;
    assembly->got = 0;
    assembly->bytes = 0;
}

void gk_assembly_begin(struct gk_assembly *assembly, uint32_t chunks, uint64_t lo, uint64_t hi)
{
    GK_ASSERT(chunks > 0 && chunks <= assembly->chunks_max);
    gk_assembly_clear(assembly);
    assembly->chunks = chunks;
    assembly->lo = lo;
    assembly->hi = hi;
}

bool gk_assembly_has(const struct gk_assembly *assembly, uint32_t chunk)
{
    return chunk < assembly->chunks && assembly->pieces[chunk].present;
}

/* Where the piece must begin and end, as far as its neighbours say; its own bounds where they say
 * nothing. */
static bool fits(const struct gk_assembly *assembly, uint32_t chunk, const struct gk_piece *piece)
{
    const struct gk_piece *pieces = assembly->pieces;

    if (piece->lo >= piece->hi || piece->lo < assembly->lo || piece->hi > assembly->hi) {
        return false;
    }
    if (chunk == 0 ? piece->lo != assembly->lo
                   : pieces[chunk - 1].present && piece->lo != pieces[chunk - 1].hi) {
        return false;
    }
    return chunk + 1 == assembly->chunks
               ? piece->hi == assembly->hi
               : !pieces[chunk + 1].present || piece->hi == pieces[chunk + 1].lo;
}

enum gk_err gk_assembly_put(struct gk_assembly *assembly, uint32_t chunk,
                            const struct gk_piece *piece, struct gk_words *words)
{
    struct gk_piece *slot;

    GK_ASSERT(chunk < assembly->chunks && !assembly->pieces[chunk].present);
    if (!fits(assembly, chunk, piece)) {
        gk_words_set(words,
                     "chunk %" PRIu32 " of %" PRIu32 " covers [%" PRIu64 ", %" PRIu64
                     "), which does not tile [%" PRIu64 ", %" PRIu64 ") with its neighbours",
                     chunk, assembly->chunks, piece->lo, piece->hi, assembly->lo, assembly->hi);
        return GK_E_INVALID;
    }
    slot = &assembly->pieces[chunk];
    *slot = *piece;
    slot->present = true;
    if (slot->idx) {
        assembly->bytes += gk_buf_ref(slot->idx)->size;
    }
    if (slot->val) {
        assembly->bytes += gk_buf_ref(slot->val)->size;
    }
    assembly->got++;
    return GK_OK;
}
