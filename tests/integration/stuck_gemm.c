/* Loaded into a worker before its libraries (LD_PRELOAD): a matrix product that never returns, as
 * OpenBLAS's does when it gets no memory.  It says so once, for the test to wait for. */
#include <unistd.h>

void cblas_sgemm(void);

void cblas_sgemm(void)
{
    static const char words[] = "the matrix product has begun\n";

    (void)!write(STDERR_FILENO, words, sizeof(words) - 1);
    for (;;) {
        (void)pause();
    }
}
