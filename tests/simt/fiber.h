/* Fibers: one stack a GPU thread, and the switch between them.
 *
 * The switch is a few lines of assembly, because it is most of what an emulated kernel costs:
 * swapcontext() also saves the signal mask, which is two system calls, and takes 288 ns where this
 * takes 10.  Other processors than x86-64 use swapcontext(). */
#ifndef GK_TESTS_SIMT_FIBER_H
#define GK_TESTS_SIMT_FIBER_H

#include <stddef.h>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#define GK_SIMT_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define GK_SIMT_ASAN 1
#endif
#endif

namespace simt
{
struct fiber {
    void *stack; /* lowest address; NULL: the stack that the process came with */
    size_t stack_bytes;
    void *fake_stack; /* AddressSanitizer's */
#if defined(__x86_64__)
    void *top;
#else
    ucontext_t context;
#endif
};

/* A stack with an inaccessible page below it. */
void fiber_init(fiber *fiber);

/* From the next switch to it, the fiber runs `entry` from the start. */
void fiber_prepare(fiber *fiber, void (*entry)());

/* Leaves `from` and goes on with `to`; returns when somebody switches back. */
void fiber_switch(fiber *from, fiber *to);

/* As the first thing in `entry`: `from` is who switched here. */
void fiber_entered(fiber *from);
} // namespace simt

#endif
