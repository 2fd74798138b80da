/*
 * bench_start.c: agents on as many hosts as there are of them, all behind one sshd of this machine: until each runs
 * its worker (which says a word), by libssh2 and by the OpenSSH client; beside as many plain `ssh host true` at
 * once. `bench_start [HOSTS]`, 64 by default. The sshd lets all begin at once (MaxStartups 200); the last line is by
 * libssh2 where it is as installed (10:30:100), which plain clients do not get through.
 */
#include "unit/launch/sshd.h"

#include "launch/launch.h"

struct count {
    int n_up;
    int64_t last_ns;
};

static void on_line(void *ctx, int rank, enum zt_log_stream s, const char *line, size_t len)
{
    struct count *c = ctx;
    (void)rank;
    if (s != ZT_LOG_STDOUT || len != 2 || memcmp(line, "up", 2) != 0)
        return;
    c->n_up++;
    c->last_ns = zt_now_ns();
}

static void on_report(void *ctx, int rank, const char *json, size_t len)
{
    (void)ctx, (void)rank, (void)json, (void)len;
}

static void on_notice(void *ctx, const char *text)
{
    (void)ctx;
    fprintf(stderr, "%s\n", text);
}

/* Seconds until all workers have spoken; negative: some did not. */
static double agents(struct rig *r, int n, bool by_client)
{
    static const char *const words[] = {"echo", "up", NULL};
    static struct zt_launch_node nodes[MAX_HOSTS];
    char self[512] = "";
    struct count count = {0};
    struct zt_launch_result result;
    struct zt_err err = {0};
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0)
        return -1;
    r->n = 0;
    for (int i = 0; i < n; i++) {
        add_host(r);
        r->target[i].host = "zt-bench"; /* of the configuration below */
        r->target[i].program = self;
        r->target[i].by_client = by_client;
        nodes[i] =
            (struct zt_launch_node){.n_workers = 1, .ssh = &r->target[i], .address = "127.0.0.1"};
    }
    r->n = 0;
    const struct zt_launch_opts opts = {
        .n_workers = n,
        .n_nodes = n,
        .nodes = nodes,
        .program = words,
        .sink = {.ctx = &count, .line = on_line, .report = on_report, .notice = on_notice}};
    const int64_t start_ns = zt_now_ns();
    int rc = zt_launch_run(&opts, &result, &err);
    if (rc || result.exit_code || count.n_up != n) {
        fprintf(stderr, "%d of %d: %s\n", count.n_up, n, rc ? err.msg : result.summary);
        return -1;
    }
    return (double)(count.last_ns - start_ns) * 1e-9;
}

/* The OpenSSH client finds the rig, and not the account's own configuration, by a wrapper before it in PATH. */
static bool wrap_client(struct rig *r)
{
    const struct passwd *me = getpwuid(geteuid());
    char *path = zt_arena_printf(&r->arena, "%s/bin:%s", r->dir, getenv("PATH"));
    bool ok = me && sh(r,
                       "real=$(command -v ssh) && mkdir -p bin && printf '#!/bin/sh\\nexec %%s -F "
                       "%s/config \"$@\"\\n' "
                       "$real >bin/ssh && chmod +x bin/ssh",
                       r->dir) == 0;
    return ok && setenv("PATH", path, 1) == 0;
}

static bool point_client(struct rig *r)
{
    struct zt_str s = {0};
    struct zt_err err;
    zt_str_printf(
        &s,
        "Host zt-bench\nHostName 127.0.0.1\nPort %d\nIdentityFile %s/key\nIdentitiesOnly yes\n"
        "HostKeyAlias 127.0.0.1\nUserKnownHostsFile %s/known\nGlobalKnownHostsFile none\n",
        r->port, r->dir, r->dir);
    bool ok = zt_write_file_atomic(in(r, "config"), s.buf, s.len, &err) == 0;
    zt_str_release(&s);
    return ok;
}

/* n clients at once, each of which runs `true` there. */
static double clients(struct rig *r, int n)
{
    const char *argv[] = {"ssh", "-o", "BatchMode=yes", "zt-bench", "true", NULL};
    pid_t pids[MAX_HOSTS];
    bool ok = true;
    const int64_t start_ns = zt_now_ns();
    for (int i = 0; i < n; i++)
        pids[i] = spawn_in(r, argv);
    for (int i = 0; i < n; i++) {
        int status;
        ok = ok && waitpid(pids[i], &status, 0) == pids[i] && status == 0;
    }
    return ok ? (double)(zt_now_ns() - start_ns) * 1e-9 : -1;
}

static int measure(struct rig *r, int n)
{
    enum { ROUNDS = 3 };
    double best[4] = {1e9, 1e9, 1e9, 1e9};
    bool ok = true;
    for (int k = 0; k < 2 * ROUNDS && ok; k++) {
        const bool usual = k >= ROUNDS;
        if (k % ROUNDS == 0)
            ok = start_sshd(r, "host", usual ? "MaxStartups 10:30:100" : "MaxStartups 200") &&
                 point_client(r);
        for (int way = usual ? 3 : 0; ok && way < (usual ? 4 : 3); way++) {
            double s = way == 2 ? clients(r, n) : agents(r, n, way == 1);
            ok = s >= 0;
            best[way] = ZT_MIN(best[way], s);
        }
    }
    if (!ok)
        return 1;
    printf("%d agents by libssh2              %6.2f s\n", n, best[0]);
    printf("%d agents by the OpenSSH client   %6.2f s\n", n, best[1]);
    printf("%d plain `ssh host true`          %6.2f s   %.2f times ours\n", n, best[2],
           best[2] / best[0]);
    printf("%d agents by libssh2, MaxStartups 10:30:100   %6.2f s\n", n, best[3]);
    return 0;
}

int main(int argc, char **argv)
{
    static struct rig r;
    struct zt_err err;
    int64_t n = MAX_HOSTS;
    if (argc == 2 && strcmp(argv[1], "agent") == 0)
        return zt_agent_main(false, &err);
    if (no_sshd()) {
        printf("skip bench_start: %s\n", no_sshd());
        return 0;
    }
    if (argc > 1 && (!zt_parse_i64(argv[1], &n) || n < 1 || n > MAX_HOSTS)) {
        fprintf(stderr, "bench_start: 1 to %d hosts\n", MAX_HOSTS);
        return 2;
    }
    int rc = setup(&r) && wrap_client(&r) ? measure(&r, (int)n) : 1;
    teardown(&r);
    return rc;
}
