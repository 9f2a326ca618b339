/* A snapshot as bytes: the image of a shard and its planes at one version.  No I/O.
 *
 * A header of 256 bytes, then the spec, the rows of the ranks and one checksum a block, then the
 * planes.  What comes first is known last (the checksums), so a writer leaves room for it and puts
 * it there at the end.  docs/state.md has the tables. */
#ifndef GK_SERVER_CORE_SNAPSHOT_H
#define GK_SERVER_CORE_SNAPSHOT_H

#include "common/err.h"
#include "common/limits.h"
#include "common/words.h"
#include "server/core/image.h"

#include <stdint.h>

enum {
    GK_SNAPSHOT_FORMAT = 1,
    GK_SNAPSHOT_HEADER_BYTES = 256,
    GK_SNAPSHOT_BLOCK_FLOATS = 1024 * 1024,
    GK_SNAPSHOT_PAGE = 4096, /* the planes begin at a multiple of it */
};

/* Where everything lies; follows from the image and the block size. */
struct gk_snapshot_layout {
    uint64_t length; /* elements of a plane */
    uint32_t planes;
    uint32_t block_floats;
    uint64_t blocks; /* of a plane */
    uint64_t spec_at, rows_at, sums_at;
    uint64_t planes_at;    /* = bytes of header and tables */
    uint64_t plane_stride; /* from one plane to the next */
    uint64_t bytes;        /* of the file */
};

void gk_snapshot_layout(const struct gk_image *image, uint32_t block_floats,
                        struct gk_snapshot_layout *ret);

/* Offset and number of elements of a block of a plane. */
uint64_t gk_snapshot_block(const struct gk_snapshot_layout *layout, uint32_t plane, uint64_t block,
                           uint64_t *ret_count);

struct gk_snapshot_facts { /* what is not in the image */
    char job[GK_JOB_NAME_BYTES];
    uint64_t next_number; /* of the first record that is not in it */
    uint64_t state_hash;  /* of all planes */
};

/* Header and tables, planes_at bytes; `sums` has one CRC-32C a block, planes one after the other.
 */
void gk_snapshot_encode(const struct gk_image *image, const struct gk_snapshot_layout *layout,
                        const struct gk_snapshot_facts *facts, const uint32_t *sums, uint8_t *ret);

struct gk_snapshot_head { /* a header that was read */
    uint32_t shard, servers, workers, epoch;
    uint64_t version;
    struct gk_snapshot_facts facts;
    struct gk_snapshot_layout layout;
    uint32_t spec_bytes, tables_crc;
    const uint8_t *bytes; /* of the header, borrowed */
};

/* GK_E_CORRUPT, GK_E_UNSUPPORTED (a whole header of another format) and words. */
enum gk_err gk_snapshot_head_decode(const uint8_t bytes[GK_SNAPSHOT_HEADER_BYTES],
                                    struct gk_snapshot_head *ret, struct gk_words *words);

/* Header and tables (planes_at bytes) into an image of the same shard, servers and workers;
 * *ret_sums points into the bytes.  GK_E_CORRUPT, GK_E_NOMEM. */
enum gk_err gk_snapshot_decode(const struct gk_snapshot_head *head, const uint8_t *bytes,
                               struct gk_image *image, const uint8_t **ret_sums,
                               struct gk_words *words);

#endif
