# lab.bash: for tests on hosts made of network namespaces, with a real sshd each (netlab.bash). Sourced after
# common.bash, with N, their number: zt1 to ztN. Ends the test where such hosts cannot be made. Sets lab, its folder.
# Wants: struck, the second in which a host was struck, for within().
# shellcheck shell=bash disable=SC2154
lab=$tmp/lab
reason=$(test/fault/netlab.bash up "$lab" $N 2>&1)
case $? in
0) ;;
77)
    echo "skip $suite: $reason"
    exit 0
    ;;
*)
    echo "not ok $suite: $reason"
    exit 1
    ;;
esac
trap 'clean_up; test/fault/netlab.bash down "$lab" $N; rm -rf "$tmp"' EXIT

# The user's own ssh configuration must not matter.
mkdir "$tmp/bin"
printf '#!/bin/sh\nexec /usr/bin/ssh -F "%s/ssh_config" "$@"\n' "$lab" >"$tmp/bin/ssh"
chmod +x "$tmp/bin/ssh"
PATH=$tmp/bin:$PATH
unset DS_ENV_FILE

# Processes of ours on host I; the last are those that a login shell is about to become.
on_host() {
    ip netns pids "zt$1" | while read -r p; do
        grep -qas zerotrain "/proc/$p/cmdline" && echo "$p"
    done
}
called() { # HOST PATTERN: its processes whose names are that (newer sshds have sshd-session beside sshd)
    local p
    for p in $(ip netns pids "zt$1"); do
        ! grep -qsx "$2" "/proc/$p/comm" || echo "$p"
    done
}
rank_on() { called "$1" "zerotrain-r$2"; }
agent_on() { called "$1" zerotrain-agent; }
nothing_on() { [ -z "$(on_host "$1")" ]; }
nothing_on_hosts() {
    local i
    for ((i = 1; i <= N; i++)); do
        nothing_on $i || return 1
    done
}

# within SECONDS NAME CODE PATTERN: the verdict, that long after `struck` at most; as long after that the hosts
# have nothing left.
within() {
    local most=$1 name=$2
    shift
    until_true ended
    local end=$SECONDS
    [ $((end - struck)) -le "$most" ] || fail "$name" "it took $((end - struck)) s, not $most"
    until_true nothing_on_hosts
    [ $((SECONDS - end)) -le "$most" ] || fail "$name" "a host had processes left for $((SECONDS - end)) s"
    verdict "$@"
}
