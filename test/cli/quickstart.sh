#!/usr/bin/env bash
# The shipped recipes start as their heads say.
. "$REPO/test/cli/common.bash"
cp -r "$REPO/recipes" .
mkdir lib cmd man
head -c 3000 "$REPO/LICENSE" | tee lib/a.txt cmd/b.txt >man/c.txt
try train recipes/quickstart.yaml --log_dir=run --set train.steps=2 --set train.sample_tokens=1 \
    --set scheduler.params.warmup_steps=1 |
    grep -E '^(\$|zerotrain|2 steps)'
try train recipes/shakespeare-char.yaml
mkdir data
for _ in {1..100}; do cat "$REPO/LICENSE"; done >data/tinyshakespeare.txt
try train recipes/shakespeare-char.yaml --log_dir=run2 --set train.steps=1 --set train.eval_batches=1 \
    --set train.sample_tokens=1 --set scheduler.params.warmup_steps=0 | grep -E '^(\$|zerotrain|1 step|model)'
