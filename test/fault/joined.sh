#!/usr/bin/env bash
# joined.sh ZEROTRAIN: a job of two hosts that a launcher has started, made of network namespaces with a link between
# them: rank 0 is on the first, rank 1 on the second. What crosses the network in between is recorded and changed; a
# host freezes, and the link is cut. The namespaces are this test's own, without a name, and end with it.
# shellcheck disable=SC2034,SC2046,SC2154 # common.bash uses and sets some; words are to be split
suite=joined
port=29544
head=10.198.7.1

# ---- two hosts: here, and where $there is ----

if [ -z "${ZT_TEST_ALONE:-}" ]; then
    alone=(unshare --net --mount)
    [ "$(id -u)" = 0 ] || alone+=(--user --map-root-user)
    why=$("${alone[@]}" true 2>&1) && command -v ip >/dev/null || {
        echo "skip $suite: no namespaces here: ${why:-no ip (iproute2)}"
        exit 0
    }
    ZT_TEST_ALONE=1 exec "${alone[@]}" "$0" "$@"
fi
unset ZT_TEST_ALONE
. "$(dirname "$0")/common.bash"
touch "$tmp/hosts0" "$tmp/hosts1"
unshare --net --mount sleep infinity &
there=$!
relay=
trap 'clean_up; kill "$there" $relay; rm -rf "$tmp"' EXIT
host1() { nsenter -t "$there" -n -m --wd=. "$@"; }
is_apart() { [ "$(readlink /proc/$$/ns/net)" != "$(readlink "/proc/$there/ns/net")" ]; }
until_true is_apart
if ! { ip link add ztj0 type veth peer name ztj1 netns "$there" && ip addr add $head/24 dev ztj0 && ip link set ztj0 up &&
    ip link set lo up && host1 ip addr add 10.198.7.2/24 dev ztj1 && host1 ip link set ztj1 up && host1 ip link set lo up &&
    mount --bind "$tmp/hosts0" /etc/hosts && host1 mount --bind "$tmp/hosts1" /etc/hosts; } 2>"$tmp/err"; then
    echo "skip $suite: no hosts can be made here: $(head -n 1 "$tmp/err")"
    exit 0
fi
# The host of rank 0 has one name, and an address for each of the two.
head_is() { # FOR_0 FOR_1
    echo "$1 head" >"$tmp/hosts0"
    echo "$2 head" >"$tmp/hosts1"
}

(umask 077 && head -c 32 /dev/urandom >"$tmp/secret0" && cp "$tmp/secret0" "$tmp/secret1")
token=planted-$RANDOM$RANDOM$RANDOM
text=recipe-$RANDOM$RANDOM$RANDOM
echo "API_TOKEN=$token" >"$tmp/env"
endless_recipe
{
    echo "# $text"
    cat "$tmp/tiny.yaml"
} >"$tmp/recipe.yaml"

ranks=()
begin() { # OPTION...: pid is rank 0's
    local r to at
    case_no=$((case_no + 1))
    for r in 1 0; do
        to=
        at=()
        [ $r = 0 ] || to=.$r at=(nsenter -t "$there" -n -m --wd=.)
        ZT_TEST_MARK=$$.$case_no "${at[@]}" env --default-signal=INT,QUIT,TERM,HUP SLURM_PROCID=$r \
            SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 SLURM_STEP_NUM_NODES=2 SLURMD_NODENAME=n$r SLURM_JOB_ID=$$ \
            SLURM_STEP_ID=$case_no MASTER_ADDR=head MASTER_PORT=$port ZT_JOB_SECRET_FILE="$tmp/secret$r" \
            "$zerotrain" --device=cpu --log_dir="$tmp/run$case_no" --env_file="$tmp/env" "$@" "$tmp/recipe.yaml" \
            >"$tmp/out$to" 2>"$tmp/err$to" &
        ranks[r]=$!
    done
    pid=${ranks[0]}
}
trains() { grep -qs '"step"' "$tmp/run$case_no/metrics.jsonl" || ended; }
endless() {
    begin
    until_true trains || fail "start" "no step was made: $(tail -n 3 "$tmp/err")"
}
# both_end NAME CODE OTHER PATTERN: rank 0 with CODE, rank 1 with OTHER.
both_end() {
    local got
    until_true ended
    wait "${ranks[1]}" 2>/dev/null
    got=$?
    # shellcheck disable=SC2053
    [[ $got == $3 ]] || fail "$1" "rank 1 ended with $got, not $3: $(tail -n 2 "$tmp/err.1")"
    verdict "$1" "$2" "${4:-}"
}
# called NAME: those of the second host's processes.
called() {
    local p
    for p in $(marked); do
        [ "$(readlink "/proc/$p/ns/net")" != "$(readlink "/proc/$there/ns/net")" ] || ! grep -qsxE "$1" "/proc/$p/comm" ||
            echo "$p"
    done
}

# ---- somebody in between ----

record=$tmp/record
head_is $head 127.0.0.1 # there is a relay: the address is not the one that rank 0 listens at
: >"$record"
host1 test/fault/relay $port $head $port "$record" >"$tmp/relay" 2>&1 &
until_true test -s "$tmp/relay"
relay=$(cat "$tmp/relay") # its pid
short=(--set train.steps=3 --set parallel.threads=1)
begin "${short[@]}"
both_end "who is in between passes on what two hosts say" 0 0
bits() { grep -o '"digest": *"[0-9a-f]*"' "$1/summary.json"; }
"$zerotrain" --device=cpu --num_gpus=2 --log_dir="$tmp/one" "${short[@]}" "$tmp/recipe.yaml" >"$tmp/out" 2>&1
one=$(bits "$tmp/one")
if [[ $one == *digest* && $one == "$(bits "$tmp/run$case_no")" ]]; then
    echo "ok $suite the bits are those of one host"
else
    fail "the bits" "$(bits "$tmp/run$case_no"), not $one: $(tail -n 2 "$tmp/out")"
fi
grep -qs "^API_TOKEN=$token" "$tmp/env" && grep -q "$text" "$tmp/recipe.yaml" || fail "what he sees" "nothing was planted"
bytes=$(wc -c <"$record")
if ! grep -qa ztjoin4 "$record" || [ "$bytes" -lt 5000 ]; then
    fail "what he sees" "nothing of the job, in $bytes bytes"
elif grep -qaE "$token|$text|API_TOKEN|n_layer|zerotrain" "$record"; then
    fail "what he sees" "$(grep -aoE "$token|$text|API_TOKEN|n_layer|zerotrain" "$record" | sort | uniq -c | tr '\n' ' ')"
else
    echo "ok $suite he sees neither environment nor recipe"
fi

endless
hit USR1 "$relay"
both_end "a bit that is changed on the way ends the job" '[1-9]*' '[1-9]*' 'the agent on n1 was lost: .*changed or put in on the way'
kill "$relay"
relay=

# ---- hosts and connections that are lost ----

head_is $head $head
gone() { ! kill -0 "$1" 2>/dev/null; }
lost() { # NAME SECONDS PATTERN: since `struck`
    local end
    until_true ended
    end=$SECONDS
    [ $((end - struck)) -le "$2" ] || fail "$1" "it took $((end - struck)) s, not $2"
    both_end "$1" '[1-9]*' '*' "${3:-}"
}
endless
hit 9 "$(called zerotrain-r1)"
struck=$SECONDS
lost "kill -9 of another host's worker" 10 'rank 1 on n1 failed first: signal 9'

endless
for p in $(called zerotrain-agent); do hit 9 "$p"; done
struck=$SECONDS
lost "kill -9 of another host's agents" 10 'the agent on n1 was lost: the connection broke, or it was killed'

endless
hit 9 "$(called zerotrain-wait)"
struck=$SECONDS
lost "kill -9 of another host's process" 10 'the process of rank 1 on n1, which srun had started, has ended before the job'

endless
hit 9 "$pid"
struck=$SECONDS
lost "kill -9 of rank 0" 10
grep -q 'the process of rank 0 is gone' "$tmp/err.1" || fail "kill -9 of rank 0" "rank 1 says: $(cat "$tmp/err.1")"

endless
for p in $(called 'zerotrain-.*'); do hit STOP "$p"; done
struck=$SECONDS
until_true ended
kill -CONT $(called 'zerotrain-.*') 2>/dev/null # the agent, once it goes on, ends the others
lost "a host that freezes" 30 'the agent on n1 was lost: it has been silent for'

endless
ip link set ztj0 down
struck=$SECONDS
lost "a link that is cut" 30 'n1'
ip link set ztj0 up

# What is on its way silences the kernel's own probes.
endless
waits=$(called zerotrain-wait)
ip link set ztj0 down
hit USR1 "$waits"
struck=$SECONDS
until_true gone "$waits" || kill -9 "$waits"
[ $((SECONDS - struck)) -le 20 ] || fail "a signal into a link that is cut" "its process took $((SECONDS - struck)) s to leave"
lost "a signal into a link that is cut" 30 'n1'
ip link set ztj0 up

# ---- who does not belong to it ----

(umask 077 && head -c 32 /dev/urandom >"$tmp/secret1")
ZT_JOIN_SECONDS=4 begin
both_end "another secret" 75 75 'rank 1 did not come .*refused: who said to be rank 1, from 10.198.7.2, with another secret'
grep -q 'has another secret than we have' "$tmp/err.1" || fail "another secret" "rank 1 says: $(cat "$tmp/err.1")"
exit $failed
