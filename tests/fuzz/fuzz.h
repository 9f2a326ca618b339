/* What all fuzz targets share: libFuzzer's entry points, a check that stays on in every build, and
 * random numbers for the mutators.
 *
 * A target is LLVMFuzzerTestOneInput() and, where plain bytes would never get past a checksum,
 * LLVMFuzzerCustomMutator().  Under clang with GK_FUZZ=ON libFuzzer's main() drives it; in every
 * other build replay.c does, with the files of corpus/ (docs/fuzzing.md). */
#ifndef GK_TESTS_FUZZ_FUZZ_H
#define GK_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* Names, types and meaning are libFuzzer's. */
int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed);
size_t LLVMFuzzerCustomCrossOver(const uint8_t *data1, size_t size1, const uint8_t *data2,
                                 size_t size2, uint8_t *out, size_t max_out_size,
                                 unsigned int seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size); /* theirs, for us to call */

/* A property of the code under test that did not hold: say which, and abort. */
#define FUZZ_CHECK(x) ((x) ? (void)0 : fuzz_failed(#x, __FILE__, __LINE__))
_Noreturn void fuzz_failed(const char *expression, const char *file, int line);

/* Words that explain an error: there are some, and they are one line. */
void fuzz_check_words(const char *text);

struct fuzz_random {
    uint64_t state;
};
uint64_t fuzz_next(struct fuzz_random *random);
uint32_t fuzz_below(struct fuzz_random *random, uint32_t bound); /* bound > 0 */

/* A number that is likely to be a boundary of something; `old` is what stood there. */
uint64_t fuzz_interesting(struct fuzz_random *random, uint64_t old);

#endif
