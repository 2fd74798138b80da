#!/usr/bin/env bash
# run.sh ZEROTRAIN [FILTER]: golden command-line tests.
#
# test/cli/NAME.sh is run by bash in an empty folder, with $ZT the program and $REPO the checkout.
# NAME.rc holds the expected exit status (default 0); NAME.out and NAME.err, where they exist, the whole
# of stdout and stderr. The checkout's path is written as $REPO in them, times of day as TIME. Set
# UPDATE=1 to write the files anew; then read the difference before you commit it.
set -u
here=$(cd "$(dirname "$0")" && pwd)
export REPO=${here%/test/cli}
ZT=$(realpath "$1")
export ZT
status=0

clean() { # what differs from machine to machine
    sed -e "s|$REPO|\$REPO|g" -e 's|runs/\([a-z0-9.-]*\)-20[0-9-]*|runs/\1-TIME|' "$1"
}

for script in "$here"/*.sh; do
    name=$(basename "$script" .sh)
    [ "$name" != run ] || continue
    [[ $name == *${2:-}* ]] || continue
    dir=$(mktemp -d)
    out=$dir.out err=$dir.err
    (cd "$dir" && exec bash "$script") >"$out" 2>"$err" </dev/null
    rc=$?
    why=
    if [ -n "${UPDATE:-}" ]; then
        [ ! -e "$here/$name.out" ] || clean "$out" >"$here/$name.out"
        [ ! -e "$here/$name.err" ] || clean "$err" >"$here/$name.err"
        [ $rc = 0 ] || echo $rc >"$here/$name.rc"
    fi
    want=$(cat "$here/$name.rc" 2>/dev/null || echo 0)
    [ "$rc" = "$want" ] || why="exit status $rc, not $want"
    for stream in out err; do
        [ -e "$here/$name.$stream" ] || continue
        clean "$dir.$stream" >"$dir.clean"
        if ! cmp -s "$dir.clean" "$here/$name.$stream"; then
            diff -u "$here/$name.$stream" "$dir.clean" | head -n 30
            why="${why:+$why; }std$stream differs"
        fi
    done
    if [ -n "$why" ]; then
        [ -e "$here/$name.err" ] || sed 's/^/    stderr: /' "$err" | tail -n 10
        echo "not ok cli $name: $why"
        status=1
    else
        echo "ok cli $name"
    fi
    rm -rf "$dir" "$dir".*
done
exit $status
