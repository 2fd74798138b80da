# saving.bash: for tests of trainings without end, each step of which is saved. Sourced after common.bash. Sets run and
# ck, the folders of the run and of its checkpoints.
# shellcheck shell=bash disable=SC2154
cat >"$tmp/tiny.yaml" <<END
model: {model_type: gpt2, n_layer: 1, n_head: 2, n_embd: 32, n_positions: 32, vocab_size: 256}
data: {train: $PWD/LICENSE, seq_len: 32}
train_batch_size: 12
train_micro_batch_size_per_gpu: 2
zero_optimization: {stage: 2}
train: {steps: 1000000}
parallel: {threads: 1}
END

# Their options, in saving; for case number $1.
saving() {
    run=$tmp/run$1 ck=$tmp/ck$1
    saving=(--device=cpu --log_dir="$run" --set checkpoint.dir="$ck" --set checkpoint.every_steps=1
        --set checkpoint.keep=0)
}
start_saving() { # OPTION...
    saving $((case_no + 1))
    start "${saving[@]}" "$@" "$tmp/tiny.yaml"
}
has_step() { [ -e "$(printf '%s/step-%06d' "$ck" "$1")" ] || ended; }
until_step() { until_true has_step "$1" || fail "start" "step $1 was not saved: $(tail -n 3 "$tmp/err")"; }
says() { grep -qE -- "$1" "$tmp/err" || ended; }
steps_so_far() { wc -l <"$run/metrics.jsonl"; }
more_steps() { [ "$(steps_so_far)" -gt "$1" ] || ended; }
until_more_than() { # N: steps are made from now on
    local n
    n=$(steps_so_far)
    until_true more_steps $((n + $1))
}
went_on() { lines 'going on from' "$1" || ended; } # from a checkpoint, so often
# Steps in the record are 1, 2, 3, ..., each once.
one_record() { # NAME
    grep -o '"step": *[0-9]*' "$run/metrics.jsonl" | grep -o '[0-9]*' | awk '$1 != NR { exit 1 }' ||
        fail "$1" "metrics.jsonl does not count every step once"
}
