#!/usr/bin/env bash
# slurm.sh ZEROTRAIN: a Slurm cluster of three nodes on this machine, with its own munged, slurmctld and slurmds, in a
# folder of its own. Trainings under srun and with --launcher=slurm: the bits of one command, kills and scancel.
# shellcheck disable=SC2034,SC2154,SC2086,SC2046 # common.bash uses and sets some; words are to be split
suite=slurm
. "$(dirname "$0")/common.bash"
need() { # WHY NOT
    echo "skip $suite: $1"
    exit 0
}
[ "$(id -u)" = 0 ] || need "not root"
for program in munged slurmctld slurmd srun salloc scancel; do
    command -v $program >/dev/null || need "$program is not installed (slurm-wlm, munge)"
done

# ---- the cluster ----

lab=$tmp/lab
host=$(uname -n)
base=$((23000 + $$ % 8000))
mkdir -m 711 "$lab" "$lab/munge" "$lab/state" "$lab/spool" && chmod 711 "$tmp" || exit 1
(umask 077 && head -c 1024 /dev/urandom >"$lab/munge.key" && head -c 32 /dev/urandom >"$tmp/secret")
cat >"$lab/slurm.conf" <<CONF
ClusterName=zt
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$base
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket=$lab/munge/socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$lab/state
SlurmdSpoolDir=$lab/spool/%n
SlurmctldPidFile=$lab/slurmctld.pid
SlurmdPidFile=$lab/%n.pid
SlurmctldLogFile=$lab/slurmctld.log
SlurmdLogFile=$lab/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
KillWait=10
ReturnToService=2
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
NodeName=n[1-3] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((base + 1))-$((base + 3))] CPUs=4
PartitionName=all Nodes=ALL Default=YES
CONF
export SLURM_CONF=$lab/slurm.conf ZT_TCP_INTERFACE=lo # Slurm's names of nodes mean nothing to the resolver
unset MASTER_ADDR MASTER_PORT ZT_JOB_SECRET_FILE
cluster_down() {
    local f
    for f in "$lab"/n?.pid "$lab/slurmctld.pid" "$lab/munge/pid"; do
        [ ! -s "$f" ] || kill "$(cat "$f")" 2>/dev/null
    done
}
trap 'clean_up; cluster_down; rm -rf "$tmp"' EXIT
munged --force --socket="$lab/munge/socket" --key-file="$lab/munge.key" --pid-file="$lab/munge/pid" \
    --log-file="$lab/munge/log" --seed-file="$lab/munge/seed" 2>"$tmp/err" || need "munged: $(tail -n 1 "$tmp/err")"
slurmctld 2>"$tmp/err" || need "slurmctld: $(tail -n 1 "$tmp/err")"
for i in 1 2 3; do
    slurmd -N n$i 2>"$tmp/err" || need "slurmd: $(tail -n 1 "$tmp/err")"
done
idle() { [ "$(sinfo -h -N -t idle -o %N 2>/dev/null | sort -u | wc -l)" = 3 ]; }
until_true idle || need "the nodes do not come up: $(tail -n 1 "$lab/n1.log")"

# srun hands on little of our environment: processes of ours are told by their program.
cp "$zerotrain" "$tmp/zerotrain"
zerotrain=$tmp/zerotrain
marked() {
    local p
    for p in /proc/[0-9]*; do
        [ "$(readlink "$p/exe" 2>/dev/null)" != "$zerotrain" ] || echo "${p#/proc/}"
    done
}
called() { # NAME: those of that name
    local p
    for p in $(marked); do
        ! grep -qsx "$1" "/proc/$p/comm" || echo "$p"
    done
}

# ---- the bits of one command ----

short=(--device=cpu --set train.steps=5 --set parallel.threads=1 --set scheduler.params.warmup_steps=2
    --set train_micro_batch_size_per_gpu=2 --set zero_optimization.stage=3 recipes/quickstart.yaml)
bits() { # FOLDER
    grep -o '"digest": *"[0-9a-f]*"' "$1/summary.json"
    grep -oE '"(loss|grad_norm)": *[-0-9.e]*' "$1/metrics.jsonl"
}
"$zerotrain" --num_gpus=4 --log_dir="$tmp/one" "${short[@]}" >"$tmp/out" 2>&1 || fail "one command" "$(tail -n 3 "$tmp/out")"
one=$(bits "$tmp/one")
same() { # NAME COMMAND...: before the options of a training
    local name=$1 folder=$tmp/same$case_no many
    case_no=$((case_no + 1))
    shift
    timeout 120 "$@" --log_dir="$folder" "${short[@]}" >"$tmp/out" 2>"$tmp/err" || fail "$name" "$(tail -n 3 "$tmp/err")"
    many=$(bits "$folder")
    if [[ $one == *digest* && $one == *loss* && $one == "$many" ]]; then
        echo "ok $suite $name"
    else
        fail "$name" "these bits are not those: $(echo "$many" / "$one" | tr '\n' ' ')"
    fi
}
same "srun on one node" srun -N1 -n4 "$zerotrain"
ZT_JOB_SECRET_FILE=$tmp/secret same "srun on two nodes" srun -N2 -n4 "$zerotrain"
same "--launcher=slurm" salloc -Q -N2 --ntasks-per-node=2 "$zerotrain" --launcher=slurm
printf 'n3 slots=3\nn1 slots=4\n' >"$tmp/hosts"
same "--launcher=slurm of a hostfile, in its order" salloc -Q -N3 --ntasks-per-node=1 "$zerotrain" --launcher=slurm \
    --hostfile="$tmp/hosts" --include=n3:0,2@n1:1,2

# ---- kills, and what Slurm sends ----

# allocated OPTION...: a training without end on three nodes, under way. pid: of the front end.
allocated() {
    case_no=$((case_no + 1))
    run=$tmp/run$case_no
    salloc -Q -N3 --ntasks-per-node=1 "$zerotrain" --launcher=slurm --log_dir="$run" "$@" --device=cpu \
        --set train.steps=1000000 --set train_micro_batch_size_per_gpu=2 recipes/quickstart.yaml >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    until_true trains || fail "start" "no step was made: $(tail -n 3 "$tmp/err")"
    front=$(pgrep -P "$pid")
}
trains() { grep -qs '"step"' "$run/metrics.jsonl" || ended; }
job() { squeue -h -o %i | head -n 1; }

allocated
hit 9 "$(called zerotrain-r1)"
verdict "kill -9 of a worker" 137 'rank 1 on n2 failed first: signal 9'

allocated
hit 9 "$(called zerotrain-wait | head -n 1)"
verdict "kill -9 of a task" '[1-9]*' 'the process on n. has ended|the agent on n. was lost|the process on n., which srun'

allocated
hit 9 "$front"
verdict "kill -9 of the front end" '*' # whatever salloc makes of it

allocated
hit INT "$front"
verdict "an interrupt lets the step end" 130 'finishing this step'

allocated --set checkpoint.dir="$tmp/ckpt"
scancel --signal=USR1 "$(job)"
verdict "scancel --signal=USR1 is pre-emption" 7 'ending after this step'
[ -e "$tmp/ckpt/latest" ] || fail "pre-emption" "there is no checkpoint"

allocated
hit 9 "$(pgrep -P "$front" -x srun)"
verdict "kill -9 of srun" '[1-9]*'

# ---- what cannot be ----

cannot() { # NAME CODE PATTERN COMMAND...
    local name=$1 code=$2 pattern=$3
    case_no=$((case_no + 1))
    shift 3
    "$@" "${short[@]}" >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    verdict "$name" "$code" "$pattern"
}
printf 'n1 slots=1\nn9 slots=1\n' >"$tmp/hosts"
cannot "a host that is not of the allocation" 3 'n9 is not in the allocation, SLURM_JOB_NODELIST=n\[1-2\]' \
    salloc -Q -N2 --ntasks-per-node=1 "$zerotrain" --launcher=slurm --hostfile="$tmp/hosts"
cannot "no program there" 1 'srun ended with exit code' \
    salloc -Q -N2 --ntasks-per-node=1 "$zerotrain" --launcher=slurm --remote_path=/nosuch/zerotrain

exit $failed
