#!/usr/bin/env bash
# CASES M01: the ledger of GPT-2 124M on 4 ranks holds what the closed formula says.
. "$REPO/test/cli/common.bash"
zerotrain plan --num_gpus=4 --json "$REPO/recipes/gpt2-124m.yaml" --set train_batch_size=auto >plan.json
python3 - <<'END'
import json
for s in json.load(open("plan.json"))["stages"]:
    ledger = s["ledger"]
    device = ledger["device_bytes"]
    print(s["stage"], s["parameters"], "%.0f" % ledger["formula_bytes"])
    state = sum(device[k] for k in ("fp32_master", "optimizer_m", "optimizer_v"))
    # padding and alignment are counted apart; what a slice has of them is all that may be missing
    apart = device["padding"] + device["alignment"]
    want = 12 * s["parameters"] / (1 if s["stage"] == 0 else 4)
    assert abs(state - want) <= apart, (state, want)
    parameters = 2 * s["parameters"] / (4 if s["stage"] == 3 else 1)
    assert abs(device["parameters"] - parameters) <= apart, device
    total = sum(device.values())
    assert total == ledger["peak_bytes"]["device"] + ledger["peak_bytes"]["shared"], total
    assert sum(ledger["host_bytes"].values()) == ledger["peak_bytes"]["host"], ledger["host_bytes"]
END
