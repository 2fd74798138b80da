#include "harness.h"

#include "launch/openssh.h"

static const struct zt_ssh_target node = {
    .host = "node-a", .user = "me", .port = 2222, .program = "/opt/zero train/bin/zerotrain"};

/* wait statuses, as waitpid() gives them */
static int exited(int code)
{
    return code << 8;
}

TEST(the_command_line_has_all_but_no_secret)
{
    struct zt_arena arena = {0};
    struct zt_str all = {0};
    for (const char *const *arg = zt_openssh_argv(&node, &arena); *arg; arg++)
        zt_str_printf(&all, "%s|", *arg);
    CHECK(strstr(all.buf, "ssh|-T|"));
    CHECK(strstr(all.buf, "|-o|BatchMode=yes|-o|StrictHostKeyChecking=yes|"));
    CHECK(strstr(all.buf, "|-p|2222|-l|me|--|node-a|exec '/opt/zero train/bin/zerotrain' agent|"));
    zt_str_release(&all);
    zt_arena_release(&arena);
}

TEST(what_is_not_given_is_left_to_the_configuration)
{
    const struct zt_ssh_target bare = {.host = "2001:db8::1", .program = "/bin/zerotrain"};
    struct zt_arena arena = {0};
    struct zt_str all = {0};
    for (const char *const *arg = zt_openssh_argv(&bare, &arena); *arg; arg++)
        zt_str_printf(&all, "%s|", *arg);
    CHECK(!strstr(all.buf, "|-p|") && !strstr(all.buf, "|-l|"));
    CHECK(strstr(all.buf, "|--|2001:db8::1|exec '/bin/zerotrain' agent|"));
    zt_str_release(&all);
    zt_arena_release(&arena);
}

TEST(paths_that_a_login_shell_would_change_are_refused)
{
    static const char *const bad[] = {"zerotrain", "",     "~/zerotrain", "/a'b",
                                      "/a\\b",     "/a!b", "/a\nb"};
    struct zt_err err;
    for (size_t i = 0; i < ZT_ARRAY_LEN(bad); i++)
        CHECK_INT(zt_openssh_check_program(bad[i], &err), ZT_EINPUT);
    CHECK_OK(zt_openssh_check_program("/a b/$HOME/`x`;&|*\"\xc3\xa9", &err), err);
}

TEST(the_end_of_the_client_is_explained)
{
    static const struct {
        int status;
        const char *said;
        bool greeted;
        const char *text;
    } cases[] = {
        {255, "Pseudo-terminal\r\nssh: connect to host node-a port 2222: Connection refused\r\n",
         false,
         "ssh: connect to host node-a port 2222: Connection refused; is the host up, and does sshd "
         "listen there?"},
        {255, "me@node-a: Permission denied (publickey).\r\n", false,
         "me@node-a: Permission denied (publickey).; it must let us in without a password: `ssh -o "
         "BatchMode=yes -p 2222 me@node-a true` tries it"},
        {255, "No ED25519 host key is known.\r\nHost key verification failed.\r\n", false,
         "Host key verification failed.; its key is not in known_hosts: `ssh -p 2222 me@node-a` "
         "shows "
         "its fingerprint and asks whether to accept it"},
        {255,
         "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.\n",
         false,
         "Host key verification failed.; its key is another than known_hosts has: if the host was "
         "set "
         "up anew, `ssh-keygen -R '[node-a]:2222'` forgets the old one"},
        {255, "", false, "ssh has failed and said nothing"},
        {255, "", true, "the connection broke, or the agent was killed"},
        {255, "Timeout, server node-a not responding.\r\n", true,
         "Timeout, server node-a not responding."},
        {127, "sh: 1: exec: /opt/zero train/bin/zerotrain: not found\n", false,
         "/opt/zero train/bin/zerotrain cannot be run there: sh: 1: exec: /opt/zero "
         "train/bin/zerotrain: not found; --remote_path=PATH says where it is"},
        {0, "usage: train FILE\n", false,
         "/opt/zero train/bin/zerotrain there is not zerotrain: it ended without a word to us: "
         "usage: train FILE; --remote_path=PATH says where zerotrain is"},
        {3, "", true, "the agent ended with exit code 3"},
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        struct zt_str out = {0};
        struct zt_ssh_end end;
        zt_openssh_end(exited(cases[i].status), cases[i].said, cases[i].greeted, &end);
        zt_ssh_explain(&node, &end, cases[i].said, cases[i].greeted, &out);
        CHECK_STR(out.buf, cases[i].text);
        zt_str_release(&out);
    }
}

TEST(the_end_of_a_connection_of_our_own_is_explained)
{
    static const struct {
        struct zt_ssh_end end;
        const char *said;
        bool greeted;
        const char *text;
    } cases[] = {
        {{.cause = ZT_SSH_EXITED, .code = 127},
         "sh: not found\n",
         false,
         "/opt/zero train/bin/zerotrain cannot be run there: sh: not found; --remote_path=PATH "
         "says "
         "where it is"},
        {{.cause = ZT_SSH_SIGNALLED, .text = "KILL"},
         "",
         true,
         "the agent was ended by signal KILL"},
        {{.cause = ZT_SSH_BROKEN, .text = "the connection broke: reset"},
         "",
         true,
         "the connection broke: reset"},
        {{.cause = ZT_SSH_REFUSED, .text = "me@node-a: Permission denied (publickey)"},
         "",
         false,
         "me@node-a: Permission denied (publickey); it must let us in without a password: `ssh -o "
         "BatchMode=yes -p 2222 me@node-a true` tries it"},
        {{.cause = ZT_SSH_FAILED, .text = "node-a: its host key is not known"},
         "",
         false,
         "node-a: its host key is not known"},
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        struct zt_str out = {0};
        zt_ssh_explain(&node, &cases[i].end, cases[i].said, cases[i].greeted, &out);
        CHECK_STR(out.buf, cases[i].text);
        zt_str_release(&out);
    }
}

TEST_MAIN()
