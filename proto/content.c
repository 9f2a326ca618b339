/* What stands in text and array frames: UTF-8 without control characters, indices that rise
 * strictly and stay in their range, values that are finite.  Loops over whole frames on plain
 * pointers, since every byte of every push passes through here before it is used. */
#include "common/backend.h"
#include "common/bits.h"
#include "proto/check.h"

#include <inttypes.h>
#include <string.h>

/* Bytes of the well-formed UTF-8 sequence at `at`; 0: none.  Shortest form only, no surrogates. */
static size_t utf8_sequence(const uint8_t *at, size_t room, uint32_t *ret_code)
{
    static const uint32_t SMALLEST[] = {0, 0, 0x80, 0x800, 0x10000};
    uint32_t code = at[0];
    size_t bytes;

    if (code < 0x80) {
        *ret_code = code;
        return 1;
    }
    bytes = code >= 0xf0 && code < 0xf8 ? 4 : code >= 0xe0 ? 3 : 2;
    if (code < 0xc0 || code >= 0xf8 || bytes > room) {
        return 0;
    }
    code &= 0xffu >> (bytes + 1);
    for (size_t i = 1; i < bytes; i++) {
        if ((at[i] & 0xc0) != 0x80) {
            return 0;
        }
        code = code << 6 | (at[i] & 0x3f);
    }
    if (code < SMALLEST[bytes] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
        return 0;
    }
    *ret_code = code;
    return bytes;
}

size_t gk_text_good(const uint8_t *bytes, size_t bytes_count, bool lines)
{
    size_t at = 0;

    while (at < bytes_count) {
        uint32_t code = 0;
        size_t length = utf8_sequence(bytes + at, bytes_count - at, &code);
        bool line = code == '\t' || code == '\n' || code == '\r';

        if (length == 0 || (code < 0x20 && !(lines && line)) || (code >= 0x7f && code < 0xa0)) {
            break;
        }
        at += length;
    }
    return at;
}

enum gk_err gk_job_name_check(const char *name, struct gk_words *words)
{
    size_t bytes = strlen(name);
    size_t good;

    if (bytes == 0 || bytes >= GK_JOB_NAME_BYTES) {
        gk_words_set(words, "the name of a job has 1 to %d bytes, this one has %zu",
                     GK_JOB_NAME_BYTES - 1, bytes);
        return GK_E_INVALID;
    }
    good = gk_text_good((const uint8_t *)name, bytes, false);
    if (good < bytes) {
        gk_words_set(words, "the name of a job is printable UTF-8, byte %zu of this one is not",
                     good);
        return GK_E_INVALID;
    }
    return GK_OK;
}

enum gk_err gk_indices_check(const uint8_t *bytes, uint64_t count, uint64_t bound,
                             struct gk_words *words)
{
    uint64_t next = 0; /* smallest index that may come */

    for (uint64_t i = 0; i < count; i++) {
        uint64_t index = gk_get_u32(bytes + 4 * i);

        if (index < next) {
            gk_words_set(words,
                         "index %" PRIu64 " is %" PRIu64 ", not above the one before, %" PRIu64, i,
                         index, next - 1);
            return GK_E_CORRUPT;
        }
        if (index >= bound) {
            gk_words_set(words, "index %" PRIu64 " is %" PRIu64 ", not below hi - lo, %" PRIu64, i,
                         index, bound);
            return GK_E_CORRUPT;
        }
        next = index + 1;
    }
    return GK_OK;
}

enum gk_err gk_values_check(const uint8_t *bytes, uint64_t count, struct gk_words *words)
{
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits = gk_get_u32(bytes + 4 * i);

        if ((bits & GK_KEY_MASK) >= GK_KEY_NONFINITE) {
            gk_words_set(words, "value %" PRIu64 " is not finite (bits %08" PRIx32 ")", i, bits);
            return GK_E_CORRUPT;
        }
    }
    return GK_OK;
}
