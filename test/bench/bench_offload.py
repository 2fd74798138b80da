#!/usr/bin/env python3
"""What offloading the optimizer to the CPU costs: GPT-2 124M with its states on the device and in host
memory, in turn: step times and their ratio.

    bench_offload.py [--pairs N] [--steps N] [--batch N] [--seq N] [--stage 1,2,3] [--workers N]
                     [--precision fp32,bf16] ZEROTRAIN

Each pair is a run of either kind, and the next pair begins with the other one. Of every run the first
two steps are dropped. A cost of 4 % says that a step takes 1.04 times as long: best of all steps, and the
median over the pairs of the ratio of their medians. On the CPU device both memories are the same DIMMs and
the host's update runs on the cores that compute: what is measured is the copies and the waiting.
"""
import argparse
import json
import pathlib
import random
import statistics
import struct
import subprocess
import sys
import tempfile

WARM_UP, GOAL = 2, 0.10


def recipe(args, folder, stage, precision, offload):
    r = {
        "model": {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": args.seq,
                  "vocab_size": 50257},
        "data": {"train": str(folder / "tokens.bin"), "format": "raw_u16", "seq_len": args.seq},
        "train_micro_batch_size_per_gpu": args.batch, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "weight_decay": 0.1}},
        "zero_optimization": {"stage": stage}, "bf16": {"enabled": precision == "bf16"},
        "train": {"steps": WARM_UP + args.steps, "seed": 1}, "parallel": {"threads": 2 // args.workers},
    }
    if offload:
        r["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
    return r


def step_seconds(args, folder, *cell):
    path = folder / "r.yaml"
    path.write_text(json.dumps(recipe(args, folder, *cell)))
    with tempfile.TemporaryDirectory(dir=folder) as log:
        p = subprocess.run([args.zerotrain, "--device=cpu", f"--num_gpus={args.workers}", f"--log_dir={log}/run",
                            path], capture_output=True, text=True, cwd=folder)
        if p.returncode:
            sys.exit(f"bench_offload: status {p.returncode}: {(p.stdout + p.stderr).strip()[-400:]}")
        steps = [json.loads(x) for x in (pathlib.Path(log) / "run/metrics.jsonl").read_text().splitlines()]
    return [s["step_ms"] / 1e3 for s in steps[WARM_UP:]]


def measure(args, folder, stage, precision):
    times, ratios = {False: [], True: []}, []
    for i in range(args.pairs):
        pair = {}
        for offload in ((False, True) if i % 2 == 0 else (True, False)):
            pair[offload] = step_seconds(args, folder, stage, precision, offload)
            times[offload] += pair[offload]
        ratios.append(statistics.median(pair[True]) / statistics.median(pair[False]))
    best = [min(times[k]) for k in (False, True)]
    cost = min(best[1] / best[0], statistics.median(ratios)) - 1
    print(f"offload of the optimizer, stage {stage}, {precision}, {args.workers} x {args.batch} x {args.seq} tokens: "
          f"{best[0]:.3f} s on the device, {best[1]:.3f} s on the host: {100 * (best[1] / best[0] - 1):+.1f} % (best), "
          f"{100 * (statistics.median(ratios) - 1):+.1f} % (median of {args.pairs} pairs); "
          f"the goal is {100 * GOAL:.0f} %{'' if cost <= GOAL else ', MISSED'}", flush=True)


def main():
    def words(s):
        return s.split(",")
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--pairs", type=int, default=3)
    p.add_argument("--steps", type=int, default=4)
    p.add_argument("--batch", type=int, default=1)
    p.add_argument("--seq", type=int, default=1024)
    p.add_argument("--stage", type=words, default=["2"])
    p.add_argument("--workers", type=int, default=1)
    p.add_argument("--precision", type=words, default=["fp32", "bf16"])
    p.add_argument("zerotrain", type=lambda s: str(pathlib.Path(s).resolve()))
    args = p.parse_args()
    with tempfile.TemporaryDirectory(prefix="zt-bench-") as d:
        folder, rng = pathlib.Path(d), random.Random(1)
        tokens = [rng.randrange(50257) for _ in range(200_000)]
        (folder / "tokens.bin").write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))
        for stage in args.stage:
            for precision in args.precision:
                measure(args, folder, int(stage), precision)


if __name__ == "__main__":
    main()
