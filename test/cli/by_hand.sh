#!/usr/bin/env bash
# The parts that start each other are not for people.
. "$REPO/test/cli/common.bash"
try zerotrain worker
try zerotrain worker x
try zerotrain agent x
