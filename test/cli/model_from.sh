#!/usr/bin/env bash
# A Hugging Face folder: the numbers of its trace; folders that are none.
. "$REPO/test/cli/common.bash"
fixture
try train fixture.yaml --log_dir=run | steps
try train fixture.yaml --set model.from=nosuch
try train fixture.yaml --set model.from="$CASES/fixture_llama" --log_dir=run2 | steps
mkdir cut none other
echo '{"model_type": "mamba"}' >other/config.json
try train fixture.yaml --set model.from=other
cp "$GPT2/config.json" cut
cp "$GPT2/config.json" none
head -c 2000 "$GPT2/model.safetensors" >cut/model.safetensors
try train fixture.yaml --set model.from=cut
try train fixture.yaml --set model.from=none
try train fixture.yaml --set model.n_embd=8
