"""Trainings to compare: recipes, runs and what they must have in common (run.py and its neighbours)."""
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from harness import LONG, QUICK, REPO, ZT, end  # noqa: E402, F401


def test(name, fn):
    harness.test("parity", name, fn)


FIXTURES = {name: REPO / f"test/cases/fixture_{name}" for name in ("gpt2", "llama")}
EXPECTEDS = {name: json.loads((f / "expected.json").read_text()) for name, f in FIXTURES.items()}
FIXTURE, EXPECTED = FIXTURES["gpt2"], EXPECTEDS["gpt2"]
# A sanitizer finds in few columns and tokens what it would find in many, and counts every touch.
MODELS = {  # of the runs on text
    "gpt2": {"model_type": "gpt2", "n_layer": 3, "n_head": 2, "n_embd": 24 if QUICK else 48},
    "llama": {"model_type": "llama", "n_layer": 3, "n_head": 4, "num_key_value_heads": 2, "n_embd": 24 if QUICK else 40,
              "n_inner": 52 if QUICK else 104},
    "qwen2": {"model_type": "qwen2", "n_layer": 2, "n_head": 3, "num_key_value_heads": 1, "n_embd": 24 if QUICK else 48,
              "n_inner": 44 if QUICK else 88, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "n_layer": 2, "n_head": 3, "num_key_value_heads": 1, "n_embd": 20 if QUICK else 40,
              "head_dim": 12 if QUICK else 24, "n_inner": 44 if QUICK else 88, "tie_word_embeddings": True},
}
SEQ = 8 if QUICK else 32


def put(r, more):
    """The recipe with other values, by their keys: "a.b"."""
    for key, value in more.items():
        at = r
        *path, last = key.split(".")
        for k in path:
            at = at.setdefault(k, {})
        at[last] = value
    return r


def recipe(micro, accum, seq_len, fixture="gpt2", **more):
    r = {
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": accum,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "betas": [0.9, 0.95], "eps": 1e-8,
                                                  "weight_decay": 0.1}},
        "model": {"from": str(FIXTURES[fixture])},
        "data": {"train": str(FIXTURES[fixture] / "tokens_llmc.bin"), "seq_len": seq_len},
        "train": {"steps": 6, "seed": 1},
        "parallel": {"threads": 1},
        "steps_per_print": 1000,
    }
    return put(r, more)


def text_recipe(model="gpt2", **more):
    """A model that clips, pads its units and overlaps: a few layers on real text."""
    r = recipe(2, 2, SEQ, **{
        "model": {**MODELS[model], "vocab_size": 256, "n_positions": 32},
        "data.train": str(REPO / "LICENSE"),
        "train.steps": 4,
        "optimizer.params.lr": 1e-3,
        "gradient_clipping": 0.5,
    })
    return put(r, more)


class Run:
    """One training: its losses, gradient norms and the digest of its final state. ranks 0: as options say."""

    def __init__(self, ranks, r, files={}, device="cpu", env={}, options=()):
        with tempfile.TemporaryDirectory() as d:
            path = pathlib.Path(d) / "r.yaml"
            path.write_text(json.dumps(r))
            for name, content in files.items():  # beside the recipe
                (pathlib.Path(d) / name).parent.mkdir(exist_ok=True)
                (pathlib.Path(d) / name).write_bytes(content)
            many = [f"--num_gpus={ranks}"] if ranks else []
            p = subprocess.run([ZT, f"--device={device}", *many, *options, f"--log_dir={d}/run",
                                str(path)], capture_output=True, text=True, cwd=d, env={**os.environ, **env})
            if p.returncode != 0:
                tail = (p.stdout + p.stderr).strip().splitlines()[-12:]
                raise AssertionError(f"exit status {p.returncode}: " + " / ".join(tail))
            lines = [json.loads(x) for x in (pathlib.Path(d) / "run/metrics.jsonl").read_text().splitlines()]
            summary = json.loads((pathlib.Path(d) / "run/summary.json").read_text())
        self.text = p.stdout + p.stderr
        self.steps = lines
        self.loss = [x["loss"] for x in lines]
        self.norm = [x["grad_norm"] for x in lines]
        self.lr = [x["lr"] for x in lines]
        self.summary = summary
        self.digest = summary["digest"]
        self.memory = summary["memory"]

    def bits(self):
        return (self.loss, self.norm, self.digest)


def covering(*axes):
    """Combinations, one value of each axis, in which any two values of two axes meet."""
    every = list(itertools.product(*map(range, map(len, axes))))
    pairs = lambda c: {(i, c[i], j, c[j]) for i, j in itertools.combinations(range(len(c)), 2)}
    left = set().union(*map(pairs, every))
    chosen = every if LONG else []
    while left and not LONG:
        chosen.append(max(every, key=lambda c: len(pairs(c) & left)))
        left -= pairs(chosen[-1])
    return [tuple(axis[i] for axis, i in zip(axes, c)) for c in chosen]


def half(ways, n):
    """The first of the ways, and every other one of the rest: what even and odd n leave out the other one has."""
    return ways if LONG else [w for i, w in enumerate(ways) if i == 0 or (i + n) % 2 == 0]


def close(got, want, rel, what):
    assert len(got) >= len(want) > 0, f"{len(got)} steps, not {len(want)}"
    for i, (g, w) in enumerate(zip(got, want)):
        assert abs(g - w) <= rel * max(1.0, abs(w)), f"{what} of step {i + 1} is {g!r}, not {w!r}"


def trace(run, want):
    losses = [t[1] for t in want]
    norms = [t[2] for t in want if t[2] is not None]
    close(run.loss, losses, 1e-5, "loss")
    assert len(run.norm) >= len(norms) > 0
    for i, (g, w) in enumerate(zip(run.norm, norms)):
        assert abs(g - w) <= 1e-4 * w, f"gradient norm of step {i + 1} is {g!r}, not {w!r}"


# A first scale that overflows a few times: a run skips some of its steps and applies the others.
FP16 = {"fp16.enabled": True, "fp16.initial_scale_power": 21, "fp16.hysteresis": 1,
        "fp16.loss_scale_window": 3, "train.steps": 10}
TYPES = {"fp32": {}, "bf16": {"bf16.enabled": True}, "fp16": FP16}


def same_bits(name, ranks, variants):
    def check():
        first, *rest = [(label, Run(ranks, r)) for label, r in variants]
        if variants[0][1].get("fp16"):
            skipped, steps = first[1].steps[-1]["skipped"], len(first[1].steps)
            assert 0 < skipped < steps, f"{skipped} of {steps} steps skipped"
        for label, run in rest:
            assert run.bits() == first[1].bits(), \
                f"{label} differs from {first[0]}: {run.bits()} / {first[1].bits()}"
        assert len(set(first[1].loss)) > 1, "the loss never changed"
    test(name, check)


KEEP = "activation_checkpointing"
RECOMPUTED = {  # every kind; runs of 2 do not divide the 3 blocks of the models
    "block": {f"{KEEP}.policy": "block"},
    "selective": {f"{KEEP}.policy": "selective"},
    "every 2": {f"{KEEP}.every": 2},
    "every 3": {f"{KEEP}.number_checkpoints": 1},
    "block, on the host": {f"{KEEP}.cpu_checkpointing": True},
    "selective, on the host": {f"{KEEP}.policy": "selective", f"{KEEP}.cpu_checkpointing": True},
    "every 2, on the host": {f"{KEEP}.every": 2, f"{KEEP}.cpu_checkpointing": True},
}
OPTIMIZER_ON_HOST = {"zero_optimization.offload_optimizer.device": "cpu"}
PARAMS_ON_HOST = {"zero_optimization.offload_param.device": "cpu"}
OPTIMIZER_ON_NVME = {"zero_optimization.offload_optimizer.device": "nvme",
                     "zero_optimization.offload_optimizer.nvme_path": "."}  # beside the recipe
PARAMS_ON_NVME = {"zero_optimization.offload_param.device": "nvme",
                  "zero_optimization.offload_param.nvme_path": "."}
DROPOUT = {"gpt2": {"model.embd_pdrop": 0.1, "model.resid_pdrop": 0.2, "model.attn_pdrop": 0.3},
           "llama": {"model.attention_dropout": 0.3}, "qwen3": {"model.attention_dropout": 0.3}}


def touched_as_planned(m):
    assert m["touched_least_bytes"] <= m["touched_bytes"] <= m["touched_most_bytes"], f"{m}"
    assert 0 < m["touched_most_bytes"] <= m["predicted_bytes"], f"{m}"
