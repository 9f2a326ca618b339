/* Prints an input of the targets `server` and `worker` in words, one event a line: what happened to
 * the core before it failed.
 *
 * usage: fuzz_show FILE */
#include "common/bits.h"
#include "proto/pack.h"
#include "tests/fuzz/session.h"

#include <inttypes.h>
#include <stdio.h>

enum { HEAD_BYTES = 8, INPUT_BYTES_MAX = 1 << 20 };

static void show_record(enum gk_record record, const uint8_t *bytes, size_t size)
{
    union {
        struct gk_header header;
        struct gk_hello hello;
        struct gk_welcome welcome;
        struct gk_ping ping;
    } value;
    uint32_t count;
    const struct gk_field *fields = gk_record_fields(record, &count);
    struct gk_words words = {.text = ""};
    enum gk_err err = gk_record_unpack(record, bytes, size, &value, &words);

    for (uint32_t i = 0; i < count; i++) {
        uint64_t x = gk_field_get(&fields[i], &value);

        if (x == FUZZ_THE_SESSION) {
            (void)printf(" %s=ITS", fields[i].name);
        } else if (x - FUZZ_THE_REQUEST < 16) {
            (void)printf(" %s=THE-%" PRIu64, fields[i].name, x - FUZZ_THE_REQUEST);
        } else if (x != 0 && (record != GK_RECORD_HEADER || i != GK_FIELD_KIND)) {
            (void)printf(" %s=%" PRIu64, fields[i].name, x);
        }
    }
    if (err) {
        (void)printf(" (%s)", words.text);
    }
}

static void show_message(const struct fuzz_message *message)
{
    const struct fuzz_part *head = &message->parts[0];
    const struct gk_kind_rule *rule;
    struct gk_msg msg;
    struct gk_words words;
    struct gk_buf *parts[FUZZ_PARTS_MAX];

    if (message->count == 0 || head->size <= HEAD_BYTES || head->size > GK_HEADER_BYTES_MAX) {
        (void)printf("no header, %" PRIu32 " parts", message->count);
        return;
    }
    fuzz_message_bufs(message, parts);
    if (gk_msg_from_wire(parts, message->count, &msg, &words)) {
        (void)printf("BAD (%s) ", words.text);
    }
    (void)printf("%s", gk_kind_name(msg.h.kind));
    show_record(GK_RECORD_HEADER, head->bytes + HEAD_BYTES, head->size - HEAD_BYTES);
    rule = gk_kind_rule(msg.h.kind);
    if (rule && rule->body != GK_RECORD_NONE && message->count > 1) {
        (void)printf(" |");
        show_record(rule->body, message->parts[1].bytes, message->parts[1].size);
    }
    for (uint32_t i = 1; i < message->count; i++) {
        (void)printf(" [%zu]", message->parts[i].size);
    }
    gk_msg_clear(&msg);
    for (uint32_t i = 0; i < message->count; i++) {
        gk_buf_unref(parts[i]);
    }
}

int main(int argc, char **argv)
{
    static const char *const ops[FUZZ_OPS] = {"MESSAGE", "TICK", "DONE",   "UP",
                                              "DOWN",    "STOP", "RESTART"};
    static struct fuzz_session session;
    static uint8_t bytes[INPUT_BYTES_MAX];
    FILE *file = argc == 2 ? fopen(argv[1], "rb") : NULL;
    size_t size = file ? fread(bytes, 1, sizeof(bytes), file) : 0;

    if (!file || ferror(file) || fclose(file) != 0) {
        (void)fprintf(stderr, "usage: fuzz_show FILE\n");
        return 64;
    }
    fuzz_session_read(bytes, size, &session);
    (void)printf("setup %02x\n", session.setup);
    for (uint32_t i = 0; i < session.count; i++) {
        const struct fuzz_event *event = &session.events[i];

        (void)printf("%3" PRIu32 " %s %u ", i, ops[event->op], event->who);
        if (event->op == FUZZ_MESSAGE) {
            show_message(&event->message);
        } else {
            (void)printf("%" PRIu32, event->argument);
        }
        (void)printf("\n");
    }
    fuzz_session_clear(&session);
    return 0;
}
