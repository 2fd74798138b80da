#!/usr/bin/env bash
# Started by srun, mpirun or torchrun as one of many: refused before anything is done, not trained N times.
. "$REPO/test/cli/common.bash"
tiny
try env RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 "$ZT" --device=cpu tiny.yaml
try env OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 "$ZT" --device=cpu tiny.yaml
try env SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=8 SLURM_LOCALID=3 "$ZT" --device=cpu tiny.yaml
try env RANK=1 WORLD_SIZE=4 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=4 "$ZT" --device=cpu tiny.yaml
try env RANK=1 "$ZT" --device=cpu tiny.yaml
try zerotrain launch --num_gpus 2 "$ZT" --device=cpu tiny.yaml | grep -ao 'one of 2 processes' | sort -u
ls -d runs 2>&1

# A batch script, and a launcher of one process, are no more than we are.
try env SLURM_PROCID=0 SLURM_NTASKS=8 "$ZT" --device=cpu --log_dir=a tiny.yaml | grep -a '^step 3'
try env RANK=0 WORLD_SIZE=1 "$ZT" --device=cpu --log_dir=b tiny.yaml | grep -a '^step 3'
