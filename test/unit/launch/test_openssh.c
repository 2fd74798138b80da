#include "harness.h"

#include "launch/openssh.h"
#include "launch/ssh_config.h"
#include "launch/turns.h"

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
        {255,
         "No ED25519 host key is known for [node-a]:2222 and you have requested strict "
         "checking.\r\nHost key verification failed.\r\n",
         false,
         "[node-a]:2222: its host key is not known. Compare its fingerprint, which this command "
         "shows, with what its owner says: `ssh -o StrictHostKeyChecking=ask -p 2222 me@node-a "
         "true` asks once, and accepts it"},
        {255,
         "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\r\nThe fingerprint for the ED25519 "
         "key sent by the remote host is\nSHA256:abc.\r\nOffending ED25519 key in "
         "/h/known:hosts:7\r\nHost key for [node-a]:2222 has changed and you have requested strict "
         "checking.\r\nHost key verification failed.\n",
         false,
         "[node-a]:2222: its host key is another than in /h/known:hosts:7: SHA256:abc; it was "
         "installed anew, or somebody else answers. Compare this with what its owner says; then "
         "`ssh-keygen -R '[node-a]:2222' -f '/h/known:hosts' && ssh -o StrictHostKeyChecking=ask "
         "-p 2222 me@node-a true` asks once, and accepts it"},
        {255, "@ WARNING: REVOKED HOST KEY DETECTED! @\r\nHost key verification failed.\r\n", false,
         "node-a: its host key is marked @revoked in known_hosts: it is no longer to be trusted, "
         "and is not accepted"},
        {255,
         "kex_exchange_identification: Connection closed by remote host\r\nConnection closed by "
         "10.0.0.1 port 22\r\nConnection closed by UNKNOWN port 65535\r\n",
         false,
         "Connection closed by 10.0.0.1 port 22; it closes each connection before it greets: does "
         "its sshd let us in at all, and what are its MaxStartups and PerSourcePenalties?"},
        {255, "Connection closed by 10.0.0.1 port 22\r\n", true,
         "Connection closed by 10.0.0.1 port 22"},
        {255,
         "channel 0: open failed: connect failed: No route to host\r\nstdio forwarding "
         "failed\r\nConnection closed by UNKNOWN port 65535\r\n",
         false,
         "channel 0: open failed: connect failed: No route to host; is the host up, and does sshd "
         "listen there?"},
        {255,
         "sh: 1: exec: corkscrew: not found\r\nkex_exchange_identification: Connection closed by "
         "remote host\r\nConnection closed by UNKNOWN port 65535\r\n",
         false, "its ProxyCommand cannot be run: sh: 1: exec: corkscrew: not found"},
        {255,
         "sh: line 1: exec: /etc/passwd: cannot execute: Permission denied\r\nConnection closed by "
         "UNKNOWN port 65535\r\n",
         false,
         "its ProxyCommand cannot be run: sh: line 1: exec: /etc/passwd: cannot execute: "
         "Permission denied"},
        {255,
         "Load key \"/k\": Permission denied\r\nkex_exchange_identification: Connection reset by "
         "peer\r\nConnection reset by 10.0.0.1 port 22\r\n",
         false,
         "Connection reset by 10.0.0.1 port 22; it closes each connection before it greets: does "
         "its sshd let us in at all, and what are its MaxStartups and PerSourcePenalties?"},
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

/* The client names who showed a key: the way there is that to this one, by the jump hosts before it. */
TEST(the_key_of_a_jump_host_is_accepted_there)
{
    static const struct zt_ssh_config b = {.hostname = "10.0.0.2", .port = 22};
    static const struct zt_ssh_config c = {
        .hostname = "10.0.0.3",
        .port = 22,
        .proxy_jump = "me@a:24,b",
        .jumps = {{.user = "me", .host = "a", .port = 24},
                  {.host = "b", .before = sizeof "me@a:24" - 1, .config = &b}},
        .n_jumps = 2};
    static const struct zt_ssh_config one = {.hostname = "10.0.0.3",
                                             .port = 22,
                                             .proxy_jump = "[10.0.0.9]:24",
                                             .jumps = {{.host = "10.0.0.9", .port = 24}},
                                             .n_jumps = 1};
    static const struct {
        const struct zt_ssh_config *config;
        const char *named, *command;
    } cases[] = {
        {&c, "10.0.0.3", "=ask -p 2222 me@node-a true`"},
        {&c, "[a]:24", "=ask -p 24 me@a true`"},
        {&c, "10.0.0.2", "=ask -J 'me@a:24' b true`"},
        {&one, "[10.0.0.9]:24", "=ask -p 24 10.0.0.9 true`"},
        {&one, "whatever", "=ask -p 24 10.0.0.9 true`"},
        {&c, "whatever", "=ask -p 2222 me@node-a true`"},
    };
    for (size_t i = 0; i < ZT_ARRAY_LEN(cases); i++) {
        struct zt_ssh_target t = node;
        struct zt_ssh_end end;
        struct zt_str out = {0}, said = {0};
        t.config = cases[i].config;
        zt_str_printf(&said,
                      "No ED25519 host key is known for %s and you have requested strict "
                      "checking.\r\nHost key verification failed.\r\n",
                      cases[i].named);
        zt_openssh_end(exited(255), said.buf, false, &end);
        zt_ssh_explain(&t, &end, said.buf, false, &out);
        if (strncmp(out.buf, cases[i].named, strlen(cases[i].named)) ||
            !strstr(out.buf, cases[i].command))
            FAIL("%s", out.buf);
        zt_str_release(&out);
        zt_str_release(&said);
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

/* ---- at most so many log in to one sshd ---- */

TEST(places_are_those_of_what_is_connected_to)
{
    static const struct zt_ssh_config direct = {.hostname = "10.0.0.1", .user = "me", .port = 22};
    static const struct zt_ssh_config other = {.hostname = "10.0.0.1", .user = "me", .port = 23};
    static const struct zt_ssh_config door = {.hostname = "10.0.0.9", .user = "me", .port = 24};
    static const struct zt_ssh_config near = {.hostname = "10.0.0.2",
                                              .user = "me",
                                              .port = 22,
                                              .jumps = {{.host = "door", .config = &door}},
                                              .n_jumps = 1};
    static const struct zt_ssh_config far = {
        .hostname = "10.0.0.3",
        .user = "me",
        .port = 22,
        .jumps = {{.user = "me", .host = "10.0.0.9", .port = 24}, {.host = "next"}},
        .n_jumps = 2};
    static const struct zt_ssh_config *const pairs[][2] = {
        {&direct, &other}, {&direct, &near}, {&direct, NULL}};
    enum { N = ZT_TURNS_OF_SERVER };
    for (size_t i = 0; i < ZT_ARRAY_LEN(pairs); i++) { /* each has its own */
        struct zt_turns *turns = zt_turns_create(N + 1);
        struct zt_turn turn[N + 1];
        for (int k = 0; k <= N; k++) {
            const struct zt_ssh_target t = {.host = "a", .config = pairs[i][k == N]};
            zt_turn_init(&turn[k], turns, &t);
            CHECK(zt_turn_take(&turn[k], 1));
        }
        zt_turns_free(turns);
    }
    struct zt_turns *turns = zt_turns_create(N + 1);
    struct zt_turn turn[N + 1];
    for (int k = 0; k <= N; k++) {
        const struct zt_ssh_config *const same[] = {&near, &far, &door};
        const struct zt_ssh_target t = {.host = "a", .config = same[k % 3]};
        zt_turn_init(&turn[k], turns, &t);
        CHECK(zt_turn_take(&turn[k], 1) == (k < N));
    }
    CHECK(zt_turn_is_wanted(&turn[N]) && !zt_turn_is_wanted(&turn[0]));
    zt_turn_leave(&turn[0]);
    zt_turn_leave(&turn[0]);
    CHECK(zt_turn_take(&turn[N], 1));
    CHECK(!zt_turn_take(&turn[0], 1));
    zt_turns_free(turns);
}

TEST(who_is_dropped_comes_again_later_and_with_fewer)
{
    static const int64_t second = 1000000000;
    const struct zt_ssh_target t = {.host = "a"};
    struct zt_turns *turns = zt_turns_create(2);
    struct zt_turn one, two;
    zt_turn_init(&one, turns, &t);
    zt_turn_init(&two, turns, &t);
    for (int i = 0; i < 3; i++) { /* 8, 4, 2, 1 places */
        CHECK(zt_turn_take(&one, (i + 1) * 10 * second));
        CHECK(zt_turn_come_again(&one, (i + 1) * 10 * second));
        CHECK(!zt_turn_take(&one, (i + 1) * 10 * second));
    }
    CHECK(zt_turn_take(&one, 33 * second) && !zt_turn_take(&two, 33 * second));
    CHECK(zt_turn_come_again(&one, 50 * second)); /* since 10 s */
    CHECK(zt_turn_take(&two, 50 * second));       /* it was not told to wait */
    CHECK(!zt_turn_come_again(&one, 51 * second));
    zt_turns_free(turns);
}

TEST_MAIN()
