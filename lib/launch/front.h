/*
 * front.h: inside of the front end (private to lib/launch). front_node.c speaks with one node's agent;
 * front.c is the loop over all of them, signals, and what comes out in the end.
 */
#ifndef ZT_LAUNCH_FRONT_H
#define ZT_LAUNCH_FRONT_H

#include "launch/blame.h"
#include "launch/lines.h"
#include "launch/link.h"
#include "launch/ranklog.h"
#include "launch/ssh2.h"

struct front;

/* A node: its agent, which is a process of ours, or one that the carrier of ssh2.h reaches, and a link. */
struct front_node {
    struct front *f;
    int index, first_rank, n_workers;
    const struct zt_ssh_target *ssh; /* NULL: its agent is here, */
    struct zt_party *party; /* or was started by that process: then it is only a link to us */
    char host[256];         /* as the agent calls it; over ssh as the user calls it */
    struct zt_link link;
    int err_fd; /* the agent's stderr; -1: ended */
    struct zt_lines err_lines;
    struct zt_str said; /* the beginning of that, over ssh */
    pid_t agent;        /* the agent, or the ssh client; 0: not started, or reaped */
    int agent_status;
    bool carried; /* by f->ssh2, and not ended */
    int carried_at;
    bool by_client;            /* over ssh: `agent` is the client */
    struct zt_ssh_end way_end; /* else how the way ended, once it has */
    bool greeted, ended;
    bool given_up;      /* told to end before it had answered; or failed, and others go on */
    int end_signal;     /* what the agent said ended it */
    struct zt_err lost; /* code set: the link to the agent failed, and why */
    struct zt_err fail; /* code set: the agent could not start the job */
    int n_asked;        /* times that its clock was asked for */
    int64_t asked_ns, asked_wall_ns;
    int64_t round_trip_ns; /* the least so far; 0: none */
};

struct front {
    const struct zt_launch_opts *opts;
    struct front_node *nodes;
    int n_nodes;
    int sig_fd;           /* of a zt_supervisor */
    struct zt_ssh2 *ssh2; /* NULL: no host is reached by libssh2 */
    uint8_t secret[32];
    struct zt_str *given; /* (n_workers) what ranks have given to be gathered */
    bool *has_given;
    int n_given;
    struct zt_ranklogs logs;
    bool failed;
    struct zt_death first;       /* the first failure, when `failed` */
    struct front_node *first_on; /* and where */
    int64_t peer_lost_ns;        /* when the first rank lost a peer; 0: none did */
    enum zt_stop stop;
    int user_signal;
    int n_own_signals, n_heeded;   /* that we got; that have had an effect */
    const struct zt_party *parted; /* a process that ended before the job */
    bool preempted;                /* that signal told us to make room */
    bool told_by_agent;            /* so an agent was; we may still be told the same */
};

ZT_PRINTF(2, 3) void zt_front_notice(const struct front *f, const char *fmt, ...);

/* Tell all agents, unless they have been told as much. */
void zt_front_stop(struct front *f, enum zt_stop level);

/* A node's agent was told to end by SIGTERM or SIGUSR1. */
void zt_front_agent_signalled(struct front *f, struct front_node *n, int sig);

/*
 * Start a node's agent, here or by the ssh client; or fill *carry for zt_ssh2_start(). Does not wait for it.
 */
int zt_node_start(struct front_node *n, struct zt_ssh2_host *carry,
                  struct zt_err *err) ZT_MUST_CHECK;

/* The carrier is done with it: it has ended, or goes on by the ssh client. */
void zt_node_carried(struct front_node *n, const struct zt_ssh2_outcome *outcome);

/* The process is there, or the carrier has it. */
bool zt_node_has_agent(const struct front_node *n);
void zt_node_kill(struct front_node *n);

void zt_node_read(struct front_node *n);        /* what the agent says */
bool zt_node_read_stderr(struct front_node *n); /* whether there may be more */

/* Give the agent up; it is killed, and its workers with it; the other nodes are ended. */
void zt_node_lose(struct front_node *n, const struct zt_err *why);

/* The job ends, and the agent may never answer: do not wait for it. What came up of it ends with its link. */
void zt_node_give_up(struct front_node *n);

/*
 * Where nodes are each for themselves: this one is no more, and why. false: they hang together.
 */
bool zt_node_fail_alone(struct front_node *n, const char *why);

/* Something of it is left: the process, or words on its way. */
bool zt_node_alive(const struct front_node *n);
void zt_node_release(struct front_node *n);

#endif
