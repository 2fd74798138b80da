#!/usr/bin/env bash
# CASES D04 and what else data can be: found before anything starts.
. "$REPO/test/cli/common.bash"
tiny
printf short >short.txt
: >zero.txt
mkdir empty
for d in nosuch.txt '*.nosuch' empty short.txt zero.txt; do
    try train tiny.yaml --set "data.train=$d"
done
for f in "$CASES"/D04/*.bin; do
    case $f in */good_gpt2.bin | */id_out_of_vocab.bin) continue ;; esac
    try train tiny.yaml --set data.train="$f" --set data.seq_len=4
done
try train tiny.yaml --set 'data.train_range=[5000, -1]'
try train tiny.yaml --set data.train="[text.txt, $GPT2/tokens_llmc.bin]"
test -e runs || echo "no run folder"
