#include "base/thread.h"

#include <errno.h>
#include <signal.h>

int zt_thread_start(pthread_t *thread, const char *name, void *(*fn)(void *), void *arg,
                    struct zt_err *err)
{
    sigset_t all, before;
    char shown[16];
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    errno = pthread_create(thread, NULL, fn, arg);
    const int rc = errno ? zt_err_errno(err, ZT_ESYS, "cannot start the thread %s", name) : 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc)
        return rc;
    snprintf(shown, sizeof shown, "%s", name);
    pthread_setname_np(*thread, shown);
    return 0;
}
