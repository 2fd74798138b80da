#!/usr/bin/env bash
# A loss to reach: of validation where there is one, else of a training step, which is seen a step later.
. "$REPO/test/cli/common.bash"
tiny
try train tiny.yaml --log_dir=a --set train.steps=100 --set train.stop_at_loss=5.2 --set train.sample_every=100 \
    --set train.sample_tokens=1 | steps | grep -v '^  |'
try train tiny.yaml --log_dir=b --set train.steps=100 --set train.stop_at_loss=5.2 --set data.val_fraction=0.2 \
    --set train.eval_every=3 | steps
try train tiny.yaml --log_dir=c --set train.stop_at_loss=0.1 | steps
try train tiny.yaml --set train.stop_at_loss=0
try train tiny.yaml --log_dir=d --set optimizer.params.lr=0.1 --set data.val_fraction=0.2 --set train.eval_every=1 | steps
# Not given, no loss is low enough, not even that of a text of one letter.
head -c 4000 /dev/zero | tr '\0' a >a.txt
try train tiny.yaml --log_dir=e --set data.train=a.txt --set optimizer.params.lr=0.3 --set train.steps=30 \
    --set data.val_fraction=0.2 --set train.eval_every=10 | grep -E '^([0-9]+ steps|stopped)'
python3 - <<'END'
import json
for name in "abcd":
    s = json.load(open(name + "/summary.json"))
    print(name, s["exit_code"], s["stopped"], s["steps"], s["best_val_step"])
    if s["best_val_step"]:
        vals = [json.loads(x).get("val_loss", 99) for x in open(name + "/metrics.jsonl")]
        assert s["best_val_loss"] == min(vals) == vals[s["best_val_step"] - 1], (s, vals)
END
