#include "launch/lookup.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/arena.h"

struct zt_lookup {
    char *name, port[8];
    struct addrinfo hints, *list;
    int wake_fd, rc;
    atomic_bool done;
    atomic_int n_users; /* who asked, and the thread */
};

static void leave(struct zt_lookup *l)
{
    if (atomic_fetch_sub(&l->n_users, 1) > 1)
        return;
    if (l->list)
        freeaddrinfo(l->list);
    if (l->wake_fd >= 0)
        close(l->wake_fd);
    free(l->name);
    free(l);
}

static void *look(void *arg)
{
    struct zt_lookup *l = arg;
    l->rc = getaddrinfo(l->name, l->port, &l->hints, &l->list);
    atomic_store(&l->done, true);
    eventfd_write(l->wake_fd, 1);
    leave(l);
    return NULL;
}

static int start_thread(struct zt_lookup *l)
{
    enum { STACK_BYTES = 512 << 10 };
    pthread_t thread;
    pthread_attr_t attr;
    int rc = pthread_attr_init(&attr);
    if (rc)
        return rc;
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    atomic_fetch_add(&l->n_users, 1);
    rc = pthread_create(&thread, &attr, look, l);
    if (rc)
        atomic_fetch_sub(&l->n_users, 1);
    pthread_attr_destroy(&attr);
    return rc;
}

int zt_lookup_start(const char *name, int port, int family, int wake_fd, struct zt_lookup **out,
                    struct zt_err *err)
{
    struct zt_lookup *l = zt_xcalloc(1, sizeof *l);
    l->name = zt_xstrdup(name);
    snprintf(l->port, sizeof l->port, "%d", port);
    l->hints = (struct addrinfo){.ai_family = family,
                                 .ai_socktype = SOCK_STREAM,
                                 .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    l->wake_fd = -1;
    atomic_init(&l->n_users, 1);
    atomic_init(&l->done, false);
    *out = l;
    if (getaddrinfo(name, l->port, &l->hints, &l->list) == 0) { /* an address: known at once */
        atomic_store(&l->done, true);
        return 0;
    }
    l->hints.ai_flags = AI_NUMERICSERV | AI_ADDRCONFIG;
    l->wake_fd = fcntl(wake_fd, F_DUPFD_CLOEXEC, 0);
    errno = l->wake_fd < 0 ? errno : start_thread(l);
    if (!errno)
        return 0;
    int rc = zt_err_errno(err, ZT_ESYS, "cannot look up %s", name);
    zt_lookup_release(l);
    *out = NULL;
    return rc;
}

int zt_lookup_get(struct zt_lookup *l, const struct addrinfo **list, struct zt_err *err)
{
    if (!atomic_load(&l->done))
        return 1;
    *list = l->list;
    if (l->rc == 0)
        return 0;
    return zt_err_set(err, ZT_EINPUT, "ssh: Could not resolve hostname %s: %s", l->name,
                      l->rc == EAI_SYSTEM ? "the system failed" : gai_strerror(l->rc));
}

void zt_lookup_release(struct zt_lookup *l)
{
    if (l)
        leave(l);
}
