#!/usr/bin/env bash
# plan --largest: the table and the document, and what it refuses.
. "$REPO/test/cli/common.bash"
try zerotrain plan --largest --num_gpus=4 --device_memory=16GB --host_memory=256GB
zerotrain plan --largest --num_gpus=4 --device_memory=16GB --host_memory=256GB --json | python3 -c '
import json, sys
for r in json.load(sys.stdin)["rows"]:
    print(r["stage"], r["optimizer_on"], r["parameters_on"], *(
        (m["family"], m["n_layer"], m["n_embd"], m["parameters"], m["device_bytes"]) for m in r["largest"]))'
try zerotrain plan --largest --device_memory=1MB | sed -n '/^stage/,/^1/p'
echo "model: {model_type: gpt2}" >a.yaml
try zerotrain plan --largest
try zerotrain plan --largest --device_memory=1GB a.yaml
try zerotrain plan --largest --device_memory=1GB --schedule
