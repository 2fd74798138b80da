#!/usr/bin/env python3
"""How fast checkpoints are written and read: bench_ckpt.py [--dir DIR] ZEROTRAIN.

GPT-2 124M with AdamW, 1.5 GB, by one and by two CPU workers, beside dd of the same files in the same folder
and the same run: written with an fsync at the end, read with the page cache dropped before. Three times each,
in turn; the medians and what share of dd's rate they are. Nothing passes or fails.
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


class Bench:
    def __init__(self, zt, top, ranks):
        self.zt, self.top, self.ranks = zt, top, ranks
        self.ck = top / "ck"

    def run(self, steps, *options, **checkpoint):
        r = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
             "model": {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024,
                       "vocab_size": 50257},
             "data": {"train": str(REPO / "LICENSE"), "seq_len": 16}, "zero_optimization": {"stage": 2},
             "train": {"steps": steps}, "checkpoint": {"dir": str(self.ck), **checkpoint}}
        (self.top / "r.yaml").write_text(json.dumps(r))
        p = subprocess.run([self.zt, "--device=cpu", f"--num_gpus={self.ranks}", f"--log_dir={self.top}/run",
                            *options, str(self.top / "r.yaml")], capture_output=True, text=True)
        assert p.returncode == 0, p.stdout + p.stderr
        shutil.rmtree(self.top / "run")
        return p.stdout

    def once(self):
        """Seconds of save, stall, load, and of dd writing and reading; bytes."""
        shutil.rmtree(self.ck, ignore_errors=True)
        text = self.run(1)
        save, stall = re.search(r"^saved .* in ([\d.]+) s; training waited (\d+) ms", text, re.M).groups()
        step = self.ck / "step-000001"
        files = sorted(step.glob("rank-*"))
        drop(step)
        copy = self.top / "copy"
        copy.mkdir()
        for f in files:  # into the cache: the memory that we write from is warm too
            f.read_bytes()
        write = dd(files, copy)
        shutil.rmtree(copy)
        drop(step)
        read = dd(files, None)
        drop(step)
        load = re.search(r"read in ([\d.]+) s", self.run(1, "--resume=auto")).group(1)
        return float(save), float(stall) / 1e3, float(load), write, read, sum(f.stat().st_size for f in files)


def main():
    args = sys.argv[1:]
    where = args.pop(args.index("--dir") + 1) if "--dir" in args else None
    zt = str(pathlib.Path([a for a in args if not a.startswith("--")][0]).resolve())
    for ranks in (1, 2):
        with tempfile.TemporaryDirectory(dir=where) as top:
            b = Bench(zt, pathlib.Path(top), ranks)
            all_ = [b.once() for _ in range(TRIES)]
        save, stall, load, write, read, size = (statistics.median(x) for x in zip(*all_))
        print(f"checkpoint of GPT-2 124M, {size / 1e9:.2f} GB, {ranks} worker{'s' * (ranks > 1)}: "
              f"saved in {save:.2f} s, dd {write:.2f} s: {write / save:.2f} of its rate; training waited {stall:.2f} s; "
              f"loaded in {load:.2f} s, dd {read:.2f} s: {read / load:.2f}", flush=True)


main()
