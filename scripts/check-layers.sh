#!/usr/bin/env bash
# check-layers.sh: the written dependency order of lib/ (lib/README.md, "Layers"). A layer may include
# itself and what stands after its colon; nothing else.
set -u
cd "$(dirname "$0")/.." || exit 1
allowed="
base:
dev: base
coll: base dev
model: base dev
recipe: base dev
plan: base dev model
data: base recipe
optim: base dev model plan
ckpt: base model
metrics: base
launch: base coll dev
train: base dev coll model plan recipe data optim ckpt metrics
"
status=0
while IFS=: read -r layer below; do
    [ -n "$layer" ] || continue
    for f in $(git ls-files "lib/$layer/*.[ch]"); do
        while read -r inc; do
            used=${inc%%/*}
            case " $layer $below " in
            *" $used "*) ;;
            *)
                echo "$f: lib/$layer may not include $inc (scripts/check-layers.sh)"
                status=1
                ;;
            esac
        done < <(sed -n 's/^#include "\([a-z]*\/[^"]*\)".*/\1/p' "$f")
    done
done <<<"$allowed"
for d in lib/*/; do
    d=${d#lib/}
    d=${d%/}
    case "$allowed" in *"
$d:"*) ;; *)
        [ -z "$(git ls-files "lib/$d")" ] || {
            echo "lib/$d: not in scripts/check-layers.sh"
            status=1
        }
        ;;
    esac
done
exit $status
