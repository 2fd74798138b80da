#!/usr/bin/env bash
# hosts_copies.sh ZEROTRAIN: hosts (lab.bash) that do not share their files, of which one has others: of the data, of the weights
# that training begins with, of a checkpoint, each an error before the first step that says which host and what. The same
# files in another place, and another config.json than the one that was read, change nothing.
# shellcheck disable=SC2034,SC2154 # common.bash uses and sets them
suite=hosts_copies
. "$(dirname "$0")/common.bash"
N=2
. test/fault/lab.bash
printf 'zt%d slots=2\n' 1 2 >"$tmp/hosts"

mine=$tmp/mine other=$tmp/other
mkdir "$mine"
yes 'all work and no play makes jack a dull boy' | head -c 3000000 >"$mine/train.txt"
head -c 50000 "$mine/train.txt" >"$mine/val.txt"
cat >"$tmp/r.yaml" <<END
model: {model_type: llama, n_layer: 2, n_head: 2, n_embd: 32, n_inner: 64, n_positions: 32, vocab_size: 256}
data: {train: $mine/train.txt, val: $mine/val.txt, seq_len: 16}
train_micro_batch_size_per_gpu: 1
train: {steps: 3, eval_every: 2}
END
begun=(--device=cpu --set parallel.threads=1)
"$zerotrain" "${begun[@]}" --num_gpus=4 --log_dir="$tmp/first" --set checkpoint.dir="$mine/ck" "$tmp/r.yaml" >"$tmp/out" 2>&1 &&
    "$zerotrain" export "$mine/ck" "$mine/hf" >>"$tmp/out" 2>&1 || {
    fail "a model to begin with" "$(tail -n 3 "$tmp/out")"
    exit 1
}
digest() { grep -o '"digest": *"[0-9a-f]*"' "$1/summary.json"; }

# On zt2 alone `mine` is `other`, a copy that is then changed.
there() { nsenter -t "$(cat "$lab/zt2/pid")" -m "$@"; }
mkdir "$other"
if ! there mount --bind "$other" "$mine" 2>/dev/null; then
    echo "skip hosts_copies: no mounts here"
    exit 0
fi
renew() {
    rm -rf "${other:?}"/*
    cp -r "$mine"/* "$other"
}
# go OPTION...: on both hosts.
go() {
    struck=$SECONDS
    start "${begun[@]}" --log_dir="$tmp/run$case_no" --hostfile="$tmp/hosts" "$@" "$tmp/r.yaml"
}
# differs NAME WHAT OPTION...: bad input, said by the lowest rank of zt2 before the first step.
differs() {
    local name=$1 what=$2
    shift 2
    go "$@"
    within 10 "$name" 3 "rank 2 on zt2: $what; copy the same files to all hosts"
    ! grep -q '"step"' "$tmp/run$((case_no - 1))/metrics.jsonl" || fail "$name" "a step was made"
    ! ls -d "$mine"/new/*step* 2>/dev/null || fail "$name" "a checkpoint was begun"
}
# same NAME OPTION...: the bits of one host.
same() {
    local name=$1 run
    shift
    "$zerotrain" "${begun[@]}" --num_gpus=4 --log_dir="$tmp/$name" "$@" "$tmp/r.yaml" \
        >"$tmp/out" 2>&1 || fail "$name" "$(tail -n 3 "$tmp/out")"
    go "$@"
    within 60 "$name" 0
    run=$tmp/run$((case_no - 1))
    [ "$(digest "$run")" = "$(digest "$tmp/$name")" ] || fail "$name" "these are other bits"
}

# ---- data ----

renew
same "a-copy-on-each-host" --set train.epochs=1
head -c -20 "$mine/train.txt" >"$other/train.txt"
differs "a file that is shorter on one host" "data.train: $mine/train.txt gives 2999980 tokens, and rank 0's 3000000" \
    --set train.epochs=1 --set checkpoint.dir="$mine/new"
# As a copy that has not ended leaves it.
renew
truncate -s 2900000 "$other/train.txt"
truncate -s 3000000 "$other/train.txt"
differs "a file that is half copied on one host" \
    "data.train: $mine/train.txt gives 3000000 tokens as rank 0's does, but others"
renew
printf 'x' | dd of="$other/val.txt" bs=1 seek=49999 conv=notrunc status=none
differs "other data for validation on one host" \
    "data.val: $mine/val.txt gives 50000 tokens as rank 0's does, but others"
renew
cp "$other/val.txt" "$other/more.txt"
differs "a file too many on one host" "data.train: 3 files, and rank 0 has 2" --set data.train="$mine/*.txt"
rm "$other/train.txt"
go
within 10 "no such file on one host" 3 "data.train: $mine/train.txt: No such file or directory"

# ---- weights and checkpoints ----

from=(--set model="{from: $mine/hf}")
renew
printf 'x' | dd of="$other/hf/model.safetensors" bs=1 seek=$(($(stat -c %s "$other/hf/model.safetensors") - 1)) \
    conv=notrunc status=none
for stage in 0 3; do
    differs "other weights on one host, stage $stage" "model.from: [a-z0-9._]+ gives [0-9]+ values as rank 0's does, but others" \
        "${from[@]}" --set zero_optimization.stage=$stage
done
renew
sed -i 's/"rope_scaling": *null/"rope_scaling": {"rope_type": "linear", "factor": 2.0}/' "$other/hf/config.json"
! cmp -s "$mine/hf/config.json" "$other/hf/config.json" || fail "another config.json" "it is the same"
same "another-config.json-on-one-host" "${from[@]}"
renew
sed -i '1s/.*/{ "checksum": "xxh3-128:00000000000000000000000000000000",/' "$other"/ck/step-000003/manifest.json
go --resume="$mine/ck/step-000003" --set train.steps=6
within 10 "another manifest on one host" '[13]' "does not see what rank 0 sees there"

exit $failed
