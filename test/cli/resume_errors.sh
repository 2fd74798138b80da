#!/usr/bin/env bash
# What a training says of its folder of checkpoints before it starts anything.
. "$REPO/test/cli/common.bash"
tiny
cat >>tiny.yaml <<'END'
checkpoint:
  dir: text.txt
END
try train tiny.yaml
sed -i 's/dir: .*/dir: text.txt\/ck/' tiny.yaml
try train tiny.yaml
sed -i 's/dir: .*/dir: ck/' tiny.yaml
train tiny.yaml >/dev/null 2>&1 || echo "exit status $?"
ls ck
try train tiny.yaml
try train --resume=auto --fresh tiny.yaml
try train --resume=nowhere tiny.yaml
try train --resume=ck --set model.n_embd=64 tiny.yaml
try train --resume=ck --set optimizer.type=Lion tiny.yaml
try train --set checkpoint.keep=-1 --set checkpoint.every_steps=x --set checkpoint.dirs=ck tiny.yaml
echo "# behind the run's end"
try train --resume=auto --set train.steps=2 tiny.yaml | grep -E '^(note|\[exit)'
echo "# the same folder by another name is the same folder"
try train --resume=./ck//step-000003 --set train.steps=4 tiny.yaml | steps
ln -s ck same
try train --resume=same --set train.steps=5 tiny.yaml | steps
ls ck
echo "# nothing was begun where it was refused"
ls
