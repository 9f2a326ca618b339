#define _GNU_SOURCE /* memfd_create */
#include "tests/fuzz/memory_file.h"

#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

void memory_file_open(struct memory_file *file)
{
    file->fd = memfd_create("fuzz", MFD_CLOEXEC);
    FUZZ_CHECK(file->fd >= 0);
    (void)snprintf(file->path, sizeof(file->path), "/proc/self/fd/%d", file->fd);
}

void memory_file_put(const struct memory_file *file, const void *bytes, size_t size)
{
    FUZZ_CHECK(ftruncate(file->fd, 0) == 0);
    FUZZ_CHECK(size == 0 || pwrite(file->fd, bytes, size, 0) == (ssize_t)size);
}
