#!/usr/bin/env bash
# check-layers.sh: what may be included where (lib/README.md, "Layers"), and in which order. A layer may
# include itself and what stands after its colon; nothing else.
set -u
cd "$(dirname "$0")/.." || exit 1
allowed="
base:
hosts: base
dev: base
coll: base dev
model: base dev
recipe: base dev
plan: base dev model
data: base dev recipe
optim: base dev model plan
offload: base dev
ckpt: base model
metrics: base
launch: base coll dev hosts
train: base dev coll model plan recipe data optim offload ckpt metrics
"
status=0

fail() {
    echo "$1"
    status=1
}

while IFS=: read -r layer below; do
    [ -n "$layer" ] || continue
    while IFS=: read -r file inc; do
        case " $layer $below " in
        *" ${inc%%/*} "*) ;;
        *) fail "$file: lib/$layer may not include $inc (scripts/check-layers.sh)" ;;
        esac
    done < <(git grep -E '^#include "[a-z]+/' -- "lib/$layer/*.[ch]" | sed 's/#include "\([^"]*\)".*/\1/')
done <<<"$allowed"

for layer in $(git ls-files 'lib/*/*' | cut -d/ -f2 | sort -u); do
    case "$allowed" in
    *$'\n'"$layer:"*) ;;
    *) fail "lib/$layer: not in scripts/check-layers.sh" ;;
    esac
done

# Order: NAME.c includes its NAME.h first, alone; then groups of <system> headers, then groups of
# "project" headers. clang-format sorts within a group.
mapfile -t files < <(git ls-files '*.c' '*.h')
for file in "${files[@]}"; do
    own=${file%.c}.h
    { [ "$own" != "$file" ] && [ -e "$own" ]; } || own=
    own=${own#lib/}
    awk -v file="$file" -v own="$own" -v name="${own##*/}" '
        function wrong(why) { print file ":" NR ": " why " (scripts/check-layers.sh)"; bad = 1 }
        /^#if/ { depth++ }
        /^#endif/ { depth-- }
        !/^#include/ || depth > (file ~ /h$/) { kind = ""; next } # below #if: where it is needed
        {
            before = kind
            kind = substr($2, 1, 1)
            if (n == 0 && own != "" && $2 != "\"" own "\"" && $2 != "\"" name "\"")
                wrong("\"" name "\" comes first")
            if (before == "" && ++groups && kind == "<" && project && !(groups == 2 && n == 1))
                wrong("system headers come before those of the project")
            if (before != "" && kind != before)
                wrong("system and project headers in one group")
            project = project || kind == "\""
            n++
        }
        END { exit bad }' "$file" || status=1
done
exit $status
