#!/usr/bin/env bash
# Training on the hosts of a hostfile. `ssh` is a stand-in that starts an agent here as sshd would. node-x cannot be
# reached. By default nobody but libssh2 would be asked: node-j is behind a jump host.
. "$REPO/test/cli/common.bash"
tiny
unset DS_ENV_FILE
mkdir fake
touch fake/node-a fake/node-b fake/node-j
echo 'proxyjump bastion' >fake/node-j.config
real=$PATH
export HOME=$PWD FAKE_HOSTS=$PWD/fake FAKE_LOG=$PWD/arguments ZT_TCP_INTERFACE=lo PATH=$REPO/test/fake-ssh:$PATH
cpu() { zerotrain --device=cpu "$@"; }
client() { cpu --launcher=openssh "$@"; }
printf 'me@node-a slots=1\nnode-b slots=4\n' >two

try client --hostfile=two --exclude=node-b:1,3 --ssh_port=2200 --log_dir=a tiny.yaml | grep -aE '^([0-9] CPU|model|step 3)|exit'
sort arguments | sed "s|.* -p|... -p|; s|'.*/zerotrain'|'/.../zerotrain'|"
echo 'node-j slots=1' >jump
try cpu --hostfile=jump --log_dir=b tiny.yaml | grep -aE '^([0-9] CPU|step 3)|zerotrain: '
try cpu --hostfile=jump --launcher=ssh --log_dir=b2 tiny.yaml | grep -aE '^([0-9] CPU|step 3)|zerotrain: '
# Lines carry the host; the environment travels, but not what names this machine.
ZT_CPU_ISA=here try client --hostfile=two --include=node-a --log_dir=c tiny.yaml | grep -aE '^(\[|zerotrain: +\|)|first' |
    sed 's/unknown;.*/unknown; .../'
# Who has started us did not want to wait for his children, which is none of our business.
try env --ignore-signal=CHLD "$ZT" --device=cpu --launcher=openssh --hostfile=two --include=node-b:0 --log_dir=f tiny.yaml |
    grep -aE '^step 3|zerotrain: '

# Hosts that do not start.
printf 'node-a slots=1\nnode-x slots=1\n' >away
try client --hostfile=away --log_dir=d tiny.yaml | grep -a '^zerotrain\|exit' | sort
try client --hostfile=two --remote_path=/nosuch/zerotrain --num_nodes=1 --log_dir=e tiny.yaml |
    grep -a '^zerotrain: the\|exit' | sed 's/there: .*; --/there: ...; --/'

# Refused before anything starts.
try cpu --hostfile=two --remote_path=bin/zerotrain tiny.yaml
try cpu --hostfile=two --remote_path="/it's" tiny.yaml
try cpu --hostfile=two --launcher=pdsh tiny.yaml
try cpu --hostfile=two --ssh_port=0 tiny.yaml
printf 'node-%d slots=1\n' {1..65} | try cpu --hostfile=- tiny.yaml
try cpu --ssh_port=22 tiny.yaml
try cpu --remote_path=/zerotrain tiny.yaml
mkdir bin
PATH=$PWD/bin try cpu --hostfile=two tiny.yaml
PATH=$real
[ ! -e runs ] && echo "nothing was written"
