#include "foreign.h"

#include <stddef.h>
#include <string.h>

#include "base/compat.h"

#define PORT_WHY                                                                                   \
    "is not needed: ranks find each other over ports that they agree on themselves; leave it out"
#define NPROC_WHY "write --num_gpus=N, or slots=N in a --hostfile"
#define FAILURES_WHY "write --max_restarts=N, and --elastic to go on with the hosts that remain"
#define DEEPSPEED_WHY                                                                              \
    "is not needed: every run is ZeRO's; --deepspeed_config=FILE merges a ds_config.json"
#define CONFIG_WHY "is not needed: the recipe is named without an option"
#define DRY_WHY "`zerotrain plan` shows what a run would do, and starts nothing"
#define SCRIPT_WHY                                                                                 \
    "zerotrain takes a recipe, not a script; `zerotrain launch` runs any program once per rank"

static const struct {
    const char *name, *instead;
} options[] = {
    {"--deepspeed", DEEPSPEED_WHY},
    {"--use_deepspeed", DEEPSPEED_WHY},
    {"--deepspeed_mpi", DEEPSPEED_WHY},
    {"--deepscale", DEEPSPEED_WHY},
    {"--deepscale_config", "write --deepspeed_config=FILE"},
    {"--config", CONFIG_WHY},
    {"--config_file", CONFIG_WHY},
    {"--recipe", CONFIG_WHY},
    {"--cpu", "write --device=cpu"},
    {"--dry_run", DRY_WHY},
    {"--dry-run", DRY_WHY},
    {"--mixed_precision", "write --set bf16.enabled=true, or fp16.enabled"},
    {"--gpus", NPROC_WHY},
    {"--num_processes", NPROC_WHY},
    {"--workers", NPROC_WHY},
    {"-n", NPROC_WHY},
    {"--standalone", "is not needed: without a --hostfile a run is of this machine alone"},
    {"--rdzv_backend", PORT_WHY},
    {"--rdzv-backend", PORT_WHY},
    {"--rdzv_endpoint", PORT_WHY},
    {"--rdzv-endpoint", PORT_WHY},
    {"--rdzv_id", PORT_WHY},
    {"--rdzv-id", PORT_WHY},
    {"--local-rank", "is not needed: every worker is told its rank"},
    {"--venv_script", "is not needed: there is no Python; --env_file=FILE sets the environment"},
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
