/* Goal: hashes and checksums are the published functions and never change.  Method: known answers
 * (XXH3, RFC 3720, splitmix64), a bitwise CRC as a second opinion at every length and alignment,
 * and the algebra of state hashes. */
#include "common/bits.h"
#include "common/hash.h"

#include <criterion/criterion.h>

#include <math.h>
#include <string.h>

static uint32_t crc_bitwise(const uint8_t *data, size_t size)
{
    uint32_t crc = UINT32_MAX;

    for (size_t i = 0; i < size; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
        }
    }
    return ~crc;
}

static void fill(uint8_t *bytes, size_t count)
{
    uint64_t state = 1;

    for (size_t i = 0; i < count; i++) {
        state = gk_mix64(state + i);
        bytes[i] = (uint8_t)state;
    }
}

Test(hash, crc32c_has_the_answers_of_rfc_3720)
{
    uint8_t bytes[32];

    cr_assert_eq(gk_crc32c("123456789", 9), 0xe3069283);
    cr_assert_eq(gk_crc32c(NULL, 0), 0);
    memset(bytes, 0, sizeof(bytes));
    cr_assert_eq(gk_crc32c(bytes, sizeof(bytes)), 0x8a9136aa);
    memset(bytes, 0xff, sizeof(bytes));
    cr_assert_eq(gk_crc32c(bytes, sizeof(bytes)), 0x62a8ab43);
    for (unsigned i = 0; i < sizeof(bytes); i++) {
        bytes[i] = (uint8_t)i;
    }
    cr_assert_eq(gk_crc32c(bytes, sizeof(bytes)), 0x46dd794e);
    for (unsigned i = 0; i < sizeof(bytes); i++) {
        bytes[i] = (uint8_t)(31 - i);
    }
    cr_assert_eq(gk_crc32c(bytes, sizeof(bytes)), 0x113fdb5c);
}

Test(hash, crc32c_agrees_with_the_definition)
{
    static uint8_t bytes[4096 + 16];

    fill(bytes, sizeof(bytes));
    for (size_t start = 0; start < 9; start++) {
        for (size_t size = 0; size < 300; size++) {
            cr_assert_eq(gk_crc32c(bytes + start, size), crc_bitwise(bytes + start, size),
                         "%zu bytes at %zu", size, start);
        }
        cr_assert_eq(gk_crc32c(bytes + start, 4096), crc_bitwise(bytes + start, 4096));
    }
}

Test(hash, hash64_is_xxh3)
{
    /* Published: XXH3_64bits of nothing is 2d06800538d394c2. */
    cr_assert_eq(gk_hash64("", 0), UINT64_C(0x2d06800538d394c2));
    cr_assert_eq(gk_hash64(NULL, 0), UINT64_C(0x2d06800538d394c2));
    cr_assert_neq(gk_hash64("a", 1), gk_hash64("b", 1));
    cr_assert_neq(gk_hash64("a\0", 2), gk_hash64("a", 1));
}

Test(hash, more_starts_like_hash64_and_chains)
{
    uint64_t once, twice;

    cr_assert_eq(gk_hash64_more(0, "abc", 3), gk_hash64("abc", 3));
    once = gk_hash64_more(gk_hash64_more(0, "abc", 3), "def", 3);
    twice = gk_hash64_more(gk_hash64_more(0, "abd", 3), "def", 3);
    cr_assert_neq(once, twice, "the first piece matters");
    cr_assert_neq(once, gk_hash64_more(gk_hash64_more(0, "def", 3), "abc", 3), "the order matters");
}

Test(hash, mix64_is_splitmix64)
{
    /* The generator started at 0 adds the golden gamma before each output. */
    static const uint64_t expected[] = {UINT64_C(0xe220a8397b1dcdaf), UINT64_C(0x6e789e6aa1b965f4),
                                        UINT64_C(0x06c45d188009454f)};
    uint64_t state = 0;

    for (int i = 0; i < 3; i++) {
        state += UINT64_C(0x9e3779b97f4a7c15);
        cr_assert_eq(gk_mix64(state), expected[i]);
    }
}

Test(hash, terms_depend_on_plane_index_and_bits)
{
    uint64_t base = gk_hash_term(0, 5, 7);

    cr_assert_neq(gk_hash_term(1, 5, 7), base);
    cr_assert_neq(gk_hash_term(0, 6, 7), base);
    cr_assert_neq(gk_hash_term(0, 5, 8), base);
    cr_assert_neq(gk_hash_term(0, 7, 5), base);
    /* Two entries that change places change the sum. */
    cr_assert_neq(gk_hash_term(0, 1, 10) + gk_hash_term(0, 2, 20),
                  gk_hash_term(0, 1, 20) + gk_hash_term(0, 2, 10));
    /* Frozen: it is in records and in messages. */
    cr_assert_eq(gk_hash_term(0, 0, 0), gk_mix64(UINT64_C(0xe220a8397b1dcdaf)));
}

Test(bits, floats_and_bytes_round_trip)
{
    static const uint32_t patterns[] = {0,          0x80000000, 1,          0x3f800000,
                                        0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001};
    uint8_t bytes[9] = {0};

    cr_assert_eq(gk_float_bits(1.0f), 0x3f800000);
    cr_assert_eq(gk_float_bits(-0.0f), 0x80000000);
    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++) {
        cr_assert_eq(gk_float_bits(gk_bits_float(patterns[i])), patterns[i]);
    }
    gk_put_u32(bytes + 1, 0x04030201);
    for (unsigned i = 0; i < 5; i++) {
        cr_assert_eq(bytes[i], i, "little-endian, unaligned");
    }
    cr_assert_eq(gk_get_u32(bytes + 1), 0x04030201);
    gk_put_u64(bytes + 1, UINT64_C(0x0807060504030201));
    for (unsigned i = 0; i < 9; i++) {
        cr_assert_eq(bytes[i], i);
    }
    cr_assert_eq(gk_get_u64(bytes + 1), UINT64_C(0x0807060504030201));
    cr_assert_eq(gk_min_u64(3, UINT64_MAX), 3);
    cr_assert_eq(gk_max_u64(3, UINT64_MAX), UINT64_MAX);
}
