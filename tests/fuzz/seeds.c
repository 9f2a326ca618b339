/* usage: fuzz_seeds FOLDER */
#include "tests/fuzz/seeds.h"

#include "tests/fuzz/fuzz.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

enum { PATH_BYTES = 4096 };

static const char *root;
static unsigned written;

static void make_folder(const char *path)
{
    FUZZ_CHECK(mkdir(path, 0777) == 0 || errno == EEXIST);
}

void seeds_write(const char *target, const char *name, const void *bytes, size_t size)
{
    char path[PATH_BYTES];
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/%s", root, target);
    make_folder(path);
    (void)snprintf(path, sizeof(path), "%s/%s/%s", root, target, name);
    file = fopen(path, "wb");
    FUZZ_CHECK(file);
    FUZZ_CHECK(fwrite(bytes, 1, size, file) == size);
    FUZZ_CHECK(fclose(file) == 0);
    written++;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        (void)fprintf(stderr, "usage: fuzz_seeds FOLDER\n");
        return 64;
    }
    root = argv[1];
    make_folder(root);
    seeds_wire();
    seeds_talk();
    (void)fprintf(stderr, "%u seeds written\n", written);
    return 0;
}
