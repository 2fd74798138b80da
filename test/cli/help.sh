#!/usr/bin/env bash
# Help and version, of the program and of its commands.
. "$REPO/test/cli/common.bash"
try zerotrain --help
try zerotrain train --help
try zerotrain plan --help
try zerotrain --version
try zerotrain plan --version
cmp <(zerotrain --help) <(zerotrain -h) && cmp <(zerotrain --help) <(zerotrain help) && echo same
for c in train plan report export inspect hosts doctor launch; do
    cmp <(zerotrain $c --help) <(zerotrain $c -h) && cmp <(zerotrain $c --help) <(zerotrain help $c) && echo "$c same"
done
cmp <(zerotrain --version) <(zerotrain version) && echo same
