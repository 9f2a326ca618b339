/* A live server core, fed with one conversation; see server_shell.h for what must hold. */
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/server_shell.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct server_shell shell; /* large */
    struct fuzz_bytes in = {.at = data, .left = size};
    struct fuzz_event event;

    server_shell_init(&shell, fuzz_take_u8(&in));
    for (uint32_t i = 0; i < FUZZ_EVENTS_MAX && fuzz_event_read(&in, &event); i++) {
        server_shell_apply(&shell, &event);
        fuzz_message_clear(&event.message);
    }
    server_shell_fini(&shell);
    return 0;
}
