#!/usr/bin/env bash
# --env_file: read before anything starts.
. "$REPO/test/cli/common.bash"
tiny
printf 'A=b=c\n\n# comment\nEMPTY=\n' >good
printf 'A=b\nno equals sign\n' >bad
try train tiny.yaml --env_file=good --log_dir=run | grep -c '^step'
try train tiny.yaml --env_file=bad
try train tiny.yaml --env_file=nosuch
