#!/usr/bin/env bash
# Standard descriptors that are closed: nothing of ours takes their numbers, and what cannot be said is no success.
. "$REPO/test/cli/common.bash"
tiny

# run NAME: with the redirections that follow.
run() {
    train tiny.yaml --log_dir="$1" --set checkpoint.dir="$1/ck"
    code=$?
}
told() {
    echo "$1: exit status $code, $(grep -c '"type": "step"' "$1/metrics.jsonl") of $(grep -c . "$1/metrics.jsonl") lines"
    zerotrain report --format=csv "$1" | cut -d, -f1
}
{ run output >&-; } 2>&1
told output
{ run input_output <&- >&-; } 2>&1
told input_output
run all <&- >&- 2>&-
told all
run input <&- >input.out
told input
run errors 2>&- >errors.out
told errors
tail -n 1 errors.out | cut -d: -f1
zerotrain plan tiny.yaml <&- 2>&- | head -n 1 | cut -d: -f1
