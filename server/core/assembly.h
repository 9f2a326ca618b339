/* Pieces that arrive in any order, more than once, and must tile [lo, hi) in the end: the chunks of
 * one push, or of INIT.
 *
 * Neighbours are compared as they arrive, the ends with the range; so when all pieces are in, they
 * tile it. */
#ifndef GK_SERVER_CORE_ASSEMBLY_H
#define GK_SERVER_CORE_ASSEMBLY_H

#include "common/buf.h"
#include "common/err.h"
#include "common/words.h"

#include <stdbool.h>
#include <stdint.h>

struct gk_piece {
    bool present;
    uint64_t lo, hi;
    uint64_t count;
    struct gk_buf
        *idx; /* owned references; NULL: none (dense or empty), or already copied (INIT) */
    struct gk_buf *val;
};

struct gk_assembly {
    struct gk_piece *pieces; /* room for chunks_max, owned by the shell's SETUP memory */
    uint32_t chunks_max;
    uint32_t chunks; /* 0: not begun */
    uint32_t got;
    uint64_t bytes; /* of all frames that are held */
    uint64_t lo, hi;
};

/* Forget everything, begin with `chunks` pieces of [lo, hi). */
void gk_assembly_begin(struct gk_assembly *assembly, uint32_t chunks, uint64_t lo, uint64_t hi);

/* Drop the references; not begun afterwards. */
void gk_assembly_clear(struct gk_assembly *assembly);

bool gk_assembly_has(const struct gk_assembly *assembly, uint32_t chunk);

static inline bool gk_assembly_complete(const struct gk_assembly *assembly)
{
    return assembly->chunks > 0 && assembly->got == assembly->chunks;
}

/* Add piece number `chunk`, which is not there yet; takes references to its buffers on success.
 * GK_E_INVALID: it does not fit its neighbours or the range; words say why. */
enum gk_err gk_assembly_put(struct gk_assembly *assembly, uint32_t chunk,
                            const struct gk_piece *piece, struct gk_words *words);

#endif
