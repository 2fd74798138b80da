/*
 * ssh2.h: agents on other hosts by libssh2: all hosts at once, on one thread of its own, without blocking.
 *
 * To the front end an agent is a socket and a pipe here as with the OpenSSH client: the thread (the carrier) moves bytes
 * between them and the host's channel, whatever they are. It holds at most a channel's window and a buffer each
 * way, and reads no more than is taken from it. When the process ends, connections end, and agents find the end of
 * their stdin.
 *
 *     front end  <-socket, pipe->  carrier  <-ssh->  sshd  <-pipes->  zerotrain agent
 *
 * A host goes through: a place among those that log in to one sshd (turns.h), its addresses (lookup.h), TCP, key
 * exchange, its key (known_hosts.h), a key of ours (ssh_keys.h), a channel, `exec PROGRAM agent`. Dropped before it is
 * asked who we are (MaxStartups), it comes again after a while. What libssh2 cannot do, and the OpenSSH client perhaps
 * can, ends with needs_client; a host key that is not the known one, or a refused login, does not.
 *
 * Files: ssh2.c (carrier), ssh2_host.c (a host, up to its channel), ssh2_login.c (both sides prove who they are),
 * ssh2_pump.c (the bytes), ssh2_memory.c (libssh2's), under ssh2_host.h.
 */
#ifndef ZT_LAUNCH_SSH2_H
#define ZT_LAUNCH_SSH2_H

#include "launch/openssh.h"

struct zt_ssh2;
struct zt_turn;

/* target->config is set. The descriptors are the carrier's from zt_ssh2_start() on. */
struct zt_ssh2_host {
    const struct zt_ssh_target *target;
    struct zt_turn *turn; /* turns.h; the carrier's until there is an outcome */
    int fd, err_fd; /* a socket whose other end is the front end's; where the agent's stderr goes */
};

struct zt_ssh2_outcome {
    bool needs_client;     /* nothing was done: go on with the OpenSSH client */
    struct zt_ssh_end end; /* how it ended, or in end.text why it needs the client */
};

/* Starts the thread, on which all signals are blocked. */
int zt_ssh2_start(const struct zt_ssh2_host *hosts, int n, struct zt_ssh2 **out,
                  struct zt_err *err) ZT_MUST_CHECK;

/* Readable when outcomes have come since zt_ssh2_clear(), which goes before they are taken. */
int zt_ssh2_fd(const struct zt_ssh2 *s);
void zt_ssh2_clear(struct zt_ssh2 *s);

/* Whether host i has an outcome; it is there once. */
bool zt_ssh2_take(struct zt_ssh2 *s, int i, struct zt_ssh2_outcome *out);

/* Cut the connection of host i; an outcome follows. */
void zt_ssh2_drop(struct zt_ssh2 *s, int i);

/* A person is being asked for a passphrase: hosts are not to blame for the time. */
bool zt_ssh2_asks(const struct zt_ssh2 *s);

/* Cut all connections, and end the thread. Accepts NULL. */
void zt_ssh2_stop(struct zt_ssh2 *s);

#endif
