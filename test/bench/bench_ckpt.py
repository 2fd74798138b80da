#!/usr/bin/env python3
"""How fast checkpoints are written and read: bench_ckpt.py [--dir DIR] ZEROTRAIN.

GPT-2 124M with AdamW, 1.5 GB, by one and by two CPU workers, beside dd of the same files in the same folder
and the same run: written with an fsync at the end, read with the page cache dropped before. A run saves twice:
while it trains, with all cores, until all is written (a vote of the next step makes it visible), and at its end,
when nothing else is to do, until it is visible. TRIES times each, in turn; the
medians and what share of dd's rate they are. Nothing passes or fails.
"""
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

REPO = pathlib.Path(__file__).resolve().parents[2]
TRIES = int(os.environ.get("TRIES", "3"))
STEPS = 20  # between two saves: they take longer than one


def drop(path):
    """Forget the pages of a folder's files, which are on the disk."""
    for f in path.iterdir():
        fd = os.open(f, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def dd(files, copy):
    """Seconds: written to `copy`, or read."""
    begun = time.monotonic()
    for f in files:
        subprocess.run(["dd", f"if={f}", f"of={copy / f.name if copy else '/dev/null'}", "bs=4M",
                        *(["conv=fsync"] if copy else [])], check=True, stderr=subprocess.DEVNULL)
    return time.monotonic() - begun


def step_ms(metrics, first, last):
    """Median of the steps from `first` to `last` whose time is known."""
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    return statistics.median(r["step_ms"] for r in rows if first <= r["step"] <= last and r["step_ms"])


class Bench:
    def __init__(self, zt, top, ranks):
        self.zt, self.top, self.ranks = zt, top, ranks
        self.ck = top / "ck"

    def run(self, steps, *options, **checkpoint):
        """What it prints; the folder top/run stays."""
        r = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
             "model": {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024,
                       "vocab_size": 50257},
             "data": {"train": str(REPO / "LICENSE"), "seq_len": 16}, "zero_optimization": {"stage": 2},
             "train": {"steps": steps}, "checkpoint": {"dir": str(self.ck), **checkpoint}}
        (self.top / "r.yaml").write_text(json.dumps(r))
        shutil.rmtree(self.top / "run", ignore_errors=True)
        p = subprocess.run([self.zt, "--device=cpu", f"--num_gpus={self.ranks}", f"--log_dir={self.top}/run",
                            *options, str(self.top / "r.yaml")], capture_output=True, text=True)
        assert p.returncode == 0, p.stdout + p.stderr
        return p.stdout

    def once(self):
        """Of one round, by name: seconds, but size in bytes and steps in ms."""
        shutil.rmtree(self.ck, ignore_errors=True)
        text = self.run(2 * STEPS, every_steps=STEPS, keep=1)
        saves = re.findall(r"^saved \S*step-(\d+): .* in ([\d.]+) s, complete after ([\d.]+) s; training waited (\d+) ms",
                           text, re.M)
        assert [int(s[0]) for s in saves] == [STEPS, 2 * STEPS], text
        metrics = self.top / "run/metrics.jsonl"
        got = {"beside": float(saves[0][1]), "stall": float(saves[0][3]) / 1e3, "end": float(saves[1][2]),
               "alone_ms": step_ms(metrics, 2, STEPS), "beside_ms": step_ms(metrics, STEPS + 2, STEPS + 3)}
        step = self.ck / f"step-{2 * STEPS:06}"
        files = sorted(step.glob("rank-*"))
        got["size"] = sum(f.stat().st_size for f in files)
        drop(step)
        copy = self.top / "copy"
        copy.mkdir()
        for f in files:  # into the cache: the memory that we write from is warm too
            f.read_bytes()
        got["write"] = dd(files, copy)
        shutil.rmtree(copy)
        drop(step)
        got["read"] = dd(files, None)
        drop(step)
        text = self.run(2 * STEPS, "--resume=auto")
        got["load"] = float(re.search(r"read in ([\d.]+) s", text).group(1))
        return got


def main():
    args = sys.argv[1:]
    where = args.pop(args.index("--dir") + 1) if "--dir" in args else None
    zt = str(pathlib.Path([a for a in args if not a.startswith("--")][0]).resolve())
    for ranks in (1, 2):
        with tempfile.TemporaryDirectory(dir=where) as top:
            b = Bench(zt, pathlib.Path(top), ranks)
            rounds = [b.once() for _ in range(TRIES)]
        m = {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}
        print(f"checkpoint of GPT-2 124M, {m['size'] / 1e9:.2f} GB, {ranks} worker{'s' * (ranks > 1)}: "
              f"saved at the end in {m['end']:.2f} s, dd {m['write']:.2f} s: {m['write'] / m['end']:.2f} of its rate; "
              f"while it trains in {m['beside']:.2f} s: {m['write'] / m['beside']:.2f}, "
              f"steps then {m['beside_ms']:.0f} ms instead of {m['alone_ms']:.0f}, training waited {m['stall']:.2f} s; "
              f"loaded in {m['load']:.2f} s, dd {m['read']:.2f} s: {m['read'] / m['load']:.2f}", flush=True)


main()
