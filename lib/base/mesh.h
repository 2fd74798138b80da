/*
 * mesh.h: who is who. The ranks of a job form a mesh
 *
 *     world = pipeline x replicate x shard x context x tensor
 *
 * with `tensor` varying fastest: rank = (((p * R + r) * S + s) * C + c) * T + t. Expert groups
 * subdivide replicate x shard. A *group* is a set of axes (a mask): the ranks that differ from one
 * another in those axes only. So a collective names its group by a mask, and every rank finds its own
 * peers. A group's members are ordered by their coordinates, the later axis varying faster.
 *
 * Today only `shard` is larger than 1; specs, plan and collectives carry every axis all the same.
 */
#ifndef ZT_BASE_MESH_H
#define ZT_BASE_MESH_H

#include "base/compat.h"

enum zt_axis {
    ZT_AXIS_PIPELINE,
    ZT_AXIS_REPLICATE,
    ZT_AXIS_SHARD,
    ZT_AXIS_CONTEXT,
    ZT_AXIS_TENSOR,
    ZT_N_AXES,
};

typedef unsigned zt_axes; /* a mask of ZT_AXES() bits */

#define ZT_AXES(axis) (1u << (axis))

enum {
    ZT_GROUP_SHARD = 1u << ZT_AXIS_SHARD,
    ZT_GROUP_REPLICATE = 1u << ZT_AXIS_REPLICATE,
    ZT_GROUP_DATA = ZT_GROUP_SHARD | ZT_GROUP_REPLICATE, /* ranks with different samples */
    ZT_GROUP_WORLD = (1u << ZT_N_AXES) - 1,
};

struct zt_mesh {
    int size[ZT_N_AXES]; /* each >= 1 */
};

int zt_mesh_world(const struct zt_mesh *m);
void zt_mesh_coords(const struct zt_mesh *m, int rank, int coords[ZT_N_AXES]);
int zt_mesh_rank(const struct zt_mesh *m, const int coords[ZT_N_AXES]);

/* Size of a group, the index of `rank` in its own group, and the rank of the group's member `i`. */
int zt_group_size(const struct zt_mesh *m, zt_axes group);
int zt_group_index(const struct zt_mesh *m, zt_axes group, int rank);
int zt_group_member(const struct zt_mesh *m, zt_axes group, int rank, int i);

#endif
