#include "launch/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/arena.h"
#include "launch/link.h"
#include "launch/spawn.h"

static int get_task(struct zt_worker *w, const struct zt_frame *f, struct zt_err *err)
{
    struct zt_cursor c = zt_cursor_of(f);
    w->rank = (int)zt_get_u32(&c);
    w->world = (int)zt_get_u32(&c);
    w->local_rank = (int)zt_get_u32(&c);
    w->threads = (int)zt_get_u32(&c);
    w->shm_control_fd = (int)zt_get_u32(&c);
    uint32_t n_arenas = zt_get_u32(&c);
    const unsigned char *fds = c.p;
    if (n_arenas > ZT_LAUNCH_MAX_WORKERS || !zt_get_bytes(&c, 4 * (size_t)n_arenas))
        return zt_err_set(err, ZT_EPROTO, "malformed TASK frame");
    zt_device_get(&w->device, &c);
    struct zt_nodes nodes;
    zt_nodes_get(&nodes, (uint32_t)w->world, &c);
    w->node = nodes.node;
    w->n_nodes = nodes.n;
    w->node_first = nodes.first;
    w->towards = nodes.towards;
    const unsigned char *secret = zt_get_bytes(&c, sizeof w->secret);
    const unsigned char *recipe = zt_get_blob(&c, &w->recipe_len);
    if (!zt_cursor_done(&c))
        return zt_err_set(err, ZT_EPROTO, "malformed TASK frame");
    w->n_arenas = (int)n_arenas;
    w->shm_arena_fds = zt_xcalloc(ZT_MAX(n_arenas, 1u), sizeof *w->shm_arena_fds);
    struct zt_cursor list = {fds, 4 * (size_t)n_arenas, false};
    for (uint32_t i = 0; i < n_arenas; i++)
        w->shm_arena_fds[i] = (int)zt_get_u32(&list);
    memcpy(w->secret, secret, sizeof w->secret);
    w->recipe = zt_xcalloc(w->recipe_len + 1, 1);
    memcpy(w->recipe, recipe, w->recipe_len);
    return 0;
}

/* What all ranks have given: kept as it came. */
static int get_gathered(struct zt_worker *w, const struct zt_frame *f, struct zt_err *err)
{
    struct zt_cursor c = zt_cursor_of(f);
    size_t len;
    for (int r = 0; r < w->world; r++)
        zt_get_blob(&c, &len);
    if (!w->gathers || !zt_cursor_done(&c))
        return zt_err_set(err, ZT_EPROTO, "malformed or unexpected GATHER frame");
    w->gathers = false;
    zt_str_reset(w->gathered);
    zt_str_add(w->gathered, f->data, f->len);
    return 0;
}

static int read_link(struct zt_worker *w)
{
    pthread_mutex_lock(&w->lock);
    int rc = zt_link_read(w->link);
    pthread_mutex_unlock(&w->lock);
    return rc;
}

/* Take what the agent has sent, without blocking. */
static int take_frames(struct zt_worker *w, struct zt_err *err)
{
    struct zt_frame f;
    int rc;
    while ((rc = read_link(w)) > 0) {
        while ((rc = zt_frame_next(&w->link->in, &f, err)) > 0) {
            if (f.type == ZT_FRAME_STOP)
                w->stop = true;
            else if (f.type == ZT_FRAME_TASK && !w->recipe)
                rc = get_task(w, &f, err);
            else if (f.type == ZT_FRAME_GATHER)
                rc = get_gathered(w, &f, err);
            else if (f.type != ZT_FRAME_HELLO)
                rc = zt_err_set(err, ZT_EPROTO, "frame of unexpected type %u", f.type);
            if (rc < 0)
                return rc;
        }
        if (rc < 0)
            return rc;
    }
    return rc ? zt_err_set(err, ZT_EPEER, "the agent has ended") : 0;
}

static int wait_for(int fd, int events, struct zt_err *err)
{
    struct pollfd p = {.fd = fd, .events = (short)events};
    if (poll(&p, 1, -1) < 0 && errno != EINTR)
        return zt_err_errno(err, ZT_ESYS, "poll");
    return 0;
}

int zt_worker_join(struct zt_worker *w, struct zt_err *err)
{
    memset(w, 0, sizeof *w);
    const char *text = getenv("ZT_JOB_FD");
    int64_t fd;
    if (!text)
        return zt_err_set(err, ZT_EINPUT,
                          "a worker is started by zerotrain itself: run `zerotrain RECIPE`");
    if (!zt_parse_i64(text, &fd) || fd < 0 || fd > INT32_MAX || fcntl((int)fd, F_GETFD) < 0)
        return zt_err_set(err, ZT_EINPUT, "ZT_JOB_FD=%s is not an open descriptor", text);
    fcntl((int)fd, F_SETFD, FD_CLOEXEC);
    w->shm_control_fd = -1;
    w->link = zt_xcalloc(1, sizeof *w->link);
    pthread_mutex_init(&w->lock, NULL);
    int rc = zt_link_open(w->link, (int)fd, (int)fd, err);
    while (!rc && !w->recipe) {
        rc = wait_for((int)fd, POLLIN, err);
        if (!rc)
            rc = take_frames(w, err);
    }
    if (rc) {
        zt_err_wrap(err, "joining the job");
        zt_worker_release(w);
        return rc;
    }
    char name[16];
    snprintf(name, sizeof name, "zerotrain-r%d", w->rank % 1000);
    prctl(PR_SET_NAME, name); /* what top and ps show; else "exe" */
    return 0;
}

/* What can be sent now; *rest: not all. Returns the descriptor to wait for; -1: the agent has ended. */
static int send_some(struct zt_worker *w, bool *rest)
{
    pthread_mutex_lock(&w->lock);
    zt_link_flush(w->link);
    const int fd = w->link->wfd;
    *rest = zt_link_backlog(w->link) > 0;
    pthread_mutex_unlock(&w->lock);
    return fd;
}

static void put_frame(struct zt_worker *w, enum zt_frame_type type, const void *bytes, size_t n)
{
    pthread_mutex_lock(&w->lock);
    if (w->link->wfd >= 0)
        zt_frame_put(&w->link->out, type, bytes, n);
    pthread_mutex_unlock(&w->lock);
}

static int send_frame(struct zt_worker *w, enum zt_frame_type type, const void *bytes, size_t n,
                      struct zt_err *err)
{
    bool rest;
    put_frame(w, type, bytes, n);
    for (;;) {
        const int fd = send_some(w, &rest);
        if (fd < 0)
            return zt_err_set(err, ZT_EPEER, "the agent has ended");
        int rc = rest ? wait_for(fd, POLLOUT, err) : 0;
        if (rc || !rest)
            return rc;
    }
}

void zt_worker_apart(struct zt_worker *w, int node)
{
    struct zt_str payload = {0};
    bool rest;
    zt_put_u32(&payload, (uint32_t)node);
    put_frame(w, ZT_FRAME_APART, payload.buf, payload.len);
    zt_str_release(&payload);
    (void)send_some(w, &rest);
}

int zt_worker_report(struct zt_worker *w, const char *json, size_t len, struct zt_err *err)
{
    if (len > ZT_REPORT_MAX_BYTES)
        return zt_err_set(err, ZT_EINPUT, "a report of %zu bytes; the limit is %d", len,
                          ZT_REPORT_MAX_BYTES);
    return send_frame(w, ZT_FRAME_REPORT, json, len, err);
}

/* The bytes of all ranks, as blobs; to be zeroed after use. */
static int gather(struct zt_worker *w, const void *mine, size_t n, struct zt_str *all,
                  struct zt_err *err)
{
    ZT_ASSERT_CMP(n, <=, ZT_SHARE_MAX_BYTES);
    w->gathers = true;
    w->gathered = all;
    int rc = send_frame(w, ZT_FRAME_GATHER, mine, n, err);
    while (!rc && w->gathers) {
        rc = wait_for(w->link->rfd, POLLIN, err);
        if (!rc)
            rc = take_frames(w, err);
    }
    w->gathered = NULL;
    return rc;
}

static void forget(struct zt_str *secret)
{
    if (secret->buf)
        explicit_bzero(secret->buf, secret->cap);
    zt_str_release(secret);
}

/* n bytes of rank `rank`, of what was gathered. */
static int take_from(const struct zt_str *all, int rank, void *out, size_t n, struct zt_err *err)
{
    struct zt_cursor c = {(const unsigned char *)all->buf, all->len, false};
    const unsigned char *p = NULL;
    size_t len = 0;
    for (int r = 0; r <= rank; r++)
        p = zt_get_blob(&c, &len);
    if (!p || len != n)
        return zt_err_set(err, ZT_EPROTO, "rank %d gives %zu bytes, not %zu", rank, len, n);
    memcpy(out, p, n);
    return 0;
}

int zt_worker_gather(struct zt_worker *w, const void *mine, size_t n, void *all, struct zt_err *err)
{
    struct zt_str blobs = {0};
    int rc = gather(w, mine, n, &blobs, err);
    for (int r = 0; r < w->world && !rc; r++)
        rc = take_from(&blobs, r, (char *)all + (size_t)r * n, n, err);
    forget(&blobs);
    return rc;
}

int zt_worker_share(struct zt_worker *w, void *bytes, size_t n, struct zt_err *err)
{
    struct zt_str blobs = {0};
    int rc = gather(w, bytes, w->rank == 0 ? n : 0, &blobs, err);
    if (!rc)
        rc = take_from(&blobs, 0, bytes, n, err);
    forget(&blobs);
    return rc;
}

bool zt_worker_stop_requested(struct zt_worker *w)
{
    struct zt_err ignored; /* whatever it says: without an agent there is nobody to work for */
    if (!w->stop && take_frames(w, &ignored))
        w->stop = true;
    return w->stop;
}

void zt_worker_release(struct zt_worker *w)
{
    if (w->link) {
        zt_link_close(w->link);
        pthread_mutex_destroy(&w->lock);
    }
    if (w->shm_control_fd >= 0 && w->n_arenas > 0)
        close(w->shm_control_fd);
    for (int i = 0; i < w->n_arenas; i++)
        close(w->shm_arena_fds[i]);
    free(w->link);
    free(w->shm_arena_fds);
    free(w->recipe);
    free(w->node_first);
    free(w->towards);
    explicit_bzero(w->secret, sizeof w->secret);
    memset(w, 0, sizeof *w);
}
