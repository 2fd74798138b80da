#!/usr/bin/env bash
# What works here, and on hosts; `ssh` is a stand-in that starts an agent here (hosts_ssh.sh). Numbers, and
# verdicts that hang on the machine, are left out.
. "$REPO/test/cli/common.bash"
tiny
export HOME=$PWD LOG=$PWD/arguments ZT_TCP_INTERFACE=lo
checks() { sed -nE 's/^  (ok|warn|FAIL) +([^ ]+( [^ ]+)?)  .*/\2/p'; }
doctor() { zerotrain doctor --device=cpu "$@"; }

doctor >here || echo "exit status $?"
checks <here
tail -n 1 here | grep -o '^ready'
doctor --json tiny.yaml | python3 -c '
import json, sys
d = json.load(sys.stdin)
print(d["version"], d["ready"], d["failures"], len(d["hosts"]), d["pairs"], d["between_hosts"])
checks = {c["check"]: c for c in d["hosts"][0]["checks"]}
print(checks["program"]["verdict"], checks["program"]["todo"], checks["open files"]["facts"].keys())
print(checks["memory"]["facts"]["total_bytes"] >= checks["memory"]["facts"]["free_bytes"] > 0)'

# What would stop a training.
failures() { grep -aE -A1 '^  FAIL|^not ready|exit status' | sed -E 's/ +/ /g; s/, [0-9]+ warnings?$//; /^--$/d'; }
(ulimit -n 71 && try doctor) | failures
try zerotrain doctor --device=cuda | failures | grep -o 'FAIL GPUs\|not ready.*\|.exit.*'
try doctor --set checkpoint.dir=text.txt/here tiny.yaml | failures
try doctor --set checkpoint.dir=/proc/here tiny.yaml | failures # nobody may make one there, though its rights say so
try doctor --set 'data.train=no*.txt' tiny.yaml | failures
mkdir gone
(cd gone && rmdir ../gone && try doctor | failures)
# What its header promises is not there: training refuses it too.
python3 -c 'import struct; open("short.bin", "wb").write(struct.pack("<3i1032x", 20240520, 1, 1000))'
try doctor --set data.train=short.bin tiny.yaml | failures
# GPUs that are asked for must be there, as for a training.
try zerotrain doctor tiny.yaml | grep GPUs
for with in --num_gpus=4 --include=localhost:0; do
    try zerotrain doctor $with tiny.yaml | failures
    try zerotrain $with tiny.yaml | sed 's/To train.*//'
done
cat >>tiny.yaml <<END
zero_optimization: {stage: 2, offload_optimizer: {device: nvme, nvme_path: $PWD/nvme}}
END
try doctor tiny.yaml | failures
mkdir nvme
try doctor tiny.yaml | grep -oE 'nvme (folder +[^:]*|I/O)'
ls -A nvme

# On hosts.
mkdir fake
touch fake/node-a fake/node-b
export FAKE_HOSTS=$PWD/fake PATH=$REPO/test/fake-ssh:$PATH
client() { doctor --launcher=openssh "$@"; }
printf 'me@node-a slots=2\nnode-x slots=1\nnode-b slots=4\n' >hosts
client --hostfile=hosts >out
echo "exit status $?"
sed -nE '/^node-x/,/^$/s/ +/ /gp' out
sed -n '/^between/,$p' out | sed -nE 's/^  (ok|warn) +([a-z]+) .*/\2/p; s/, [0-9]+ warnings?//; /^(not )?ready/p'
sed -nE '/MB.s from/,/^$/{s/ +/ /g; s/ [0-9]+/ N/g; p}' out
client --hostfile=hosts --exclude=node-x --json | python3 -c '
import json, sys
d = json.load(sys.stdin)
print([h["host"] for h in d["hosts"]], [h["slots"] for h in d["hosts"]], d["ready"])
print([(p["from"], p["to"], p["bytes_per_s"] > 0, p["round_trip_us"] > 0) for p in d["pairs"]])
print([abs(h["clock_ahead_s"]) <= h["clock_round_trip_s"] for h in d["hosts"]])'
try client --hostfile=hosts --include=node-a:0 | grep -E '^node|ready|exit' | sed -E 's/: .*/: .../'
mkdir shared
client --hostfile=hosts --exclude=node-x --set checkpoint.dir=shared/run tiny.yaml | grep -cE '^  ok +checkpoints +.*/shared/run \(it will be made\): '
ls -A shared
try client --hostfile=hosts --remote_path=/nosuch/zerotrain --num_nodes=1 | grep -aE 'FAIL|exit' | sed 's/there: .*/there: .../'
try zerotrain doctor --hostfile=nosuch
try zerotrain doctor --hostfile=hosts --launcher=slurm

# In an allocation, with an srun that plays hosts.
mkdir bin
ln -s "$REPO/test/fault/srun.bash" bin/srun
export PATH=$PWD/bin:$PATH SLURM_JOB_NODELIST='n[1-3]' 'SLURM_TASKS_PER_NODE=2(x2),1'
doctor --launcher=slurm >out
echo "exit status $?"
grep -oE '^n.*slot|login +by srun|^ready' out
sed -nE '/MB.s from/,/^$/{s/ +/ /g; s/ [0-9]+/ N/g; p}' out
try doctor --launcher=slurm --include=n2 --remote_path=/bin/false | grep -aE 'FAIL|exit'
unset SLURM_JOB_NODELIST SLURM_TASKS_PER_NODE
try doctor --num_gpus=3 | grep -o ', 3 slots'
try zerotrain doctor --log_dir=x
try zerotrain probe
[ ! -e runs ] && echo "nothing was written"
