#!/usr/bin/env bash
# Model files of llm.c: the fixture's weights, so its numbers; bf16; files that are wrong.
. "$REPO/test/cli/common.bash"
fixture
LLMC=$CASES/llmc
losses() { grep -o '"loss":[^,]*' "$1/metrics.jsonl"; }
from() { train fixture.yaml --set model.from="$1" "${@:2}"; }

try from "$LLMC/fixture_f32.bin" --log_dir=run1 | steps
zerotrain --device=cpu --num_gpus=2 fixture.yaml --log_dir=run2 >/dev/null
cmp <(losses run1) <(losses run2) && echo "the same losses"
try from "$LLMC/fixture_bf16.bin" --log_dir=run3 | steps
try zerotrain export "$LLMC/fixture_f32.bin" out
cmp out/model.safetensors <(zerotrain export "$GPT2" again >/dev/null && cat again/model.safetensors) &&
    echo "the same weights"
try zerotrain inspect "$LLMC/fixture_f32.bin"
try zerotrain inspect --verify "$LLMC/fixture_bf16.bin"

head -c 3000 "$LLMC/fixture_f32.bin" >cut.bin
try from cut.bin
try zerotrain inspect cut.bin
{ printf '\306\327\064\001\001\000\000\000' && tail -c +9 "$LLMC/fixture_f32.bin"; } >old.bin
try from old.bin
try from "$GPT2/tokens_llmc.bin"
try from "$GPT2/model.safetensors"
try from "$LLMC/fixture_f32.bin" --set model.n_layer=3
try from "$LLMC/fixture_f32.bin" --set model.tie_word_embeddings=false
