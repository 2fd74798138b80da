/*
 * sanitize.h: what the sanitizers must be told. All of it compiles away in a plain build.
 *
 * ThreadSanitizer sees an order between two threads in every release/acquire pair. The queue's own
 * pairs are more than a stream promises (a slot that is used again would order its consumer before
 * the producer, and so, through the producer, before every other stream), and would hide a missing
 * wait. So the queue synchronises in functions marked ZT_NO_TSAN and declares the promised edges,
 * and no others, with zt_tsan_release() and zt_tsan_acquire().
 */
#ifndef ZT_DEV_SANITIZE_H
#define ZT_DEV_SANITIZE_H

#include "base/compat.h"

#ifdef __has_feature
#define ZT_HAS_FEATURE(x) __has_feature(x)
#else
#define ZT_HAS_FEATURE(x) 0
#endif

#if defined(__SANITIZE_THREAD__) || ZT_HAS_FEATURE(thread_sanitizer)
#define ZT_TSAN 1
#define ZT_NO_TSAN __attribute__((no_sanitize("thread"), noinline))

/* The run-time library's interface (sanitizer/tsan_interface.h and its annotations). */
void __tsan_acquire(void *addr);
void __tsan_release(void *addr);
void __tsan_read_range(void *addr, unsigned long bytes);
void __tsan_write_range(void *addr, unsigned long bytes);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);

#define zt_tsan_acquire(addr) __tsan_acquire(addr)
#define zt_tsan_release(addr) __tsan_release(addr)
#define zt_tsan_ignore_writes_begin() AnnotateIgnoreWritesBegin(__FILE__, __LINE__)
#define zt_tsan_ignore_writes_end() AnnotateIgnoreWritesEnd(__FILE__, __LINE__)
#else
#define ZT_TSAN 0
#define ZT_NO_TSAN
#define zt_tsan_acquire(addr) ((void)(addr))
#define zt_tsan_release(addr) ((void)(addr))
#define zt_tsan_ignore_writes_begin() ((void)0)
#define zt_tsan_ignore_writes_end() ((void)0)
#endif

#if defined(__SANITIZE_ADDRESS__) || ZT_HAS_FEATURE(address_sanitizer)
#define ZT_ASAN 1
void __asan_poison_memory_region(void const volatile *addr, size_t bytes);
void __asan_unpoison_memory_region(void const volatile *addr, size_t bytes);
#else
#define ZT_ASAN 0
#endif

#endif
