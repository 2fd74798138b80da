#!/usr/bin/env bash
# Every stage side by side.
. "$REPO/test/cli/common.bash"
tiny
zerotrain plan --num_gpus=2 tiny.yaml | sed -n '/^Rank/,/^host/p'
zerotrain plan --num_gpus=2 tiny.yaml | grep -A 4 '^formula'
zerotrain plan --num_gpus=2 tiny.yaml | grep -A 5 '^Sent'
