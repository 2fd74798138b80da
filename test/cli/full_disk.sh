#!/usr/bin/env bash
# Output that cannot be written: the training goes on, and nothing is lost without a word.
. "$REPO/test/cli/common.bash"
tiny
mkdir run
ln -s /dev/full run/metrics.jsonl
try train tiny.yaml --log_dir=run | steps | grep -v "^step" | LC_ALL=C sort
grep exit_code run/summary.json
mkdir last
ln -s /dev/full last/summary.json
try train tiny.yaml --log_dir=last | steps | grep -v "^step" | LC_ALL=C sort
# A profile's file is tried before the start, and what becomes of it is in the exit status.
profile() { train tiny.yaml --set flops_profiler.enabled=true --set flops_profiler.output_file="$1" --log_dir="$2"; }
try profile nowhere/profile refused
try profile . refused
[ ! -e refused ] && echo "nothing was begun"
try profile /dev/full full | steps | grep -v "^step" | LC_ALL=C sort
try profile profile fits | grep profile
{ train tiny.yaml --log_dir=out >/dev/full; } 2>&1
echo "[exit status $?]"
grep -c step out/metrics.jsonl
{ zerotrain plan tiny.yaml >/dev/full; } 2>&1
echo "[exit status $?]"
{ zerotrain --help >&-; } 2>&1
echo "[exit status $?]"

# A limit on the size of files is no other end than a full disk; the programs of others meet it as ever.
(ulimit -f 100 && try train tiny.yaml --log_dir=small) | grep -aoE '[|] .*File too large|^.exit.*'
(ulimit -f 1 && zerotrain plan --schedule tiny.yaml 2>&1 >large) | cat
echo "[exit status ${PIPESTATUS[0]}]"
(ulimit -f 1 && try zerotrain launch --num_gpus=1 sh -c 'head -c 9999 /dev/zero >zeros') | grep -a 'first\|exit status'
