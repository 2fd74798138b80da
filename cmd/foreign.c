#include "foreign.h"

#include <stddef.h>
#include <string.h>

#include "base/compat.h"

#define PORT_WHY                                                                                   \
    "is not needed: ranks find each other over ports that they agree on themselves; leave it out"
#define NPROC_WHY "write --num_gpus=N, or slots=N in a --hostfile"
#define FAILURES_WHY "write --max_restarts=N, and --elastic to go on with the hosts that remain"
#define SCRIPT_WHY                                                                                 \
    "zerotrain takes a recipe, not a script; `zerotrain launch` runs any program once per rank"

static const struct {
    const char *name, *instead;
} options[] = {
    {"--deepspeed", "is not needed: every run is ZeRO's; --deepspeed_config=FILE merges a "
                    "ds_config.json"},
    {"--zero_stage", "write --set zero_optimization.stage=N"},
    {"-H", "write --hostfile=FILE"},
    {"-i", "write --include=SPEC"},
    {"-e", "write --exclude=SPEC"},
    {"--nnodes", "write --num_nodes=N with a --hostfile"},
    {"--nproc_per_node", NPROC_WHY},
    {"--nproc-per-node", NPROC_WHY},
    {"--master_port", PORT_WHY},
    {"--master-port", PORT_WHY},
    {"--master_addr", PORT_WHY},
    {"--master-addr", PORT_WHY},
    {"--node_rank", "is not needed: the first host starts the others, by ssh or srun"},
    {"--local_rank", "is not needed: every worker is told its rank"},
    {"--no_ssh", "start the run under srun with --launcher=slurm, which needs no ssh"},
    {"--no_ssh_check", "is not needed: `zerotrain doctor --hostfile=FILE` tries the hosts"},
    {"--force_multi", "is not needed: the --hostfile says which hosts there are"},
    {"--launcher_args",
     "is not there: ssh is configured in ~/.ssh/config, srun by its environment"},
    {"--module", SCRIPT_WHY},
    {"-m", SCRIPT_WHY},
    {"--no_python", SCRIPT_WHY},
    {"--no_local_rank", SCRIPT_WHY},
    {"--bind_cores_to_rank",
     "set parallel.threads, the threads of each CPU worker; for cores, start "
     "zerotrain under taskset or numactl"},
    {"--bind_core_list", "start zerotrain under taskset or numactl with those cores"},
    {"--save_pid", "is not there: the terminal's signals reach every worker"},
    {"--elastic_training", FAILURES_WHY},
    {"--max_elastic_nodes", FAILURES_WHY},
    {"--min_elastic_nodes", FAILURES_WHY},
    {"--autotuning", "`zerotrain plan --fit=SIZE` says at once what fits"},
};

const char *cmd_foreign_option(const char *name)
{
    for (size_t i = 0; i < ZT_ARRAY_LEN(options); i++)
        if (strcmp(name, options[i].name) == 0)
            return options[i].instead;
    return NULL;
}
