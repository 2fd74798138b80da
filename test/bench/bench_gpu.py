#!/usr/bin/env python3
"""GPT-2 in bf16 on one GPU, trained by zerotrain and, where there is one, by PyTorch in the same run.

    bench_gpu.py [--models 124m,1.5b] [--steps N] [--peak TFLOPS] [--record FILE] ZEROTRAIN

PyTorch trains the same model at the same batch, eager and, the first model only, as it takes long, compiled
(torch_models.py: autocast over fp32 parameters, fused AdamW, flash attention). zerotrain comes first, with all models;
it fails if one does not train. Ratios are zerotrain's median tokens/s over the other's.
MFU = tokens/s * (6 N + 12 L d T) / peak, for N parameters, L layers of width d, sequences of T tokens
(Chowdhery et al., PaLM, 2022, appendix B); the peak is the dense 16-bit rate of the GPU's data sheet.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import bench_models

WARM_UP = 5
PEAKS = {"A100": 312, "H100 PCIe": 756, "H100": 989, "H200": 989, "B200": 2250}  # TFLOP/s
MODELS = {  # layers, width, heads, batch, sequence
    "124m": (12, 768, 12, 32, 1024),
    "1.5b": (48, 1600, 25, 8, 1024),
}
VOCAB = 50257


def run(argv, **how):
    """What it printed; its last line is the reason of a failure."""
    p = subprocess.run(argv, capture_output=True, text=True, **how)
    if p.returncode:
        raise bench_models.Failed(((p.stdout + p.stderr).strip().splitlines() or ["no output"])[-1][:150])
    return p.stdout


def peak_tflops():
    try:
        name = run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]).split("\n")[0]
    except (bench_models.Failed, OSError):
        name = ""
    return name, next((peak for key, peak in PEAKS.items() if key in name), None)


def n_params(layers, width, seq):
    return VOCAB * width + seq * width + layers * (12 * width * width + 13 * width) + 2 * width


def ours(zerotrain, model, steps, folder):
    layers, width, heads, batch, seq = model
    data = folder / "tokens.bin"
    if not data.exists():
        bench_models.write_tokens(data, VOCAB, 400_000)
    recipe = {"model": {**bench_models.gpt2(layers, width, heads, VOCAB), "n_positions": seq},
              "data": {"train": str(data), "seq_len": seq}, "bf16": {"enabled": True},
              "train_micro_batch_size_per_gpu": batch, "gradient_accumulation_steps": 1,
              "gradient_clipping": 1.0, "zero_optimization": {"stage": 0},
              "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8,
                                                        "weight_decay": 0.1}},
              "train": {"steps": WARM_UP + steps, "seed": 1}, "steps_per_print": 1000}
    path = folder / "r.yaml"
    path.write_text(json.dumps(recipe))
    with tempfile.TemporaryDirectory(dir=folder) as log:
        run([zerotrain, "--device=cuda", "--num_gpus=1", f"--log_dir={log}/run", path], cwd=folder)
        records = (pathlib.Path(log) / "run/metrics.jsonl").read_text().splitlines()
        summary = json.loads((pathlib.Path(log) / "run/summary.json").read_text())
    times = [json.loads(x)["step_ms"] / 1e3 for x in records if '"step_ms"' in x and '"step_ms": null' not in x]
    memory = summary["memory"][0]
    return times[-steps:], (f"{memory['predicted_bytes'] / 1e9:.2f} GB predicted, {memory['touched_bytes'] / 1e9:.2f} "
                            f"touched, {memory['outside_bytes'] / 1e9:.2f} outside the arenas")


def theirs(kind, model, steps, folder):
    layers, width, heads, batch, seq = model
    config = {**bench_models.gpt2(layers, width, heads, VOCAB), "n_positions": seq}
    out = run([sys.executable, bench_models.REPO / "test/bench/torch_models.py", kind, json.dumps(config),
               str(batch), str(seq), "bf16", "cuda"], cwd=folder, input=f"{WARM_UP}\n{steps}\n")
    result = json.loads([x for x in out.splitlines() if x.startswith('{"step_s"')][-1])
    return result["step_s"], f"{result['gpu'] / 1e9:.2f} GB at most"


class Table:
    """Printed and recorded row by row."""

    def __init__(self, args, gpu, folder):
        self.args, self.folder, self.peak, self.ours, self.lines = args, folder, args.peak or gpu[1], {}, []
        self.add(f"{gpu[0] or 'GPU not known'}; peak {self.peak or '?'} TFLOP/s\n")
        for name in args.models:
            layers, width, _, batch, seq = MODELS[name]
            self.add(f"{name}: {layers} layers x {width}, {n_params(layers, width, seq) / 1e6:.1f}M parameters, "
                     f"B{batch} T{seq}, bf16; {self.flops(name) / 1e9:.3f} GFLOP a token\n")
        self.add("| | | best tok/s | median tok/s | MFU | zerotrain/it | memory |\n|---|---|---|---|---|---|---|")

    def add(self, line):
        bench_models.say(line)
        self.lines.append(line)
        if self.args.record:
            self.args.record.write_text("\n".join(self.lines) + "\n")

    def flops(self, name):
        layers, width, _, _, seq = MODELS[name]
        return 6 * n_params(layers, width, seq) + 12 * layers * width * seq

    def row(self, name, kind):
        """kind: "zerotrain", or of PyTorch."""
        *_, batch, seq = model = MODELS[name]
        try:
            if kind == "zerotrain":
                times, memory = ours(self.args.zerotrain, model, self.args.steps, self.folder)
            else:
                times, memory = theirs(kind, model, self.args.steps, self.folder)
        except (bench_models.Failed, OSError) as e:
            self.add(f"| {name} | {kind} | failed: {e} | | | | |")
            return
        best, median = (batch * seq / f(times) for f in (min, statistics.median))
        if kind == "zerotrain":
            self.ours[name] = median
        mfu = f"{median * self.flops(name) / self.peak / 1e10:.1f} %" if self.peak else "?"
        ratio = f"{self.ours[name] / median:.2f}" if name in self.ours else "?"
        self.add(f"| {name} | {kind} | {best:.0f} | {median:.0f} | {mfu} | {ratio} | {memory} |")


def has_torch():
    code = "import torch, sys; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--models", type=lambda s: s.split(","), default=list(MODELS))
    p.add_argument("--steps", type=int, default=15)
    p.add_argument("--peak", type=float, default=None)
    p.add_argument("--record", type=pathlib.Path, default=None)
    p.add_argument("zerotrain", type=lambda s: str(pathlib.Path(s).resolve()))
    args = p.parse_args()
    with tempfile.TemporaryDirectory(prefix="zt-bench-") as folder:
        t = Table(args, peak_tflops(), pathlib.Path(folder))
        for name in args.models:
            t.row(name, "zerotrain")
        if has_torch():
            for name in args.models:
                t.row(name, "eager")
            t.row(args.models[0], "compile")
        else:
            t.add("\nNo PyTorch that sees the GPU.")
    sys.exit(0 if len(t.ours) == len(args.models) else "zerotrain failed, see its rows")


main()
