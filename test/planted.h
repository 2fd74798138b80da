/*
 * planted.h: does ThreadSanitizer see a planted fault? The program runs itself again with the fault's name,
 * and the exit status tells. Only in SAN=thread builds.
 */
#ifndef ZT_TEST_PLANTED_H
#define ZT_TEST_PLANTED_H

#include "base/compat.h"

#include <sys/wait.h>
#include <unistd.h>

enum { PLANTED_RACE = 66 }; /* exit status: ThreadSanitizer has reported a race */

/* In the child the fault that it plants, else NULL. */
static inline const char *planted_fault(void)
{
    return getenv("ZT_TEST_RACE");
}

/* Exit status of this program with fault `how`, and with the tests that `filter` chooses (NULL: all). */
static inline int run_planted(const char *how, const char *filter)
{
    char self[4096];
    int status = -1;
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    if (len < 0)
        return -1;
    self[len] = '\0';
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        setenv("ZT_TEST_RACE", how, 1);
        setenv("TSAN_OPTIONS", "halt_on_error=1 exitcode=66 log_path=/dev/null", 1);
        execl(self, self, filter, (char *)NULL);
        _exit(99);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
        return -1;
    return WEXITSTATUS(status);
}

#endif
