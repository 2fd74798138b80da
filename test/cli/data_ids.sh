#!/usr/bin/env bash
# An id outside of the vocabulary is found when it is read: named with file and position.
. "$REPO/test/cli/common.bash"
tiny
train tiny.yaml --set data.train="$CASES/D04/good_gpt2.bin" --set data.seq_len=4 --log_dir=run >/dev/null 2>err
echo "[exit status $?]"
grep -o 'is id 50256, but .*' err | sort -u

# What no step reads is not looked at: not ahead of the last step either.
{ head -c 160 text.txt && printf '\377%.0s' {1..200}; } >tail.txt
try train tiny.yaml --set data.train=tail.txt --set model.vocab_size=128 --set data.shuffle=false \
    --set train.steps=1 --log_dir=run2 | steps
