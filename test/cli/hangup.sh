#!/usr/bin/env bash
# A terminal that goes away tells by SIGHUP, and more than once: what was trained is saved, where there is a folder for
# it. nohup's run goes on.
. "$REPO/test/cli/common.bash"
tiny

# hang NAME [OPTION]...: once it has made a step.
hang() {
    env --default-signal=HUP "$ZT" --device=cpu --num_gpus=1 --log_dir="$1" --set train.steps=1000000 "${@:2}" \
        tiny.yaml >/dev/null 2>&1 &
    while [ ! -s "$1/metrics.jsonl" ] && kill -0 $!; do sleep 0.05; done
    kill -HUP $!
    kill -HUP $! 2>/dev/null # the shell's
    wait $!
    echo "$1: exit status $?"
}
hang saves --set checkpoint.dir=ck
compgen -G 'ck/step-*' | wc -l
hang ends
(
    trap '' HUP
    exec "$ZT" --device=cpu --num_gpus=1 --log_dir=nohup --set train.steps=1000000 tiny.yaml >/dev/null 2>&1
) &
while [ ! -s nohup/metrics.jsonl ] && kill -0 $!; do sleep 0.05; done
kill -HUP $!
kill -TERM $!
wait $!
echo "nohup: exit status $?"
