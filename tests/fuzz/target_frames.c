/* Whole messages of several parts through gk_msg_from_wire(); wire.h says what must hold of the
 * result.  The mutations (message_mutate.c) know the format and make the checksums right,
 * so that what lies behind them is reached. */
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_bytes in = {.at = data, .left = size};
    struct fuzz_message message;
    struct gk_msg msg;
    struct gk_words words;

    fuzz_message_read(&in, &message);
    (void)fuzz_message_parse(&message, &msg, &words);
    gk_msg_clear(&msg);
    fuzz_message_clear(&message);
    return 0;
}
