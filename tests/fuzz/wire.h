/* A message as a fuzzer sees it: parts of any number and size, which need not be a message at all.
 *
 * In an input it is one byte (bits 0 to 2: number of parts; bit 3: the parts lie worse than
 * the transport aligns them), then for each part its length in three bytes and its bytes. */
#ifndef GK_TESTS_FUZZ_WIRE_H
#define GK_TESTS_FUZZ_WIRE_H

#include "proto/msg.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    FUZZ_PARTS_MAX = 7, /* more than any message may have */
    FUZZ_PART_BYTES_MAX = GK_SPEC_BYTES_MAX + 64,
};

struct fuzz_part {
    uint8_t *bytes; /* owned; room for FUZZ_PART_BYTES_MAX is made when it is mutated */
    size_t size;
};

struct fuzz_message {
    uint32_t count;
    bool skewed;
    struct fuzz_part parts[FUZZ_PARTS_MAX];
};

struct fuzz_bytes { /* what is left of an input */
    const uint8_t *at;
    size_t left;
};

/* The next byte; 0 at the end. */
uint8_t fuzz_take_u8(struct fuzz_bytes *in);
uint32_t fuzz_take_u32(struct fuzz_bytes *in);

/* Any bytes are a message; what the input lacks is left out.  Free with fuzz_message_clear(). */
void fuzz_message_read(struct fuzz_bytes *in, struct fuzz_message *ret);

/* The bytes of `message` at `ret`; how many, or 0 when they would be more than `room`. */
size_t fuzz_message_write(const struct fuzz_message *message, uint8_t *ret, size_t room);

void fuzz_message_clear(struct fuzz_message *message);

/* One more part, at the end; no more than FUZZ_PARTS_MAX, each cut at FUZZ_PART_BYTES_MAX. */
void fuzz_message_add(struct fuzz_message *message, const void *bytes, size_t size);

/* Make magic and checksums right, whatever the parts hold: what comes behind them is reached. */
void fuzz_message_seal(struct fuzz_message *message);

/* The parts as buffers, each exactly as large as it says, so that a sanitizer sees what is read
 * beyond them; one reference each. */
void fuzz_message_bufs(const struct fuzz_message *message, struct gk_buf **ret_parts);

/* gk_msg_from_wire() on the parts.  `ret_msg` is to be cleared in any case. */
enum gk_err fuzz_message_take(const struct fuzz_message *message, struct gk_msg *ret_msg,
                              struct gk_words *words);

/* The same, and what it promises of its result, good or bad: an error has words and a header that
 * can be answered, a good message is written again as the same bytes. */
enum gk_err fuzz_message_parse(const struct fuzz_message *message, struct gk_msg *ret_msg,
                               struct gk_words *words);

/* A message of our own as it goes over the wire; gk_msg_to_wire() asserts that it obeys the rules.
 */
void fuzz_message_send(const struct gk_msg *msg, struct fuzz_message *sent);

/* Whoever gets this message of our own takes it. */
void fuzz_message_check_ours(const struct gk_msg *msg);

#endif
