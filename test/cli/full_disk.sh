#!/usr/bin/env bash
# Output that cannot be written: the training goes on, and nothing is lost without a word.
. "$REPO/test/cli/common.bash"
tiny
mkdir run
ln -s /dev/full run/metrics.jsonl
try train tiny.yaml --log_dir=run | steps | grep -v "^step" | LC_ALL=C sort
{ train tiny.yaml --log_dir=out >/dev/full; } 2>&1
echo "[exit status $?]"
grep -c step out/metrics.jsonl
{ zerotrain plan tiny.yaml >/dev/full; } 2>&1
echo "[exit status $?]"
{ zerotrain --help >&-; } 2>&1
echo "[exit status $?]"
