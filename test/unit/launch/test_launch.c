/* Jobs on one node: what workers are given and give, signals, failures, agents that misbehave, any program. */
#include "jobs.h"

TEST(launch_workers_get_their_task)
{
    static const char *const env[] = {"NOTE=line 1\nline 2 = x"};
    struct job j = {
        .opts = {.env = env, .n_env = 1, .recipe = "r: 1", .recipe_len = 4, .threads = 3}};
    run_job(&j, 3, "report");
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.exit_code, 0);
    CHECK_STR(j.result.summary, "");
    CHECK_INT(j.n_reports, 3);
    const char *secret = NULL;
    for (int r = 0; r < 3; r++) {
        char head[200];
        snprintf(head, sizeof head,
                 "%d %d/3 local %d threads 3 arenas 3 recipe r: 1 omp 3 RANK %d note <line 1\n"
                 "line 2 = x> ",
                 r, r, r, r);
        const char *at = strstr(j.reports.buf, head);
        if (!at)
            FAIL("no \"%s\" in \"%s\"", head, j.reports.buf);
        at += strlen(head);
        CHECK(strspn(at, "0123456789abcdef") == 64 && at[64] == '\n');
        CHECK(strspn(at, "0") < 64 && (!secret || memcmp(at, secret, 64) == 0));
        secret = at;
    }
    release_job(&j);
}

TEST(launch_rank_0_shares_with_all)
{
    static const char *const devices[] = {"GPU-7", "GPU-7", "2"};
    struct job j = {.opts = {.devices = devices, .device = {true, 2, ZT_TRANSPORT_STAGED}}};
    run_job(&j, 3, "share");
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.exit_code, 0);
    CHECK_INT(j.n_reports, 3);
    CHECK_HAS(j.reports.buf, "0 got tr0mbone gpu 1 per 2 transport 2 visible GPU-7\n");
    CHECK_HAS(j.reports.buf, "1 got tr0mbone gpu 1 per 2 transport 2 visible GPU-7\n");
    CHECK_HAS(j.reports.buf, "2 got tr0mbone gpu 1 per 2 transport 2 visible 2\n");
    CHECK(!strstr(zt_str_get(&j.lines), "tr0mbone") && !strstr(zt_str_get(&j.notices), "tr0m"));
    release_job(&j);
}

/* Processes of another attempt hold the job's name: workers wait for their end. */
TEST(launch_waits_for_an_earlier_attempt)
{
    static const char name[] = "zt-test-launch-attempts";
    struct job j = {.opts = {.name = name}};
    int ready[2], ends[2];
    char byte;
    CHECK(pipe(ready) == 0 && pipe(ends) == 0);
    pid_t earlier = fork();
    if (earlier == 0) {
        close(ends[1]);
        if (!zt_claim("zt-test-launch-attempts 0") || write(ready[1], "x", 1) != 1)
            _exit(1);
        _exit(read(ends[0], &byte, 1) != 0);
    }
    CHECK(earlier > 0 && read(ready[0], &byte, 1) == 1);
    CHECK(!zt_claim("zt-test-launch-attempts 0"));
    fcntl(ends[1], F_SETFD, FD_CLOEXEC);
    j.close_at_notice = ends[1];
    run_job(&j, 2, "report");
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.exit_code, 0);
    CHECK_INT(j.n_reports, 2);
    CHECK_HAS(j.notices.buf, "processes of the attempt before this one are still there");
    waitpid(earlier, NULL, 0);
    close(ready[0]);
    close(ready[1]);
    close(ends[0]);
    release_job(&j);
    memset(&j, 0, sizeof j);
    j.opts.name = name; /* ours have let it go */
    run_job(&j, 1, "report");
    CHECK_INT(j.result.exit_code, 0);
    CHECK_STR(zt_str_get(&j.notices), "");
    release_job(&j);
}

TEST(launch_another_command)
{
    struct job j = {.opts = {.own_command = "other"}};
    run_job(&j, 2, "report");
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.exit_code, 0);
    CHECK_INT(j.n_reports, 2);
    CHECK_HAS(j.reports.buf, "note <the other> ");
    release_job(&j);
}

TEST(launch_a_rank_gives_once)
{
    struct job j = {0};
    run_job(&j, 2, "gather_twice");
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.first_rank, 1);
    CHECK_HAS(j.notices.buf,
              "rank 1 is ended: its messages make no sense: unexpected frame (type 9");
    release_job(&j);
}

TEST(launch_most_workers)
{
    struct job j = {0};
    run_job(&j, 64, "report");
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.exit_code, 0);
    CHECK_INT(j.n_reports, 64);
    CHECK_HAS(j.reports.buf, "63 63/64 local 63");
    CHECK(!strstr(j.reports.buf, "no arena") && !strstr(j.reports.buf, "no control"));
    release_job(&j);
}

TEST(launch_interrupt_asks_first)
{
    struct job j = {.raise_at_report = 2, .raise_what = SIGINT};
    run_job(&j, 2, "soft");
    CHECK_OK(j.rc, j.err);
    CHECK_HAS(j.reports.buf, "0 bye\n");
    CHECK_HAS(j.reports.buf, "1 bye\n");
    CHECK_HAS(j.notices.buf, "finishing this step; Ctrl-C again to end now");
    CHECK_INT(j.result.exit_code, 128 + SIGINT);
    CHECK_INT(j.result.first_rank, -1);
    CHECK_HAS(j.result.summary, "stopped by signal 2");
    release_job(&j);
}

TEST(launch_term_ends_all)
{
    struct job j = {.raise_at_report = 2, .raise_what = SIGTERM};
    run_job(&j, 2, "soft");
    CHECK_OK(j.rc, j.err);
    CHECK(!strstr(j.reports.buf, "bye"));
    CHECK_INT(j.result.exit_code, 128 + SIGTERM);
    CHECK_INT(j.result.told, SIGTERM);
    release_job(&j);
}

TEST(launch_lost_peer_is_not_the_first_failure)
{
    char dir[] = "/tmp/zt-test-XXXXXX";
    struct zt_str fifo = {0};
    struct job j = {0};
    CHECK(mkdtemp(dir));
    zt_str_printf(&fifo, "%s/fifo", dir);
    CHECK(mkfifo(fifo.buf, 0600) == 0);
    setenv("TEST_FIFO", fifo.buf, 1);
    run_job(&j, 2, "peer_lost");
    unlink(fifo.buf);
    rmdir(dir);
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.first_rank, 1);
    CHECK_INT(j.result.exit_code, 3);
    CHECK_HAS(j.result.summary, "rank 1 on ");
    CHECK_HAS(j.result.summary, "exit code 3");
    CHECK_HAS(j.result.summary, "  | disk on fire");
    release_job(&j);
    zt_str_release(&fifo);
}

TEST(launch_malformed_worker_is_ended)
{
    struct job j = {0};
    run_job(&j, 2, "garbage");
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.first_rank, 1);
    CHECK_INT(j.result.exit_code, 128 + SIGKILL);
    CHECK_HAS(j.notices.buf, "rank 1 is ended: its messages make no sense");
    release_job(&j);
}

TEST(launch_own_worker_needs_an_agent)
{
    struct zt_worker w;
    struct zt_err err;
    unsetenv("ZT_JOB_FD");
    CHECK_INT(zt_worker_join(&w, &err), ZT_EINPUT);
    setenv("ZT_JOB_FD", "77", 1);
    CHECK_INT(zt_worker_join(&w, &err), ZT_EINPUT);
    CHECK_HAS(err.msg, "ZT_JOB_FD=77 is not an open descriptor");
    unsetenv("ZT_JOB_FD");
}

/* ---- agents that misbehave ---- */

static void run_with_agent(struct job *j, const char *agent)
{
    setenv("TEST_AGENT", agent, 1);
    run_shell(j, 1, "echo hi");
    unsetenv("TEST_AGENT");
}

TEST(launch_skips_a_banner)
{
    struct job j = {0};
    run_with_agent(&j, "banner");
    CHECK_OK(j.rc, j.err);
    CHECK_STR(j.lines.buf, "0o hi\n");
    CHECK_INT(j.result.exit_code, 0);
    release_job(&j);
}

TEST(launch_agent_of_another_version)
{
    struct job j = {0};
    run_with_agent(&j, "version");
    CHECK_INT(j.rc, ZT_EPROTO);
    char versions[80];
    snprintf(versions, sizeof versions,
             "the other end speaks protocol version 9, this zerotrain version %d",
             ZT_PROTO_VERSION);
    CHECK_HAS(j.err.msg, versions);
    release_job(&j);
}

TEST(launch_agent_of_another_build)
{
    struct job j = {0};
    run_with_agent(&j, "build");
    CHECK_INT(j.rc, ZT_EINPUT);
    CHECK_HAS(j.err.msg, "runs zerotrain 0.0.9, build 00, but here is zerotrain " ZT_VERSION);
    CHECK_HAS(j.err.msg, zt_build_name());
    release_job(&j);
}

TEST(launch_agent_that_is_not_there)
{
    struct job j = {0};
    run_with_agent(&j, "missing");
    CHECK_INT(j.rc, ZT_EPEER);
    CHECK_HAS(j.err.msg, "it said: bash: zerotrain: command not found");
    CHECK(!j.result.started && j.result.node_end[0] == ZT_NODE_NO_START);
    release_job(&j);
}

TEST(launch_agent_falls_silent)
{
    struct job j = {.opts.silence_s = 0.3};
    run_with_agent(&j, "silent");
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.exit_code, 1);
    CHECK_HAS(j.result.summary, "the agent on elsewhere was lost: it has been silent for");
    CHECK(j.result.started && j.result.node_end[0] == ZT_NODE_LOST);
    release_job(&j);
}

TEST(launch_agent_talks_nonsense)
{
    struct job j = {0};
    run_with_agent(&j, "garbage");
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.exit_code, 1);
    CHECK_HAS(j.result.summary, "not a frame of zerotrain");
    release_job(&j);
}

/* ---- any program ---- */

TEST(launch_many_ranks)
{
    struct job j = {0};
    run_shell(&j, 64, "echo \"$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE\"; echo to err >&2");
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.exit_code, 0);
    for (int r = 0; r < 64; r++) {
        char want[64];
        snprintf(want, sizeof want, "%do %d %d 64 64\n", r, r, r);
        CHECK_HAS(j.lines.buf, want);
        snprintf(want, sizeof want, "%de to err\n", r);
        CHECK_HAS(j.lines.buf, want);
    }
    release_job(&j);
}

TEST(launch_early_end_of_one_rank_is_fine)
{
    struct job j = {0};
    run_shell(&j, 3, "[ $RANK = 0 ] || sleep 0.2; printf 'end of %s' $RANK");
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.exit_code, 0);
    CHECK_HAS(j.lines.buf, "2o end of 2\n");
    release_job(&j);
}

TEST(launch_program_that_cannot_be_run)
{
    const char *argv[] = {"/nonexistent/program", NULL};
    struct job j = {.opts.program = argv};
    run_job(&j, 2, "");
    CHECK_OK(j.rc, j.err);
    CHECK_INT(j.result.exit_code, 127);
    CHECK_HAS(j.result.summary, "cannot run /nonexistent/program: No such file or directory");
    release_job(&j);
}

TEST(launch_refuses_bad_options)
{
    static const char *const rank_env[] = {"RANK=3"}, *const bad_env[] = {"A B=3"};
    struct job j = {.opts = {.env = rank_env, .n_env = 1}};
    run_shell(&j, 1, "true");
    CHECK_INT(j.rc, ZT_EINPUT);
    CHECK_HAS(j.err.msg, "RANK cannot be given");
    j.opts.env = bad_env;
    run_shell(&j, 1, "true");
    CHECK_INT(j.rc, ZT_EINPUT);
    j.opts.n_env = 0;
    run_shell(&j, 0, "true");
    CHECK_INT(j.rc, ZT_EINPUT);
    run_job(&j, 65, "report"); /* more than shared memory joins */
    CHECK_INT(j.rc, ZT_EUNSUPPORTED);
    release_job(&j);
}
