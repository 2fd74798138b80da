#!/usr/bin/env python3
"""The same GPT-2 trained by zerotrain and by PyTorch and DeepSpeed, in turn: tokens/s and ratios.

    bench_models.py [--rounds N] [--models a,b,c] [--precision fp32,bf16] [--workers 1,2] [--only NAME,...]
                    [--record] ZEROTRAIN

1: one worker of 2 threads against PyTorch eager, compiled, and both with tcmalloc (where installed).
2: two workers of 1 thread at ZeRO stages 0 to 3 against DDP, ZeroRedundancyOptimizer, FSDP and DeepSpeed's
stages 1 to 3 over gloo. Each round starts every program anew and drops its first steps; best and
median are over the steps of all rounds. Ratios are zerotrain's tokens/s over the other's: above 1,
zerotrain is faster. Programs that others run at the same time disturb both sides: judge the ratios.
--record appends the tables to test/bench/RESULTS.md. `scripts/bench-venv.sh` makes the environment.
"""
import argparse
import array
import datetime
import json
import os
import pathlib
import random
import statistics
import struct
import subprocess
import sys
import tempfile

REPO = pathlib.Path(__file__).resolve().parents[2]
PYTHON = REPO / "build/bench-venv/bin/python"
RESULTS = REPO / "test/bench/RESULTS.md"
WARM_UP = 2
MODELS = {  # layers, width, heads, vocabulary, batch, sequence, steps counted of a round
    "a": (6, 384, 6, 256, 16, 256, 6),
    "b": (12, 768, 12, 50257, 4, 64, 6),
    "c": (12, 768, 12, 50257, 1, 1024, 3),
}
OURS = {1: ["zerotrain"], 2: ["zero 0", "zero 1", "zero 2", "zero 3"]}
THEIRS = {
    1: ["eager", "compile", "eager+tcmalloc", "compile+tcmalloc"],
    2: ["ddp", "zero", "fsdp", "ds1", "ds2", "ds3"],
}
TCMALLOC = [p for d in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")
            for p in pathlib.Path(d).glob("libtcmalloc_minimal.so.?")]


def say(text):
    print(text, flush=True)


def write_tokens(path, vocab, n):
    """Random tokens in llm.c's format."""
    rng = random.Random(1)
    header = struct.pack("<256i", 20240520, 1, n, *[0] * 253)
    path.write_bytes(header + array.array("H", (rng.randrange(vocab) for _ in range(n))).tobytes())


def recipe(model, precision, threads, stage, data):
    layers, width, heads, vocab, batch, seq, steps = model
    r = {
        "model": {"model_type": "gpt2", "n_layer": layers, "n_head": heads, "n_embd": width,
                  "n_positions": seq, "vocab_size": vocab},
        "data": {"train": str(data), "seq_len": seq},
        "train_micro_batch_size_per_gpu": batch,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8,
                                                  "weight_decay": 0.1}},
        "zero_optimization": {"stage": stage},
        "train": {"steps": steps + WARM_UP, "seed": 1},
        "parallel": {"threads": threads},
        "steps_per_print": 1000,
    }
    if precision == "bf16":
        r["bf16"] = {"enabled": True}
    return r


class Failed(Exception):
    pass


def run(argv, cwd, env=None, timeout=900):
    try:
        p = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired as e:
        raise Failed(f"no end within {timeout} s") from e
    if p.returncode != 0:
        lines = (p.stdout + p.stderr).strip().splitlines() or ["no output"]
        what = next((x for x in reversed(lines) if "Error" in x), lines[-1])
        raise Failed(f"status {p.returncode}: {what[:150]}")
    return p.stdout


def run_ours(zerotrain, name, model, precision, workers, folder):
    """Seconds of each counted step, and the largest worker's memory."""
    data = folder / f"tokens-{model[3]}.bin"
    if not data.exists():
        write_tokens(data, model[3], 200_000)
    stage = int(name.split()[-1]) if workers > 1 else 0
    threads = 2 if workers == 1 else 1
    (folder / "r.yaml").write_text(json.dumps(recipe(model, precision, threads, stage, data)))
    with tempfile.TemporaryDirectory(dir=folder) as log:
        run([zerotrain, "--device=cpu", f"--num_gpus={workers}", f"--log_dir={log}/run", "r.yaml"], folder)
        lines = (pathlib.Path(log) / "run/metrics.jsonl").read_text().splitlines()
    steps = [json.loads(x) for x in lines if '"step_ms"' in x]
    return [s["step_ms"] / 1e3 for s in steps[WARM_UP:]], max(s["device_peak_bytes"] for s in steps)


def run_theirs(name, model, precision, workers, folder):
    kind, _, malloc = name.partition("+")
    threads = 2 if workers == 1 else 1
    env = dict(os.environ, OMP_NUM_THREADS=str(threads), PYTHONWARNINGS="ignore", CUDA_VISIBLE_DEVICES="")
    env["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
    if malloc:
        env["LD_PRELOAD"] = str(TCMALLOC[0])
        env["TCMALLOC_RELEASE_RATE"] = "0"
    *shape, steps = model
    out = run([PYTHON, REPO / "test/bench/torch_gpt2.py", kind, *map(str, shape), precision, str(threads),
               str(steps + WARM_UP)], folder, env)
    result = json.loads(next(x for x in out.splitlines() if x.startswith('{"step_s"')))
    return result["step_s"][WARM_UP:], result["rss"]


class Row:
    def __init__(self, name, ours):
        self.name, self.ours = name, ours
        self.times, self.bytes, self.failed = [], 0, None

    def speeds(self, tokens):
        return tokens / min(self.times), tokens / statistics.median(self.times)


def measure(args, letter, precision, workers, folder):
    """All rows of one cell, `rounds` times in turn."""
    model = MODELS[letter]
    rows = [Row(n, True) for n in OURS[workers]]
    rows += [Row(n, False) for n in THEIRS[workers] if "+" not in n or TCMALLOC]
    rows = [r for r in rows if not args.only or r.name in args.only]
    if not PYTHON.exists():
        rows = [r for r in rows if r.ours]
    for _ in range(args.rounds):
        for row in rows:
            if row.failed:
                continue
            try:
                if row.ours:
                    times, used = run_ours(args.zerotrain, row.name, model, precision, workers, folder)
                else:
                    times, used = run_theirs(row.name, model, precision, workers, folder)
                row.times += times
                row.bytes = max(row.bytes, used)
            except (Failed, StopIteration, OSError) as e:
                row.failed = str(e) or type(e).__name__
    return rows


def base_of(row, rows):
    """Which of our rows one of theirs is set against: the same stage where it has one."""
    ours = [r for r in rows if r.ours and r.times]
    same = {"ds1": "zero 1", "ds2": "zero 2", "ds3": "zero 3", "fsdp": "zero 3", "zero": "zero 1"}
    return next((r for r in ours if r.name == same.get(row.name)), ours[0] if ours else None)


def table(args, letter, precision, workers, rows):
    layers, width, _, vocab, batch, seq, _ = MODELS[letter]
    tokens = batch * seq * workers
    lines = [f"**({letter})** {layers} layers x {width}, vocabulary {vocab}, B{batch} T{seq}, {precision}, "
             f"{workers} worker{'s' if workers > 1 else ''} x {2 // workers} "
             f"thread{'s' if workers == 1 else ''}, {args.rounds} rounds", "",
             "| | best tok/s | median tok/s | zerotrain/it best | median | GB a worker |", "|---|---|---|---|---|---|"]
    for row in rows:
        if not row.times:
            lines.append(f"| {row.name} | {row.failed} | | | | |")
            continue
        best, median = row.speeds(tokens)
        ratios = "| |"
        base = base_of(row, rows)
        if base and not row.ours:
            ours = base.speeds(tokens)
            ratios = f"| {ours[0] / best:.2f} | {ours[1] / median:.2f}"
        elif base and row is not base:
            ratios = f"| {base.speeds(tokens)[0] / best:.2f} | {base.speeds(tokens)[1] / median:.2f}"
        lines.append(f"| {row.name} | {best:.0f} | {median:.0f} {ratios} | {row.bytes / 1e9:.2f} |"
                     .replace("| | |", "| | |"))
    return "\n".join(lines) + "\n"


def cpu_name():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return os.uname().machine


def heading(args):
    versions = ""
    if PYTHON.exists():
        code = ("from importlib.metadata import version as v, packages_distributions as p\n"
                "print(', '.join(f'{n} {v(n)}' for n in ('torch', 'deepspeed') if n in p()))")
        versions = "; " + run([PYTHON, "-c", code], REPO).strip()
    commit = run(["git", "describe", "--always", "--dirty"], REPO).strip()
    loads = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    return (f"## {datetime.date.today()}, {cpu_name()}, {os.cpu_count()} cores, {commit}{versions}\n\n"
            f"`test/bench/bench_models.py {' '.join(sys.argv[1:])}`; load average at the start {loads}\n")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--models", type=lambda s: s.split(","), default=list(MODELS))
    p.add_argument("--precision", type=lambda s: s.split(","), default=["fp32", "bf16"])
    p.add_argument("--workers", type=lambda s: [int(x) for x in s.split(",")], default=[1, 2])
    p.add_argument("--only", type=lambda s: s.split(","), default=None)
    p.add_argument("--record", action="store_true")
    p.add_argument("zerotrain", type=lambda s: str(pathlib.Path(s).resolve()))
    args = p.parse_args()
    if not PYTHON.exists():
        say("no PyTorch: run scripts/bench-venv.sh to compare with it")
    texts = [heading(args)]
    say(texts[0])
    with tempfile.TemporaryDirectory(prefix="zt-bench-") as folder:
        for letter in args.models:
            for precision in args.precision:
                for workers in args.workers:
                    rows = measure(args, letter, precision, workers, pathlib.Path(folder))
                    texts.append(table(args, letter, precision, workers, rows))
                    say(texts[-1])
    if args.record:
        with RESULTS.open("a") as f:
            f.write("\n" + "\n".join(texts))


main()
