#!/usr/bin/env bash
# quickstart.sh [TEXT...]: from a fresh checkout to a trained transformer in about a minute.
#
# Installs what is missing, builds, and trains recipes/quickstart.yaml with 2 CPU workers at ZeRO
# stage 2: on the text of this checkout (its sources and manuals), or on the files given.
set -eu

texts=()
for t in "$@"; do
    case $t in
    -h | --help)
        sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
        exit 0
        ;;
    esac
    [ -r "$t" ] || {
        echo "quickstart.sh: $t: there is no such text that can be read" >&2
        exit 2
    }
    texts+=("$(realpath -- "$t" | sed 's/[\\"]/\\&/g')") # inside double quotes of YAML
done
cd "$(dirname "$0")/.." || exit 1

scripts/install-deps.sh
echo "Building ..."
# The CUDA part takes minutes of nvcc: only where there is a GPU.
command -v nvidia-smi >/dev/null || export CUDA=0
make -s -j"$(nproc)" all

zerotrain=build/zerotrain
recipe=recipes/quickstart.yaml
options=()
if [ ${#texts[@]} -gt 0 ]; then
    list=$(printf ',"%s"' "${texts[@]}")
    options+=(--set "data.train=[${list#,}]")
fi

echo
echo "What each of 2 workers will hold, for every ZeRO stage (zerotrain plan $recipe):"
echo
"$zerotrain" plan --device=cpu --num_gpus=2 "${options[@]}" "$recipe"
echo
echo "Training: $zerotrain --device=cpu --num_gpus=2 $recipe"
echo
"$zerotrain" --device=cpu --num_gpus=2 "${options[@]}" "$recipe"
cat <<EOF

Next:
  $zerotrain --device=cpu --num_gpus=2 --set zero_optimization.stage=3 $recipe
      the same training, parameters sharded as well: the same losses, to the last bit
  $zerotrain plan --num_gpus=8 --schedule $recipe | less
      the list of operations that a worker executes: it is the program
  $zerotrain plan --num_gpus=64 recipes/gpt2-1.5b.yaml
      would it fit? 1.5 billion parameters on 64 GPUs, without having them
  scripts/quickstart.sh YOUR.txt
      train on your own text
EOF
