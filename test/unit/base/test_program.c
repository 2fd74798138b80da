#include "harness.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/program.h"

static struct zt_str said;
static struct zt_err err;

/* Nothing of it is left afterwards. */
static int run_script(const char *script, double limit_s)
{
    const char *const argv[] = {"sh", "-c", script, NULL};
    sigset_t heed;
    sigemptyset(&heed);
    sigaddset(&heed, SIGUSR1);
    zt_str_reset(&said);
    int status = zt_program_output(argv, limit_s, &heed, &said, &err);
    ZT_ASSERT(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
    return status;
}

TEST(program_output_and_status)
{
    int status = run_script("echo one; echo two >&2; exit 3", 60);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3);
    CHECK_STR(zt_str_get(&said), "one\ntwo\n");
    CHECK_INT(run_script("cat", 60), 0); /* there is no input */
    CHECK_STR(zt_str_get(&said), "");
    const char *const nosuch[] = {"zerotrain-no-such-program", NULL};
    sigset_t none;
    sigemptyset(&none);
    CHECK_INT(zt_program_output(nosuch, 60, &none, &said, &err), ZT_ESYS);
    CHECK_STR(err.msg, "zerotrain-no-such-program: No such file or directory");
    zt_str_release(&said);
}

TEST(program_that_does_not_end_in_time)
{
    CHECK_INT(run_script("exec sleep 600", 0.2), ZT_ESYS);
    CHECK_STR(err.msg, "sh has not ended within 0.2 s");
    CHECK_INT(run_script("exec >&- 2>&-; exec sleep 600", 0.2), ZT_ESYS);
    CHECK_INT(run_script("while :; do echo more; done", 0.2), ZT_ESYS);
    zt_str_release(&said);
}

/* It stays pending, for who has blocked it. */
TEST(program_that_a_signal_ends)
{
    char script[100];
    sigset_t set, come;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    snprintf(script, sizeof script, "kill -USR1 %d; exec sleep 600", (int)getpid());
    CHECK_INT(run_script(script, 600), ZT_EPEER);
    sigpending(&come);
    CHECK(sigismember(&come, SIGUSR1));
    CHECK_INT(sigwaitinfo(&set, NULL), SIGUSR1);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    zt_str_release(&said);
}

TEST(program_has_no_signal_blocked)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int status = run_script("kill -TERM $$; exit 0", 60);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    zt_str_release(&said);
}

TEST_MAIN()
