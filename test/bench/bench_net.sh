#!/usr/bin/env bash
# bench_net.sh BENCH_TCP [NODES...]: all-reduce and all-gather of 100 MB and 4 KB between network namespaces of
# this host (2 and 4 of them by default), by our TCP transport, Gloo (torch.distributed, of build/bench-venv) and
# Open MPI over TCP (openmpi-bin, libopenmpi-dev), a process on each. They run in turns, three times or as often as
# BENCH_NET_SECONDS (170) allow. A table of the best run of each: fastest call, median, mean, and the processor time that a
# call costs rank 0's process, which other work on the machine changes least; and theirs over ours: above 1 we are better.
# Of small calls the mean counts: where the other rank's message has come already, a call is over at once, so the
# fastest says little; they are also made in rows of 100, waited for once, as a training makes them (_row).
# Needs root; what is not there is skipped with a reason. Nothing is left behind.
set -u
deadline=$((SECONDS + ${BENCH_NET_SECONDS:-170}))
bench=$(realpath "${1:-build/bench/bench_tcp}")
shift
cd "$(dirname "$0")/../.." || exit 1
prefix=ztb$$
tmp=$(mktemp -d)

if [ "$(id -u)" != 0 ] || ! ip netns add "$prefix-test" 2>/dev/null; then
    echo "skip bench_net: network namespaces need root"
    rm -rf "$tmp"
    exit 0
fi
ip netns del "$prefix-test"

clean_up() {
    local i pid
    for i in 1 2 3 4; do
        for pid in $(ip netns pids "$prefix-$i" 2>/dev/null); do kill -9 "$pid"; done
    done
    for ((i = 1; i <= 4; i++)); do ip netns del "$prefix-$i" 2>/dev/null; done
    ip link del "$prefix" 2>/dev/null
    rm -rf "$tmp"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

# Four hosts on one switch, which the host is on too.
ip link add "$prefix" type bridge && ip addr add 10.213.77.254/24 dev "$prefix" && ip link set "$prefix" up || exit 1
for i in 1 2 3 4; do
    ip netns add "$prefix-$i"
    ip link add "v$i-$prefix" type veth peer name eth0 netns "$prefix-$i"
    ip link set "v$i-$prefix" master "$prefix" up
    ip -n "$prefix-$i" addr add "10.213.77.$i/24" dev eth0
    ip -n "$prefix-$i" link set eth0 up
    ip -n "$prefix-$i" link set lo up
done

# Seconds that a run may take: what is left, and no more than that.
may_take() {
    local left=$((deadline - SECONDS)) most=45
    echo $((left < 1 ? 1 : left < most ? left : most))
}

# Each prints lines: CALL BYTES BEST MEDIAN MEAN CPU.
ours() { # NODES
    local names=() i
    for ((i = 1; i <= $1; i++)); do names+=("$prefix-$i"); done
    timeout -k 2 "$(may_take)" "$bench" "$1" "${names[@]}"
}

gloo() {
    local i pids=()
    for ((i = 1; i <= $1; i++)); do
        GLOO_SOCKET_IFNAME=eth0 MASTER_ADDR=10.213.77.1 MASTER_PORT=29511 RANK=$((i - 1)) WORLD_SIZE=$1 \
            OMP_NUM_THREADS=1 timeout -k 2 "$(may_take)" ip netns exec "$prefix-$i" build/bench-venv/bin/python test/bench/gloo_coll.py &
        pids+=($!)
    done
    wait "${pids[@]}"
}

# orted is started in the namespace that is named like a host. Not bound to cores: each host's first rank would be
# bound to the same one here.
mpi() {
    local i hosts=
    for ((i = 1; i <= $1; i++)); do hosts+=",10.213.77.$i"; done
    printf '#!/bin/bash\nwhile [[ $1 != 10.* ]]; do shift; done\nn=${1##*.}; shift\nexec ip netns exec %s-$n bash -c "$*"\n' \
        "$prefix" >"$tmp/agent"
    chmod +x "$tmp/agent"
    timeout -k 2 "$(may_take)" mpirun --allow-run-as-root --oversubscribe --bind-to none -n "$1" --host "${hosts#,}" --mca plm_rsh_agent "$tmp/agent" \
        --mca plm_rsh_no_tree_spawn 1 --mca oob_tcp_if_include 10.213.77.0/24 --mca pml ob1 --mca btl tcp,self \
        --mca btl_tcp_if_include 10.213.77.0/24 "$tmp/mpi_coll"
}

candidates=(ours)
if build/bench-venv/bin/python -c 'import torch.distributed' 2>/dev/null; then
    candidates+=(gloo)
else
    echo "skip Gloo: scripts/bench-venv.sh has not installed PyTorch"
fi
if ! command -v mpirun >/dev/null || ! command -v mpicc >/dev/null; then
    echo "skip Open MPI: apt-get install openmpi-bin libopenmpi-dev"
elif mpicc -O2 -o "$tmp/mpi_coll" test/bench/mpi_coll.c; then
    candidates+=(mpi)
fi


# Lines CANDIDATE CALL BYTES BEST MEDIAN MEAN CPU go to all-N; who fails once does not run again.
turn() { # NODES
    local who rc
    for who in "${candidates[@]}"; do
        if [ "$SECONDS" -ge "$deadline" ] || [ -e "$tmp/bad-$1-$who" ]; then
            continue
        fi
        "$who" "$1" 2>"$tmp/err" >"$tmp/out" </dev/null
        rc=$?
        sed "s/^/$who /" "$tmp/out" >>"$tmp/all-$1" # what it came to, if not to its end
        [ $rc != 0 ] || continue
        touch "$tmp/bad-$1-$who"
        if [ $rc = 124 ]; then
            echo "$who on $1 nodes: ended, it took too long" >&2
        else
            echo "$who on $1 nodes: failed: $(tail -n 1 "$tmp/err")" >&2
        fi
    done
}

table() { # NODES
    awk -v n="$1" -v all="${candidates[*]}" '
        function least(a, v) { if (!(($1, $2, $3) in a) || v < a[$1, $2, $3]) a[$1, $2, $3] = v }
        { least(best, $4); least(median, $5); least(mean, $6); least(cpu, $7) }
        !(($2, $3) in seen) { seen[$2, $3]; call[++n_calls] = $2; bytes[n_calls] = $3 }
        END {
            n_who = split(all, who, " ")
            for (i = 1; i <= n_calls; i++)
                for (k = 1; k <= n_who; k++) {
                    one = who[k] SUBSEP call[i] SUBSEP bytes[i]
                    us = "ours" SUBSEP call[i] SUBSEP bytes[i]
                    if (one in best)
                        printf "| %d | %-14s | %9d | %-4s | %10.1f | %10.1f | %10.1f | %10.1f | %5.2f | %5.2f | %5.2f |\n", n,
                            call[i], bytes[i], who[k], best[one], median[one], mean[one], cpu[one], best[one] / best[us],
                            mean[one] / mean[us], cpu[one] / cpu[us]
                }
        }' "$tmp/all-$1"
}

read -ra counts <<<"${*:-2 4}"
for _ in 1 2 3; do
    for n in "${counts[@]}"; do turn "$n"; done
done
echo "| nodes | call | bytes | by | best, us | median | mean | processor | best over ours | mean | processor |"
echo "|---|---|---|---|---|---|---|---|---|---|---|"
for n in "${counts[@]}"; do [ ! -s "$tmp/all-$n" ] || table "$n"; done
