/* The bodies of HELLO, WELCOME, PING and PONG behind a header that is right: one byte that chooses
 * the kind, one for the length of the body, the body, and the rest as text. */
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/wire.h"

#include "proto/pack.h"

#include <string.h>

enum { HEAD_BYTES = 8 };

static void add_header(struct fuzz_message *message, uint32_t kind)
{
    struct gk_header header = {.kind = kind, .session = 5, .req_id = 7, .rank = 1};
    uint8_t bytes[HEAD_BYTES + GK_RECORD_BYTES_MAX] = {0};

    if (kind == GK_KIND_HELLO) {
        header.session = 0;
    }
    if (kind == GK_KIND_WELCOME) {
        header.version = 3;
        header.hi = 80;
        header.init_id = 9;
    }
    fuzz_message_add(message, bytes,
                     HEAD_BYTES + gk_record_pack(GK_RECORD_HEADER, &header, bytes + HEAD_BYTES));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint32_t kinds[] = {GK_KIND_HELLO, GK_KIND_WELCOME, GK_KIND_PING, GK_KIND_PONG};
    struct fuzz_bytes in = {.at = data, .left = size};
    struct fuzz_message message = {0};
    struct gk_msg msg;
    struct gk_words words;
    size_t body;

    add_header(&message, kinds[fuzz_take_u8(&in) % 4]);
    body = fuzz_take_u8(&in);
    body = body > in.left ? in.left : body;
    fuzz_message_add(&message, in.at, body);
    if (in.left > body) {
        fuzz_message_add(&message, in.at + body, in.left - body);
    }
    fuzz_message_seal(&message);
    (void)fuzz_message_parse(&message, &msg, &words);
    gk_msg_clear(&msg);
    fuzz_message_clear(&message);
    return 0;
}
