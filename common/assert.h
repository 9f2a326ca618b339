/* Assertions for our own mistakes, in every build type.  Input from peers, files and people is
 * never asserted. */
#ifndef GK_COMMON_ASSERT_H
#define GK_COMMON_ASSERT_H

#define GK_ASSERT(x) ((x) ? (void)0 : gk_assert_failed(#x, __FILE__, __LINE__))

#ifdef __cplusplus
#define GK_NORETURN [[noreturn]]
#else
#define GK_NORETURN _Noreturn
#endif

/* Print the expression and the place, then abort. */
GK_NORETURN void gk_assert_failed(const char *expression, const char *file, int line);

#endif
