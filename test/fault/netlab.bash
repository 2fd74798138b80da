#!/usr/bin/env bash
# netlab.bash up|down FOLDER N: N hosts made of network namespaces, each with an sshd, a name and an address of its
# own: zt1 at 10.199.0.1 and so on, on the bridge ztbr0, where we are 10.199.0.254. Files are shared with us.
# NETLAB_UNSHARE: options of unshare(1) with more that each host has of its own.
# FOLDER gets ssh_config, known_hosts and key for `ssh -F`; FOLDER.zt1, where there is one, ends the sshd_config of
# zt1, and so on. Exit status 77 and a reason where that cannot be.
set -eu
lab=$2
n_hosts=$3

cannot() {
    echo "$1"
    exit 77
}

down() {
    local i pid
    for i in $(seq "$n_hosts"); do
        for pid in $(ip netns pids "zt$i" 2>/dev/null); do kill -9 "$pid" 2>/dev/null || true; done
        ip netns del "zt$i" 2>/dev/null || true
        ip link del "vzt$i" 2>/dev/null || true # connections that are still retried keep a namespace for minutes
        rm -rf "/etc/netns/zt$i"
    done
    ip link del ztbr0 2>/dev/null || true
}

add_host() { # I
    local name=zt$1 own=$lab/zt$1
    mkdir -p "$own" "/etc/netns/$name"
    cp "$lab/hosts" "/etc/netns/$name/hosts"
    ip netns add "$name"
    ip link add "v$name" type veth peer name eth0 netns "$name"
    ip link set "v$name" master ztbr0 up
    ip -n "$name" addr add "10.199.0.$1/24" dev eth0
    ip -n "$name" link set eth0 up
    ip -n "$name" link set lo up
    ssh-keygen -q -t ed25519 -N '' -f "$own/host_key"
    cat >"$own/sshd_config" <<END
ListenAddress 10.199.0.$1
HostKey $own/host_key
PidFile $own/pid
AuthorizedKeysFile $lab/key.pub
StrictModes no
UsePAM no
PermitRootLogin yes
END
    [ ! -e "$lab.$name" ] || cat "$lab.$name" >>"$own/sshd_config"
    echo "$name,10.199.0.$1 $(cut -d' ' -f1,2 "$own/host_key.pub")" >>"$lab/known_hosts"
    printf 'Host %s\n  HostName 10.199.0.%d\n  HostKeyAlias %s\n' "$name" "$1" "$name" >>"$lab/ssh_config"
    # shellcheck disable=SC2086 # they are several
    setsid ip netns exec "$name" unshare --uts ${NETLAB_UNSHARE:-} sh -c \
        "hostname $name; exec /usr/sbin/sshd -D -e -f $own/sshd_config" </dev/null >"$own/log" 2>&1 &
}

# Its sshd answers.
listens() { (exec 3<>"/dev/tcp/10.199.0.$1/22") 2>/dev/null; }

up() {
    local i t
    [ "$(id -u)" = 0 ] || cannot "not root"
    [ -x /usr/sbin/sshd ] || cannot "no sshd (openssh-server)"
    command -v ip >/dev/null || cannot "no ip (iproute2)"
    { ip netns add zt-probe && ip netns del zt-probe; } 2>/dev/null || cannot "no network namespaces here"
    ip link add ztbr0 type bridge 2>/dev/null || cannot "no bridges here"
    ip addr add 10.199.0.254/24 dev ztbr0
    ip link set ztbr0 up
    mkdir -p "$lab" /run/sshd
    ssh-keygen -q -t ed25519 -N '' -f "$lab/key"
    echo "127.0.0.1 localhost" >"$lab/hosts"
    for i in $(seq "$n_hosts"); do echo "10.199.0.$i zt$i" >>"$lab/hosts"; done
    : >"$lab/known_hosts"
    : >"$lab/ssh_config"
    for i in $(seq "$n_hosts"); do add_host "$i"; done
    printf 'Host *\n  IdentityFile %s\n  IdentitiesOnly yes\n  User root\n' "$lab/key" >>"$lab/ssh_config"
    printf '  UserKnownHostsFile %s\n  GlobalKnownHostsFile none\n' "$lab/known_hosts" >>"$lab/ssh_config"
    for i in $(seq "$n_hosts"); do
        for ((t = 0; t < 200; t++)); do
            listens "$i" && break
            sleep 0.05
        done
        listens "$i" || cannot "the sshd of zt$i does not start: $(tail -n 1 "$lab/zt$i/log")"
    done
}

case $1 in
up)
    # Before anything of it is ours to be taken down.
    ip link show ztbr0 >/dev/null 2>&1 && cannot "there is a ztbr0 already: another test runs"
    trap '[ $? = 0 ] || down' EXIT
    up
    ;;
down) down ;;
esac
