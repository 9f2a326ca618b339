#include "tests/simt/fiber.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef GK_SIMT_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace simt
{
#ifdef GK_SIMT_ASAN
static const size_t stack_bytes_default = 128 * 1024;
#else
static const size_t stack_bytes_default = 32 * 1024;
#endif

void fiber_init(fiber *fiber)
{
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    void *memory = mmap(nullptr, stack_bytes_default + page, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE) != 0) {
        perror("simt: no memory for a stack");
        abort();
    }
    *fiber = {};
    fiber->stack = static_cast<char *>(memory) + page;
    fiber->stack_bytes = stack_bytes_default;
}

#if defined(__x86_64__)

/* Saves what a call preserves, changes stacks, restores.  The control words of the arithmetic are
 * the same in all fibers. */
extern "C" void gk_simt_switch_stack(void **save, void *load);
asm(R"(
.text
.align 16
.globl gk_simt_switch_stack
.hidden gk_simt_switch_stack
.type gk_simt_switch_stack, @function
gk_simt_switch_stack:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size gk_simt_switch_stack, . - gk_simt_switch_stack
)");

static const size_t saved_registers = 6;

static void prepare_stack(fiber *fiber, void (*entry)())
{
    uintptr_t *top =
        reinterpret_cast<uintptr_t *>(static_cast<char *>(fiber->stack) + fiber->stack_bytes);

    *--top = 0; /* entry begins as if it had been called: aligned, less a return address */
    *--top = reinterpret_cast<uintptr_t>(entry);
    for (size_t i = 0; i < saved_registers; i++) {
        *--top = 0;
    }
    fiber->top = top;
}

static void switch_stack(fiber *from, fiber *to)
{
    gk_simt_switch_stack(&from->top, to->top);
}

#else

static void prepare_stack(fiber *fiber, void (*entry)())
{
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack;
    fiber->context.uc_stack.ss_size = fiber->stack_bytes;
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, entry, 0);
}

static void switch_stack(fiber *from, fiber *to)
{
    swapcontext(&from->context, &to->context);
}

#endif

void fiber_prepare(fiber *fiber, void (*entry)())
{
#ifdef GK_SIMT_ASAN
    /* Frames that were left by the last kernel without returning. */
    __asan_unpoison_memory_region(fiber->stack, fiber->stack_bytes);
#endif
    fiber->fake_stack = nullptr;
    prepare_stack(fiber, entry);
}

void fiber_switch(fiber *from, fiber *to)
{
#ifdef GK_SIMT_ASAN
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_bytes);
#endif
    switch_stack(from, to);
#ifdef GK_SIMT_ASAN
    __sanitizer_finish_switch_fiber(from->fake_stack, nullptr, nullptr);
#endif
}

void fiber_entered(fiber *from)
{
#ifdef GK_SIMT_ASAN
    const void *bottom;
    size_t bytes;

    __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
    from->stack =
        const_cast<void *>(bottom); /* of the process's own stack, which only the sanitizer knows */
    from->stack_bytes = bytes;
#else
    (void)from;
#endif
}
} // namespace simt
