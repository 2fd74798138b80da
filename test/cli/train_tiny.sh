#!/usr/bin/env bash
# All that a person sees of a run, piped; and what its folder holds.
. "$REPO/test/cli/common.bash"
tiny
try train tiny.yaml --log_dir=run
ls run
try train tiny.yaml --log_dir=run
