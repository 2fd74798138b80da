/*
 * turns.h: how many of us may log in at once to one sshd, and how long one that drops us is tried: for both ways to a
 * host (ssh2.h, openssh.h), which share the places of what both connect to. sshd drops who has not logged in yet
 * when those are too many (MaxStartups, 10), or too many of us did not get in (OpenSSH 9.8: PerSourcePenalties).
 *
 * What is connected to is a host and port; of a host behind a ProxyJump its first jump, which is the same when it
 * is reached for itself; with a ProxyCommand all hosts
 * of the same command count together.
 */
#ifndef ZT_LAUNCH_TURNS_H
#define ZT_LAUNCH_TURNS_H

#include "launch/openssh.h"

enum { ZT_TURNS_OF_SERVER = 8, ZT_TURNS_RETRY_MS = 40 * 1000 };

struct zt_turns;
struct zt_server;

/* Of one host; one thread at a time, but zt_turn_is_wanted() by any. */
struct zt_turn {
    struct zt_turns *turns;
    struct zt_server *server;
    enum zt_turn_state { ZT_TURN_LEFT, ZT_TURN_WANTED, ZT_TURN_HELD } state;
    int64_t retry_ns, first_drop_ns;
    unsigned n_drops;
};

struct zt_turns *zt_turns_create(int n_hosts);
void zt_turns_free(struct zt_turns *turns); /* accepts NULL */

/* The place that a host will want; at most n_hosts of them. */
void zt_turn_init(struct zt_turn *p, struct zt_turns *turns, const struct zt_ssh_target *t);

/* Take it, unless others have all of them, or it is too early to come again. */
bool zt_turn_take(struct zt_turn *p, int64_t now_ns) ZT_MUST_CHECK;

void zt_turn_leave(struct zt_turn *p); /* also of one that is not held */

/*
 * The sshd has dropped us: the place is left, and can be taken again after a while, which doubles and is not the same
 * for all; from now on there are fewer. false: that goes on for too long.
 */
bool zt_turn_come_again(struct zt_turn *p, int64_t now_ns) ZT_MUST_CHECK;

/* It could not be taken yet: the host is not to blame for the time. */
bool zt_turn_is_wanted(const struct zt_turn *p);

#endif
