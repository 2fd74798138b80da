# common.bash: for tests that kill and signal a running zerotrain. Sourced with the program as $1.
# Processes of a case carry a mark of their own in their environment, so they are found also when they
# have left their parent, group and session. Sets: zerotrain, tmp, failed, and pid of what was started.
# Wants: suite, the first word of each test's name.
# shellcheck shell=bash disable=SC2034,SC2154
set -u
zerotrain=$(realpath "${1:-build/zerotrain}")
cd "$(dirname "$0")/../.." || exit 1
tmp=$(mktemp -d)
failed=0
case_no=0
pid=

# Living processes that carry the mark of this case (zombies have no environment).
marked() { grep -lazx "ZT_TEST_MARK=$$.$case_no" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3; }

# Ends whatever this case has left; only processes with our mark.
clean_up() {
    local left
    left=$(marked)
    [ -z "$left" ] || kill -9 $left 2>/dev/null
}
trap 'clean_up; rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM

# start ARG...: run `zerotrain ARG...` in the background, marked, with default signals.
start() {
    case_no=$((case_no + 1))
    : >"$tmp/out"
    : >"$tmp/err"
    ZT_TEST_MARK=$$.$case_no env --default-signal=INT,QUIT,TERM,HUP \
        "$zerotrain" "$@" >"$tmp/out" 2>"$tmp/err" &
    pid=$!
}

# tmp/tiny.yaml: steps that take no time, also on a simulated GPU, and no end of them.
endless_recipe() {
    cat >"$tmp/tiny.yaml" <<END
model: {model_type: gpt2, n_layer: 2, n_head: 2, n_embd: 32, n_positions: 32, vocab_size: 256}
data: {train: $PWD/LICENSE, seq_len: 16}
train_micro_batch_size_per_gpu: 1
train: {steps: 1000000}
zero_optimization: {stage: 3}
END
}

# until_true COMMAND...: wait for something that must come; give up after a minute.
until_true() {
    local i
    for ((i = 0; i < 1200; i++)); do
        "$@" && return 0
        sleep 0.05
    done
    return 1
}

agent() { pgrep -P "$pid" -x zerotrain-agent; }
# hit SIGNAL PID: the process must be there.
hit() {
    [ -n "$2" ] && kill "-$1" "$2" || fail "SIG$1" "no process to send it to"
}

lines() { [ "$(grep -c "$1" "$tmp/out")" -ge "$2" ]; }
nothing_marked() { [ -z "$(marked)" ]; }
ended() { ! kill -0 "$pid" 2>/dev/null; }

# verdict NAME CODE [PATTERN]: the job ends with CODE (a number, or a pattern such as [1-9]*), says
# PATTERN on stderr, and leaves nothing.
verdict() {
    local name=$1 code=$2 pattern=${3:-} got why=
    until_true ended || why="it did not end"
    if [ -z "$why" ]; then
        wait "$pid" 2>/dev/null
        got=$?
        # shellcheck disable=SC2053
        [[ $got == $code ]] || why="exit code $got, not $code"
        [ -n "$why" ] || [ -z "$pattern" ] || grep -qE -- "$pattern" "$tmp/err" ||
            why="stderr does not say \"$pattern\""
    fi
    [ -n "$why" ] || until_true nothing_marked || why="still running: $(marked | tr '\n' ' ')"
    if [ -n "$why" ]; then
        fail "$name" "$why"
        sed 's/^/    /' "$tmp/err"
    else
        echo "ok $suite $name"
    fi
    clean_up
}

fail() { # NAME WHY
    echo "not ok $suite $1: $2"
    failed=1
}
