#!/usr/bin/env bash
# install-deps.sh [--test]: install what is missing to build zerotrain (and, with --test, to run its
# test suite) on Debian or Ubuntu. Does nothing, and needs no rights, when all of it is there.
set -eu

packages=(gcc make pkg-config libdnnl-dev libyaml-dev libjansson-dev)
if [ "${1:-}" = --test ]; then
    packages+=(clang clang-format clang-tidy mandoc python3 procps shellcheck)
    # The sanitizer and fuzzer runtimes of clang; the name depends on the release.
    if apt-cache show libclang-rt-dev >/dev/null 2>&1; then
        packages+=(libclang-rt-dev)
    elif apt-cache show libclang-rt-14-dev >/dev/null 2>&1; then
        packages+=(libclang-rt-14-dev)
    fi
fi

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "install-deps.sh knows Debian and Ubuntu only. Install with your package manager: a C11" \
        "compiler, make, oneDNN (2.5 or newer), libyaml, jansson; then run make." >&2
    exit 1
fi

missing=()
for p in "${packages[@]}"; do
    dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
done
[ ${#missing[@]} -gt 0 ] || exit 0

echo "Installing: ${missing[*]}"
as_root=()
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || {
        echo "Not root and no sudo. Ask an administrator to run: apt-get install ${missing[*]}" >&2
        exit 1
    }
    as_root=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get -q update >/dev/null
"${as_root[@]}" apt-get -q install -y --no-install-recommends "${missing[@]}" >/dev/null
