/* Goal: a buffer lives exactly as long as its last reference, on whatever thread that ends. Method:
 * counting releases, and threads that share one buffer. */
#include "common/buf.h"

#include <criterion/criterion.h>

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

Test(buf, new_is_zeroed_and_aligned)
{
    static const size_t sizes[] = {0, 1, 15, 16, 17, 4096, 1 << 20};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct gk_buf *buf = gk_buf_new(sizes[i]);

        cr_assert_not_null(buf);
        cr_assert_eq(buf->size, sizes[i]);
        cr_assert_eq((uintptr_t)buf->data % 16, 0);
        for (size_t j = 0; j < sizes[i]; j++) {
            cr_assert_eq(buf->data[j], 0);
        }
        memset(buf->data, 0xff, sizes[i]);
        gk_buf_unref(buf);
    }
    gk_buf_unref(NULL);
}

/* Volatile: the compiler knows that no allocation can be so large. */
static volatile size_t too_large = SIZE_MAX;

Test(buf, impossible_sizes_give_null)
{
    for (size_t less = 0; less < sizeof(struct gk_buf);
         less++) { /* the sum with the head overflows */
        cr_assert_null(gk_buf_new(too_large - less));
    }
}

Test(buf, copy_is_a_copy)
{
    char bytes[] = "some bytes";
    struct gk_buf *buf = gk_buf_copy(bytes, sizeof(bytes));
    struct gk_buf *empty = gk_buf_copy(NULL, 0);

    memset(bytes, 0, sizeof(bytes));
    cr_assert_str_eq((const char *)buf->data, "some bytes");
    cr_assert_eq(empty->size, 0);
    gk_buf_unref(buf);
    gk_buf_unref(empty);
}

static atomic_uint released;

static void count_release(struct gk_buf *buf)
{
    atomic_fetch_add(&released, 1);
    cr_assert_eq(buf->owner, &released);
}

Test(buf, release_comes_with_the_last_reference)
{
    struct gk_buf buf = {.refs = 1, .release = count_release, .owner = &released};

    cr_assert_eq(gk_buf_ref(&buf), &buf);
    gk_buf_ref(&buf);
    gk_buf_unref(&buf);
    gk_buf_unref(&buf);
    cr_assert_eq(atomic_load(&released), 0);
    gk_buf_unref(&buf);
    cr_assert_eq(atomic_load(&released), 1);
}

static void *use(void *argument)
{
    struct gk_buf *buf = argument;

    for (int i = 0; i < 20000; i++) {
        gk_buf_ref(buf);
        gk_buf_unref(buf);
    }
    gk_buf_unref(buf);
    return NULL;
}

Test(buf, threads_may_share)
{
    enum { THREADS = 4 };
    struct gk_buf buf = {.refs = 1, .release = count_release, .owner = &released};
    pthread_t threads[THREADS];

    for (int i = 0; i < THREADS; i++) {
        cr_assert_eq(pthread_create(&threads[i], NULL, use, gk_buf_ref(&buf)), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        cr_assert_eq(pthread_join(threads[i], NULL), 0);
    }
    cr_assert_eq(atomic_load(&released), 0);
    cr_assert_eq(atomic_load(&buf.refs), 1);
    gk_buf_unref(&buf);
    cr_assert_eq(atomic_load(&released), 1);
}

Test(buf, one_unref_too_many_is_our_bug, .signal = SIGABRT)
{
    struct gk_buf buf = {.refs = 1, .release = count_release, .owner = &released};

    gk_buf_unref(&buf);
    gk_buf_unref(&buf);
}

Test(buf, ref_of_a_dead_buffer_is_our_bug, .signal = SIGABRT)
{
    struct gk_buf buf = {.refs = 0, .release = count_release, .owner = &released};

    gk_buf_ref(&buf);
}
