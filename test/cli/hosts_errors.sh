#!/usr/bin/env bash
# What is wrong with hostfiles, filters and Slurm's lists: all of it at once, and nothing is guessed.
. "$REPO/test/cli/common.bash"
unset SLURM_JOB_NODELIST SLURM_TASKS_PER_NODE
cat >hosts <<'END'
node-a slots=8
node-b lots=8
-oProxyCommand=evil slots=1
node-a slots=4x
node-c:2222 slots=1
node-a slots=2
END
try zerotrain hosts --hostfile=hosts
for f in duplicate comments_only zero no_slots; do try zerotrain hosts --hostfile="$CASES/L03/$f.txt"; done
try zerotrain hosts --hostfile=nosuch
L01=$CASES/L01/hostfile
try zerotrain hosts --hostfile="$L01" --include=worker-0:4,x@nosuch
try zerotrain hosts --hostfile="$L01" --exclude=worker-0@worker-1
try zerotrain hosts --hostfile="$L01" --include=worker-0 --exclude=worker-1
try zerotrain hosts --hostfile="$L01" --include=worker-0 --num_gpus=1
try zerotrain hosts --hostfile="$L01" --num_nodes=3
try zerotrain hosts --hostfile="$L01" --num_gpus=5
try zerotrain hosts --hostfile="$L01" --num_gpus=0
try zerotrain hosts --hostfile="$CASES/L04/hostfile" --include=bob@192.0.2.10
try zerotrain hosts --hostfile="$CASES/L05/hostfile" --include=2001:db8::11:0
try zerotrain hosts
try zerotrain hosts --hostfile="$L01" --slurm
try zerotrain hosts --hostfile
try zerotrain hosts --nosuch
try zerotrain hosts extra
try zerotrain hosts --slurm
try env SLURM_JOB_NODELIST=n1 "$ZT" hosts --slurm
try env SLURM_JOB_NODELIST='n[1-' SLURM_TASKS_PER_NODE=1 "$ZT" hosts --slurm
try env SLURM_JOB_NODELIST='n[1-2]' SLURM_TASKS_PER_NODE=1 "$ZT" hosts --slurm
