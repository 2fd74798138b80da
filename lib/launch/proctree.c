#include "launch/proctree.h"

#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/io.h"

void zt_pids_release(struct zt_pids *p)
{
    free(p->v);
    memset(p, 0, sizeof *p);
}

static bool pids_contain(const struct zt_pids *p, pid_t pid)
{
    for (size_t i = 0; p && i < p->n; i++) {
        if (p->v[i] == pid)
            return true;
    }
    return false;
}

/* Append the pids of a "12 34 56 " list. */
static void add_list(struct zt_pids *out, const char *text, const struct zt_pids *spare)
{
    while (*text) {
        char *end;
        long pid = strtol(text, &end, 10);
        if (end == text)
            return;
        if (pid > 0 && !pids_contain(spare, (pid_t)pid)) {
            ZT_GROW(out->v, out->n + 1, out->cap);
            out->v[out->n++] = (pid_t)pid;
        }
        text = end + (*end == ' ');
    }
}

/* Append the children of one process: each of its threads has its own list. */
static bool add_children(struct zt_pids *out, pid_t pid, const struct zt_pids *spare)
{
    enum { LIST_MAX = 16 << 20 };
    char path[64];
    snprintf(path, sizeof path, "/proc/%ld/task", (long)pid);
    DIR *dir = opendir(path);
    if (!dir)
        return false; /* it has just ended */
    bool told = false;
    struct zt_str text = {0};
    for (struct dirent *e; (e = readdir(dir));) {
        struct zt_err ignored;
        char list[sizeof path + sizeof e->d_name + 16];
        if (e->d_name[0] == '.')
            continue;
        snprintf(list, sizeof list, "%s/%s/children", path, e->d_name);
        zt_str_reset(&text);
        if (zt_read_file(list, LIST_MAX, &text, &ignored))
            continue;
        told = true;
        add_list(out, zt_str_get(&text), spare);
    }
    zt_str_release(&text);
    closedir(dir);
    return told;
}

bool zt_tree_children(struct zt_pids *out)
{
    return add_children(out, getpid(), NULL);
}

int zt_tree_signal(const struct zt_pids *spare, int sig)
{
    struct zt_pids all = {0};
    if (!add_children(&all, getpid(), spare))
        return -1;
    for (size_t i = 0; i < all.n; i++) {
        pid_t pid = all.v[i];
        add_children(&all, pid, NULL); /* before the signal, which may end it */
        if (sig)
            kill(pid, sig);
    }
    int n = (int)all.n;
    zt_pids_release(&all);
    return n;
}

int zt_tree_kill(const struct zt_pids *spare)
{
    int rc = zt_tree_signal(spare, SIGSTOP);
    return rc > 0 ? zt_tree_signal(spare, SIGKILL) : rc;
}

/* The number after `key` in a file of "key number" lines, or -1. */
static int64_t read_counter(const char *path, const char *key)
{
    struct zt_err ignored;
    struct zt_str text = {0};
    int64_t v = -1;
    if (zt_read_file(path, 1 << 20, &text, &ignored) == 0) {
        size_t key_len = strlen(key);
        for (const char *p = zt_str_get(&text); p; p = strchr(p, '\n')) {
            p += *p == '\n';
            if (strncmp(p, key, key_len) == 0 && p[key_len] == ' ')
                v = strtoll(p + key_len, NULL, 10);
        }
    }
    zt_str_release(&text);
    return v;
}

int64_t zt_oom_kills(void)
{
    struct zt_err ignored;
    struct zt_str cgroup = {0}, path = {0};
    int64_t n = -1;
    if (zt_read_file("/proc/self/cgroup", 1 << 20, &cgroup, &ignored) == 0 &&
        strncmp(zt_str_get(&cgroup), "0::/", 4) == 0) {
        size_t len = strcspn(cgroup.buf + 3, "\n");
        zt_str_printf(&path, "/sys/fs/cgroup%.*s/memory.events", (int)len, cgroup.buf + 3);
        n = read_counter(path.buf, "oom_kill");
    }
    zt_str_release(&cgroup);
    zt_str_release(&path);
    return n >= 0 ? n : read_counter("/proc/vmstat", "oom_kill");
}
