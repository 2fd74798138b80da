#!/usr/bin/env bash
# plan --largest: the table and the document, and what it refuses. Sizes are masked, and compared with what
# they must be.
. "$REPO/test/cli/common.bash"
try zerotrain plan --largest --num_gpus=4 --device_memory=16GB --host_memory=256GB |
    sed -E 's/ +[0-9.]+B +[0-9]+ x [0-9]+ +[0-9.]+ +[0-9.]+/ MODEL/g'
zerotrain plan --largest --num_gpus=4 --device_memory=16GB --host_memory=256GB --json | python3 -c '
import json, sys
rows = json.load(sys.stdin)["rows"]
for f in range(2):
    ms = [r["largest"][f] for r in rows]
    for m in ms:
        assert m["device_bytes"] <= 16e9 and m["host_bytes"] <= 64e9, m
        assert max(m["device_bytes"] / 16e9, m["host_bytes"] / 64e9) > 0.9, m  # a layer more would not fit
        assert m["n_embd"] % (64, 128)[f] == 0 and m["n_embd"] // m["n_head"] == (64, 128)[f], m
    for a, b in zip(ms[:4], ms[1:4]):
        assert a["parameters"] < b["parameters"], (a, b)  # a higher stage
    # 16 bytes a parameter at stage 0; 2 bytes and all that is not offloaded are the least that is held
    assert 0.8 * 1e9 < ms[0]["parameters"] <= 1e9, ms[0]
    print(rows[0]["largest"][f]["family"], "is as it must be")'
# more than any model of so many layers takes: said, and soon
try zerotrain plan --largest --device_memory=10TB |
    sed -nE 's/ +>[0-9.]+T +1024 x [0-9]+ +[0-9.]+ +[0-9.]+/ BOUND/g
             s/ +[0-9.]+[BT] +[0-9]+ x [0-9]+ +[0-9.]+ +[0-9.]+/ MODEL/g; /^([0-9] |>)/p'
try zerotrain plan --largest --device_memory=1MB | sed -n '/^stage/,/^1/p; /^zerotrain/,$p'
try zerotrain plan --largest --device_memory=1MB --host_memory=1MB --json | grep -E '^(zerotrain|.exit)'
echo "model: {model_type: gpt2}" >a.yaml
try zerotrain plan --largest
try zerotrain plan --largest --device_memory=1GB a.yaml
try zerotrain plan --largest --device_memory=1GB --schedule
