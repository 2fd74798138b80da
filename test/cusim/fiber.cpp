#include "cusim/fiber.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>

#include "cusim/sim.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(CUSIM_TSAN)
extern "C" {
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void *fiber);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
}
#endif

/* cusim_switch(save, sp): keeps the callee-saved registers on the stack, its address in *save, and
 * goes on at sp. 14 ns; swapcontext() makes a system call. */
extern "C" void cusim_switch(void **save, void *sp);
#if defined(__x86_64__)
asm(R"(
.text
.hidden cusim_switch
.globl cusim_switch
.type cusim_switch,@function
cusim_switch:
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
.size cusim_switch,.-cusim_switch
)");
#elif defined(__aarch64__)
asm(R"(
.text
.hidden cusim_switch
.globl cusim_switch
.type cusim_switch,%function
cusim_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x2, sp
    str x2, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.size cusim_switch,.-cusim_switch
)");
#else
#error "exec.cpp: the context switch of this processor is missing"
#endif

namespace
{

/* Sanitizers enlarge frames. Stacks that all began at the same place of a page would share a few sets of the cache. */
constexpr size_t STACK_BYTES = 256 << 10, GUARD_BYTES = 4096, SPREAD_BYTES = 320;
} // namespace

namespace cusim
{

void push(fiber **list, fiber *f)
{
    f->next = *list;
    *list = f;
}

fiber *pop(fiber **list)
{
    fiber *f = *list;
    if (f)
        *list = f->next;
    return f;
}

fiber *make_fiber(bool named)
{
    static std::atomic<unsigned> n_made;
    quiet q;
    auto *f = new fiber();
    void *m = mmap(nullptr, STACK_BYTES + GUARD_BYTES, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m == MAP_FAILED) {
        perror("cusim: the stack of a CUDA thread");
        abort();
    }
    mprotect(m, GUARD_BYTES, PROT_NONE);
    f->stack = (char *)m + GUARD_BYTES;
    f->stack_bytes = STACK_BYTES - n_made++ % 16 * SPREAD_BYTES;
#if defined(CUSIM_TSAN)
    f->tsan = named ? __tsan_create_fiber(0) : nullptr;
#else
    (void)named;
#endif
    return f;
}

void free_fiber(fiber *f)
{
    quiet q;
#if defined(CUSIM_TSAN)
    if (f->tsan)
        __tsan_destroy_fiber(f->tsan);
#endif
    munmap(f->stack - GUARD_BYTES, STACK_BYTES + GUARD_BYTES);
    delete f;
}

void adopt_thread(fiber *f)
{
    pthread_attr_t attr;
    void *stack;
    if (pthread_getattr_np(pthread_self(), &attr) == 0) {
        pthread_attr_getstack(&attr, &stack, &f->stack_bytes);
        f->stack = (char *)stack;
        pthread_attr_destroy(&attr);
    }
#if defined(CUSIM_TSAN)
    f->tsan = __tsan_get_current_fiber();
#endif
}

void arm(fiber *f, void (*entry)())
{
    void **sp = (void **)(f->stack + f->stack_bytes - 64);
#if defined(__x86_64__)
    *--sp = nullptr; /* where entry() would return to */
    *--sp = (void *)entry;
    for (int i = 0; i < 6; i++)
        *--sp = nullptr;
#else
    sp -= 20;
    std::fill(sp, sp + 20, nullptr);
    sp[11] = (void *)entry; /* x30 */
#endif
    f->sp = sp;
}

void fiber_begins()
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
}

void take_name(const fiber *f)
{
#if defined(CUSIM_TSAN)
    __tsan_switch_to_fiber(f->tsan, 1); /* 1: orders nothing */
#else
    (void)f;
#endif
}

void switch_fiber(fiber *from, fiber *to, bool ends)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(ends ? nullptr : &from->fake, to->stack, to->stack_bytes);
#endif
#if defined(CUSIM_TSAN)
    if (to->tsan)
        take_name(to);
#endif
    cusim_switch(&from->sp, to->sp);
    (void)ends;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(from->fake, nullptr, nullptr);
#endif
}

} // namespace cusim
