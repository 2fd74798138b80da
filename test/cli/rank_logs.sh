#!/usr/bin/env bash
# --enable_each_rank_log: a file for every rank, with what it said.
. "$REPO/test/cli/common.bash"
tiny
train tiny.yaml --log_dir=a --enable_each_rank_log=logs >/dev/null
ls logs
train tiny.yaml --log_dir=b --enable_each_rank_log=logs --set model.vocab_size=100 >/dev/null 2>&1
grep -ho "the model's vocab_size is 100" logs/rank-0.log logs/rank-1.log | sort -u
touch file
try train tiny.yaml --log_dir=c --enable_each_rank_log=file | grep zerotrain
