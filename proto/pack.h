/* Header and bodies to and from protobuf bytes: the only file of the project that sees a type of
 * protobuf-c.
 *
 * There is one byte string for each record: what is read is written again and must come out the
 * same, so that values that were cut to 32 bits, fields given twice, zeros written out and any
 * other order are refused. */
#ifndef GK_PROTO_PACK_H
#define GK_PROTO_PACK_H

#include "common/err.h"
#include "common/words.h"
#include "proto/kinds.h"

#include <stddef.h>
#include <stdint.h>

/* More than any record can need; the caller checks the protocol's caps. */
enum { GK_RECORD_BYTES_MAX = 512 };

/* Bytes of `source` (our struct of that record) into `ret`, GK_RECORD_BYTES_MAX large; their count.
 * Any thread. */
size_t gk_record_pack(enum gk_record record, const void *source, uint8_t *ret);

/* Read `bytes`, whose count the caller has capped, into `ret` (our struct).  When the bytes are a
 * message at all `ret` holds what they say, even if an error follows: GK_E_UNSUPPORTED: unknown
 * fields; GK_E_CORRUPT: malformed or not in the one form; GK_E_LIMIT: more fields than any message
 * has.  `ret` is zeroed first.  Any thread. */
enum gk_err gk_record_unpack(enum gk_record record, const uint8_t *bytes, size_t bytes_count,
                             void *ret, struct gk_words *words);

#endif
