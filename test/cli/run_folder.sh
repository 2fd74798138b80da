#!/usr/bin/env bash
# The folder of a run: names, an existing one, an earlier record, none that can be made.
. "$REPO/test/cli/common.bash"
tiny
mkdir made
touch file
try train tiny.yaml --log_dir=made | grep -E '^(\$|run|zerotrain)'
try train tiny.yaml --log_dir=made
try train tiny.yaml --log_dir=file
try train tiny.yaml --log_dir=file/below
try train tiny.yaml --set log.name=../mine
try train tiny.yaml --set log.name=mine | grep -E '^(\$|run|zerotrain)'
try train tiny.yaml --set log.dir=named | grep -E '^(\$|run|zerotrain)'
train tiny.yaml >/dev/null
train tiny.yaml >/dev/null
# What a killed run left half written goes with the next run there; what is not such a leftover stays.
bash -c 'echo $$' >gone
mkdir killed
touch -d '2 days ago' killed/{recipe.yaml,summary.json,notes}.tmp."$(cat gone)" killed/recipe.yaml.tmp.mine
train tiny.yaml --log_dir=killed >/dev/null
# shellcheck disable=SC2012 # plain names
ls killed | sed "s/$(cat gone)/GONE/"
long=$(printf 'x%.0s' {1..250})
cp tiny.yaml "$long.y"
train "$long.y" >/dev/null && find runs -name 'xxx*' | sed -E 's|-20[0-9-]*$|-TIME|'
find runs -mindepth 1 -maxdepth 1 -name 'tiny-*' | wc -l
# Two runs at once in one folder would mix their records.
"$ZT" --device=cpu --num_gpus=1 --log_dir=both --set train.steps=1000000 tiny.yaml >/dev/null 2>&1 &
while [ ! -s both/metrics.jsonl ] && kill -0 $!; do sleep 0.05; done
try train tiny.yaml --log_dir=both
try train tiny.yaml --log_dir=both --set checkpoint.dir=ck --resume=auto 2>&1 | grep -v '^note'
kill -TERM $!
wait $!
head -n 1 both/recipe.yaml | cut -d' ' -f1-5
