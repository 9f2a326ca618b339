/* libFuzzer's mutator for all targets whose input is one message. */
#include "tests/fuzz/mutate.h"

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    struct fuzz_random random = {.state = seed};
    struct fuzz_bytes in = {.at = data, .left = size};
    struct fuzz_message message;
    size_t written;

    fuzz_message_read(&in, &message);
    fuzz_message_mutate(&message, &random);
    written = fuzz_message_write(&message, data, max_size);
    fuzz_message_clear(&message);
    return written > 0 ? written : size;
}
