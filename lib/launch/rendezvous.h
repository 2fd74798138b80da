/*
 * rendezvous.h: a job whose processes somebody else has started: srun, mpirun or torchrun, one for each rank, or
 * our own srun (srun.h), one on each host. They meet here; from then on it is a job like any other (launch.h).
 *
 *     process of rank 0            is the front end: it listens until all others are there, then closes its ports
 *     first process of each host   starts two agents when it is told to, which connect too: one that is asked what
 *                                  the host has, and the job's
 *     every other process          holds its connection and waits
 *
 * In the end each leaves with the job's exit code. Agents start all workers, so a process that only waits stands
 * for a rank: its CPUs (as mpirun or srun bound them) become those of the rank's worker, its death ends the
 * job, and a signal that it gets is told to the front end. A launcher signals all processes at once, which
 * must count as one: the front end heeds what one process was sent, by how many it got.
 *
 * Where. Inside a host by a Unix socket in the abstract namespace, named after the job's id, whose two ends check
 * that the other is of the same user. Between hosts by TCP at an address and port that all know, which is
 * open until all are there, at that one address; over it goes TLS under the job's secret (tls.h), so what is said
 * between hosts, the environment of workers among it, is for the two ends alone, and no other has a say in it.
 * Who connects says a HELLO first: his rank, the kind of connection, the number of processes and the job's id, which is
 * what its processes have in common, and no other job has; with TLS it is the name. Who is let in gets the same bytes
 * back, and only then takes it that he is: a connection that ends before that is made again. Each process and each agent
 * holds a connection of its own and dies for itself: nobody passes on what another says. An agent that is not let in yet
 * ends with the process that has started it.
 *
 * Jobs that follow each other may have all of this in common, and an agent of the one before, whose link was cut, may
 * still dial. So each meeting has a nonce, which rank 0 draws and sends with START, over the connection of one that it
 * has let in; agents say it in their HELLO, and who says another is no part of this meeting.
 *
 * Strangers and garbage cost time, nothing else. Connections that have not proven themselves have ZT_STRANGERS_MAX places;
 * when all are taken others wait in the system's queue, until the address that holds most has held one for half a second,
 * which is taken from it. So one host does not keep others out for long; very many together can.
 *
 * Frames. Up: HELLO, PARTY (who), SIGNAL. Down: HELLO, START (the agents; the nonce), LEAVE (the exit code), FAIL.
 *
 * Files: rendezvous.c (where, and the secret), rendezvous_listen.c, rendezvous_front.c, rendezvous_dial.c,
 * rendezvous_member.c.
 */
#ifndef ZT_LAUNCH_RENDEZVOUS_H
#define ZT_LAUNCH_RENDEZVOUS_H

#include <sys/socket.h>

#include "launch/detect.h"
#include "launch/lines.h"
#include "launch/link.h"

enum {
    ZT_JOB_ID_BYTES = 20,
    ZT_NONCE_BYTES = 16,
    ZT_RENDEZVOUS_PORT = 29500, /* where no other is told */
    ZT_RENDEZVOUS_S = 60,
    ZT_PARTY_AGENTS = 2, /* of the first process of a host */
    ZT_STRANGERS_MAX = 256,
    ZT_HOST_TEXT = 256,
    ZT_CPUS_MAX_BYTES = 1024, /* of an affinity mask */
    ZT_AGENT_ASTRAY = 3,      /* exit code of an agent that could not join */
};

/* How the processes of a job find and know each other; the same in all of them but for `rank` and below. */
struct zt_meeting {
    const char *by; /* who started us, for messages */
    int world;
    uint8_t id[ZT_JOB_ID_BYTES];
    uint8_t secret[ZT_TLS_SECRET_BYTES]; /* where there is TCP */
    uint8_t nonce[ZT_NONCE_BYTES];       /* of this meeting; of who joins: since START */
    bool half_a_secret;                  /* zt_meeting_add_file() makes it whole */
    char host[ZT_HOST_TEXT];             /* where rank 0 listens by TCP; "": one host, no TCP */
    int port;                            /* 0: the system picks one (rank 0) */
    double limit_s;                      /* how long all may take to come */
    int rank;                            /* -1: a front end that is none of them */
    int local_rank;                      /* -1: not known */
    char towards
        [ZT_HOST_TEXT]; /* another host: rank 0 listens where the route to it starts; "": at `host` */
};

/*
 * Of a process that a launcher has started (detect.h). One host, or several: then ZT_JOB_SECRET_FILE is needed, a
 * file of 16 bytes or more that is ours and that nobody else may read; and MASTER_ADDR, but under srun, which names
 * its first host. The port is MASTER_PORT, or one more where torchrun itself holds that; under srun it comes from the
 * numbers of job and step. On failure no secret is left in *out.
 */
int zt_meeting_of_env(const struct zt_env *env, const struct zt_place *place,
                      struct zt_meeting *out, struct zt_err *err) ZT_MUST_CHECK;

/*
 * Where half_a_secret is set: mix the file of ZT_JOB_SECRET_FILE, which is `path`, into the secret, which is whole then:
 * who knows only the one or the other knows nothing. ZT_EINPUT, too: half_a_secret without a path, or the reverse.
 */
int zt_meeting_add_file(struct zt_meeting *m, const char *path, struct zt_err *err) ZT_MUST_CHECK;

/* ZT_JOIN_SECONDS; NULL: not set. */
int zt_join_seconds(const char *text, int *out, struct zt_err *err) ZT_MUST_CHECK;

/* Name of the Unix socket; returns its length. */
socklen_t zt_meeting_unix(const struct zt_meeting *m, struct sockaddr_storage *out);

/*
 * Listen by TCP, at m->port or one that the system picks: where the route to m->towards starts, at ZT_TCP_INTERFACE, or
 * at m->host. address, port: where that is.
 */
int zt_meeting_listen(const struct zt_meeting *m, int *fd, char *address, size_t address_bytes,
                      int *port, struct zt_err *err) ZT_MUST_CHECK;

/* "10.0.0.1" or "fd00::1", and the port. False: no IP address. */
bool zt_ip_text(const struct sockaddr_storage *a, char *buf, size_t buf_bytes, int *port);

/* What is said first. Compared as bytes. */
enum zt_party_kind { ZT_PARTY_PROCESS, ZT_PARTY_AGENT, ZT_N_PARTY_KINDS };
struct zt_hello {
    char magic[8];
    int32_t rank, kind, world;
    uint8_t id[ZT_JOB_ID_BYTES];
    uint8_t nonce[ZT_NONCE_BYTES]; /* of an agent; else 0 */
};
void zt_meeting_hello(const struct zt_meeting *m, int rank, enum zt_party_kind kind,
                      struct zt_hello *out);

/* A ticket: all that a process needs to find the meeting and be let in. Secret. */
void zt_ticket_put(const struct zt_meeting *m, struct zt_str *out);

/* Read one, to the end of the file; blocks. ZT_EINPUT: it is none. `by` is NULL. */
int zt_ticket_read(int fd, struct zt_meeting *out, struct zt_err *err) ZT_MUST_CHECK;

/*
 * The kernel notices that the other host has gone, in about 12 s, whether something is on the way to it or not. It also
 * ends a connection whose other end reads nothing for as long and is sent more than it has room for.
 */
void zt_meeting_keepalive(int fd);

/* Both ends send beats from now on, and an end that is stopped, as by Ctrl-Z, is not gone: no more of the latter. */
void zt_meeting_has_beats(int fd);

/* ---- the front end ---- */

/* One of the processes. Rank 0 of a job that is its own front end is there from the beginning. */
struct zt_party {
    int rank, local_rank;
    const uint8_t *nonce;                   /* of the meeting */
    bool told;                              /* PARTY came: what is below is known */
    char host[ZT_HOST_TEXT];                /* for people; Slurm's name of it where there is one */
    char host_id[ZT_HOST_TEXT + 80];        /* equal: the same host */
    char address[80];                       /* by which other hosts reach it; "": one host */
    struct zt_str cpus;                     /* bytes of its affinity mask */
    char *visible;                          /* its CUDA_VISIBLE_DEVICES, or NULL */
    struct zt_link link;                    /* not open: us */
    struct zt_conn agents[ZT_PARTY_AGENTS]; /* their connections; none: handed on */
    int n_agents, n_taken;                  /* that have come; that were handed on */
    int n_signals;                          /* that it got */
    bool gone;                              /* its link has ended */
};

struct zt_rendezvous {
    struct zt_meeting m;
    struct zt_party *v;     /* (m.world) by rank */
    int unix_fd, tcp_fd;    /* -1: closed */
    struct zt_tls_ctx *tls; /* NULL: no TCP */
    char address[80];       /* of this host, as the others reach it; "": one host */
    int port;
    struct zt_shake *shakes; /* connections that have not proven themselves */
    int n_shakes, n_refused; /* of those refused the last: */
    char refused[160];
    int told; /* a signal that one of them got while others came; 0: none did */
};

/* Listen. The meeting is copied; r stays where it is. host: Slurm's name of this one, or NULL. */
int zt_rendezvous_open(const struct zt_meeting *m, const char *host, struct zt_rendezvous *r,
                       struct zt_err *err) ZT_MUST_CHECK;

/*
 * Blocks until all are there; then nothing listens any more. ZT_EPEER: the message names the ranks that have
 * not come, or the one that came and went.
 */
int zt_rendezvous_wait(struct zt_rendezvous *r, struct zt_err *err) ZT_MUST_CHECK;

/* One round of that, of at most ms: 1: all are there, 0: not yet. For who must look at something else as well. */
int zt_rendezvous_step(struct zt_rendezvous *r, int ms, struct zt_err *err) ZT_MUST_CHECK;

/* "the process of rank 2 on HOST", or without a rank where it stands for a host; returns buf. */
const char *zt_party_name(const struct zt_rendezvous *r, const struct zt_party *p, char *buf,
                          size_t buf_bytes);

/* A link to the next of its agents. ZT_EUNSUPPORTED: there is none left. */
int zt_party_take_agent(struct zt_party *p, struct zt_link *out, struct zt_err *err) ZT_MUST_CHECK;

/* Read once, without blocking: 0: nothing to tell; a signal that it got; ZT_EPEER: it has ended. */
int zt_party_read(struct zt_party *p);

/* Tell all of them to leave with that code, and close. Accepts one that was only zeroed. */
void zt_rendezvous_leave(struct zt_rendezvous *r, int exit_code);

/* ---- who joins ---- */

/*
 * Until rank 0 is there: by the Unix socket if it is on this host, else by TCP. Blocks. ZT_EPEER: it did not come, or
 * has another secret.
 */
int zt_meeting_dial(const struct zt_meeting *m, enum zt_party_kind kind, struct zt_link *out,
                    struct zt_err *err) ZT_MUST_CHECK;

/*
 * Join, and wait for the job's end; *exit_code is the job's. ZT_EPEER: rank 0 did not come, does not want us, or is
 * gone. host: Slurm's name of this host, or NULL. Blocks, and handles SIGINT, SIGTERM, SIGUSR1 and their like. The
 * secret in *m is wiped: once it is let in, or has told its agents, and in any case.
 */
int zt_member_run(struct zt_meeting *m, const char *host, int *exit_code,
                  struct zt_err *err) ZT_MUST_CHECK;

/* What a process says of itself; rank 0 of itself too. */
void zt_party_describe(struct zt_party *p, int rank, int local_rank, const char *host);

#endif
