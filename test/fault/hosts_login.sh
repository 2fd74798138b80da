#!/usr/bin/env bash
# hosts_login.sh ZEROTRAIN: how hosts let us in, made of network namespaces with a real sshd each (lab.bash), by both
# ways: sshds that drop who comes while others log in (MaxStartups), many hosts behind one sshd or jump host, and the
# command that is printed for a host key that is not the known one, which is entered as it stands.
# shellcheck disable=SC2034,SC2154 # common.bash uses and sets them
suite=hosts_login
. "$(dirname "$0")/common.bash"
N=3
printf 'MaxStartups 2:100:2\nListenAddress 10.199.0.2:2222\n' >"$tmp/lab.zt2"
. test/fault/lab.bash
endless_recipe
cp "$lab/ssh_config" "$tmp/ssh_config"
cp "$lab/known_hosts" "$tmp/known"

# config: the ssh_config of the lab, after what is on stdin.
config() { cat - "$tmp/ssh_config" >"$lab/ssh_config"; }
# aliases N OPTION...: the hosts h1 to hN of a hostfile are zt3, with these ssh options, one a line.
aliases() {
    local i n=$1
    shift
    : >"$tmp/hosts"
    for ((i = 1; i <= n; i++)); do
        printf 'Host h%d\n  HostName 10.199.0.3\n  HostKeyAlias zt3\n' "$i"
        [ $# = 0 ] || printf '  %s\n' "$@"
        echo "h$i slots=1" >>"$tmp/hosts"
    done | config
}
go() { # OPTION...: two steps on the hosts of tmp/hosts
    struck=$SECONDS
    start --device=cpu --log_dir="$tmp/run$case_no" --hostfile="$tmp/hosts" --launcher=$launcher \
        --set train.steps=2 "$@" "$tmp/tiny.yaml"
}

# ---- sshds that drop us ----

# occupy HOST N SECONDS: so many who do not log in.
occupy() {
    python3 - "$@" <<'END' &
import socket, sys, time
held = [socket.create_connection(("10.199.0." + sys.argv[1], 22)) for _ in range(int(sys.argv[2]))]
for s in held:
    s.recv(100)
open(sys.argv[4], "w").close()
time.sleep(float(sys.argv[3]))
END
    occupier=$!
    until_true test -e "$4"
}
for launcher in ssh openssh; do
    printf 'zt%d slots=1\n' 1 2 3 >"$tmp/hosts"
    config </dev/null
    occupy 2 2 8 "$tmp/occupied.$launcher"
    go
    within 40 "no place at an sshd for a while ($launcher)" 0
    ! kill -0 $occupier 2>/dev/null || fail "no place at an sshd for a while ($launcher)" "there was one"
    ! grep -qi 'connection' "$tmp/err" || fail "no place at an sshd for a while ($launcher)" "it is told: $(grep -i connection "$tmp/err")"
    wait $occupier
done
launcher=ssh
aliases 24 "ProxyJump zt1" # with the usual MaxStartups 10:30:100
go
within 60 "24 hosts behind one jump host" 0

# ---- how many log in at once ----

# A silent sshd in zt3: it takes every connection, and writes how many it has had at most.
cat >"$tmp/silent.py" <<'END'
import selectors, socket, sys
wait = selectors.DefaultSelector()
door = socket.create_server(("10.199.0.3", 2223), backlog=100)
wait.register(door, selectors.EVENT_READ)
n = most = 0
while True:
    with open(sys.argv[1], "w") as f:
        print(most, file=f)
    for key, _ in wait.select():
        if key.fileobj is door:
            wait.register(door.accept()[0], selectors.EVENT_READ)
            n += 1
            most = max(most, n)
        else:
            try:
                if key.fileobj.recv(1000):
                    continue
            except OSError:
                pass
            wait.unregister(key.fileobj)
            key.fileobj.close()
            n -= 1
END
seen() {
    local most
    most=$(cat "$tmp/most" 2>/dev/null) # written anew each time: it may be empty
    [ -n "$most" ] && [ "$most" -ge "$1" ]
}
for launcher in ssh openssh; do
    name="at most 8 of 24 log in at once ($launcher)"
    aliases 24
    ip netns exec zt3 python3 "$tmp/silent.py" "$tmp/most" &
    silent=$!
    until_true seen 0
    go --ssh_port=2223
    until_true seen 8 || fail "$name" "8 do not come"
    sleep 2
    struck=$SECONDS
    hit INT "$pid"
    within 5 "$name" 130
    ! seen 9 || fail "$name" "there were $(cat "$tmp/most")"
    kill $silent
    wait $silent 2>/dev/null
    rm "$tmp/most"
done

# ---- keys that are not the known ones ----

# enter COMMAND: on a terminal, where each question is answered by yes.
enter() {
    python3 - "$1" <<'END'
import os, pty, sys
pid, fd = pty.fork()
if pid == 0:
    os.execvp("sh", ["sh", "-c", sys.argv[1]])
said = b""
while True:
    try:
        more = os.read(fd, 4096)
    except OSError:
        break
    if not more:
        break
    said += more
    if b"(yes/no" in said:
        print(said.decode())
        said = b""
        os.write(fd, b"yes\n")
print(said.decode())
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
END
}
# accepted NAME PATTERN OPTION...: the host of tmp/hosts does not start and that is said; when the command that is printed
# was entered, it does. A fingerprint that is told is the one that is asked about.
accepted() {
    local name="$1 ($launcher)" pattern=$2 command told
    shift 2
    go "$@"
    within 20 "$name" 1 "did not answer: .*$pattern"
    command=$(grep -a 'did not answer' "$tmp/err" | grep -o '`[^`]*`' | tail -n 1 | tr -d '`')
    told=$(grep -a 'did not answer' "$tmp/err" | grep -o 'SHA256:[A-Za-z0-9+/]*' | head -n 1)
    if ! enter "$command" >"$tmp/entered" 2>&1; then
        fail "$name" "\"$command\" fails: $(tail -n 3 "$tmp/entered")"
    elif ! grep -qF "${told:-SHA256:}" "$tmp/entered"; then
        fail "$name" "\"$command\" does not show $told"
    fi
    go "$@"
    within 20 "$name, once it is accepted" 0
}
other_key=$(cut -d' ' -f1,2 "$lab/zt1/host_key.pub")
for launcher in ssh openssh; do
    # An alias; and nothing is accepted unless we ask for it.
    echo 'zt2 slots=1' >"$tmp/hosts"
    config <<<'StrictHostKeyChecking yes'
    grep -v zt2 "$tmp/known" >"$lab/known_hosts"
    accepted "the key of an alias is not known" 'zt2: its host key is not known'
    sed "s|^zt2,.*|zt2 $other_key|" "$tmp/known" >"$lab/known_hosts"
    accepted "another key than an alias has" "zt2: its host key is another than in $lab/known_hosts:2: .*SHA256:"
    # No alias, another port, and two files of its own.
    echo 'bare slots=1' >"$tmp/hosts"
    config <<<"Host bare
  HostName 10.199.0.2
  UserKnownHostsFile $tmp/k1 $tmp/k2
Host *"
    rm -f "$tmp"/k[12]*
    accepted "the key at a port is not known" '\[10.199.0.2\]:2222: its host key is not known' --ssh_port=2222
    for f in "$tmp/k1" "$tmp/k2"; do printf '#\n[10.199.0.2]:2222 %s\n' "$other_key" >"$f"; done
    accepted "another key in two files" "ssh-keygen.*$tmp/k1.*ssh-keygen.*$tmp/k2" --ssh_port=2222

    # By a pattern, which other hosts keep; and by its name.
    echo 'zt2 slots=1' >"$tmp/hosts"
    config </dev/null
    sed "s|^zt2,.*|zt2,10.199.0.2 $other_key\nzt?,*.lab $other_key|" "$tmp/known" >"$lab/known_hosts"
    accepted "another key than a pattern has" "sed -i .*ssh-keygen -R"
    ssh-keygen -F zt9 -f "$lab/known_hosts" >"$tmp/found" || fail "another key than a pattern has ($launcher)" "zt9 has none any more"
done
# A jump host, which the client of the client looks at.
launcher=ssh
echo 'zt3 slots=1' >"$tmp/hosts"
for strict in ask yes; do
    config <<<"StrictHostKeyChecking $strict
Host zt3
  ProxyJump zt1
Host *"
    grep -v zt1 "$tmp/known" >"$lab/known_hosts"
    accepted "the key of a jump host is not known, $strict" 'zt1: its host key is not known.* zt1 true`'
    config <<<"StrictHostKeyChecking $strict
Host zt3
  ProxyJump root@[10.199.0.1]:22,zt2
Host 10.199.0.1
  HostKeyAlias zt1
Host *"
    first='zt1: its host key is not known.*ask -p 22 root@10.199.0.1 true`'
    second="zt2: its host key is not known.*ask -J 'root@\[10.199.0.1\]:22' zt2 true\`"
    [ $strict = yes ] || first='zt3 or a host of its ProxyJump root@\[10.199.0.1\]:22,zt2: .* zt3 true`' second=$first # it does not say which
    grep -v zt1 "$tmp/known" >"$lab/known_hosts"
    accepted "the key of the first of two jump hosts is not known, $strict" "$first"
    grep -v zt2 "$tmp/known" >"$lab/known_hosts"
    accepted "the key of the second jump host is not known, $strict" "$second"
done

# What is not there does not come by waiting.
cp "$tmp/known" "$lab/known_hosts"
for command in /nosuch/corkscrew corkscrew-of-nobody /etc/passwd; do
    config <<<"Host zt3
  ProxyCommand $command %h %p
Host *"
    go
    within 5 "a ProxyCommand that cannot be run: $command" 1 "zt3 did not answer: its ProxyCommand cannot be run: .*$command"
done

exit $failed
