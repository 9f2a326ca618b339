/* Goal: every legal message survives the wire unchanged and fits its limits.
 * Method: random legal messages of every kind go to wire and back and are compared field by field;
 * the largest header and body of each kind are packed with every field at the top of its type;
 * parts that lie unaligned are taken as well. */
#include "tests/unit/proto_legal.h"

#include "common/hash.h"

#include <criterion/criterion.h>

enum { ROUNDS = 400 };

static struct draw seeded(uint64_t seed)
{
    return (struct draw){.rng = {.seed = seed, .purpose = GK_RNG_IDENTITY}};
}

Test(proto_codec, round_trip)
{
    struct draw draw = seeded(1);

    for (uint32_t kind = 1; kind <= GK_KIND_MAX; kind++) {
        for (uint32_t round = 0; round < ROUNDS && !reserved_kind(kind); round++) {
            struct gk_buf *parts[GK_PARTS_MAX];
            struct gk_msg in, out;
            struct gk_words words = {""};
            uint32_t count = 0;
            enum gk_err err;

            legal_message(&draw, kind, &in);
            cr_assert(gk_msg_to_wire(&in, parts, &count) == GK_OK);
            cr_assert(count >= 1 && count <= GK_PARTS_MAX);
            cr_assert(parts[0]->size <= GK_HEADER_BYTES_MAX);
            err = gk_msg_from_wire(parts, count, &out, &words);
            cr_assert(err == GK_OK, "%s: %s: %s", gk_kind_name(kind), gk_err_name(err), words.text);
            cr_assert_str_eq(difference(&in, &out), "", "%s %u", gk_kind_name(kind), round);
            for (uint32_t i = 1; i < count; i++) {
                cr_assert(out.h.frame_crc[i - 1] == gk_crc32c(parts[i]->data, parts[i]->size));
            }
            drop_parts(parts, count);
            cr_assert_str_eq(difference(&in, &out), "", "the frames outlive the parts");
            gk_msg_clear(&in);
            gk_msg_clear(&out);
        }
    }
}

/* The sender's word is taken for a frame that it knows, and the receiver judges it. */
Test(proto_codec, known_crc)
{
    struct draw draw = seeded(2);

    for (uint32_t round = 0; round < 3; round++) { /* unknown, right, wrong */
        struct gk_buf *parts[GK_PARTS_MAX];
        struct gk_msg in, out;
        struct gk_words words = {""};
        uint32_t count = 0, crc;

        legal_message(&draw, GK_KIND_PARAMS, &in);
        crc = gk_crc32c(in.frame[0]->data, in.frame[0]->size);
        in.known_crc[0] = round == 0 ? 0 : round == 1 ? crc : crc ^ 1;
        cr_assert(gk_msg_to_wire(&in, parts, &count) == GK_OK);
        cr_assert(gk_msg_from_wire(parts, count, &out, &words) ==
                  (round == 2 ? GK_E_CORRUPT : GK_OK));
        cr_assert_eq(out.h.frame_crc[0], round == 2 ? crc ^ 1 : crc);
        drop_parts(parts, count);
        gk_msg_clear(&in);
        gk_msg_clear(&out);
    }
}
