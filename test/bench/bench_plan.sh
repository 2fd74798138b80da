#!/usr/bin/env bash
# bench_plan.sh [ZEROTRAIN]: how long `zerotrain plan` takes to answer, and how much memory: four plans of a
# Llama 7B or 70B, verified, and what would make them fit where they do not. Prints a table.
set -eu
cd "$(dirname "$0")/../.."
zt=$(realpath "${1:-build/zerotrain}")
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
small=$PWD/recipes/llama-7b.yaml
large=$tmp/llama-70b.yaml
sed -e 's/\(hidden_layers:\) 32/\1 80/; s/\(attention_heads:\) 32/\1 64/; s/\(value_heads:\) 32/\1 8/' \
    -e 's/\(hidden_size:\) 4096/\1 8192/; s/\(intermediate_size:\) 11008/\1 28672/' "$small" >"$large"

row() { # RECIPE RANKS MICRO-BATCH ACCUMULATION
    local status=0 cpu wall kb
    /usr/bin/time -q -o "$tmp/time" -f '%U %e %M' "$zt" plan --num_gpus="$2" --device_memory=80GB "$1" \
        --set train_micro_batch_size_per_gpu="$3" --set gradient_accumulation_steps="$4" \
        >"$tmp/out" 2>"$tmp/err" || status=$?
    [ $status = 0 ] || [ $status = 5 ] || { cat "$tmp/err"; exit 1; }
    read -r cpu wall kb <"$tmp/time"
    printf '| %s | %d | %d | %d | %s | %d | %s | %s | %d |\n' "$(basename "$1" .yaml)" "$2" "$3" "$4" \
        "$([ $status = 0 ] && echo yes || echo no)" "$(grep -c ' ms: --set' "$tmp/err")" "$cpu" "$wall" $((kb / 1024))
}

echo '| model | ranks | micro-batch | accumulation | fits 80 GB | suggestions | CPU, s | elapsed, s | MiB |'
echo '|---|---|---|---|---|---|---|---|---|'
for recipe in "$small" "$large"; do
    for ranks in 8 64 4096; do
        row "$recipe" $ranks 1 1
        row "$recipe" $ranks 1 512
        row "$recipe" $ranks 512 1
        row "$recipe" $ranks 512 16
    done
done
