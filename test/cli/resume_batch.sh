#!/usr/bin/env bash
# Epochs that go on with another batch have other steps left, and the schedule ends where they do.
. "$REPO/test/cli/common.bash"
tiny
cat >>tiny.yaml <<END
scheduler: {type: Cosine}
checkpoint: {dir: ckpt, every_steps: 4}
END
sed -i 's/^train: .*/train: {epochs: 1}/; s/^train_micro.*/train_batch_size: 8/' tiny.yaml
try train tiny.yaml --log_dir=a | steps | cut -d ' ' -f -6
for batch in 8 16 62; do
    rm -rf ckpt/step-00000[5-9] ckpt/step-0000[1-9]*
    try train tiny.yaml --log_dir=b$batch --resume=auto --set train_batch_size=$batch >out
    grep '^data' out
    steps <out | cut -d ' ' -f -6
done
