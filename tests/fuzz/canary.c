/* A target with a planted bug: it adds the values of a PUSH into an array and forgets that an index
 * may be as large as the range.  It must fail, with its one corpus file, and from legal messages
 * within seconds of fuzzing; otherwise the other targets prove nothing. */
#include "common/bits.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/wire.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_bytes in = {.at = data, .left = size};
    struct fuzz_message message;
    struct gk_header h = {0};
    struct gk_msg msg;
    struct gk_words words;
    bool good;

    fuzz_message_read(&in, &message);
    /* All but the order and range of the indices is as it must be. */
    good = fuzz_message_parse(&message, &msg, &words) == GK_OK || strstr(words.text, "index ");
    h = msg.h;
    gk_msg_clear(&msg);
    if (good && h.kind == GK_KIND_PUSH && h.index_encoding == GK_INDEX_RAW32) {
        for (uint64_t i = 0; i < h.count; i++) {
            uint64_t index = gk_get_u32(message.parts[1].bytes + 4 * i);

            FUZZ_CHECK(index != h.hi - h.lo && "planted: one beyond the range");
        }
    }
    fuzz_message_clear(&message);
    return 0;
}
