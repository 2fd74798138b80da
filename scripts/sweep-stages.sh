#!/usr/bin/env bash
# sweep-stages.sh RECIPE.yaml [OPTIONS] [-- ZEROTRAIN OPTIONS]: train a little with each ZeRO stage and kind of
# offload, everything else the same, and compare. See usage() and zerotrain-report(1).
#
# DIR/stage1, DIR/stage1-cpu ...: one run folder a combination, with output.txt (what was printed) and
# sweep.json (its exit status, and what it was made of), by which a later call knows what is done.
set -u
program=${0##*/}
root=$(cd "$(dirname "$0")/.." && pwd)

usage() {
    cat <<EOF
usage: $program RECIPE.yaml [OPTIONS] [-- ZEROTRAIN OPTIONS]

Train with each ZeRO stage and kind of optimizer offload; model, batch, precision and sequence length stay
those of the recipe. Then compare memory and step time: table.md, table.csv and stages.svg in DIR.

  --stages LIST    of 0, 1, 2, 3 (default 0,1,2,3)
  --offload LIST   of none, cpu, nvme (default none). Without stage 0: it has nothing to offload
  --nvme_path DIR  folder on the drive that nvme uses (default: the recipe's, or that of --out)
  --num_gpus N     workers, as zerotrain has it
  --steps N        of each run (default: the recipe's)
  --out DIR        (default runs/sweep-RECIPE)
  --help           print this help

What runs out of memory, fails or is refused is a row of the table that says so. Interrupted, call it
again: it goes on where it stopped. What is finished, also out of memory or not supported, is not run
again unless the recipe, an option or the program's version changed; what failed otherwise is.
ZEROTRAIN names the program (default: build/zerotrain of this checkout, or the one in PATH).
EOF
}

say() { printf '%s: %s\n' "$program" "$*" >&2; }

die() { # STATUS MESSAGE
    say "$2"
    exit "$1"
}

# ---- options ----

recipe='' stages=0,1,2,3 offloads=none out='' nvme_path='' options=() plan_options=()

# Those that `zerotrain plan` knows too: they say what the recipe comes to.
take_zerotrain_options() {
    options+=("$@")
    while [ $# -gt 0 ]; do
        case $1 in
        --log_dir | --log_dir=*) die 2 "$1: every run has a folder of its own in --out" ;;
        --set | --deepspeed_config | --seed | --device | --num_gpus)
            [ $# -gt 1 ] || die 2 "$1 needs a value"
            plan_options+=("$1" "$2")
            shift
            ;;
        --set=* | --deepspeed_config=* | --seed=* | --device=* | --num_gpus=*) plan_options+=("$1") ;;
        esac
        shift
    done
}

take_options() {
    local name value
    while [ $# -gt 0 ]; do
        name=${1%%=*} value=
        case $1 in
        --help | -h)
            usage
            exit 0
            ;;
        --)
            shift
            take_zerotrain_options "$@"
            return
            ;;
        --*=*) value=${1#*=} ;;
        --*)
            value=${2-}
            [ $# -lt 2 ] || shift
            ;;
        *)
            [ -z "$recipe" ] || die 2 "\"$recipe\" and \"$1\": one recipe at a time; zerotrain's options go behind --"
            recipe=$1
            ;;
        esac
        case $name in
        --stages) stages=$value ;;
        --offload) offloads=$value ;;
        --out) out=$value ;;
        --nvme_path) nvme_path=$value ;;
        --num_gpus) take_zerotrain_options "--num_gpus=$value" ;;
        --steps) take_zerotrain_options --set "train.steps=$value" ;;
        --*) die 2 "$name: no such option; see --help (zerotrain's options go behind --)" ;;
        esac
        [[ $name != --* || -n $value ]] || die 2 "$name needs a value"
        shift
    done
}

check_list() { # OPTION LIST WORD...
    local option=$1 list=$2 item
    shift 2
    [[ $list != *, && $list != ,* && $list != *,,* ]] || die 2 "$option: \"$list\" has an empty item"
    for item in ${list//,/ }; do
        case " $* " in
        *" $item "*) ;;
        *) die 2 "$option: \"$item\" is not one of $*" ;;
        esac
    done
}

# ---- one combination ----

# What decides a run's outcome: if it changes, the run is done again. Values only, not where they stand.
key_of() { # OPTION...
    printf '%s\n' "$version" "${options[@]}" "$@" "$("$ZEROTRAIN" plan "${plan_options[@]}" "$@" --print_recipe \
        "$recipe" 2>&1 | sed 's/ # [^#]*$//')" | sha256sum | cut -d' ' -f1
}

# The last words of the rank that failed first, or what was refused, as a JSON string: printable, valid
# UTF-8, not without end.
message_of() { # OUTPUT
    local line
    line=$(LC_ALL=C sed -n 's/^zerotrain:   | //p' "$1" | tail -n 1)
    [ -n "$line" ] || line=$(LC_ALL=C sed -n 's/^zerotrain: //p' "$1" | head -n 1)
    line=$(printf '%s' "${line:0:600}" | LC_ALL=C tr -d '\000-\037\177' | iconv -c -f UTF-8 -t UTF-8)
    line=${line//\\/\\\\}
    printf '"%s"' "${line//\"/\\\"}"
}

write_state() { # DIR STAGE OFFLOAD KEY EXIT_CODE MESSAGE
    printf '{"stage": %s, "offload": "%s", "exit_code": %s, "message": %s, "key": "%s"}\n' \
        "$2" "$3" "$5" "$6" "$4" >"$1/sweep.json.new" && mv "$1/sweep.json.new" "$1/sweep.json"
}

is_finished() { # DIR KEY
    grep -qsE "\"exit_code\": (0|4|5|6|137), .*\"key\": \"$2\"" "$1/sweep.json"
}

# Only what an earlier sweep has left is removed.
make_folder() { # DIR
    if [ -e "$1" ]; then
        [ -e "$1/sweep.json" ] || die 3 "$1: is there, but no sweep made it; name another folder with --out"
        rm -f "$1/metrics.jsonl" "$1/summary.json" "$1/recipe.yaml" "$1/output.txt"
    fi
    mkdir -p "$1" || exit 1
}

# Run until it ends, whatever comes: the terminal's Ctrl-C reaches the run itself, which ends after its
# step; what ends us alone is handed on.
child='' interrupted='' n_ok=0
on_signal() {
    interrupted=$1
    [ -z "$child" ] || [ "$1" = INT ] || kill -TERM "$child" 2>/dev/null
}
stop_if_interrupted() {
    [ -n "$interrupted" ] || return 0
    say "interrupted; the same command goes on from here"
    [ "$interrupted" = INT ] && exit 130
    exit 143
}
trap 'on_signal INT' INT
trap 'on_signal TERM' TERM HUP

run_to_the_end() { # OUTPUT COMMAND...
    local output=$1 code
    shift
    "$@" >"$output" 2>&1 </dev/null &
    child=$!
    wait "$child"
    code=$?
    while kill -0 "$child" 2>/dev/null; do # a signal came first
        wait "$child"
        code=$?
    done
    child=
    return $code
}

run_combination() { # STAGE OFFLOAD
    local stage=$1 offload=$2 dir key code message=null
    local set=(--set "zero_optimization.stage=$stage" --set "zero_optimization.offload_optimizer.device=$offload")
    [ "$offload" != nvme ] || [ -z "$nvme_path" ] || set+=(--set "zero_optimization.offload_optimizer.nvme_path=$nvme_path")
    dir=$out/stage$stage
    [ "$offload" = none ] || dir=$dir-$offload
    key=$(key_of "${set[@]}")
    stop_if_interrupted
    if is_finished "$dir" "$key"; then
        say "stage $stage, offload $offload: finished before"
        ! grep -qs '"exit_code": 0,' "$dir/sweep.json" || n_ok=$((n_ok + 1))
        return
    fi
    make_folder "$dir"
    write_state "$dir" "$stage" "$offload" "$key" null null || exit 1
    say "stage $stage, offload $offload: $dir"
    run_to_the_end "$dir/output.txt" "$ZEROTRAIN" train "${options[@]}" "${set[@]}" --log_dir="$dir" "$recipe"
    code=$?
    case $code in
    130 | 143)
        interrupted=${interrupted:-INT}
        stop_if_interrupted
        ;;
    0) n_ok=$((n_ok + 1)) ;;
    *)
        message=$(message_of "$dir/output.txt")
        say "stage $stage, offload $offload: exit status $code: $message"
        ;;
    esac
    write_state "$dir" "$stage" "$offload" "$key" "$code" "$message" || exit 1
    stop_if_interrupted
}

# ---- all of them ----

take_options "$@"
[ -n "$recipe" ] || die 2 "which recipe? See --help"
check_list --stages "$stages" 0 1 2 3
check_list --offload "$offloads" none cpu nvme
if [ -z "${ZEROTRAIN:-}" ]; then
    ZEROTRAIN=$root/build/zerotrain
    [ -x "$ZEROTRAIN" ] || ZEROTRAIN=$(command -v zerotrain) || die 3 "no zerotrain: build it with make, or set ZEROTRAIN"
fi
version=$("$ZEROTRAIN" --version) || die 3 "$ZEROTRAIN does not run"
"$ZEROTRAIN" plan "${plan_options[@]}" --print_recipe "$recipe" >/dev/null || exit
name=${recipe##*/}
out=${out:-runs/sweep-${name%.*}}
mkdir -p "$out" || exit 1
[[ $offloads == *nvme* ]] && [ -z "$nvme_path" ] &&
    ! "$ZEROTRAIN" plan "${plan_options[@]}" --print_recipe "$recipe" 2>/dev/null | grep -q '^ *nvme_path: ' &&
    nvme_path=$out

for offload in ${offloads//,/ }; do
    for stage in ${stages//,/ }; do
        if [ "$stage" = 0 ] && [ "$offload" != none ]; then
            say "stage 0, offload $offload: left out: there is nothing to offload"
            continue
        fi
        run_combination "$stage" "$offload"
    done
done

"$ZEROTRAIN" report --format=markdown --output="$out/table.md" --svg="$out/stages.svg" "$out" &&
    "$ZEROTRAIN" report --format=csv --output="$out/table.csv" "$out" &&
    "$ZEROTRAIN" report "$out" || exit
say "written: $out/table.md, table.csv, stages.svg"
[ $n_ok -gt 0 ] || die 1 "no combination came to its end"
