#include "harness.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch/link.h"

/* In a child: 0 or 1 as zt_is_same_user() says of a socket of our own; 2: not possible. */
static int same_user_in_namespace(const char *map)
{
    pid_t pid = fork();
    int status;
    if (pid == 0) {
        int fds[2];
        if (unshare(CLONE_NEWUSER))
            _exit(2);
        if (map) {
            int fd = open("/proc/self/uid_map", O_WRONLY | O_CLOEXEC);
            if (fd < 0 || write(fd, map, strlen(map)) < 0)
                _exit(2);
            close(fd);
        }
        ZT_ASSERT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
        _exit(zt_is_same_user(fds[0]));
    }
    ZT_ASSERT(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return WEXITSTATUS(status);
}

TEST(users_that_a_namespace_does_not_map)
{
    enum { NOBODY = 65534 };
    char map[64];
    if (same_user_in_namespace(NULL) == 2)
        SKIP("no user namespaces here");
    CHECK_INT(same_user_in_namespace(NULL), 0);
    snprintf(map, sizeof map, "0 %u 1\n", (unsigned)geteuid());
    CHECK_INT(same_user_in_namespace(map), 1);
    /* A user of that number, among all others whom the namespace does not map. */
    snprintf(map, sizeof map, "%d %u 1\n", NOBODY, (unsigned)geteuid());
    CHECK_INT(same_user_in_namespace(map), 0);
}

TEST(nobody_is_a_user_where_all_are_mapped)
{
    enum { NOBODY = 65534 };
    unsigned first = 1, n = 0;
    FILE *f = fopen("/proc/self/uid_map", "re");
    CHECK(f && fscanf(f, "%u %*u %u", &first, &n) == 2);
    fclose(f);
    if (geteuid() != 0 || first != 0 || n != UINT32_MAX)
        SKIP("needs root, and no user namespace");
    int fds[2];
    CHECK_INT(seteuid(NOBODY), 0);
    ZT_ASSERT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    bool same = zt_is_same_user(fds[0]);
    CHECK_INT(seteuid(0), 0);
    CHECK(same);
    CHECK(!zt_is_same_user(fds[0])); /* it is nobody's, and we are root again */
    close(fds[0]);
    close(fds[1]);
}

TEST_MAIN()
