#!/usr/bin/env python3
"""What offloading the optimizer to the CPU costs: GPT-2 124M with its states on the device and in host
memory, in turn: step times and their ratio.

    bench_offload.py [--pairs N] [--steps N] [--batch N] [--seq N] [--stage 1,2,3] [--workers N]
                     [--precision fp32,bf16] ZEROTRAIN

Both runs are started, and then only one of them is let go on at a time, for N steps and one that is not
counted, since it was interrupted; the next pair begins with the other run. A cost of 4 % says that a step
takes 1.04 times as long: of the best steps, the median over the pairs of the ratio of their medians, and of
the processor time of all processes, which other load disturbs less, but in which waiting does not show. On
the CPU device both memories are the same, and the host's update runs on the cores that compute: what is
measured is the copies, and waiting.
"""
import argparse
import json
import os
import pathlib
import random
import signal
import statistics
import struct
import subprocess
import sys
import tempfile

WARM_UP, GOAL = 2, 0.10


def children(pid):
    """The process and all that it started."""
    found = [pid]
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        try:
            started = (task / "children").read_text().split()
        except OSError:  # the thread has ended
            continue
        for child in started:
            found += children(int(child))
    return found


def cpu_seconds(pids):
    """User and system time of processes so far."""
    ticks = 0
    for pid in pids:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


class Side:
    """A training that goes on only while it is told to."""

    def __init__(self, args, folder, stage, precision, offload):
        zero = {"stage": stage}
        if offload:
            zero["offload_optimizer"] = {"device": "cpu"}
        recipe = {
            "model": {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": args.seq,
                      "vocab_size": 50257},
            "data": {"train": str(folder / "tokens.bin"), "format": "raw_u16", "seq_len": args.seq},
            "train_micro_batch_size_per_gpu": args.batch, "gradient_accumulation_steps": 1,
            "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "weight_decay": 0.1}},
            "zero_optimization": zero, "bf16": {"enabled": precision == "bf16"},
            "train": {"steps": 1_000_000, "seed": 1}, "parallel": {"threads": max(1, 2 // args.workers)},
            "steps_per_print": 1,
        }
        self.log = folder / f"{stage}-{precision}-{offload}"
        path = folder / "r.yaml"
        path.write_text(json.dumps(recipe))
        self.p = subprocess.Popen([args.zerotrain, "--device=cpu", f"--num_gpus={args.workers}",
                                   f"--log_dir={self.log}", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True, cwd=folder)
        self.done, self.turns, self.cpu = 0, [], []
        self.wait_for(WARM_UP)
        self.pids = children(self.p.pid)
        self.signal(signal.SIGSTOP)

    def wait_for(self, steps):
        goal = self.done + steps
        for line in self.p.stdout:
            self.done += line.startswith("step ")
            if self.done == goal:
                return
        sys.exit(f"bench_offload: {self.log.name} ended: {self.p.stderr.read().strip()[-400:]}")

    def signal(self, number):
        for pid in self.pids:
            os.kill(pid, number)

    def take(self, steps):
        """A turn: the step that was interrupted, and `steps` that count."""
        before = cpu_seconds(self.pids)
        self.signal(signal.SIGCONT)
        self.wait_for(1 + steps)
        self.signal(signal.SIGSTOP)
        self.cpu.append((cpu_seconds(self.pids) - before) / (1 + steps))
        self.turns.append(range(self.done - steps + 1, self.done + 1))

    def end(self):
        """Seconds of each step, by turns. Read here, as a step is recorded only when the next one is."""
        self.p.send_signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)
        self.p.communicate()
        records = map(json.loads, (self.log / "metrics.jsonl").read_text().splitlines())
        step_s = {r["step"]: r["step_ms"] / 1e3 for r in records if r["step"] > 1}
        return [[step_s[i] for i in turn] for turn in self.turns]


def measure(args, folder, stage, precision):
    sides = [Side(args, folder, stage, precision, offload) for offload in (False, True)]
    for i in range(args.pairs):
        for k in ((0, 1) if i % 2 == 0 else (1, 0)):
            sides[k].take(args.steps)
    turns = [side.end() for side in sides]
    best = [min(map(min, t)) for t in turns]
    ratios = [statistics.median(host) / statistics.median(device) for device, host in zip(*turns)]
    cost = best[1] / best[0] - 1, statistics.median(ratios) - 1
    cpu = [statistics.median(side.cpu) for side in sides]
    print(f"optimizer on the host, stage {stage}, {precision}, {args.workers} x {args.batch} x {args.seq} tokens: "
          f"{best[0]:.3f} s a step on the device, {best[1]:.3f} s on the host: {100 * cost[0]:+.1f} % (best), "
          f"{100 * cost[1]:+.1f} % (median of {args.pairs} pairs); {cpu[0]:.3f} and {cpu[1]:.3f} s of processors, "
          f"{100 * (cpu[1] / cpu[0] - 1):+.1f} %; the goal is {100 * GOAL:.0f} %"
          f"{'' if min(cost) <= GOAL else ', MISSED'}", flush=True)


def main():
    def words(s):
        return s.split(",")
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--pairs", type=int, default=4)
    p.add_argument("--steps", type=int, default=2)
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
