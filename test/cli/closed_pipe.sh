#!/usr/bin/env bash
# A reader that goes away ends the run: SIGPIPE's status, as for any program.
. "$REPO/test/cli/common.bash"
tiny
train tiny.yaml --log_dir=run --set train.steps=1000000 2>/dev/null | head -n 1
echo "${PIPESTATUS[0]}"
zerotrain plan --schedule tiny.yaml | head -n 1 | sed 's/:.*//'
