#!/usr/bin/env bash
# Text as a file, a folder, a pattern, a list; llm.c and raw uint16 token files.
. "$REPO/test/cli/common.bash"
tiny
mkdir -p texts/more
cp text.txt texts/a.txt
cp text.txt texts/more/b.md
data() { try train tiny.yaml --set train.steps=1 --log_dir="run$RANDOM$RANDOM" "$@" | grep -aE '^(\$|data|zerotrain)' | sed 's/run[0-9]*/RUN/'; }
data --set data.train=texts
data --set 'data.train=texts/*.txt'
data --set 'data.train=[text.txt, texts/more]'
data --set data.train="$GPT2/tokens_llmc.bin" --set data.seq_len=6
data --set data.train="$GPT2/tokens_raw_u16.bin" --set data.seq_len=6 --set data.format=raw_u16
data --set 'data.train_range=[0, 1000]' --set 'data.val_range=[1000, 2000]' --set train.eval_every=1
data --set data.val_fraction=0.5 --set train.eval_every=1
