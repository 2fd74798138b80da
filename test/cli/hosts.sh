#!/usr/bin/env bash
# The ranks table: from hostfiles and their filters, and from a Slurm allocation.
. "$REPO/test/cli/common.bash"
try zerotrain hosts --help
for f in two-nodes unequal this-machine; do try zerotrain hosts --hostfile="$REPO/hostfiles/$f"; done
try zerotrain hosts --hostfile="$REPO/hostfiles/unequal" --include=node-a:0,1@192.0.2.10
L01=$CASES/L01/hostfile
try zerotrain hosts --hostfile="$L01" --include=worker-0@worker-1:0,2
try zerotrain hosts --hostfile="$L01" --exclude=worker-0:0,1@worker-1:3 --json
try zerotrain hosts --hostfile="$CASES/L04/hostfile" --json
zerotrain hosts --hostfile="$CASES/L05/hostfile" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["ranks"][3])'
try zerotrain hosts --hostfile="$L01" --num_nodes=1 --num_gpus=2
export SLURM_JOB_NODELIST='gpu[09-10],x' SLURM_TASKS_PER_NODE='2(x2),1'
try zerotrain hosts --slurm
try zerotrain hosts --slurm --exclude=gpu10
