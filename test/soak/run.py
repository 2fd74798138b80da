#!/usr/bin/env python3
"""run.py [--steps N] ZEROTRAIN: N tiny steps (10,000) of two workers at ZeRO 3, bf16, with evaluation and
samples. After the first tenth no process may grow: resident memory by more than 1 MB, open files,
threads or mappings at all. Prints one test line each and what it saw."""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

REPO = pathlib.Path(__file__).resolve().parents[2]
GROWTH = {"kB resident": 1024, "open files": 0, "threads": 0, "mappings": 8}


def recipe(steps):
    return {
        "model": {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 16,
                  "vocab_size": 256},
        "data": {"train": str(REPO / "LICENSE"), "val_fraction": 0.1},
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3},
        "parallel": {"threads": 1},
        "train": {"steps": steps, "seed": 1, "eval_every": steps // 50, "eval_batches": 2,
                  "sample_every": steps // 20, "sample_tokens": 8, "sample_prompt": "a"},
        "steps_per_print": max(steps // 100, 1),
    }


def family(pid):
    """The process and all its descendants."""
    pids = [pid]
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            for child in task.read_text().split():
                pids += family(int(child))
        except OSError:
            pass
    return pids


def look(pid):
    proc = pathlib.Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines() if ":" in line)
    return {"kB resident": int(status["VmRSS"].split()[0]), "open files": len(list((proc / "fd").iterdir())),
            "threads": int(status["Threads"]), "mappings": (proc / "maps").read_text().count("\n")}


def watch(p, metrics, steps):
    """Seen of each process: its most after a tenth of the steps, when all is warm, and its most ever after."""
    early, late = {}, {}
    for line in p.stdout:
        done = metrics.read_text().count("\n") if metrics.exists() else 0
        if done < steps // 20:
            continue
        seen = early if done < steps // 10 else late
        for pid in family(p.pid):
            try:
                now = look(pid)
            except (OSError, KeyError, ValueError):
                continue
            most = seen.setdefault(pid, now)
            for what, value in now.items():
                most[what] = max(most[what], value)
    return early, late


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--steps", type=int, default=10000)
    ap.add_argument("zerotrain", type=lambda s: str(pathlib.Path(s).resolve()))
    args = ap.parse_args()
    with tempfile.TemporaryDirectory() as d:
        folder = pathlib.Path(d)
        (folder / "r.yaml").write_text(json.dumps(recipe(args.steps)))
        p = subprocess.Popen([args.zerotrain, "--device=cpu", "--num_gpus=2", f"--log_dir={d}/run", "r.yaml"],
                             cwd=d, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        early, late = watch(p, folder / "run/metrics.jsonl", args.steps)
        failed = p.wait() != 0 or len(early.keys() & late.keys()) < 4
    print(f"{'not ok' if failed else 'ok'} soak of {args.steps} steps: exit status {p.returncode}, "
          f"{len(early.keys() & late.keys())} processes watched")
    for what, allowed in GROWTH.items():
        grown = {pid: late[pid][what] - early[pid][what] for pid in early.keys() & late.keys()}
        bad = any(g > allowed for g in grown.values())
        failed = failed or bad
        print(f"{'not ok' if bad else 'ok'} soak: {what} grow by at most {allowed}: {sorted(grown.values())}")
    sys.exit(failed)


main()
