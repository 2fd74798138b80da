#!/usr/bin/env bash
# Samples: as ids where the data are ids; prompts that the vocabulary does not have; no terminal codes.
. "$REPO/test/cli/common.bash"
fixture
# At lr 0 and temperature 0 the weights of the fixture decide.
try train fixture.yaml --log_dir=a --set optimizer.params.lr=0 --set train.sample_every=5 \
    --set train.sample_tokens=6 --set train.sample_temperature=0 | steps | grep -v ^step
try train fixture.yaml --set train.sample_every=5 --set train.sample_prompt=hi
tiny
echo 'train: {sample_every: 1, sample_prompt: ""}' >empty.yaml
try train empty.yaml --set include=tiny.yaml
try train empty.yaml --deepspeed_config tiny.yaml
train tiny.yaml --log_dir=b --set train.sample_every=1 --set train.sample_tokens=200 >out
grep -c '^sample after' out
LC_ALL=C grep -c "$(printf '[\001-\010\013-\037\177]')" out
python3 -c 'open("out", encoding="utf-8").read()' && echo UTF-8
