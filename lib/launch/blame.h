/*
 * blame.h: which of many deaths was the first failure. One worker dies, and within a second all
 * others do: those that wait for it notice and exit, the rest are ended by us. Only the first of them
 * explains anything.
 */
#ifndef ZT_LAUNCH_BLAME_H
#define ZT_LAUNCH_BLAME_H

#include "launch/launch.h"
#include "launch/proto.h"

/* A worker's death, as its agent saw it. */
struct zt_death {
    int rank;
    int code;          /* exit code, when signal is 0 */
    int signal;        /* that ended it, or 0 */
    enum zt_stop stop; /* what the agent was doing to its workers at that time */
    bool dumped_core;
    bool oom; /* the kernel's out-of-memory killer struck since the job began */
};

/* In the order of blame. */
enum zt_death_kind {
    ZT_DEATH_OWN,  /* failed by itself */
    ZT_DEATH_PEER, /* exited with ZT_EXIT_PEER_LOST: some other rank failed */
    ZT_DEATH_OURS, /* we ended it */
    ZT_DEATH_WELL, /* exit code 0 */
};

enum zt_death_kind zt_death_kind(const struct zt_death *d);

/* Whether `d`, which came later, takes the blame from `first`. */
bool zt_death_before(const struct zt_death *d, const struct zt_death *first);

/* What a shell would report: the code, or 128 + signal. */
int zt_death_exit_code(const struct zt_death *d);

/* "exit code 7", "signal 9 (Killed): was it out of memory?" */
void zt_death_describe(const struct zt_death *d, struct zt_str *out);

/* A death as payload of ZT_FRAME_EXIT. get: false when malformed. */
void zt_death_put(const struct zt_death *d, struct zt_str *out);
bool zt_death_get(struct zt_death *d, const struct zt_frame *f);

#endif
