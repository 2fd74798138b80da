#!/usr/bin/env bash
# Saving and going on, as a person sees it; what the folder holds; the copy of the state in the ledger.
. "$REPO/test/cli/common.bash"
tiny
saves() {
    grep -aE '^(zerotrain|note|saved|going|step|stopped|[0-9]+ steps[,:]|\[exit)' |
        sed -E "s#$PWD#DIR#g; s/[0-9.]+ s;/T s;/; s/(in|after) [0-9.]+ s/\1 T s/g; s/waited [0-9]+ ms/waited T ms/; s/ [0-9.k]+ tok.*//; s/; [0-9]+ tokens.*//"
}
train tiny.yaml --log_dir=a --set checkpoint.dir=ck --set checkpoint.every_steps=2 2>&1 | saves
ls ck ck/step-000002
cat ck/latest
train tiny.yaml --log_dir=b --set checkpoint.dir=ck --set train.steps=5 --resume=auto --set checkpoint.keep=1 2>&1 | saves
ls ck
train tiny.yaml --log_dir=c --set checkpoint.dir=ck --set train.steps=4 --resume=auto 2>&1 | saves
train tiny.yaml --log_dir=d --set checkpoint.dir=ck --set train.steps=2 --fresh 2>&1 | saves
ls ck ck/before-1
train tiny.yaml --log_dir=e --set checkpoint.dir=empty --resume=auto 2>&1 | saves
for more in "" "--set checkpoint.async=false"; do
    echo "plan $more"
    # shellcheck disable=SC2086
    zerotrain plan tiny.yaml --num_gpus=2 --set zero_optimization.stage=2 --set checkpoint.dir=ck $more |
        grep -E '^ *(host|snapshot)'
done
