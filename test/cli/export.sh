#!/usr/bin/env bash
# A Hugging Face folder out and in again: bit for bit in fp32, smaller in bf16, in shards; and what is refused.
. "$REPO/test/cli/common.bash"
fixture
losses() { grep -o '"loss":[^,]*' "$1/metrics.jsonl"; }

try zerotrain export "$GPT2" out
cat out/config.json
ls out
zerotrain --device=cpu --num_gpus=2 fixture.yaml --log_dir=run1 >/dev/null
zerotrain --device=cpu --num_gpus=2 fixture.yaml --set model.from=out --log_dir=run2 >/dev/null
cmp <(losses run1) <(losses run2) && echo "the same losses"

echo '{}' >out/tokenizer.json
try zerotrain export --max_shard_size=2kB --dtype=bf16 "$CASES/fixture_llama" out
try zerotrain export --max_shard_size=2kB --dtype=bf16 --force "$CASES/fixture_llama" out
cat out/config.json
ls out
head -n 8 out/model.safetensors.index.json
echo x >out/notes.txt
try zerotrain export --force "$GPT2" out
rm out/notes.txt
echo '{"a": 1}' >out/tokenizer.json
try zerotrain export --dtype=fp32 out deep/er/again/
ls deep/er/again deep/er

# Padding is left out, of the head as well; nothing can be added.
try zerotrain export --vocab_size=12 "$CASES/fixture_llama" fewer
grep vocab_size fewer/config.json
try zerotrain inspect fewer/model.safetensors | grep -E '12|13'
try zerotrain export --vocab_size=14 "$CASES/fixture_llama" more
try zerotrain export --vocab_size=0 "$CASES/fixture_llama" more

# What a killed export left goes with the next one to the same folder; what is not such a leftover stays.
bash -c 'echo $$' >gone
gone=$(cat gone)
mkdir "out.tmp.$gone" "out.tmp.$$" out.tmp.notes "more.tmp.$gone" "again.tmp.$gone"
mkdir "out.old.$gone" "out.old.$$" out.old.notes "more.old.$gone" "again.old.$gone"
touch "out.old.$gone/config.json" "again.old.$gone/thesis.txt"
touch "out.tmp.$gone/model.safetensors.tmp.$gone" "out.tmp.$gone/config.json" "again.tmp.$gone/thesis.txt"
zerotrain export --force "$GPT2" out >/dev/null
zerotrain export "$GPT2" again >/dev/null
# shellcheck disable=SC2012
ls -d ./*.tmp.* ./*.old.* | sed "s/$gone/GONE/; s/$$/ALIVE/"
rm -r ./*.tmp.* ./*.old.* again

# On a file system where two folders cannot change places: killed while neither has the name, and then not.
cat >rename.c <<'END'
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    (void)from_dir, (void)from, (void)to_dir, (void)to, (void)flags;
    errno = EINVAL;
    return -1;
}
int rename(const char *from, const char *to)
{
    int rc = renameat(AT_FDCWD, from, AT_FDCWD, to);
    if (strstr(to, ".old.") && getenv("KILLED"))
        kill(getpid(), SIGKILL);
    return rc;
}
END
gcc -D_GNU_SOURCE -shared -fPIC -o rename.so rename.c
mkdir swap
zerotrain export "$GPT2" swap/out >/dev/null
{ LD_PRELOAD=$PWD/rename.so KILLED=1 "$ZT" export --force "$GPT2" swap/out; } >/dev/null 2>&1
echo "killed: $?"
(cd swap && echo ./*) | sed 's/[0-9][0-9]*/PID/g'
LD_PRELOAD=$PWD/rename.so "$ZT" export --dtype=bf16 "$GPT2" swap/out
ls swap
LD_PRELOAD=$PWD/rename.so "$ZT" export --force "$GPT2" swap/out
ls swap

# A disk that is too small says so before the work, and nothing is left.
(trap '' XFSZ && ulimit -f 2 && try zerotrain export "$GPT2" big) | sed 's/tmp\.[0-9]*/tmp.PID/' | cat
ls -d big* 2>/dev/null || echo "nothing is left"

try zerotrain export
try zerotrain export out
try zerotrain export --dtype=fp8 out x
try zerotrain export --max_shard_size=many out x
try zerotrain export --frobnicate out x
try zerotrain export --dtype
try zerotrain export --step=last out x
try zerotrain export --step=3 "$GPT2" x
try zerotrain export nosuch x
try zerotrain export fixture.yaml x
mkdir empty
try zerotrain export empty x
try zerotrain export "$GPT2" "$GPT2/config.json/x"
mkdir other
echo '{"model_type": "mamba"}' >other/config.json
try zerotrain export other x
echo '{"model_type": "gpt2", "activation_function": "relu"}' >other/config.json
try zerotrain export other x
ls -d x* 2>/dev/null || echo "nothing is written"
