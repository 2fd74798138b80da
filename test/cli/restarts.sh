#!/usr/bin/env bash
# What --max_restarts and --elastic refuse, and what is not begun again; test/fault/restart.sh kills.
. "$REPO/test/cli/common.bash"
tiny
try train --max_restarts=2 tiny.yaml
try train --elastic tiny.yaml
try train --max_restarts=x tiny.yaml
try train --max_restarts=-1 tiny.yaml
echo 'checkpoint: {dir: ck, every_steps: 1}' >>tiny.yaml
echo "# a failure that would come again"
try train --max_restarts=2 --log_dir=nan --set optimizer.params.lr=1e30 tiny.yaml | grep -E '^\$|^\[exit|restart'
grep -o '"restarts": [0-9]*' nan/summary.json
echo "# nothing fails"
try train --max_restarts=2 --elastic --set checkpoint.dir=other --log_dir=good tiny.yaml | steps
grep -o '"restarts": [0-9]*' good/summary.json
try zerotrain launch --max_restarts=x true
try zerotrain launch --max_restarts=1 -- sh -c 'echo "try $TORCHELASTIC_RESTART_COUNT" >&2; exit 4' 2>&1 | sed "s/on $(uname -n)/on HOST/"
