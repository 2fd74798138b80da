#!/usr/bin/env bash
# A recipe that cannot be read, or holds nothing.
. "$REPO/test/cli/common.bash"
mkdir folder
: >empty.yaml
echo '# nothing' >comment.yaml
echo 'just words' >words.yaml
head -c 2000000 /dev/zero >big.yaml
printf '\377\376\000' >binary.yaml
for f in nosuch.yaml folder empty.yaml /dev/null comment.yaml words.yaml big.yaml binary.yaml; do
    try zerotrain plan $f
done
