#!/usr/bin/env bash
# metrics.jsonl: its fields, one object a step; unknown is null. Clipping, and Cosine's learning rates.
. "$REPO/test/cli/common.bash"
tiny
train tiny.yaml --log_dir=run --set train.steps=4 --set gradient_clipping=0.5 --set data.val_fraction=0.2 \
    --set train.eval_every=2 --set scheduler.type=Cosine --set scheduler.params.warmup_steps=1 \
    --set scheduler.params.min_lr=1e-4 >/dev/null
python3 - <<'END'
import json, math
rows = [json.loads(line) for line in open("run/metrics.jsonl")]
print(*rows[0])
print(*(set(rows[1]) - set(rows[0])))
for i, r in enumerate(rows):
    assert r["type"] == "step" and r["step"] == i + 1 and r["tokens"] == (i + 1) * 128
    assert r["grad_norm"] > 0.5 and abs(r["grad_norm_clipped"] - 0.5) < 1e-5, r
    assert ("val_loss" in r) == (i % 2 == 1) and r["loss_scale"] == 1 and r["skipped"] == 0
    lr = 1e-3 * (i + 1) / 2 if i < 1 else 1e-4 + 9e-4 / 2 * (1 + math.cos(math.pi * (i - 1) / 3))
    assert abs(r["lr"] - lr) < 1e-9, (i, r["lr"], lr)
assert rows[0]["step_ms"] is None and rows[1]["step_ms"] > 0 and rows[1]["tokens_per_s"] > 0
assert all(r["device_peak_bytes"] > 0 and r["host_peak_bytes"] > 0 for r in rows)
END
