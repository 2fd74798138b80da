#!/usr/bin/env bash
# Fewer samples than a step takes is said.
. "$REPO/test/cli/common.bash"
tiny
head -c 99 text.txt >few.txt
cat >few.yaml <<'END'
include: tiny.yaml
data:
  train: few.txt
END
try zerotrain --device=cpu --num_gpus=4 few.yaml --log_dir=run | grep -E '^(\$|note|data)'
