#include "base/mesh.h"

int zt_mesh_world(const struct zt_mesh *m)
{
    return zt_group_size(m, ZT_GROUP_WORLD);
}

void zt_mesh_coords(const struct zt_mesh *m, int rank, int coords[ZT_N_AXES])
{
    for (int a = ZT_N_AXES - 1; a >= 0; a--) {
        coords[a] = rank % m->size[a];
        rank /= m->size[a];
    }
}

int zt_mesh_rank(const struct zt_mesh *m, const int coords[ZT_N_AXES])
{
    int rank = 0;
    for (int a = 0; a < ZT_N_AXES; a++)
        rank = rank * m->size[a] + coords[a];
    return rank;
}

int zt_group_size(const struct zt_mesh *m, zt_axes group)
{
    int n = 1;
    for (int a = 0; a < ZT_N_AXES; a++)
        if (group & ZT_AXES(a))
            n *= m->size[a];
    return n;
}

int zt_group_index(const struct zt_mesh *m, zt_axes group, int rank)
{
    int coords[ZT_N_AXES], index = 0;
    zt_mesh_coords(m, rank, coords);
    for (int a = 0; a < ZT_N_AXES; a++)
        if (group & ZT_AXES(a))
            index = index * m->size[a] + coords[a];
    return index;
}

int zt_group_member(const struct zt_mesh *m, zt_axes group, int rank, int i)
{
    int coords[ZT_N_AXES];
    zt_mesh_coords(m, rank, coords);
    for (int a = ZT_N_AXES - 1; a >= 0; a--) {
        if (group & ZT_AXES(a)) {
            coords[a] = i % m->size[a];
            i /= m->size[a];
        }
    }
    return zt_mesh_rank(m, coords);
}
