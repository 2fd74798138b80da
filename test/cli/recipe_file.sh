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

# Workers get it as text, with paths that are absolute: such a path must be UTF-8; the recipe's name need not.
mkdir $'caf\351'
cd $'caf\351' || exit 1
tiny
try train tiny.yaml | tr '\351' '?'
mv tiny.yaml $'../tin\351.yaml'
mv text.txt ..
cd .. || exit 1
try train $'tin\351.yaml' | steps
