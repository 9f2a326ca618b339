/* A file that is only in memory, for code that wants a path. */
#ifndef GK_TESTS_FUZZ_MEMORY_FILE_H
#define GK_TESTS_FUZZ_MEMORY_FILE_H

#include <stddef.h>

enum { MEMORY_FILE_PATH_BYTES = 64 };

struct memory_file {
    int fd;
    char path[MEMORY_FILE_PATH_BYTES]; /* for this process */
};

void memory_file_open(struct memory_file *file);

/* From now on it holds exactly these bytes. */
void memory_file_put(const struct memory_file *file, const void *bytes, size_t size);

#endif
