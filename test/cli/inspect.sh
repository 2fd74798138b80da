#!/usr/bin/env bash
# What files and folders are, by their content; whole or not.
. "$REPO/test/cli/common.bash"
try zerotrain inspect "$GPT2"
try zerotrain inspect --verify "$CASES/fixture_llama/config.json"
try zerotrain inspect "$CASES/fixture_llama/model.safetensors" | head -n 12| grep -v "^  "
try zerotrain inspect "$GPT2/tokens_llmc.bin"
try zerotrain inspect --json "$GPT2/tokens_raw_u16.bin"
cp "$CASES"/D04/* .
for f in good_gpt2 good_llama3 bad_magic count_too_big nanogpt_raw nanogpt_odd; do
    try zerotrain inspect $f.bin
done
cp "$CASES"/D06/{good,good_int32,bin_short}.* .
try zerotrain inspect good.bin
try zerotrain inspect good_int32.idx
try zerotrain inspect bin_short.idx
rm good.bin
try zerotrain inspect good.idx
printf 'some text\n' >text.txt
try zerotrain inspect text.txt
printf 'PK\003\004 and so on' >pytorch_model.bin
try zerotrain inspect pytorch_model.bin
printf '\0\1\2' >odd
try zerotrain inspect odd

# A cut file, one bit that makes a NaN, a shard that is gone.
mkdir cut nan
cp "$GPT2/config.json" cut
head -c 2000 "$GPT2/model.safetensors" >cut/model.safetensors
try zerotrain inspect cut
try zerotrain inspect --json cut
cp "$GPT2/config.json" nan
{ head -c -4 "$GPT2/model.safetensors" && printf '\377\377\377\377'; } >nan/model.safetensors
try zerotrain inspect nan | grep -v "^  "
try zerotrain inspect --verify nan | grep -v "^  "
zerotrain export --max_shard_size=1kB "$GPT2" shards >/dev/null
try zerotrain inspect shards | grep -v "^  "
rm shards/model-00002-*
try zerotrain inspect shards | grep -v "^  "
mkdir empty
try zerotrain inspect empty
try zerotrain inspect nosuch
try zerotrain inspect
try zerotrain inspect --frobnicate x
