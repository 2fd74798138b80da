#!/usr/bin/env bash
# Started by srun, mpirun or torchrun as one of many: what is asked for must fit that. How they train together:
# test/fault/launchers.sh.
. "$REPO/test/cli/common.bash"
unset MASTER_ADDR MASTER_PORT ZT_JOB_SECRET_FILE
tiny
try env RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 "$ZT" --device=cpu --num_gpus=2 tiny.yaml
try env OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 "$ZT" --device=cpu --hostfile=hosts tiny.yaml
try env SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=8 SLURM_LOCALID=3 SLURM_STEP_NUM_NODES=1 "$ZT" --launcher=slurm tiny.yaml
try env RANK=1 WORLD_SIZE=4 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=4 "$ZT" --device=cpu tiny.yaml
try env RANK=1 "$ZT" --device=cpu tiny.yaml

# Several hosts: a secret is needed, which nobody else may read, and a place to meet.
two=(env RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2)
try "${two[@]}" "$ZT" --device=cpu tiny.yaml
echo 0123456789abcdef >secret
chmod 640 secret
try "${two[@]}" MASTER_ADDR=node1 ZT_JOB_SECRET_FILE=secret "$ZT" --device=cpu tiny.yaml
chmod 600 secret
try "${two[@]}" ZT_JOB_SECRET_FILE=secret "$ZT" --device=cpu tiny.yaml
try env RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=203.0.113.7 ZT_JOB_SECRET_FILE=secret \
    "$ZT" --device=cpu tiny.yaml
try env RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 ZT_JOIN_SECONDS=1 "$ZT" --device=cpu tiny.yaml
ls -d runs 2>&1

# By our own launcher, too: one training, by two processes.
try zerotrain launch --num_gpus 2 "$ZT" --device=cpu --log_dir=c tiny.yaml | grep -a -e '^.rank 0. step 3' -e workers

# The summary quotes it too where rank 0 was the first to end.
try zerotrain launch --num_gpus 2 "$ZT" --device=cuda tiny.yaml | grep -a '^.rank.*GPU'

# A shell in an allocation of more than this machine.
in_allocation=(env SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_JOB_NODELIST='n[1-2]' 'SLURM_TASKS_PER_NODE=4(x2)')
try "${in_allocation[@]}" "$ZT" --device=cpu --log_dir=d tiny.yaml | grep -a -e '^note' -e '^step 3'

# A batch script, and a launcher of one process, are no more than we are.
try env SLURM_PROCID=0 SLURM_NTASKS=8 "$ZT" --device=cpu --log_dir=a tiny.yaml | grep -a '^step 3'
try env RANK=0 WORLD_SIZE=1 "$ZT" --device=cpu --log_dir=b tiny.yaml | grep -a '^step 3'
