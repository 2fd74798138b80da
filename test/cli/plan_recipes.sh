#!/usr/bin/env bash
# The recipes of this folder: planned at every size that their head names.
. "$REPO/test/cli/common.bash"
for r in "$REPO"/recipes/*.yaml; do
    n=$(sed -n 's/.*--num_gpus=\([0-9]*\).*/\1/p' "$r" | head -n 1)
    zerotrain plan --num_gpus="${n:-8}" "$r" >out 2>err || cat err
    echo "$(basename "$r") on ${n:-8}: $(head -n 1 out)"
done
