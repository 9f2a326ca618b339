/* XXH3-64 and CRC-32C, by the libraries that are good at them. */
#ifndef GK_COMMON_HASH_H
#define GK_COMMON_HASH_H

#include <stddef.h>
#include <stdint.h>

/* XXH3, 64 bits, seed 0: identities (spec, push, model table).  Any thread. */
uint64_t gk_hash64(const void *data, size_t size);

/* Continue a hash over several pieces: h = gk_hash64_more(h, piece, size), from h = 0.  The result
 * depends on where the pieces are cut. */
uint64_t gk_hash64_more(uint64_t hash, const void *data, size_t size);

/* CRC-32C (Castagnoli), as in RFC 3720: the checksum of frames and records.  "123456789" gives
 * e3069283. */
uint32_t gk_crc32c(const void *data, size_t size);

/* The checksum of pieces one behind the other: crc = gk_crc32c_more(crc, piece, size), from crc = 0
 * or from the first piece's gk_crc32c(). */
uint32_t gk_crc32c_more(uint32_t crc, const void *data, size_t size);

#endif
