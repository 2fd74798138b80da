#!/usr/bin/env bash
# recipe.yaml of a run is a recipe: it gives the same run.
. "$REPO/test/cli/common.bash"
tiny
train tiny.yaml --log_dir=first --set zero_optimization.stage=2 --set optimizer.params.lr=3e-3 >/dev/null
cp first/recipe.yaml again.yaml
train again.yaml --log_dir=second >/dev/null
digest() { sed -n 's/.*"digest": "\(.*\)".*/\1/p' $1/summary.json; }
[ "$(digest first)" = "$(digest second)" ] && echo same
train again.yaml --log_dir=third --seed=2 >/dev/null
[ "$(digest first)" != "$(digest third)" ] && echo "another seed, another run"
