/* Bulk bytes with a reference count: what is received is kept where it arrived, what is sent is not
 * copied.
 *
 * A function that takes a `struct gk_buf *` borrows it unless its comment says "takes" or "gives";
 * one that keeps it takes a reference of its own.  The data is immutable once a second reference
 * exists.  Counting is atomic, so that a buffer may be released on a thread of ZeroMQ. */
#ifndef GK_COMMON_BUF_H
#define GK_COMMON_BUF_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct gk_buf {
    uint8_t *data; /* aligned to 16 bytes; in a received part to 8 */
    size_t size;
    atomic_uint refs;
    void (*release)(struct gk_buf *buf); /* at the last unref, on the thread of that unref */
    void *owner;                         /* for release */
};

/* New buffer of `size` bytes, zeroed, one reference.  NULL: out of memory.  Any thread. */
struct gk_buf *gk_buf_new(size_t size);

/* New buffer with a copy of the bytes.  NULL: out of memory.  Any thread. */
struct gk_buf *gk_buf_copy(const void *data, size_t size);

/* One more reference; returns buf.  Any thread. */
struct gk_buf *gk_buf_ref(struct gk_buf *buf);

/* One reference less; accepts NULL.  Any thread. */
void gk_buf_unref(struct gk_buf *buf);

#endif
