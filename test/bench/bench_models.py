#!/usr/bin/env python3
"""The same models trained by zerotrain and by PyTorch and DeepSpeed, in turn: tokens/s and ratios.

    bench_models.py [--cells a,b,c,d] [--precision fp32,bf16] [--workers 1,2] [--rounds N] [--seconds S]
                    [--minutes M] [--only NAME,...] [--all] [--record] ZEROTRAIN

1: one worker of 2 threads against PyTorch eager, and eager and compiled with tcmalloc (its best
settings here); --all: compiled without it too. 2: two workers of 1 thread at ZeRO stages 0 to 3 against
DDP, ZeroRedundancyOptimizer, FSDP and DeepSpeed's stages 0 to 3 over gloo. Each of theirs is set against
our run of the same stage: it is started and warmed up, then in every round ours takes steps for S
seconds, then theirs does, while the other waits. Ratios are zerotrain's tokens/s over the other's:
above 1, zerotrain is faster; best and median are over the steps of all rounds. `of sgemm` is how much
of the rate of dnnl_sgemm, measured at the start of the same run, the model's products took. Step 1
begins the time of the best step before it ends.

Cells are measured in order of --cells, 1 worker first; with --minutes no cell or pair is begun after
that time. --record appends to test/bench/RESULTS.md, row by row. `scripts/bench-venv.sh` makes the
environment; what PyTorch compiles is kept in build/bench-inductor for the next run.
"""
import argparse
import array
import datetime
import json
import os
import pathlib
import random
import select
import shlex
import statistics
import struct
import subprocess
import sys
import tempfile
import time

REPO = pathlib.Path(__file__).resolve().parents[2]
PYTHON = REPO / "build/bench-venv/bin/python"
RESULTS = REPO / "test/bench/RESULTS.md"
WARM_UP, START_S, STEP_S = 2, 600, 300


def gpt2(layers, width, heads, vocab):
    return {"model_type": "gpt2", "n_layer": layers, "n_head": heads, "n_embd": width, "vocab_size": vocab}


LLAMA = {"model_type": "llama", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
         "num_key_value_heads": 4, "intermediate_size": 2048, "vocab_size": 32000, "rms_norm_eps": 1e-5,
         "rope_theta": 10000.0, "tie_word_embeddings": True}
CELLS = {  # what it is, config, batch, sequence, parameters in millions (for the number of steps)
    "a": ("GPT-2, 6 layers x 384, vocabulary 256", gpt2(6, 384, 6, 256), 16, 256, 11),
    "b": ("GPT-2 124M", gpt2(12, 768, 12, 50257), 4, 64, 124),
    "c": ("GPT-2 124M", gpt2(12, 768, 12, 50257), 1, 1024, 124),
    "d": ("Llama 100M, 12 layers x 768, 12 heads over 4", LLAMA, 2, 256, 100),
}
PAIRS = {  # theirs, and our stage
    1: [("eager+tcmalloc", 0), ("compile+tcmalloc", 0), ("eager", 0)],
    2: [("ddp", 0), ("ds0", 0), ("zero", 1), ("ds1", 1), ("ds2", 2), ("fsdp", 3), ("ds3", 3)],
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


class Failed(Exception):
    pass


class Cell:
    """A model at one precision and number of workers."""

    def __init__(self, letter, precision, workers, seconds, folder):
        self.what, config, self.batch, self.seq, self.millions = CELLS[letter]
        places = "max_position_embeddings" if config["model_type"] == "llama" else "n_positions"
        self.config = {**config, places: self.seq}
        self.letter, self.precision, self.workers, self.folder = letter, precision, workers, folder
        self.threads, self.seconds = 2 // workers, seconds
        self.tokens = self.batch * self.seq * workers

    def steps(self, step_s):
        return max(2, min(60, round(self.seconds / step_s)))

    def recipe(self, stage, steps):
        data = self.folder / f"tokens-{self.config['vocab_size']}.bin"
        if not data.exists():
            write_tokens(data, self.config["vocab_size"], 200_000)
        r = {"model": self.config,
             "data": {"train": str(data), "seq_len": self.seq},
             "train_micro_batch_size_per_gpu": self.batch, "gradient_accumulation_steps": 1,
             "gradient_clipping": 1.0,
             "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8,
                                                       "weight_decay": 0.1}},
             "zero_optimization": {"stage": stage},
             "train": {"steps": steps, "seed": 1}, "parallel": {"threads": self.threads},
             "steps_per_print": 1}
        if self.precision == "bf16":
            r["bf16"] = {"enabled": True}
        path = self.folder / "r.yaml"
        path.write_text(json.dumps(r))
        return path


class Figures:
    """What is known of one side of a pair."""

    def __init__(self):
        self.times, self.bytes, self.mfu, self.first_step = [], 0, [], []

    def speed(self, tokens):
        return (tokens / min(self.times), tokens / statistics.median(self.times)) if self.times else None


def run_ours(zerotrain, cell, stage, figures):
    """A run of its own each time; its first steps are dropped."""
    guess = figures.times or [cell.tokens * cell.millions * 6e6 / 150e9]
    path = cell.recipe(stage, WARM_UP + cell.steps(statistics.median(guess)))
    with tempfile.TemporaryDirectory(dir=cell.folder) as log:
        start, first = time.perf_counter(), None
        argv = [zerotrain, "--device=cpu", f"--num_gpus={cell.workers}", f"--log_dir={log}/run", path]
        with subprocess.Popen(argv, cwd=cell.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True) as p:
            lines = []
            for line in p.stdout:
                lines.append(line)
                if first is None and line.startswith("step 1/"):
                    first = time.perf_counter() - start
        if p.returncode:
            raise Failed(f"status {p.returncode}: {(lines or ['no output'])[-1].strip()[:150]}")
        records = (pathlib.Path(log) / "run/metrics.jsonl").read_text().splitlines()
    steps = [json.loads(x) for x in records if '"step_ms"' in x]
    figures.first_step.append(first)
    figures.times += [s["step_ms"] / 1e3 for s in steps[WARM_UP:]]
    figures.mfu += [s["mfu"] for s in steps[WARM_UP:] if "mfu" in s]
    figures.bytes = max([figures.bytes] + [s["device_peak_bytes"] for s in steps])


class Theirs:
    """One of their programs, started and warmed up, that waits to be told to take steps."""

    def __init__(self, name, cell):
        kind, _, malloc = name.partition("+")
        env = dict(os.environ, OMP_NUM_THREADS=str(cell.threads), PYTHONWARNINGS="ignore",
                   CUDA_VISIBLE_DEVICES="", TORCHINDUCTOR_CACHE_DIR=str(REPO / "build/bench-inductor"))
        if malloc:
            env.update(LD_PRELOAD=str(TCMALLOC[0]), TCMALLOC_RELEASE_RATE="0")
        argv = [PYTHON, REPO / "test/bench/torch_models.py", kind, json.dumps(cell.config),
                cell.batch, cell.seq, cell.precision, cell.threads]
        self.errors = tempfile.TemporaryFile("w+")
        self.p = subprocess.Popen(list(map(str, argv)), cwd=cell.folder, env=env, text=True, bufsize=1,
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors)
        try:
            self.take(WARM_UP, START_S)
        except Failed:
            self.end()
            raise

    def take(self, n, limit_s):
        """Take n steps: the seconds of each, and the most memory of a process."""
        try:
            self.p.stdin.write(f"{n}\n")
            self.p.stdin.flush()
        except BrokenPipeError:
            pass
        end = time.monotonic() + limit_s
        while select.select([self.p.stdout], [], [], max(0, end - time.monotonic()))[0]:
            line = self.p.stdout.readline()
            if line.startswith('{"step_s"'):
                result = json.loads(line)
                return result["step_s"], result["rss"]
            if not line:
                self.errors.seek(0)
                lines = self.errors.read().strip().splitlines() or ["no output"]
                raise Failed(next((x for x in reversed(lines) if "Error" in x), lines[-1])[:150])
        raise Failed(f"no answer within {limit_s} s")

    def end(self):
        try:
            self.p.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self.p.wait(30)
        except subprocess.TimeoutExpired:
            self.p.kill()
            self.p.wait()
        self.p.stdout.close()
        self.errors.close()


def measure_pair(args, cell, name, stage):
    """(ours, theirs or why not), in turn."""
    ours, theirs = Figures(), Figures()
    program, failed = None, None
    try:
        if PYTHON.exists():
            program = Theirs(name, cell)
            guess = program.take(1, STEP_S)[0]
    except Failed as e:
        failed = str(e)
    try:
        for _ in range(args.rounds):
            run_ours(args.zerotrain, cell, stage, ours)
            if program:
                times, used = program.take(cell.steps(statistics.median(theirs.times or guess)), STEP_S)
                theirs.times += times
                theirs.bytes = max(theirs.bytes, used)
    except Failed as e:
        failed = str(e)
    finally:
        if program:
            program.end()
    return ours, theirs, failed


def row(cell, name, stage, ours, theirs, failed):
    def speeds(f):
        return "{:.0f} / {:.0f}".format(*f.speed(cell.tokens)) if f.times else ""
    ratios = " | "
    if ours.times and theirs.times:
        mine, other = ours.speed(cell.tokens), theirs.speed(cell.tokens)
        ratios = f"**{mine[0] / other[0]:.2f}** | **{mine[1] / other[1]:.2f}**"
    mfu = f"{100 * statistics.median(ours.mfu):.0f} %" if ours.mfu else ""
    first = min(ours.first_step) if ours.first_step else 0
    started = f"{first:.2f} / {first - min(ours.times):.2f}" if ours.times else ""
    memory = f"{ours.bytes / 1e9:.2f} / {theirs.bytes / 1e9:.2f}"
    return (f"| {name} | {stage} | {speeds(ours)} | {failed or speeds(theirs)} | {ratios} | {mfu} | {started} "
            f"| {memory} |")


def command(args, cell, names):
    argv = ["test/bench/bench_models.py", "--cells", cell.letter, "--precision", cell.precision, "--workers",
            str(cell.workers), "--rounds", str(args.rounds), "--seconds", f"{args.seconds:g}", "--only",
            ",".join(names), "build/zerotrain"]
    return shlex.join(argv)


def measure_cell(args, cell, tell):
    pairs = [p for p in PAIRS[cell.workers] if not args.only or p[0] in args.only]
    if args.all and cell.workers == 1:
        pairs.append(("compile", 0))
    pairs = [p for p in pairs if TCMALLOC or "+" not in p[0]]
    who = "1 worker x 2 threads" if cell.workers == 1 else "2 workers x 1 thread"
    loads = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    tell("\n".join([f"### ({cell.letter}) {cell.what}, B{cell.batch} T{cell.seq}, {cell.precision}, {who}", "",
             f"{datetime.datetime.now():%Y-%m-%d %H:%M}, load average before {loads}:",
             f"`{command(args, cell, [p[0] for p in pairs])}`", "",
             "| against | our stage | ours tok/s, best / median | theirs | ratio, best | median | of sgemm "
             "| s from Enter to the end / begin of step 1 | GB a worker, ours / theirs |", "|---" * 9 + "|"]))
    for name, stage in pairs:
        if time.monotonic() > args.end:
            say(f"no time left for {name} and what follows")
            break
        tell(row(cell, name, stage, *measure_pair(args, cell, name, stage)))
    tell("")


def cpu_name():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return os.uname().machine


def output(argv):
    return subprocess.run(argv, cwd=REPO, capture_output=True, text=True, check=False).stdout.strip()


def heading():
    versions = ""
    if PYTHON.exists():
        code = ("from importlib.metadata import version as v, packages_distributions as p\n"
                "print(', '.join(f'{n} {v(n)}' for n in ('torch', 'deepspeed') if n in p()))")
        versions = "; " + output([PYTHON, "-c", code])
    commit = output(["git", "describe", "--always", "--dirty"])
    return (f"## {datetime.date.today()}, {cpu_name()}, {os.cpu_count()} cores, {commit}{versions}\n\n"
            "From `test/bench/bench_models.py`, which says what the columns are.\n")


def main():
    def words(s):
        return s.split(",")
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--cells", type=words, default=["c", "a", "b", "d"])
    p.add_argument("--precision", type=words, default=["fp32", "bf16"])
    p.add_argument("--workers", type=lambda s: [int(x) for x in s.split(",")], default=[1, 2])
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--seconds", type=float, default=6)
    p.add_argument("--minutes", type=float, default=1e9)
    p.add_argument("--only", type=words, default=None)
    p.add_argument("--all", action="store_true")
    p.add_argument("--record", action="store_true")
    p.add_argument("zerotrain", type=lambda s: str(pathlib.Path(s).resolve()))
    args = p.parse_args()
    args.end = time.monotonic() + 60 * args.minutes

    def tell(text):
        say(text)
        if args.record:
            with RESULTS.open("a") as f:
                f.write(text + "\n")

    if not PYTHON.exists():
        say("no PyTorch: run scripts/bench-venv.sh to compare with it")
    tell(heading())
    with tempfile.TemporaryDirectory(prefix="zt-bench-") as folder:
        for workers in args.workers:
            for letter in args.cells:
                for precision in args.precision:
                    cell = Cell(letter, precision, workers, args.seconds, pathlib.Path(folder))
                    if time.monotonic() < args.end:
                        measure_cell(args, cell, tell)
                    else:
                        say(f"({letter}) {precision}, {workers} workers: no time left")


if __name__ == "__main__":
    main()
