/* What an emulated kernel runs on: threads as fibers, and every place where one of them may have to
 * wait for others.
 *
 * A thread runs until it reaches a collective operation of its warp, a barrier of its block, an
 * atomic operation (where it may be interrupted), or its end.  Operations carry a tag: what, with
 * which mask, called where.  A warp's operation happens when exactly the lanes that its mask names
 * wait with the same tag; whatever else can happen is a fault, also a mask that names a lane that
 * has ended.  Every fault ends the process with its text. */
#ifndef GK_TESTS_SIMT_CORE_H
#define GK_TESTS_SIMT_CORE_H

#include <stddef.h>
#include <stdint.h>

struct gk_simt_dim {
    unsigned x, y, z;
};

namespace simt
{
enum operation { BALLOT, SHUFFLE, SHUFFLE_UP, SHUFFLE_DOWN, SHUFFLE_XOR, SYNC_WARP, OPERATIONS };

struct site {
    const char *file;
    int line;
};

struct block;

/* The indices that a kernel reads, of the thread that runs. */
struct place {
    gk_simt_dim thread, block, block_dim, grid_dim;
};

extern place current;

/* One launch; the body runs once for each thread. */
struct launch {
    const char *name;
    gk_simt_dim grid, block;
    void (*body)(void *context);
    void *context;
};

void run(const launch &launch);

[[noreturn]] void fault(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- Called by threads ---- */

uint64_t collective(operation op, unsigned mask, uint64_t value, unsigned argument, site site);
void barrier(site site);
void atomic_point(); /* another thread may run here */

/* The block's storage of one shared declaration: all its threads get the same.  Poisoned at the
 * block's start. */
struct shared_cell {
    uint32_t block_epoch_write, block_epoch_read; /* of the last access; 0: none */
    uint32_t warp_epoch_write, warp_epoch_read;
    int32_t writer, reader;                 /* threads */
    bool write_atomic, many_readers, warps; /* reads by several threads, of several warps */
};

struct shared_storage {
    void *data;
    shared_cell *cells; /* one an element */
    size_t count, element_bytes;
    site where;
};

shared_storage *shared_find(size_t element_bytes, size_t count, site site);

enum access { READ, WRITE, ATOMIC };

/* Notes an access, and finds it to be a race with another thread's since the last barrier. */
void shared_access(shared_storage *storage, size_t index, access access);

/* ---- Atomic reads and writes of shared elements go through these ---- */

template <typename T> struct shared_pointer {
    shared_storage *storage;
    size_t index;

    T &touch(access access) const
    {
        shared_access(storage, index, access);
        return static_cast<T *>(storage->data)[index];
    }
};

template <typename T> struct shared_element {
    shared_pointer<T> at;

    operator T() const { return at.touch(READ); }
    shared_pointer<T> operator&() const { return at; }
    T operator=(T value) const { return at.touch(WRITE) = value; }
    T operator=(const shared_element &other) const
    {
        return at.touch(WRITE) = static_cast<T>(other);
    }
    T operator+=(T value) const { return *this = static_cast<T>(static_cast<T>(*this) + value); }
    shared_element(const shared_element &) = default;
    shared_element(shared_pointer<T> pointer) : at(pointer) {}
};

template <typename T> struct shared_array {
    shared_storage *storage;

    template <typename I> shared_element<T> operator[](I index) const
    {
        return shared_element<T>(shared_pointer<T>{storage, static_cast<size_t>(index)});
    }
};
} // namespace simt

#endif
