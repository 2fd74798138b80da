/*
 * front.h: inside of the front end (private to lib/launch). One thread and one poll loop over the agents of all nodes:
 *
 *     opts --front_check.c--> front.c starts an agent on each node, then waits for whichever comes
 *         frames of an agent                  front_frames.c  lines and reports go to the sink, what ranks give goes to
 *                                                             all of them, a death is kept when it explains more
 *         words on its stderr, its silence,
 *         its end                             front_node.c    words go to the sink; the node may be lost
 *         signals to us or to a process that
 *         has joined, the end of that         front_stop.c    how hard all are told to end
 *     no agent is left --front_result.c--> zt_launch_result
 *
 * Whoever finds that the job must end calls zt_front_stop(): the level only rises, all agents hear of it, and the loop
 * goes on until they have ended. So nothing in the loop returns an error: what fails is kept with its node.
 */
#ifndef ZT_LAUNCH_FRONT_H
#define ZT_LAUNCH_FRONT_H

#include "launch/apart.h"
#include "launch/blame.h"
#include "launch/lines.h"
#include "launch/link.h"
#include "launch/ranklog.h"
#include "launch/ssh2.h"
#include "launch/turns.h"

struct front;

/*
 * A node: its agent, which is a process of ours, or one that the carrier of ssh2.h reaches, or one of a process that
 * has joined; and a link to it.
 *
 *     started --HELLO--> greeted --END--> ended       then the link closes, and it is not alive any more
 *
 * It may leave that way at any time: `lost` says that the link broke or was silent, `fail` that it answered and cannot
 * do the job, `given_up` that we do not wait for it, and that what it says does not count.
 */
struct front_node {
    struct front *f;
    int index, first_rank, n_workers;
    char host[256]; /* as the agent calls it; over ssh as the user calls it */

    /* The way to it. */
    const struct zt_ssh_target *ssh; /* NULL: its agent is here, */
    struct zt_party *party; /* or was started by that process: then it is only a link to us */
    struct zt_link link;
    int err_fd; /* the agent's stderr; -1: ended */
    struct zt_lines err_lines;
    struct zt_str said;  /* the beginning of that, over ssh */
    pid_t agent;         /* the agent, or the ssh client; 0: not started, or reaped */
    int agent_status;    /* as of waitpid() */
    bool by_client;      /* over ssh: `agent` is the client, */
    bool waits;          /* or will be when there is a place for it */
    struct zt_turn turn; /* over ssh */
    bool carried;        /* by f->ssh2, and not ended */
    int carried_at;
    struct zt_ssh_end way_end; /* of what was carried, once it has ended */

    /* Its life. */
    bool greeted, ended;
    bool given_up;      /* told to end before it had answered; or failed, and others go on */
    int end_signal;     /* what the agent said ended it */
    struct zt_err lost; /* code set: the link to the agent failed, and why */
    struct zt_err fail; /* code set: the agent could not start the job */

    /* Its clock, where nodes are each for themselves. */
    int n_asked;
    int64_t asked_ns, asked_wall_ns;
    int64_t round_trip_ns; /* the least so far; 0: none */
};

struct front {
    const struct zt_launch_opts *opts;
    struct front_node *nodes;
    int n_nodes;
    int sig_fd;             /* of a zt_supervisor */
    struct zt_ssh2 *ssh2;   /* NULL: no host is reached by libssh2 */
    struct zt_turns *turns; /* of hosts over ssh; NULL: there are none */
    uint8_t secret[32];
    struct zt_ranklogs logs;

    struct zt_str *given; /* (n_workers) what ranks have given to be gathered */
    bool *has_given;
    int n_given;

    bool failed;
    int64_t begun_ns,
        word_ns;           /* the start; how long after it hosts that have not answered are named */
    struct zt_death first; /* the first failure, when `failed` */
    struct front_node *first_on; /* and where */
    int64_t peer_lost_ns;        /* when the first rank lost a peer; 0: none did */
    struct zt_apart apart;       /* nodes of which ranks say that they do not reach each other */
    int apart_rank;              /* the first that says so */

    /* That the sink got since all of its was out, or the last rise of `stop`. */
    size_t unread_bytes;
    bool holding; /* agents take nothing from workers */

    enum zt_stop stop;
    int user_signal;
    int n_own_signals, n_heeded;   /* that we got; that have had an effect */
    const struct zt_party *parted; /* a process that ended before the job */
    bool preempted;                /* that signal told us to make room */
    bool told_by_agent;            /* so an agent was; we may still be told the same */
};

/* ---- front.c ---- */

ZT_PRINTF(2, 3) void zt_front_notice(const struct front *f, const char *fmt, ...);

/* The first node of which that is true, or NULL. */
const struct front_node *zt_front_find(const struct front *f,
                                       bool (*is)(const struct front_node *n));

/* Within which an agent that could have answered must have done so. */
double zt_front_start_s(const struct front *f);

/* ---- front_check.c ---- */

/* ZT_EINPUT: what is asked for cannot be. */
int zt_front_check(const struct zt_launch_opts *o, struct zt_err *err) ZT_MUST_CHECK;

/* ---- front_stop.c ---- */

/* Tell all agents, unless they have been told as much. */
void zt_front_stop(struct front *f, enum zt_stop level);

/*
 * `count` signals have come to one process of the job, the last of them `sig`. A launcher sends each to all
 * processes, which must not count as many times Ctrl-C.
 */
void zt_front_heed(struct front *f, int sig, int count);

/* A node's agent was told to end by SIGTERM or SIGUSR1. */
void zt_front_agent_signalled(struct front_node *n, int sig);

/* It has ended by a signal that it did not ask about, and its workers with it, if there were any yet. */
void zt_front_agent_ended(struct front_node *n, int sig);

/* Signals that a process has got which stands for a rank, or its end. */
void zt_front_read_party(struct front *f, struct zt_party *p);

/* ---- front_node.c ---- */

/*
 * Start a node's agent, here or by the ssh client, which may have to wait for a place; or fill *carry for
 * zt_ssh2_start(). Does not wait for it.
 */
int zt_node_start(struct front_node *n, struct zt_ssh2_host *carry,
                  struct zt_err *err) ZT_MUST_CHECK;

/* Its agent has answered: others may log in. */
void zt_node_greeted(struct front_node *n);

/* The agent's process, or the ssh client, was reaped. */
void zt_node_reaped(struct front_node *n);

/* The carrier is done with it: it has ended, or goes on by the ssh client. */
void zt_node_carried(struct front_node *n, const struct zt_ssh2_outcome *outcome);

bool zt_node_read_stderr(struct front_node *n); /* whether there may be more */

/* Give the agent up: it is killed, and its workers with it; the other nodes are ended. */
void zt_node_lose(struct front_node *n, const struct zt_err *why);

/* The job ends, and the agent may never answer: do not wait for it. What came up of it ends with its link. */
void zt_node_give_up(struct front_node *n);

/* Where nodes are each for themselves: something is heard of this one. */
void zt_node_tell(struct front_node *n, const struct zt_node_news *news);

/* Where nodes are each for themselves: this one is no more, and why. false: they hang together. */
bool zt_node_fail_alone(struct front_node *n, const char *why);

/* Time passes. It is lost after a silence, or once nothing is left of it before its END. */
void zt_node_watch(struct front_node *n, int64_t now_ns);

/* It is yet to answer. */
bool zt_node_is_awaited(const struct front_node *n);

/* Something of it is left: the process, or words on its way. */
bool zt_node_alive(const struct front_node *n);

/* Nothing is left of it, and it was not to end. */
bool zt_node_was_lost(const struct front_node *n);

/* How the agent, which has ended, did so; of one that never answered also what came in place of an answer. */
void zt_node_explain_end(const struct front_node *n, struct zt_str *out);

void zt_node_release(struct front_node *n);

/* ---- front_frames.c ---- */

/* Read once from the agent, and do what its frames say. */
void zt_node_read(struct front_node *n);

/* ---- front_result.c ---- */

/* "zt1 and zt3, zt2 and zt3 cannot reach each other", where any two nodes are apart. */
void zt_front_describe_apart(const struct front *f, struct zt_str *out);

/* After the loop. Negative: the job did not start on some node; then the result has no summary. */
int zt_front_conclude(const struct front *f, struct zt_launch_result *res,
                      struct zt_err *err) ZT_MUST_CHECK;

#endif
