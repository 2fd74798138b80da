#!/usr/bin/env bash
# Training and planning with a hostfile that comes to this machine, and what is refused before anything starts;
# other hosts: hosts_ssh.sh.
. "$REPO/test/cli/common.bash"
tiny
unset DS_ENV_FILE
export HOME=$PWD/home
mkdir home
cpu() { zerotrain --device=cpu "$@"; }
printf 'localhost slots=2\n' >here
try cpu --hostfile=here tiny.yaml --log_dir=a | grep -aE '^(2 CPU|model|note|step 3)'
try cpu --hostfile=here --include=localhost:1 tiny.yaml --log_dir=b | grep -aE '^(1 CPU|step 3)'
try cpu --hostfile=here --num_gpus=1 tiny.yaml --log_dir=c | grep -aE '^(1 CPU|step 3)'
echo "127.0.0.1 slots=2" | try cpu --hostfile=- tiny.yaml --log_dir=d | grep -aE '^(2 CPU|step 3)'
echo "$(hostname) slots=2" | try cpu --hostfile=- tiny.yaml --log_dir=e | grep -aE '^(2 CPU|step 3)'

# The environment that DeepSpeed exports.
echo 'FROM_HOME=1' >home/.deepspeed_env
cp "$CASES/L10/env" .deepspeed_env
try cpu --hostfile=here tiny.yaml --log_dir=f | grep -aE '^(note|step 3)'
echo 'ZT_CPU_ISA=home' >home/.deepspeed_env
echo 'ZT_CPU_ISA=here' >.deepspeed_env
try cpu --hostfile=here tiny.yaml --log_dir=g | grep -ao -m1 'ZT_CPU_ISA=here: unknown' # the worker saw it
echo 'no equals sign' >.deepspeed_env
try cpu --hostfile=here tiny.yaml --log_dir=g
DS_ENV_FILE=nosuch try cpu --hostfile=here tiny.yaml --log_dir=g
DS_ENV_FILE='' try cpu --hostfile=here tiny.yaml --log_dir=g
rm .deepspeed_env home/.deepspeed_env

# Refused; nothing is written.
printf 'localhost slots=2\n192.0.2.10 slots=1\n' | try cpu --hostfile=- tiny.yaml
printf '%s slots=1\n127.0.0.1 slots=2\n' "$(hostname)" | try cpu --hostfile=- tiny.yaml
try cpu --hostfile=nosuch tiny.yaml
try cpu --hostfile=here --num_gpus=3 tiny.yaml
try cpu --hostfile=here --include=localhost:2 tiny.yaml
try cpu --hostfile=here --num_nodes=2 tiny.yaml
try cpu --num_nodes=2 tiny.yaml
try cpu --include=localhost:0 tiny.yaml
try zerotrain --hostfile=here tiny.yaml
try zerotrain --exclude=localhost:0 tiny.yaml
ls -d runs 2>&1

# Planned.
try zerotrain plan --hostfile="$REPO/hostfiles/unequal" --exclude=2001:db8::11 --print_recipe tiny.yaml | grep train_batch_size
try zerotrain plan --hostfile=nosuch tiny.yaml
try zerotrain plan --exclude=a tiny.yaml
