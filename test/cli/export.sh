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

# What a killed export left goes with the next one to the same folder, an hour later; a folder of the user's stays,
# whatever its number, and so does what another export may still write.
bash -c 'echo $$' >gone
gone=$(cat gone)
mkdir "out.zerotrain-tmp."{"$gone",$$,notes,99999999} {more,again,thesis}".zerotrain-tmp.$gone"
touch "out.zerotrain-tmp.$gone/"{config.json,"model.safetensors.tmp.$gone"} "thesis.zerotrain-tmp.$gone/thesis.txt"
touch "again.zerotrain-tmp.$gone/config.json"
cp -r out "out.old.$gone"
cp -r out "out.tmp.$gone"
cp -r out out.old.99999999
touch -d '2 days ago' ./*.{zerotrain-tmp,tmp,old}.*{/*,}
touch "again.zerotrain-tmp.$gone/config.json" # not for an hour
zerotrain export --force "$GPT2" out >/dev/null
zerotrain export "$GPT2" again >/dev/null
zerotrain export "$GPT2" thesis >/dev/null
# shellcheck disable=SC2012
ls -d ./*.{zerotrain-tmp,tmp,old}.* | sed "s/$gone/GONE/; s/$$/ALIVE/"
rm -r ./*.{zerotrain-tmp,tmp,old}.* again thesis

# On a file system where two folders cannot change places: killed while neither has the name, and what cannot be
# moved back: what was there stays.
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
    static int n_out;
    const char *killed = getenv("KILLED");
    const size_t len = strlen(to);
    if (getenv("STUCK") && len > 4 && strcmp(to + len - 4, "/out") == 0 && n_out++ > 0) {
        errno = EIO;
        return -1;
    }
    int rc = renameat(AT_FDCWD, from, AT_FDCWD, to);
    if (killed && strstr(to, killed) && rc == 0)
        kill(getpid(), SIGKILL);
    return rc;
}
END
gcc -D_GNU_SOURCE -shared -fPIC -o rename.so rename.c
without_exchange() { LD_PRELOAD=$PWD/rename.so "$ZT" export "$@" 2>&1 | sed 's/\.[0-9][0-9]*/.PID/g'; }
show() { (cd swap && echo ./*) | sed 's/[0-9][0-9]*/PID/g'; }
age() { touch -d '2 days ago' swap/out.*{/*,}; }
mkdir swap
zerotrain export "$GPT2" swap/out >/dev/null
{ (export LD_PRELOAD=$PWD/rename.so KILLED=.old. && exec "$ZT" export --force "$GPT2" swap/out); } >/dev/null 2>&1
echo "killed: $?"
show
age
without_exchange --force --dtype=bf16 "$GPT2" swap/out
show
rm -r swap/out.old.*
without_exchange --force "$GPT2" swap/out
show
STUCK=1 without_exchange --force "$GPT2" swap/out
show
age
without_exchange "$GPT2" swap/out
show

# A disk that is too small says so before the work, and nothing is left.
(ulimit -f 2 && try zerotrain export "$GPT2" big) | sed 's/zerotrain-tmp\.[0-9]*/zerotrain-tmp.PID/' | cat
ls -d big* 2>/dev/null || echo "nothing is left"

# A folder that a rename cannot replace is said before the work; a link to one that it can is followed.
mkdir -p here linked
ln -s linked link
ln -s nowhere dangling
(cd here && try zerotrain export "$GPT2" .)
try zerotrain export "$GPT2" /proc
try zerotrain export "$GPT2" dangling/
try zerotrain export "$GPT2" link
ls here link/ linked.* link.* dangling.* 2>/dev/null

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
