#include "common/hash.h"

#include <isa-l/crc.h>
#include <xxhash.h>

uint64_t gk_hash64(const void *data, size_t size)
{
    return XXH3_64bits(data, size);
}

uint64_t gk_hash64_more(uint64_t hash, const void *data, size_t size)
{
    return XXH3_64bits_withSeed(data, size, hash);
}

uint32_t gk_crc32c_more(uint32_t crc, const void *data, size_t size)
{
    enum { PIECE_BYTES = 1 << 30 }; /* the library counts in int */
    const unsigned char *at = data;

    crc = ~crc;
    while (size > 0) {
        size_t piece = size < PIECE_BYTES ? size : PIECE_BYTES;

        crc = crc32_iscsi((unsigned char *)at, (int)piece, crc);
        at += piece;
        size -= piece;
    }
    return ~crc;
}

uint32_t gk_crc32c(const void *data, size_t size)
{
    return gk_crc32c_more(0, data, size);
}
