#!/usr/bin/env bash
# run.sh ZEROTRAIN [FILTER] [--share=I/N]: golden command-line tests, or every N-th from the I-th.
#
# test/cli/NAME.sh is run by bash in an empty folder, with $ZT the program and $REPO the checkout.
# NAME.rc holds the expected exit status (default 0); NAME.out and NAME.err the whole of stdout and stderr
# (default: nothing), less what clean() takes out. Set UPDATE=1 to write the files anew; then read the
# difference before you commit it.
set -u
here=$(cd "$(dirname "$0")" && pwd)
export REPO=${here%/test/cli}
ZT=$(realpath "$1")
export ZT
shift
status=0 n=0 share=1 shares=1
if [[ ${!#} == --share=* ]]; then
    IFS='=/' read -r _ share shares <<<"${!#}"
    set -- "${@:1:$#-1}"
fi

# What differs from machine to machine: paths, times, speeds, what a process weighs; and the digits of
# losses that hang on the order of sums.
clean() {
    sed -E -e "s|$REPO|\$REPO|g" -e "s|$dir|\$DIR|g" \
        -e 's#runs/([A-Za-z0-9._-]*)-20[0-9]{6}-[0-9]{6}#runs/\1-TIME#g' \
        -e 's#(; )[0-9]+ tokens/s#\1N tokens/s#; s#[0-9.]+k? tok/s#N tok/s#; s#mfu [0-9]+%#mfu N%#' \
        -e 's#eta [0-9:]+$#eta T#; s#/ [0-9.]+ GFLOP/s#/ N GFLOP/s#; s#^cpu: .*#cpu: ...#' \
        -e 's#((loss|->|best) [0-9]+\.[0-9]{2})[0-9]+#\1#g; s#((norm|perplexity) [0-9]+)\.[0-9]+#\1#g' \
        -e 's#^( +([0-9]+|least|most) +[0-9.]+ +[0-9.]+) +[0-9.]+ +[0-9.]+$#\1 N N#' "$1"
}

for script in "$here"/*.sh; do
    name=$(basename "$script" .sh)
    [ "$name" != run ] || continue
    [[ $name == *${1:-}* ]] || continue
    n=$((n + 1))
    [ $((n % shares)) = $((share % shares)) ] || continue
    # No letters by chance: tests search what is printed, and it holds this path.
    dir=${TMPDIR:-/tmp}/0.$$
    mkdir -m 700 "$dir" || exit 1
    out=$dir.out err=$dir.err
    (cd "$dir" && exec bash "$script") >"$out" 2>"$err" </dev/null
    rc=$?
    why=
    if [ -n "${UPDATE:-}" ]; then
        rm -f "$here/$name".{out,err,rc}
        [ ! -s "$out" ] || clean "$out" >"$here/$name.out"
        [ ! -s "$err" ] || clean "$err" >"$here/$name.err"
        [ $rc = 0 ] || echo $rc >"$here/$name.rc"
    fi
    want=$(cat "$here/$name.rc" 2>/dev/null || echo 0)
    [ "$rc" = "$want" ] || why="exit status $rc, not $want"
    for stream in out err; do
        golden=$here/$name.$stream
        [ -e "$golden" ] || golden=/dev/null
        clean "$dir.$stream" >"$dir.clean"
        if ! cmp -s "$dir.clean" "$golden"; then
            diff -u "$golden" "$dir.clean" | head -n 30
            why="${why:+$why; }std$stream differs"
        fi
    done
    if [ -n "$why" ]; then
        echo "not ok cli $name: $why"
        status=1
    else
        echo "ok cli $name"
    fi
    rm -rf "$dir" "$dir".*
done
exit $status
