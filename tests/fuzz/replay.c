/* Stands in for libFuzzer's main() in every other build: gives a target the files that are named,
 * or all files of a folder, in the order of their names; then, with --mutate N, N mutated copies of
 * them.  The mutations follow from the seed alone, so a failure comes again; --save FILE keeps the
 * one that runs in a file.
 *
 * usage: fuzz_TARGET [--mutate N] [--seed S] [--save FILE] FILE|FOLDER... */
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { INPUTS_MAX = 4096, INPUT_BYTES_MAX = 1 << 20, MUTATED_BYTES_MAX = 1 << 14 };

/* A target has these only when it needs them. */
#pragma weak LLVMFuzzerInitialize
#pragma weak LLVMFuzzerCustomMutator
#pragma weak LLVMFuzzerCustomCrossOver

struct input {
    uint8_t *bytes;
    size_t size;
};

static struct input inputs[INPUTS_MAX];
static uint32_t inputs_count;
static const char *save_path;      /* NULL: nowhere */
static char running[4200];         /* what the target has now, for a person */
static struct fuzz_random generic; /* of LLVMFuzzerMutate(), which has no seed of its own */

static _Noreturn void fail(const char *what, const char *path)
{
    (void)fprintf(stderr, "%s: %s\n", path, what);
    exit(1);
}

/* A check or an assertion did not hold: say with what input, and end like any test that fails. */
static void on_abort(int number)
{
    (void)number;
    (void)!write(STDERR_FILENO, running, strlen(running));
    _exit(1);
}

/* A few of libFuzzer's own mutations of plain bytes. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size)
{
    size_t at = size > 0 ? fuzz_below(&generic, (uint32_t)size) : 0;

    switch (fuzz_below(&generic, 4)) {
    case 0: /* insert */
        if (size < max_size) {
            memmove(data + at + 1, data + at, size - at);
            data[at] = (uint8_t)fuzz_next(&generic);
            return size + 1;
        }
        break;
    case 1: /* erase */
        if (size > 1) {
            memmove(data + at, data + at + 1, size - at - 1);
            return size - 1;
        }
        break;
    case 2:
        if (size > 0) {
            data[at] = (uint8_t)fuzz_interesting(&generic, data[at]);
        }
        break;
    default:
        if (size > 0) {
            data[at] ^= (uint8_t)(1u << fuzz_below(&generic, 8));
        }
        break;
    }
    return size;
}

/* The target gets a copy of exactly the right size, so that a sanitizer sees a read beyond it. */
static void give(const uint8_t *bytes, size_t size)
{
    uint8_t *copy = malloc(size > 0 ? size : 1);

    if (!copy) {
        fail("no memory", "input");
    }
    memcpy(copy, bytes, size);
    (void)LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

static void replay_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    uint8_t *bytes = malloc(INPUT_BYTES_MAX);
    size_t size;

    if (!file || !bytes) {
        fail("cannot be opened", path);
    }
    size = fread(bytes, 1, INPUT_BYTES_MAX, file);
    if (ferror(file) || fclose(file) != 0) {
        fail("cannot be read", path);
    }
    if (inputs_count == INPUTS_MAX) {
        fail("too many inputs", path);
    }
    (void)snprintf(running, sizeof(running), "failed: %s\n", path);
    give(bytes, size);
    inputs[inputs_count++] = (struct input){.bytes = bytes, .size = size};
}

static int visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static void replay(const char *path)
{
    struct dirent **entries;
    struct stat info;
    char name[4096];
    int count;

    if (stat(path, &info) != 0) {
        fail("is not there", path);
    }
    if (!S_ISDIR(info.st_mode)) {
        replay_file(path);
        return;
    }
    count = scandir(path, &entries, visible, alphasort);
    if (count < 0) {
        fail("cannot be listed", path);
    }
    for (int i = 0; i < count; i++) {
        (void)snprintf(name, sizeof(name), "%s/%s", path, entries[i]->d_name);
        replay_file(name);
        free(entries[i]);
    }
    free(entries);
}

static void save(const uint8_t *bytes, size_t size)
{
    FILE *file = fopen(save_path, "wb");

    if (!file || fwrite(bytes, 1, size, file) != size || fclose(file) != 0) {
        fail("cannot be written", save_path);
    }
}

/* Number `n` of this seed: an input, mutated up to four times, now and then crossed with another.
 */
static void mutate_one(unsigned long long seed, unsigned long long n)
{
    static uint8_t bytes[MUTATED_BYTES_MAX];
    struct fuzz_random random = {.state = seed ^ n << 20};
    const struct input *from = &inputs[fuzz_below(&random, inputs_count)];
    const struct input *other = &inputs[fuzz_below(&random, inputs_count)];
    size_t size = from->size < sizeof(bytes) ? from->size : sizeof(bytes);

    generic.state = fuzz_next(&random);
    memcpy(bytes, from->bytes, size);
    if (LLVMFuzzerCustomCrossOver && fuzz_below(&random, 8) == 0) {
        size = LLVMFuzzerCustomCrossOver(from->bytes, from->size, other->bytes, other->size, bytes,
                                         sizeof(bytes), (unsigned)fuzz_next(&random));
    }
    for (uint32_t i = 0; i <= fuzz_below(&random, 4); i++) {
        size = LLVMFuzzerCustomMutator ? LLVMFuzzerCustomMutator(bytes, size, sizeof(bytes),
                                                                 (unsigned)fuzz_next(&random))
                                       : LLVMFuzzerMutate(bytes, size, sizeof(bytes));
    }
    (void)snprintf(running, sizeof(running), "failed: mutation %llu of seed %llu\n", n, seed);
    if (save_path) {
        save(bytes, size);
    }
    give(bytes, size);
}

int main(int argc, char **argv)
{
    unsigned long long mutations = 0, seed = 1;
    int first = 1;

    while (first + 1 < argc && strncmp(argv[first], "--", 2) == 0) {
        unsigned long long value = strtoull(argv[first + 1], NULL, 10);

        if (strcmp(argv[first], "--mutate") == 0) {
            mutations = value;
        } else if (strcmp(argv[first], "--seed") == 0) {
            seed = value;
        } else if (strcmp(argv[first], "--save") == 0) {
            save_path = argv[first + 1];
        } else {
            fail("unknown flag", argv[first]);
        }
        first += 2;
    }
    FUZZ_CHECK(signal(SIGABRT, on_abort) != SIG_ERR);
    if (LLVMFuzzerInitialize) {
        (void)LLVMFuzzerInitialize(&argc, &argv);
    }
    for (int i = first; i < argc; i++) {
        replay(argv[i]);
    }
    if (inputs_count == 0) {
        fail("no inputs; name files or folders", argv[0]);
    }
    for (unsigned long long n = 0; n < mutations; n++) {
        mutate_one(seed, n);
    }
    (void)fprintf(stderr, "%u inputs replayed, %llu mutated ones (seed %llu): ok\n", inputs_count,
                  mutations, seed);
    for (uint32_t i = 0; i < inputs_count; i++) {
        free(inputs[i].bytes);
    }
    return 0;
}
