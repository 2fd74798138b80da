#!/usr/bin/env bash
# Help and version, of the program and of its commands.
. "$REPO/test/cli/common.bash"
try zerotrain --help
try zerotrain train --help
try zerotrain plan --help
try zerotrain --version
try zerotrain plan --version
cmp <(zerotrain --help) <(zerotrain -h) && cmp <(zerotrain --help) <(zerotrain help) && echo same
