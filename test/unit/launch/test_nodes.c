/* Jobs on several nodes: ranks that are told of each other, failures, and nodes that are each for themselves. */
#include "jobs.h"

#include <sys/resource.h>

TEST(launch_nodes_gather)
{
    const struct zt_launch_node nodes[] = {{.n_workers = 2, .address = "10.0.0.1"},
                                           {.n_workers = 1, .address = "fd00::2"}};
    struct job j = {.opts = {.nodes = nodes, .n_nodes = 2}};
    run_job(&j, 3, "gather");
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.exit_code, 0);
    CHECK_HAS(j.reports.buf, "0 node 0/2 to fd00::2, 2 here, from 0: 2 of r0 2 of r1 2 of r2\n");
    CHECK_HAS(j.reports.buf, "1 node 0/2 to fd00::2, 2 here, from 0: 2 of r0 2 of r1 2 of r2\n");
    CHECK_HAS(j.reports.buf, "2 node 1/2 to 10.0.0.1, 1 here, from 2: 2 of r0 2 of r1 2 of r2\n");
    release_job(&j);
}

/* Of a node two files are open; what else might be waited for is not asked for. */
TEST(launch_nodes_where_few_files_may_be_open)
{
    enum { NODES = 16, FEW = 3 + 3 * NODES - 1, LONG_S = 60 };
    struct zt_launch_node nodes[NODES];
    struct job j = {.opts = {.nodes = nodes, .n_nodes = NODES}};
    struct rlimit before, few;
    for (int i = 0; i < NODES; i++)
        nodes[i] = (struct zt_launch_node){.n_workers = 1, .address = "a"};
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    few = before;
    few.rlim_cur = FEW;
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    alarm(LONG_S);
    run_shell(&j, NODES, "echo here");
    alarm(0);
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.exit_code, 0);
    CHECK_HAS(j.lines.buf, "15o here\n");
    release_job(&j);
}

/* A failure on one node ends the others, and is told with its rank. */
TEST(launch_a_failure_on_another_node)
{
    const struct zt_launch_node nodes[] = {{.n_workers = 1, .address = "a"},
                                           {.n_workers = 2, .address = "b"},
                                           {.n_workers = 1, .address = "c"}};
    struct job j = {.opts = {.nodes = nodes, .n_nodes = 3}};
    run_shell(&j, 4, "[ $RANK = 2 ] && { echo burnt >&2; exit 7; }; exec sleep 600");
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.exit_code, 7);
    CHECK_INT(j.result.first_rank, 2);
    CHECK_HAS(j.result.summary, "failed first: exit code 7");
    CHECK_HAS(j.result.summary, "  | burnt");
    CHECK(j.result.started && !j.result.told);
    CHECK_INT(j.result.node_end[0], ZT_NODE_NOTHING);
    CHECK_INT(j.result.node_end[1], ZT_NODE_RANK);
    CHECK_INT(j.result.node_end[2], ZT_NODE_NOTHING);
    release_job(&j);
}

/* No rank failed: who ends first explains nothing, and may be on a host that all others reach. */
TEST(launch_nodes_that_do_not_reach_each_other)
{
    const struct zt_launch_node nodes[] = {{.n_workers = 1, .address = "a"},
                                           {.n_workers = 1, .address = "b"},
                                           {.n_workers = 1, .address = "c"}};
    struct job j = {.opts = {.nodes = nodes, .n_nodes = 3}};
    run_job(&j, 3, "apart");
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.exit_code, ZT_EXIT_PEER_LOST);
    CHECK_INT(j.result.first_rank, -1);
    CHECK_HAS(j.notices.buf, " cannot reach each other; stopping the others");
    CHECK_HAS(j.result.summary, " cannot reach each other, though we reach all hosts");
    CHECK(!strstr(j.result.summary, "failed first"));
    CHECK_INT(j.result.node_end[0], ZT_NODE_NOTHING);
    CHECK_INT(j.result.node_end[1], ZT_NODE_NOTHING);
    CHECK_INT(j.result.node_end[2], ZT_NODE_APART);
    run_job(&j, 3, "apart_from_none");
    CHECK_HAS(j.result.summary, "malformed APART frame");
    release_job(&j);
}

/* The agent of a node dies: its own ranks with it, and the others are ended. */
TEST(launch_an_agent_of_several_dies)
{
    const struct zt_launch_node nodes[] = {{.n_workers = 1, .address = "a"},
                                           {.n_workers = 1, .address = "b"}};
    struct job j = {.opts = {.nodes = nodes, .n_nodes = 2}};
    run_shell(&j, 2, "[ $RANK = 1 ] && kill -9 $PPID; exec sleep 600");
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.exit_code, 128 + SIGKILL);
    CHECK_HAS(j.notices.buf, "(node 1) is lost; stopping the others");
    CHECK_HAS(j.result.summary, "was lost: signal 9");
    CHECK(j.result.started);
    CHECK_INT(j.result.node_end[0], ZT_NODE_NOTHING);
    CHECK_INT(j.result.node_end[1], ZT_NODE_LOST);
    release_job(&j);
}

TEST(launch_nodes_that_do_not_add_up)
{
    const struct zt_launch_node nodes[] = {{.n_workers = 2, .address = "a"},
                                           {.n_workers = 1, .address = ""}};
    struct job j = {.opts = {.nodes = nodes, .n_nodes = 2}};
    run_job(&j, 3, "report");
    CHECK_INT(j.rc, ZT_EINPUT);
    CHECK_HAS(j.err.msg, "node 1 has no address");
    j.opts.n_nodes = 1;
    run_job(&j, 3, "report");
    CHECK_INT(j.rc, ZT_EINPUT);
    CHECK_HAS(j.err.msg, "3 workers in all, but 2 on the nodes");
    release_job(&j);
}

/* A host that takes the connection and says nothing: a person hears what is waited for, and what to try in the end. */
TEST(launch_a_host_that_does_not_answer)
{
    const struct zt_ssh_target to = {
        .host = "far", .user = "me", .port = 7, .program = "/opt/zt", .by_client = true};
    const struct zt_launch_node nodes[] = {{.n_workers = 1, .address = "a"},
                                           {.n_workers = 1, .address = "far", .ssh = &to}};
    struct job j = {.opts = {.nodes = nodes, .n_nodes = 2, .start_s = 2.4, .silence_s = 2}};
    char dir[] = "/tmp/zt-client-XXXXXX", path[64], search[4096];
    struct zt_err err;
    CHECK(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/ssh", dir);
    CHECK_OK(zt_write_file_atomic(path, "#!/bin/sh\nexec sleep 600\n", 25, &err), err);
    CHECK(chmod(path, 0700) == 0);
    const char *const before = getenv("PATH");
    snprintf(search, sizeof search, "%s:%s", dir, before);
    char *const saved = strdup(before);
    setenv("PATH", search, 1);
    run_job(&j, 2, "soft");
    setenv("PATH", saved, 1);
    free(saved);
    CHECK(unlink(path) == 0 && rmdir(dir) == 0);
    CHECK_INT(j.rc, ZT_EPEER);
    CHECK_HAS(j.err.msg, "the agent on far did not answer: no word of zerotrain has come within ");
    CHECK_HAS(j.err.msg, "or /opt/zt; `ssh -p 7 me@far true` tries it without zerotrain");
    CHECK_HAS(j.notices.buf, "waiting for far (0 s)\n");
    CHECK_HAS(j.notices.buf, "waiting for far (1 s)\n");
    int n = 0;
    for (const char *p = j.notices.buf; (p = strstr(p, "waiting for ")); p++)
        n++;
    CHECK(n >= 3 && n <= 4); /* at 1/12, 1/6, 1/3, 2/3 of the time, or a little later */
    release_job(&j);
}

/* ---- nodes that are each for themselves ---- */

enum { ALONE_NODES = 3 };

struct alone {
    struct job j;
    const char *go_on; /* a file that is made when two nodes have failed */
    int n_failed;
    struct zt_str failed[ALONE_NODES], build[ALONE_NODES];
    int n_clocks;
    int64_t ahead_ns, round_trip_ns; /* of node 0, the last */
};

static void on_node(void *ctx, int node, const struct zt_node_news *news)
{
    struct alone *a = ctx;
    struct zt_err err;
    if (news->event == ZT_NODE_ANSWERED)
        zt_str_puts(&a->build[node], news->text);
    if (news->event == ZT_NODE_FAILED)
        zt_str_puts(&a->failed[node], news->text);
    if (news->event == ZT_NODE_FAILED && ++a->n_failed == 2 && a->go_on &&
        zt_write_file_atomic(a->go_on, "", 0, &err))
        printf("# %s\n", err.msg);
    if (news->event != ZT_NODE_CLOCK || node)
        return;
    a->n_clocks++;
    a->ahead_ns = news->ahead_ns;
    a->round_trip_ns = news->round_trip_ns;
}

static void release_alone(struct alone *a)
{
    for (int i = 0; i < ALONE_NODES; i++) {
        zt_str_release(&a->failed[i]);
        zt_str_release(&a->build[i]);
    }
    release_job(&a->j);
}

static const struct zt_launch_node alone_nodes[ALONE_NODES] = {{.n_workers = 1, .address = "a"},
                                                               {.n_workers = 1, .address = "b"},
                                                               {.n_workers = 1, .address = "c"}};

/* One node's worker fails, another's agent dies: the third goes on to its end. */
TEST(launch_nodes_for_themselves)
{
    char file[] = "/tmp/zt-alone-XXXXXX", script[400];
    int fd = mkstemp(file);
    CHECK(fd >= 0 && unlink(file) == 0);
    close(fd);
    struct alone a = {
        .j.opts = {.nodes = alone_nodes, .n_nodes = ALONE_NODES, .sink.node = on_node},
        .go_on = file};
    snprintf(script, sizeof script,
             "[ $RANK = 1 ] && { echo burnt >&2; exit 7; }; [ $RANK = 2 ] && kill -9 $PPID && exec "
             "sleep 600; until [ -e %s ]; do sleep 0.02; done; echo went on",
             file);
    run_shell(&a.j, ALONE_NODES, script);
    unlink(file);
    CHECK_OK(a.j.rc, a.j.err);
    CHECK_INT(a.j.result.exit_code, 0);
    CHECK_STR(a.j.result.summary, "");
    CHECK_HAS(a.j.lines.buf, "0o went on\n");
    CHECK_INT(a.n_failed, 2);
    CHECK_INT((int)a.failed[0].len, 0);
    CHECK_STR(zt_str_get(&a.build[0]), zt_build_name());
    CHECK_HAS(zt_str_get(&a.failed[1]), "exit code 7\nburnt\n");
    CHECK_HAS(zt_str_get(&a.failed[2]), "signal 9");
    /* It is our own clock, so the question lies on its way at most as long as the way took. */
    CHECK(a.n_clocks >= 1 && llabs(a.ahead_ns) <= a.round_trip_ns / 2 + 1);
    release_alone(&a);
}

TEST(launch_nodes_for_themselves_of_another_build)
{
    struct alone a = {
        .j.opts = {.nodes = alone_nodes, .n_nodes = ALONE_NODES, .sink.node = on_node}};
    setenv("TEST_AGENT", "build", 1);
    run_job(&a.j, ALONE_NODES, "report");
    unsetenv("TEST_AGENT");
    CHECK_OK(a.j.rc, a.j.err);
    CHECK_INT(a.j.result.exit_code, 0);
    CHECK_INT(a.n_failed, ALONE_NODES);
    CHECK_STR(zt_str_get(&a.build[1]), "0.0.9, build 00");
    CHECK_HAS(zt_str_get(&a.failed[1]), "elsewhere runs zerotrain 0.0.9, build 00, but here is");
    release_alone(&a);
}

TEST(launch_nodes_for_themselves_that_do_not_answer)
{
    struct alone a = {
        .j.opts = {.nodes = alone_nodes, .n_nodes = ALONE_NODES, .sink.node = on_node}};
    setenv("TEST_AGENT", "missing", 1);
    run_job(&a.j, ALONE_NODES, "report");
    unsetenv("TEST_AGENT");
    CHECK_OK(a.j.rc, a.j.err);
    CHECK_INT(a.n_failed, ALONE_NODES);
    CHECK_INT(a.n_clocks, 0);
    CHECK_HAS(zt_str_get(&a.failed[2]),
              "exit code 127; it said: bash: zerotrain: command not found");
    release_alone(&a);
}

/* Workers of ours that are another command of the program. */
