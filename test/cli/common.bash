# common.bash: for the command-line tests. Each is a session: `try COMMAND` prints the command, what it
# says on both streams, and its exit status.
# shellcheck shell=bash
export CUDA_VISIBLE_DEVICES="" TERM=dumb
unset COLUMNS
CASES=$REPO/test/cases
GPT2=$CASES/fixture_gpt2

zerotrain() { "$ZT" "$@"; }

try() {
    printf '$'
    printf ' %q' "$@"
    printf '\n'
    "$@" 2>&1
    local rc=$?
    [ $rc = 0 ] || echo "[exit status $rc]"
}

# Train with 2 CPU workers, and show of the start and of the end only what each test is about.
train() { zerotrain --device=cpu --num_gpus=2 "$@"; }
steps() { grep -aE '^(zerotrain|note|\[rank|eval|step|sample|stopped|  \||[0-9]+ steps?(:|,|$))|^\$|^\[exit'; }

# A model that trains in no time.
tiny() {
    cat >tiny.yaml <<END
model: {model_type: gpt2, n_layer: 2, n_head: 2, n_embd: 32, n_positions: 32, vocab_size: 256}
data: {train: text.txt}
train_micro_batch_size_per_gpu: 2
train: {steps: 3}
steps_per_print: 1
parallel: {threads: 1}
END
    head -c 4000 "$REPO/LICENSE" >text.txt
}

# The GPT-2 fixture with the settings of its trace.
fixture() {
    cat >fixture.yaml <<END
model: {from: $GPT2}
data: {train: $GPT2/tokens_llmc.bin, seq_len: 6}
train_micro_batch_size_per_gpu: 1
gradient_accumulation_steps: 2
gradient_clipping: 1.0
optimizer:
  type: AdamW
  params: {lr: 1e-2, betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1}
train: {steps: 5}
steps_per_print: 1
parallel: {threads: 1}
END
}
