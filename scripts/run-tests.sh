#!/usr/bin/env bash
# run-tests.sh: install what the tests need, build, and run the whole suite (about half an hour on two
# cores). `test/run.sh SUITE...` runs parts of it.
set -eu
cd "$(dirname "$0")/.." || exit 1
scripts/install-deps.sh --test
exec test/run.sh
