/* One header frame, alone, through gk_msg_from_wire(): magic, checksum, protobuf, fields. */
#include "common/bits.h"
#include "common/hash.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/mutate.h"
#include "tests/fuzz/wire.h"

#include <string.h>

enum { HEAD_BYTES = 8 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_message message = {0};
    struct gk_msg msg;
    struct gk_words words;

    fuzz_message_add(&message, data, size);
    (void)fuzz_message_parse(&message, &msg, &words);
    gk_msg_clear(&msg);
    fuzz_message_clear(&message);
    return 0;
}

/* Fields of a header that can be read, or plain bytes behind a checksum that is right. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    struct fuzz_random random = {.state = seed};
    struct fuzz_message message = {0};

    if (size <= HEAD_BYTES || fuzz_below(&random, 16) == 0) {
        return LLVMFuzzerMutate(data, size, max_size);
    }
    if (fuzz_below(&random, 3) == 0) {
        size = HEAD_BYTES +
               LLVMFuzzerMutate(data + HEAD_BYTES, size - HEAD_BYTES, max_size - HEAD_BYTES);
        memcpy(data, "GKP1", 4);
        gk_put_u32(data + 4, gk_crc32c(data + HEAD_BYTES, size - HEAD_BYTES));
        return size;
    }
    fuzz_message_add(&message, data, size);
    fuzz_message_mutate(&message, &random);
    if (message.count > 0 && message.parts[0].size <= max_size) {
        size = message.parts[0].size;
        memcpy(data, message.parts[0].bytes, size);
    }
    fuzz_message_clear(&message);
    return size;
}
