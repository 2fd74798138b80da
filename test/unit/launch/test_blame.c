#include "harness.h"

#include <signal.h>

#include "launch/blame.h"

static struct zt_death exited(int rank, int code, enum zt_stop stop)
{
    return (struct zt_death){.rank = rank, .code = code, .stop = stop};
}

static struct zt_death killed(int rank, int sig, enum zt_stop stop)
{
    return (struct zt_death){.rank = rank, .signal = sig, .stop = stop};
}

static int kind(struct zt_death d)
{
    return zt_death_kind(&d);
}

TEST(blame_kinds)
{
    CHECK_INT(kind(exited(0, 0, ZT_STOP_NONE)), ZT_DEATH_WELL);
    CHECK_INT(kind(exited(0, 7, ZT_STOP_NONE)), ZT_DEATH_OWN);
    CHECK_INT(kind(exited(0, 7, ZT_STOP_SOFT)), ZT_DEATH_OWN);
    CHECK_INT(kind(exited(0, ZT_EXIT_PEER_LOST, ZT_STOP_NONE)), ZT_DEATH_PEER);
    CHECK_INT(kind(killed(0, SIGTERM, ZT_STOP_NONE)), ZT_DEATH_OWN);
    CHECK_INT(kind(killed(0, SIGTERM, ZT_STOP_TERM)), ZT_DEATH_OURS);
    CHECK_INT(kind(exited(0, 1, ZT_STOP_TERM)), ZT_DEATH_OURS);
    CHECK_INT(kind(exited(0, 0, ZT_STOP_TERM)), ZT_DEATH_WELL);
    CHECK_INT(kind(killed(0, SIGSEGV, ZT_STOP_TERM)), ZT_DEATH_OWN); /* its core took a while */
    CHECK_INT(kind(killed(0, SIGKILL, ZT_STOP_TERM)), ZT_DEATH_OWN); /* not by us */
    CHECK_INT(kind(killed(0, SIGKILL, ZT_STOP_KILL)), ZT_DEATH_OURS);
}

TEST(blame_prefers_causes_then_the_earlier)
{
    struct zt_death peer = exited(0, ZT_EXIT_PEER_LOST, ZT_STOP_NONE);
    struct zt_death own = exited(1, 3, ZT_STOP_NONE), later = killed(2, SIGSEGV, ZT_STOP_NONE);
    struct zt_death ours = killed(3, SIGTERM, ZT_STOP_TERM);
    CHECK(zt_death_before(&own, &peer) && !zt_death_before(&peer, &own));
    CHECK(zt_death_before(&peer, &ours) && !zt_death_before(&ours, &peer));
    CHECK(!zt_death_before(&later, &own));
}

TEST(blame_travels_and_reads_well)
{
    struct zt_str wire = {0}, text = {0};
    struct zt_death d = killed(5, SIGKILL, ZT_STOP_SOFT), back;
    d.oom = true;
    zt_death_put(&d, &wire);
    struct zt_frame f = {ZT_FRAME_EXIT, (unsigned char *)wire.buf, wire.len};
    CHECK(zt_death_get(&back, &f));
    CHECK(back.rank == 5 && back.signal == SIGKILL && back.stop == ZT_STOP_SOFT && back.oom &&
          !back.dumped_core);
    f.len--;
    CHECK(!zt_death_get(&back, &f));
    f.len++;
    wire.buf[3] = (char)0x80; /* rank -2147483643 */
    CHECK(!zt_death_get(&back, &f));
    CHECK_INT(zt_death_exit_code(&d), 137);
    zt_death_describe(&d, &text);
    CHECK(strstr(text.buf, "signal 9 (Killed)") && strstr(text.buf, "out-of-memory"));
    zt_str_release(&wire);
    zt_str_release(&text);
}

TEST_MAIN()
