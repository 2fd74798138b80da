/* thread.h: threads of our own. */
#ifndef ZT_BASE_THREAD_H
#define ZT_BASE_THREAD_H

#include <pthread.h>

#include "base/err.h"

/*
 * Run fn(arg) on a thread that has that name (15 bytes of it) and gets no signals: these are for the threads that
 * were there before. The caller joins it. ZT_ESYS.
 */
int zt_thread_start(pthread_t *thread, const char *name, void *(*fn)(void *), void *arg,
                    struct zt_err *err) ZT_MUST_CHECK;

#endif
