#!/usr/bin/env bash
# Offload to NVMe: what is needed, what the ledger says, where the bytes go, and that nothing is left.
. "$REPO/test/cli/common.bash"
tiny
nvme() { train tiny.yaml --set zero_optimization.stage=2 --set zero_optimization.offload_optimizer.device=nvme "$@"; }
path() { echo "--set=zero_optimization.offload_optimizer.nvme_path=$1"; }
try nvme
try nvme "$(path nowhere)"
try nvme "$(path text.txt)"
mkdir drive
try nvme --log_dir=run "$(path drive)" --set aio.backend=threads --set aio.block_size=8192 |
    steps | sed 's/each way, .*/each way ...'/ | LC_ALL=C sort
ls -A drive
python3 - <<'END'
import json
for m in json.load(open("run/summary.json"))["memory"]:
    assert m["nvme_predicted_bytes"] == m["nvme_touched_bytes"] > 0, m
    print("rank", m["rank"], m["nvme_predicted_bytes"])
END
echo "# the ledger of stage 3"
cat >>tiny.yaml <<'END'
zero_optimization:
  stage: 3
  offload_optimizer: {device: nvme, nvme_path: drive, buffer_count: 4}
  offload_param: {device: nvme, nvme_path: drive}
bf16: {enabled: true}
END
zerotrain plan --num_gpus 2 --device=cpu tiny.yaml | grep -E 'optimizer on|^(host|nvme|  staging|= device)'
zerotrain plan --num_gpus 2 --device=cpu tiny.yaml --schedule | grep -E '(READ|WRITE) ' | head -n 6
