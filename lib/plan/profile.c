#include "plan/plan.h"

const struct zt_profile zt_profiles[] = {
    /* An H100-class node: NVLink between the devices of a node, PCIe 4 to the host. */
    {.name = "fast",
     .flops = 400e12,
     .net = 300e9,
     .pcie = 25e9,
     .host = 100e9,
     .hbm = 2.5e12,
     .disk = 5e9,
     .latency = 20e-6,
     .launch = 10e-6},
    /* The same devices with a 200 Gbit/s network between them. */
    {.name = "slow",
     .flops = 400e12,
     .net = 25e9,
     .pcie = 25e9,
     .host = 100e9,
     .hbm = 2.5e12,
     .disk = 5e9,
     .latency = 20e-6,
     .launch = 10e-6},
    /* A worker on one or two cores; "transfers" are copies in memory. */
    {.name = "cpu",
     .flops = 150e9,
     .net = 8e9,
     .pcie = 8e9,
     .host = 8e9,
     .hbm = 8e9,
     .disk = 1e9,
     .latency = 20e-6,
     .launch = 2e-6},
    {.name = NULL},
};

const struct zt_profile *zt_profile_find(const char *name)
{
    for (const struct zt_profile *p = zt_profiles; p->name; p++)
        if (!strcmp(p->name, name))
            return p;
    return NULL;
}
