#!/usr/bin/env bash
# bench_net.sh BENCH_TCP [NODES...]: all-reduce and all-gather of 100 MB and 4 KB between network namespaces of
# this host (2 and 4 of them by default), by our TCP transport, Gloo (torch.distributed, of build/bench-venv) and
# Open MPI over TCP. Best and median time in microseconds, in turns, three times; the last column is the best
# of ours over it. Needs root; what is not there is skipped with a reason. Nothing is left behind.
set -u
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

# Each prints lines: CALL BYTES BEST MEDIAN.
ours() { # NODES
    local names=() i
    for ((i = 1; i <= $1; i++)); do names+=("$prefix-$i"); done
    timeout 120 "$bench" "$1" "${names[@]}"
}

gloo() {
    local i pids=()
    for ((i = 1; i <= $1; i++)); do
        GLOO_SOCKET_IFNAME=eth0 MASTER_ADDR=10.213.77.1 MASTER_PORT=29511 RANK=$((i - 1)) WORLD_SIZE=$1 \
            OMP_NUM_THREADS=1 timeout 120 ip netns exec "$prefix-$i" build/bench-venv/bin/python test/bench/gloo_coll.py &
        pids+=($!)
    done
    wait "${pids[@]}"
}

# orted is started in the namespace that is named like a host.
mpi() {
    local i hosts=
    for ((i = 1; i <= $1; i++)); do hosts+=",10.213.77.$i"; done
    printf '#!/bin/bash\nwhile [[ $1 != 10.* ]]; do shift; done\nn=${1##*.}; shift\nexec ip netns exec %s-$n bash -c "$*"\n' \
        "$prefix" >"$tmp/agent"
    chmod +x "$tmp/agent"
    timeout 120 mpirun --allow-run-as-root --oversubscribe -n "$1" --host "${hosts#,}" --mca plm_rsh_agent "$tmp/agent" \
        --mca plm_rsh_no_tree_spawn 1 --mca oob_tcp_if_include 10.213.77.0/24 --mca pml ob1 --mca btl tcp,self \
        --mca btl_tcp_if_include 10.213.77.0/24 "$tmp/mpi_coll"
}

candidates=(ours)
if build/bench-venv/bin/python -c 'import torch.distributed' 2>/dev/null; then
    candidates+=(gloo)
else
    echo "skip Gloo: scripts/bench-venv.sh has not installed PyTorch"
fi
if command -v mpicc >/dev/null && mpicc -O2 -o "$tmp/mpi_coll" test/bench/mpi_coll.c; then
    candidates+=(mpi)
else
    echo "skip Open MPI: mpicc is not installed (libopenmpi-dev, openmpi-bin)"
fi

for nodes in "${@:-2 4}"; do
    for n in $nodes; do
        for _ in 1 2 3; do
            for who in "${candidates[@]}"; do
                "$who" "$n" 2>"$tmp/err" >"$tmp/out" || tail -n 3 "$tmp/err" >&2
                sed "s/^/$who /" "$tmp/out" >>"$tmp/all-$n"
            done
        done
        awk -v n="$n" '
            !(($1, $2, $3) in best) || $4 < best[$1, $2, $3] { best[$1, $2, $3] = $4; median[$1, $2, $3] = $5 }
            { who[$1]; what[$2 " " $3] }
            END {
                for (w in what) for (c in who) {
                    split(w, k, " ")
                    b = best[c, k[1], k[2]]
                    printf "%d nodes  %-10s %9d bytes  %-4s %10.1f us best  %10.1f median  %5.2f\n", n, k[1], k[2], c, b,
                        median[c, k[1], k[2]], b / best["ours", k[1], k[2]]
                }
            }' "$tmp/all-$n" | sort -k3,3 -k4,4n -k6,6
    done
done
