#!/usr/bin/env bash
# srun.bash: plays srun for --launcher=slurm where there is no Slurm: a task for each host of --nodelist, all here, with
# srun's variables; stdin goes to all of them.
umask 077
cat >"$0.ticket"
while [[ $1 == --* ]]; do
    [[ $1 != --nodelist=* ]] || IFS=, read -ra hosts <<<"${1#*=}"
    shift
done
rc=0
for i in "${!hosts[@]}"; do
    SLURM_PROCID=$i SLURMD_NODENAME=${hosts[i]} "$@" <"$0.ticket" &
done
for i in "${hosts[@]}"; do
    wait -n || rc=$?
done
exit $rc
