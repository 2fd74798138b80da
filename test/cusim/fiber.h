/*
 * fiber.h: stacks that are switched between within one host thread, and what the sanitizers must be told
 * about that.
 */
#ifndef CUSIM_FIBER_H
#define CUSIM_FIBER_H

#include <stddef.h>

namespace cusim
{

/* A stack and what runs on it. A thread that has switched to one is a fiber too. One without a name is, for
 * ThreadSanitizer, the same thread as who switched to it. */
struct fiber {
    void *sp = nullptr;
    char *stack = nullptr;
    size_t stack_bytes = 0;
    void *tsan = nullptr /* its name */, *fake = nullptr;
    fiber *next = nullptr; /* in a list; no container: it would allocate in the name of a lane */
};

void push(fiber **list, fiber *f);
fiber *pop(fiber **list); /* NULL: empty */

/* With a stack of its own below which is a guard page; ends the process if there is no memory. */
fiber *make_fiber(bool named);
void free_fiber(fiber *f);

/* The calling thread as a fiber. */
void adopt_thread(fiber *f);

/* The next switch to f calls entry(), which begins with fiber_begins() and never returns. */
void arm(fiber *f, void (*entry)());
void fiber_begins();

/* The caller is, for ThreadSanitizer, f until the next switch to a fiber with a name. Orders nothing. */
void take_name(const fiber *f);

/* Leaves `from`, which runs, for `to`. `ends`: nobody will come back. Orders nothing (ThreadSanitizer). */
void switch_fiber(fiber *from, fiber *to, bool ends);

} // namespace cusim

#endif
