/*
 * apart.h: hosts that cannot reach each other, though the front end reaches them all. A link between two of them, or a
 * port of a switch, has died: no rank has failed, and who ends first may be on any host.
 */
#ifndef ZT_LAUNCH_APART_H
#define ZT_LAUNCH_APART_H

#include "launch/launch.h"

/* Zeroed but for n: none is known to be apart. */
struct zt_apart {
    int n;     /* nodes */
    bool *cut; /* (n, n), the same both ways; NULL: no two are */
};

void zt_apart_add(struct zt_apart *a, int node, int other);

bool zt_apart_between(const struct zt_apart *a, int node, int other);

/*
 * The nodes without which the others all reach each other: again and again the one that is apart from most, the last
 * of several. Those of which `gone` is true are not there any more. Returns how many are set in out; none where less
 * than half of those that are there would be left: then it is the network.
 */
int zt_apart_mend(const struct zt_apart *a, const bool *gone, bool *out);

void zt_apart_release(struct zt_apart *a);

#endif
