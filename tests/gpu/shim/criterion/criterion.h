/* The few words of Criterion that the tests of the tables use, for machines that have none: tests
 * run one after the other in one process; one that fails is left at once. */
#ifndef GK_TESTS_GPU_CRITERION_H
#define GK_TESTS_GPU_CRITERION_H

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GK_SHIM_TESTS_MAX = 64 };

struct gk_shim_test {
    const char *suite, *name;
    void (*run)(void);
};

static struct gk_shim_test gk_shim_tests[GK_SHIM_TESTS_MAX];
static unsigned gk_shim_count;
static jmp_buf gk_shim_failed;

#define Test(suite, name)                                                                          \
    static void suite##_##name(void);                                                              \
    __attribute__((constructor)) static void suite##_##name##_add(void)                            \
    {                                                                                              \
        gk_shim_tests[gk_shim_count++] = (struct gk_shim_test){#suite, #name, suite##_##name};     \
    }                                                                                              \
    static void suite##_##name(void)

#define GK_SHIM_SAY(...) "" __VA_ARGS__
#define cr_assert(condition, ...)                                                                  \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            printf("%s:%d: %s\n  ", __FILE__, __LINE__, #condition);                               \
            printf(GK_SHIM_SAY(__VA_ARGS__));                                                      \
            printf("\n");                                                                          \
            longjmp(gk_shim_failed, 1);                                                            \
        }                                                                                          \
    } while (0)
#define cr_assert_eq(a, b, ...) cr_assert((a) == (b), __VA_ARGS__)
#define cr_assert_neq(a, b, ...) cr_assert((a) != (b), __VA_ARGS__)
#define cr_assert_gt(a, b, ...) cr_assert((a) > (b), __VA_ARGS__)
#define cr_assert_geq(a, b, ...) cr_assert((a) >= (b), __VA_ARGS__)
#define cr_assert_null(a, ...) cr_assert((a) == NULL, __VA_ARGS__)
#define cr_assert_not_null(a, ...) cr_assert((a) != NULL, __VA_ARGS__)

int main(void)
{
    volatile unsigned failed = 0; /* as longjmp() wants it */

    for (volatile unsigned i = 0; i < gk_shim_count; i++) {
        if (setjmp(gk_shim_failed) == 0) {
            gk_shim_tests[i].run();
            continue;
        }
        printf("FAILED: %s::%s\n", gk_shim_tests[i].suite, gk_shim_tests[i].name);
        failed++;
    }
    printf("%u tests, %u failed\n", gk_shim_count, failed);
    return failed ? 1 : 0;
}

#endif
