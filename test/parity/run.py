#!/usr/bin/env python3
"""Whole trainings compared: run.py [--quick|--long] [--share=I/N] ZEROTRAIN [FILTER].

The numerics contract (lib/README.md, section 2): for the same ranks, micro-batches and precision, stages
0 to 3, overlap on or off and recomputation give the same bits; across rank counts and batch splits the
same numbers within rounding. The traces of the fixtures (float64) pin them to the truth.
Kinds of what does not depend on each other are combined so that any two values meet (covering());
--long: all combinations. --share=I/N: every N-th test, from the I-th. Prints one test line each.
Needs nothing but Python's standard library.
"""
import itertools
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

REPO = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = {name: REPO / f"test/cases/fixture_{name}" for name in ("gpt2", "llama")}
EXPECTEDS = {name: json.loads((f / "expected.json").read_text()) for name, f in FIXTURES.items()}
FIXTURE, EXPECTED = FIXTURES["gpt2"], EXPECTEDS["gpt2"]
MODELS = {  # of the runs on text
    "gpt2": {"model_type": "gpt2", "n_layer": 3, "n_head": 2, "n_embd": 48},
    "llama": {"model_type": "llama", "n_layer": 3, "n_head": 4, "num_key_value_heads": 2, "n_embd": 40,
              "n_inner": 104},
    "qwen2": {"model_type": "qwen2", "n_layer": 2, "n_head": 3, "num_key_value_heads": 1, "n_embd": 48,
              "n_inner": 88, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "n_layer": 2, "n_head": 3, "num_key_value_heads": 1, "n_embd": 40,
              "head_dim": 24, "n_inner": 88, "tie_word_embeddings": True},
}
quick, LONG = "--quick" in sys.argv, "--long" in sys.argv
args = [a for a in sys.argv[1:] if not a.startswith("--")]
ZT = str(pathlib.Path(args[0]).resolve())
FILTER = args[1] if len(args) > 1 else ""
SHARE, SHARES = next((map(int, a[8:].split("/")) for a in sys.argv if a.startswith("--share=")), (1, 1))
n_tests = failures = 0


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
    r = recipe(2, 2, 32, **{
        "model": {**MODELS[model], "vocab_size": 256, "n_positions": 32},
        "data.train": str(REPO / "LICENSE"),
        "data.seq_len": 32,
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


def test(name, fn):
    global n_tests, failures
    if FILTER not in name:
        return
    n_tests += 1
    if n_tests % SHARES != SHARE % SHARES:
        return
    try:
        fn()
        print(f"ok parity {name}", flush=True)
    except AssertionError as e:
        failures += 1
        print(f"not ok parity {name}: {e}", flush=True)


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


def fixture_traces(fixture):
    """CASES, the fixtures: the same batch by every split, at every stage."""
    expected = EXPECTEDS[fixture]
    cases = [(6, expected["adamw"]["trace"], [(1, 4, 1), (2, 2, 1), (4, 1, 1), (1, 1, 4), (2, 1, 2)])]
    alt = expected["alt_traces"]
    cases.append((2, alt["B12_T2"], [(3, 4, 1), (6, 2, 1), (12, 1, 1), (4, 3, 1)]))
    cases.append((3, alt["B8_T3"], [(8, 1, 1)]))
    if quick:
        cases = [(6, expected["adamw"]["trace"], [(2, 1, 2)])]
    for seq_len, want, splits in cases:
        for ranks, micro, accum in splits:
            for stage in (3,) if quick else range(4):
                r = recipe(micro, accum, seq_len, fixture, **{"zero_optimization.stage": stage})
                test(f"fixture {fixture} T={seq_len} ranks={ranks} micro={micro} accum={accum} stage={stage}",
                     lambda r=r, n=ranks, w=want: trace(Run(n, r), w))


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


def stages_bit_for_bit():
    for precision, typed in TYPES.items():
        for ranks in (2,) if quick else (2, 3):
            base = {"gradient_accumulation_steps": 1, **typed}
            same_bits(f"stages {precision} ranks={ranks} accum=1", ranks,
                      [(f"stage {s} overlap {o}", text_recipe(**base, **{
                          "zero_optimization.stage": s, "zero_optimization.overlap_comm": o}))
                       for s in range(4) for o in ((True,) if quick else (True, False))])
            if quick:
                continue
            every = {"train.reduce_every_micro_batch": True, **typed}
            same_bits(f"stages {precision} ranks={ranks} accum=2, reduced every micro-batch", ranks,
                      [(f"stage {s}", text_recipe(**every, **{"zero_optimization.stage": s}))
                       for s in range(4)])
            same_bits(f"prefetch window {precision} ranks={ranks}", ranks,
                      [(f"{n}", text_recipe(**typed, **{
                          "zero_optimization.stage": 3, "zero_optimization.stage3_prefetch_bucket_size": n}))
                       for n in (1, 20000, 50000000)])


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


def recomputation():
    """Case M03: memory changes, and no bit; with dropout, skipped steps, micro-batches, every stage and window."""
    cases = [("gpt2", "fp32", (2, 2)), ("llama", "bf16", (2, 2))] if quick else covering(
        ("gpt2", "llama"), tuple(TYPES), ((1, 1), (2, 2), (3, 1)))
    for n, (model, precision, (ranks, accum)) in enumerate(cases):
        base = {**TYPES[precision], **DROPOUT[model], "gradient_accumulation_steps": accum,
                "train.reduce_every_micro_batch": True}
        variants = [("none", text_recipe(model, **base))]
        for i, (name, keys) in enumerate(RECOMPUTED.items()):
            for stage in (i % 4, (i + 2) % 4) if LONG else ((i + n) % 4,):
                variants.append((f"{name}, stage {stage}", text_recipe(model, **base, **keys, **{
                    "zero_optimization.stage": stage, "parallel.threads": 1 + stage % 2,
                    "zero_optimization.overlap_comm": stage != 2,
                    "zero_optimization.prefetch_bucket_size": 1 if i % 2 else 0})))
        same_bits(f"recomputation {model} {precision} ranks={ranks} accum={accum}", ranks, variants)

    def memory():
        """Bytes of the device fall from none over selective to block; what is promised is what is touched."""
        peaks = {}
        for name, keys in ({"none": {}} | RECOMPUTED).items():
            run = Run(2, text_recipe(**keys, **{"model.n_layer": 6, "train_micro_batch_size_per_gpu": 8}))
            for m in run.memory:
                assert 0.95 * m["predicted_bytes"] <= m["touched_bytes"] <= m["predicted_bytes"], f"{name}: {m}"
                touched_as_planned(m)
            peaks[name] = run.steps[-1]["device_peak_bytes"]
        order = [peaks[k] for k in ("none", "selective", "block", "block, on the host")]
        assert order == sorted(order, reverse=True) and len(set(order)) == 4, f"{peaks}"
        assert peaks["every 2, on the host"] < peaks["every 2"] < peaks["none"], f"{peaks}"
        assert peaks["selective, on the host"] < peaks["selective"], f"{peaks}"
    if not quick:
        test("recomputation, memory", memory)


OPTIMIZER_ON_HOST = {"zero_optimization.offload_optimizer.device": "cpu"}
PARAMS_ON_HOST = {"zero_optimization.offload_param.device": "cpu"}
OPTIMIZER_ON_NVME = {"zero_optimization.offload_optimizer.device": "nvme",
                     "zero_optimization.offload_optimizer.nvme_path": "."}  # beside the recipe
PARAMS_ON_NVME = {"zero_optimization.offload_param.device": "nvme",
                  "zero_optimization.offload_param.nvme_path": "."}


def same_bits_elsewhere(name, staged, parameters):
    """Where states live and are updated changes no bit: steps that are skipped, micro-batches, recomputation.

    staged(stage): what moves the optimizer's state at stages 1 to 3. parameters: labels and what moves more at 3.
    """
    cases = covering(tuple(TYPES), ((2, "gpt2"),), (1,)) if quick else covering(
        tuple(TYPES), ((1, "gpt2"), (2, "llama"), (3, "gpt2")), (1, 2))
    for n, (precision, (ranks, model), accum) in enumerate(cases):
        base = {"gradient_accumulation_steps": accum, "train.reduce_every_micro_batch": True, **TYPES[precision]}
        if precision == "fp16":
            base["fp16.initial_scale_power"] = 23
        variants = [("on the device", text_recipe(model, **base))]
        for stage in (1, 2, 3):
            for policy in ("none", "block") if LONG else (("none", "block")[(stage + n) % 2],):
                variants.append((f"stage {stage} {policy}", text_recipe(model, **base, **staged(stage), **{
                    "zero_optimization.stage": stage, "activation_checkpointing.policy": policy,
                    "zero_optimization.overlap_comm": stage != 2, "parallel.threads": stage})))
        for label, more in parameters:
            variants.append((label, text_recipe(model, **base, **more, **{"zero_optimization.stage": 3})))
        same_bits(f"{name} {model} {precision} ranks={ranks} accum={accum}", ranks, variants)


def offload_bit_for_bit():
    window = {"zero_optimization.prefetch_bucket_size": 20000}
    same_bits_elsewhere("offload", lambda stage: OPTIMIZER_ON_HOST, [
        (f"parameters, {optimizer}", {**optimizer, **PARAMS_ON_HOST, **window,
                                      **RECOMPUTED["every 2, on the host" if optimizer else "block"]})
        for optimizer in ({}, OPTIMIZER_ON_HOST)])


def nvme_bit_for_bit():
    """The same of what lives on a drive: by io_uring and by threads, in small requests, with few buffers."""
    def staged(stage):
        return {**OPTIMIZER_ON_NVME, "zero_optimization.offload_optimizer.buffer_count": stage,
                "aio.backend": "threads" if stage == 1 else "auto", "aio.queue_depth": stage,
                "aio.block_size": 4096 * stage}

    same_bits_elsewhere("nvme", staged, [
        (f"parameters, {optimizer}", {**optimizer, **PARAMS_ON_NVME,
                                      "zero_optimization.prefetch_bucket_size": 20000,
                                      "activation_checkpointing.policy": "none" if optimizer else "block"})
        for optimizer in ({}, OPTIMIZER_ON_HOST, OPTIMIZER_ON_NVME)
    ] + [("parameters and kept inputs on the host",
          {**OPTIMIZER_ON_NVME, **PARAMS_ON_HOST, **RECOMPUTED["block, on the host"],
           "activation_checkpointing.policy": "block"})])


def other_models_bit_for_bit():
    """Llama's blocks, with biases or norms of heads: every stage, recomputed or not."""
    for model in ("llama", "qwen2", "qwen3"):
        for precision in ("bf16",) if quick else TYPES:
            base = {**TYPES[precision], "gradient_accumulation_steps": 1}
            same_bits(f"stages {model} {precision}", 2,
                      [(f"stage {s} {policy}", text_recipe(model, **base, **{
                          "zero_optimization.stage": s, "activation_checkpointing.policy": policy}))
                       for s in range(4) for policy in (("none",) if s % 3 else ("none", "block"))])


def across_ranks():
    """The state does not depend on who holds it: same global batch, other rank counts."""
    def check(model):
        runs = {n: Run(n, text_recipe(model, **{"train_micro_batch_size_per_gpu": 12 // n,
                                         "gradient_accumulation_steps": 1,
                                         "zero_optimization.stage": 2})) for n in (1, 2, 3, 4)}
        for n in (2, 3, 4):
            close(runs[n].loss, runs[1].loss, 1e-5, f"loss on {n} ranks")
    for model in () if quick else ("gpt2", "qwen3"):
        test(f"rank counts 1 2 3 4 {model}", lambda: check(model))


DROPOUT = {"gpt2": {"model.embd_pdrop": 0.1, "model.resid_pdrop": 0.2, "model.attn_pdrop": 0.3},
           "llama": {"model.attention_dropout": 0.3}, "qwen3": {"model.attention_dropout": 0.3}}


def dropout():
    """Masks belong to samples: stages, recomputation and overlap give the same bits, other ranks and batches
    the same numbers."""
    for model, drops in DROPOUT.items():
        for precision in ("fp32",) if quick else TYPES:
            base = {**TYPES[precision], **drops, "gradient_accumulation_steps": 1}
            same_bits(f"dropout {model} {precision}", 2,
                      [(f"stage {s} {policy} overlap {o}", text_recipe(model, **base, **{
                          "zero_optimization.stage": s, "activation_checkpointing.policy": policy,
                          "zero_optimization.overlap_comm": o}))
                       for s in range(4) for policy, o in (("none", True), ("block", s % 2 == 0))])

    def split(model, drops):
        splits = ((1, 8, 1), (1, 2, 4), (2, 2, 2), (4, 2, 1)) + (() if quick else ((2, 1, 4), (4, 1, 2)))
        runs = {}
        for ranks, micro, accum in splits:
            runs[ranks, micro, accum] = Run(ranks, text_recipe(model, **drops, **{
                "train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": accum,
                "zero_optimization.stage": ranks % 4}))
        first = runs[splits[0]]
        for s in splits[1:]:
            close(runs[s].loss, first.loss, 1e-5, "loss of ranks=%d micro=%d accum=%d" % s)
            close(runs[s].norm, first.norm, 1e-4, "norm of ranks=%d micro=%d accum=%d" % s)
    for model in ("gpt2",) if quick else DROPOUT:
        test(f"dropout by any split, {model}", lambda m=model: split(m, DROPOUT[m]))

    def training_only():
        """Evaluation, before any step, is that of a model without; every dropout changes training."""
        base = {"data.val_fraction": 0.1, "train.eval_every": 4}
        losses = set()
        for d in ({}, *({k: v} for k, v in DROPOUT["gpt2"].items())):
            run = Run(2, text_recipe(**base, **d))
            losses.add((run.summary["first_val_loss"], run.loss[0]))
        assert len({val for val, _ in losses}) == 1, f"a validation loss depends on dropout: {losses}"
        assert len(losses) == 4, f"a dropout changed nothing: {losses}"
        seeds = {Run(1, recipe(4, 1, 6, **DROPOUT["gpt2"], **{  # the same weights and samples
            "data.shuffle": False, "train.seed": s, "train.steps": 1})).loss[0] for s in (1, 2)}
        assert len(seeds) == 2, "the masks do not depend on the seed"
    test("dropout is of training, and of the seed", training_only)


def touched_as_planned(m):
    assert m["touched_least_bytes"] <= m["touched_bytes"] <= m["touched_most_bytes"], f"{m}"
    assert 0 < m["touched_most_bytes"] <= m["predicted_bytes"], f"{m}"


def memory_as_predicted():
    """What the plan says is touched, in blocks of 512 bytes, with evaluation and samples; all of it to the byte:
    test/unit/train/test_memory.c."""
    def check(model, stage, more={}):
        run = Run(2, text_recipe(model, **more, **{"zero_optimization.stage": stage, "data.val_fraction": 0.1,
                                                   "train.eval_every": 2, "train.sample_every": 4}))
        for m in run.memory:
            touched_as_planned(m)
            assert ("nvme_predicted_bytes" in m) == ("nvme" in str(more)), f"{m}"
            assert m.get("nvme_touched_bytes") == m.get("nvme_predicted_bytes"), f"{m}"
        assert ", as planned. outside" in run.text, run.text
    for model in () if quick else ("gpt2", "qwen3"):
        for stage in range(4):
            test(f"memory predicted and measured, {model} stage {stage}", lambda: check(model, stage))
            for more in (OPTIMIZER_ON_HOST, {**OPTIMIZER_ON_HOST, **PARAMS_ON_HOST})[:2 if stage == 3 else 1 if stage else 0]:
                test(f"memory predicted and measured, {model} stage {stage}, {len(more)} on the host",
                     lambda m=more: check(model, stage, m))
            for more in (OPTIMIZER_ON_NVME, {**OPTIMIZER_ON_NVME, **PARAMS_ON_NVME})[:2 if stage == 3 else 1 if stage else 0]:
                test(f"memory predicted and measured, {model} stage {stage}, {len(more) // 2} on a drive",
                     lambda m=more: check(model, stage, m))


def processes_of(pid):
    """The process and all that it started, from /proc."""
    found = [pid]
    for p in pathlib.Path("/proc").iterdir():
        try:
            parent = int((p / "stat").read_text().rsplit(")", 1)[1].split()[1]) if p.name.isdigit() else -1
        except OSError:  # it has ended
            continue
        if parent == pid:
            found += processes_of(int(p.name))
    return found


def pss(pid):
    """Its proportional share of the host's memory, as the kernel counts it."""
    try:
        text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return int(re.search(r"^Pss: +(\d+) kB", text, re.M).group(1)) * 1024


def memory_of_processes():
    """GPT-2 124M: what all processes take of the host, seen from outside while they train, is their arenas and
    what lies outside as stated: within 3 % and 32 MB a process."""
    def check(ranks, more):
        r = recipe(1, 1, 64, **more, **{
            "model": {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 64,
                      "vocab_size": 50257},
            "data.train": "tokens", "data.format": "raw_u16", "train.steps": 4, "steps_per_print": 1})
        most, n = 0, 0
        with tempfile.TemporaryDirectory() as d:
            folder, log = pathlib.Path(d), pathlib.Path(d) / "run"
            (folder / "tokens").write_bytes(struct.pack("<4096H", *(i * 7 for i in range(4096))))
            (folder / "r.yaml").write_text(json.dumps(r))
            argv = [ZT, "--device=cpu", f"--num_gpus={ranks}", f"--log_dir={log}", "r.yaml"]
            with subprocess.Popen(argv, cwd=d, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as p:
                for line in p.stdout:
                    if line.startswith("step "):
                        now = [pss(x) for x in processes_of(p.pid)]
                        most, n = max(most, sum(now)), max(n, len(now))
            assert p.returncode == 0 and n == ranks + 2, f"status {p.returncode}, {n} processes"
            memory = json.loads((log / "summary.json").read_text())["memory"]
        stated = sum(m["predicted_bytes"] + m["outside_bytes"] for m in memory)
        assert stated > 1e9 and abs(most - stated) <= 0.03 * stated + (32 << 20) * n, f"{most}, not {stated}: {memory}"
        for m in memory:
            assert abs(m["pss_bytes"] - m["predicted_bytes"] - m["outside_bytes"]) <= 8 << 20, f"{m}"
            assert 0 < m["outside_files_bytes"] < m["outside_bytes"] < 1.25 * 20e6, f"not the about 20 MB of the plan: {m}"
    on_host = {**OPTIMIZER_ON_HOST, "zero_optimization.stage": 1}
    for ranks, more in () if quick else ((1, on_host), (2, {"zero_optimization.stage": 2})):
        test(f"memory of all processes, GPT-2 124M ranks={ranks}", lambda r=ranks, m=more: check(r, m))


def fits_exactly():
    """A plan runs under the device memory that it needs; a page less is refused before anything starts."""
    def check(more):
        r = text_recipe(**more)
        with tempfile.TemporaryDirectory() as d:
            path = pathlib.Path(d) / "r.yaml"
            path.write_text(json.dumps(r))
            p = subprocess.run([ZT, "plan", "--device=cpu", "--num_gpus=2", "--json", str(path)],
                               capture_output=True, text=True, check=True)
            peak = json.loads(p.stdout)["stages"][more["zero_optimization.stage"]]["ledger"]["peak_bytes"]
            need = peak["device"] + peak["shared"]
            p = subprocess.run([ZT, "--device=cpu", "--num_gpus=2", f"--device_memory={need - 4096}",
                                f"--log_dir={d}/run", str(path)], capture_output=True, text=True)
            assert p.returncode == 5 and not os.path.exists(f"{d}/run"), f"{p.returncode}: {p.stderr}"
            assert re.search(f"needs {need} bytes .* may take only {need - 4096} ", p.stderr), p.stderr
        run = Run(2, {**r, "parallel": {"threads": 1, "device_memory": str(need)}})
        assert [m["predicted_bytes"] for m in run.memory] == [need + peak["host"]] * 2, f"{run.memory}"
        for m in run.memory:  # what the kernel has given to the arenas: two are of whole huge pages
            arenas = m["pss_bytes"] - m["outside_bytes"]
            assert 0 < m["device_touched_bytes"] <= need and arenas <= need + peak["host"] + (4 << 20), f"{m}"
        return need
    def less_with_offload():
        needs = [check({"zero_optimization.stage": 3, **more})
                 for more in ({}, OPTIMIZER_ON_HOST, {**OPTIMIZER_ON_HOST, **PARAMS_ON_HOST})]
        assert needs[0] > needs[1] > needs[2], f"{needs}"
    test("device memory: the need runs, a page less is refused, stage 0",
         lambda: check({"zero_optimization.stage": 0}))
    test("device memory: the need runs, a page less is refused, stage 3 with offload", less_with_offload)


def communication_type():
    def check():
        plain = Run(2, text_recipe(**{"bf16.enabled": True}))
        cast = Run(2, text_recipe(**{"bf16.enabled": True, "communication_data_type": "bf16"}))
        close(cast.loss, plain.loss, 5e-3, "loss with bf16 on the wire")
        assert cast.bits() != plain.bits(), "communication_data_type changed nothing"
    if not quick:
        test("communication_data_type bf16", check)


def fixture_masks(fixture):
    """Case B03 (c): sequences with unequal numbers of targets, one with none; the same numbers for
    every split."""
    want = EXPECTEDS[fixture]["masked"]
    mask = bytes([1] + [x for row in want["mask"] for x in row])
    splits = [(2, 1, 2)] if quick else [(1, 4, 1), (2, 2, 1), (4, 1, 1), (1, 1, 4), (2, 1, 2)]

    def check(ranks, micro, accum, stage):
        r = recipe(micro, accum, 6, fixture, **{"zero_optimization.stage": stage,
                                                "data.train_mask": "m", "train.steps": 3})
        run, split = Run(ranks, r, {"m": mask}), f"ranks={ranks} micro={micro} accum={accum}"
        close(run.loss, [want["loss"]], 1e-5, f"{split}: loss")
        assert abs(run.norm[0] - want["grad_norm"]) <= 1e-4 * want["grad_norm"], f"{split}: norm {run.norm[0]}"
        assert run.steps[0]["targets"] == want["valid"], f"{split}: {run.steps[0]['targets']} targets"
        return run

    def every_split(stage):
        runs = [check(*s, stage) for s in splits]
        for s, run in zip(splits, runs):
            close(run.loss, runs[0].loss, 1e-5, "loss of ranks=%d micro=%d accum=%d" % s)

    for stage in (3,) if quick else range(4):
        test(f"fixture {fixture} masked, by any split, stage={stage}", lambda s=stage: every_split(s))


def all_masked():
    """Nothing to learn from: no NaN, nothing changes, and it is said."""
    def check(ranks, stage):
        files = {"m": bytes(25)}
        base = {"zero_optimization.stage": stage, "data.train_mask": "m"}
        none = Run(ranks, recipe(4 // ranks, 1, 6, **base, **{"train.steps": 0}), files)
        run = Run(ranks, recipe(4 // ranks, 1, 6, **base, **{"train.steps": 3}), files)
        assert run.digest == none.digest, "the state changed"
        for x in run.steps:
            assert x["loss"] is None and x["targets"] == 0 and x["grad_norm"] == 0, f"{x}"
        assert run.steps[-1]["skipped"] == 3, "not counted as skipped"
        assert run.text.count("every target of the batch is masked") == 1, "not said once"
    for ranks, stage in ((2, 3),) if quick else ((1, 0), (2, 1), (2, 2), (4, 3)):
        test(f"every target masked ranks={ranks} stage={stage}", lambda r=ranks, s=stage: check(r, s))


def packed_documents():
    """Documents packed into one sample learn as samples of their own do."""
    docs = [b"the cat sat.", b"on a mat: 12", b"3 + 4 = 7..\n"]

    def check(model, bf16):
        base = {"model": {**MODELS[model], "vocab_size": 256, "n_positions": 36}, "train.steps": 5, "data.train": "docs", "data.shuffle": False,
                "bf16.enabled": bf16}
        files = {f"docs/{i}": d for i, d in enumerate(docs)}
        single = Run(1, recipe(3, 1, 11, **base), files)  # 11 targets each
        # 36 tokens, and one more that only says where the last document ends
        packed = Run(1, recipe(1, 1, 36, **base, **{"data.packing": "documents"}), {**files, "docs/9": b"x"})
        joined = {"docs/all": b"".join(d[:-1] + b"\0" for d in docs) + b"x"}
        marked = Run(1, recipe(1, 1, 36, **{
            **base, "data.packing": "documents", "data.document_separator": 0, "data.format": "text",
            "data.train": "docs/all"}), joined)
        close(packed.loss, single.loss, 5e-3 if bf16 else 1e-5, "packed loss")
        close(packed.norm, single.norm, 2e-2 if bf16 else 1e-4, "packed norm")
        assert packed.steps[0]["targets"] == single.steps[0]["targets"] == 33
        assert marked.steps[0]["targets"] == 33, "a separator is no target of its own, or the last one is"
        plain = Run(1, recipe(1, 1, 36, **base), {"docs/all": b"".join(docs) + b"x"})
        assert abs(plain.loss[-1] - packed.loss[-1]) > 1e-3, "packing changed nothing"
    for model in ("gpt2",) if quick else ("gpt2", "qwen3"):
        for precision in ("fp32",) if quick else ("fp32", "bf16"):
            test(f"packed documents are samples of their own, {model} {precision}",
                 lambda: check(model, precision == "bf16"))


def optimizers():
    """Every optimizer gives the same bits in all stages and precisions' ways; Lion keeps no v."""
    kinds = {"Adam": {"type": "Adam", "params": {"lr": 1e-3, "weight_decay": 0.1, "adam_w_mode": False}},
             "Lion": {"type": "Lion", "params": {"lr": 2e-4, "weight_decay": 0.1}}}
    for name, o in kinds.items():
        for typed in ({},) if quick else ({}, {"bf16.enabled": True}):
            base = {"gradient_accumulation_steps": 1, "optimizer": o, **typed}
            same_bits(f"{name} {'bf16' if typed else 'fp32'}", 2,
                      [(f"stage {s}", text_recipe(**base, **{"zero_optimization.stage": s})) for s in range(4)])

    def check():
        one = {"gradient_accumulation_steps": 1, "zero_optimization.stage": 1}
        runs = {k: Run(2, text_recipe(**{**one, "optimizer": o})) for k, o in kinds.items()}
        runs["AdamW"] = Run(2, text_recipe(**one, **{"optimizer.params.weight_decay": 0.1}))
        assert len({tuple(r.loss) for r in runs.values()}) == 3, "two optimizers are the same"
        for r in runs.values():
            assert r.loss[-1] < r.loss[0], f"the loss does not fall: {r.loss}"
        saved = runs["AdamW"].memory[0]["predicted_bytes"] - runs["Lion"].memory[0]["predicted_bytes"]
        params = int(re.search(r"(\d+) parameters", runs["AdamW"].text).group(1))
        assert 0.9 * 4 * params / 2 < saved < 1.2 * 4 * params / 2, f"{saved} bytes less for {params} parameters"
    test("optimizers differ, and Lion holds one state less", check)


def param_groups():
    """Decay, rate and frozen tensors by name."""
    groups = [{"match": "*.ln_?.bias", "lr_scale": 0.5}, {"match": "h.1.attn.*", "frozen": True},
              {"match": "wpe.weight", "frozen": True}, {"match": "transformer.h.2.*", "weight_decay": 0.3}]
    base = {"gradient_accumulation_steps": 1, "optimizer.param_groups": groups}
    for ranks in (2,) if quick else (2, 3):
        same_bits(f"parameter groups ranks={ranks}", ranks,
                  [(f"stage {s}", text_recipe(**base, **{"zero_optimization.stage": s})) for s in range(4)] +
                  [(f"stage {s} offload", text_recipe(**base, **OPTIMIZER_ON_HOST, **{
                      "zero_optimization.stage": s})) for s in (1, 2, 3)])

    def rates():
        half = Run(2, text_recipe(**{"optimizer.params.lr": 5e-4}))
        scaled = Run(2, text_recipe(**{"optimizer.params.lr": 1e-3,
                                       "optimizer.param_groups": [{"match": "*", "lr_scale": 0.5}]}))
        assert half.bits() == scaled.bits(), "half the rate is not a scale of a half"
        none = Run(2, text_recipe(**{"optimizer.params.weight_decay": 0}))
        zero = Run(2, text_recipe(**{"optimizer.param_groups": [{"match": "*", "weight_decay": 0}]}))
        assert none.bits() == zero.bits(), "no decay is not a decay of 0"
    test("parameter groups: rate and decay", rates)

    def norm(ranks, stage):
        """Case S04: the tied embedding alone has a gradient norm of 2.456793855660."""
        only = [{"match": "wte.weight"}, {"match": "*", "frozen": True}]
        run = Run(ranks, recipe(4 // ranks, 1, 6, **{"optimizer.param_groups": only, "train.steps": 3,
                                                     "zero_optimization.stage": stage}))
        assert abs(run.norm[0] - 2.456793855660) < 1e-4, f"norm {run.norm[0]}"
        assert run.loss[2] < run.loss[0], f"what is not frozen does not learn: {run.loss}"
    for ranks, stage in ((2, 3),) if quick else ((1, 0), (2, 0), (2, 1), (4, 2), (2, 3)):
        test(f"frozen tensors are not in the norm ranks={ranks} stage={stage}",
             lambda r=ranks, s=stage: norm(r, s))

    def frozen_all_but_one():
        """The same batch every step, decay 0.1: the loss stays what it was to the last bit."""
        still = [{"match": "ln_f.bias", "lr_scale": 0}, {"match": "*", "frozen": True}]
        run = Run(2, recipe(2, 1, 6, **{"optimizer.param_groups": still}))
        assert len(run.loss) == 6 and len(set(run.loss)) == 1, f"losses {run.loss}"
    test("frozen tensors do not move", frozen_all_but_one)

    def frozen_units(stage, bf16):
        """Work that is left out for a frozen unit changes nothing: as with a rate of 0, unclipped."""
        base = {"gradient_clipping": 0, "zero_optimization.stage": stage, "bf16.enabled": bf16}
        for match in ("h.1.*", "[hw][.tp][0e]*", "[hl]*"):  # a block; embeddings and block 0; all but the embeddings
            frozen = Run(2, text_recipe(**base, **{"optimizer.param_groups": [
                {"match": match, "frozen": True}]}))
            still = Run(2, text_recipe(**base, **{"optimizer.param_groups": [
                {"match": match, "lr_scale": 0, "weight_decay": 0}]}))
            assert frozen.loss == still.loss, f"{match}: {frozen.loss} / {still.loss}"
            assert len(set(frozen.loss)) > 1, "nothing was learnt"
            less = still.memory[0]["predicted_bytes"] - frozen.memory[0]["predicted_bytes"]
            assert less > 10000, f"{match}: only {less} bytes less"
    for stage in (3,) if quick else range(4):
        test(f"frozen units cost nothing, stage {stage}", lambda s=stage: frozen_units(s, s % 2 == 1))


def loss_scale():
    """Cases P01, P03: skipped everywhere; the schedule waits; the scale is DeepSpeed's."""
    base = {**FP16, "fp16.loss_scale_window": 2, "gradient_accumulation_steps": 1,
            "scheduler": {"type": "Cosine", "params": {"warmup_steps": 100,
                                                              "total_steps": 1000}}}

    def check(hysteresis, consecutive):
        run = Run(2, text_recipe(**{**base, "fp16.hysteresis": hysteresis, "train.steps": 14,
                                    "fp16.consecutive_hysteresis": consecutive,
                                    "zero_optimization.stage": 2}))
        scale, left, last, applied = 2.0**21, hysteresis, -1, 0
        for i, x in enumerate(run.steps):
            assert x["loss_scale"] == scale, f"scale of step {i + 1} is {x['loss_scale']}, not {scale}"
            assert abs(x["lr"] - 1e-3 * (applied + 1) / 101) < 1e-10, f"rate of step {i + 1}: {x['lr']}"
            if x["grad_norm"] is None:
                last = i
                left, scale = (left - 1, scale) if left > 1 else (left, scale / 2)
                continue
            applied += 1
            grows = i - last - 1 > 0 and (i - last - 1) % 2 == 0
            left = hysteresis if grows or consecutive else left
            scale *= 2 if grows else 1
        assert 0 < applied < len(run.steps), f"{applied} updates applied"
        assert f"{applied} of 14 updates applied" in run.text, "the summary does not say it"
        assert run.text.count(" is skipped: the gradient overflowed at loss scale ") == 14 - applied
    test("loss scale, hysteresis 1", lambda: check(1, False))
    if not quick:
        test("loss scale, hysteresis 2", lambda: check(2, False))
        test("loss scale, consecutive hysteresis", lambda: check(2, True))

    def nothing_changes(stage):
        high = {**FP16, "zero_optimization.stage": stage, "fp16.initial_scale_power": 60}
        none = Run(2, text_recipe(**{**high, "train.steps": 0}))
        run = Run(2, text_recipe(**{**high, "train.steps": 3}))
        assert run.steps[-1]["skipped"] == 3, "a scale of 2^60 did not overflow"
        assert run.digest == none.digest, "parameters, master weights or moments changed"
    for stage in (3,) if quick else range(4):
        test(f"a skipped step changes nothing, stage {stage}", lambda s=stage: nothing_changes(s))

    def close_to_fp32():
        one = {"gradient_accumulation_steps": 1, "train.steps": 6}
        want = Run(2, text_recipe(**one))
        got = Run(2, text_recipe(**one, **{"fp16.enabled": True, "fp16.loss_scale": 1024}))
        close(got.loss, want.loss, 2e-3, "loss in fp16")
        for g, w in zip(got.norm, want.norm):  # case P07: unscaled, whatever the scale
            assert abs(g - w) <= 2e-2 * w, f"gradient norm {g}, in fp32 {w}"
    test("fp16 with a static scale is near fp32", close_to_fp32)


def schedules():
    """The rate, and OneCycle's momentum, live in the step block: the same in every stage."""
    cycle = {"gradient_accumulation_steps": 1, "scheduler": {"type": "OneCycle", "params": {
        "cycle_min_lr": 1e-4, "cycle_max_lr": 1e-2, "cycle_first_step_size": 2}}}

    def check():
        runs = [Run(2, text_recipe(**cycle, **{"zero_optimization.stage": s})) for s in (0, 3)]
        assert runs[0].bits() == runs[1].bits(), "stages 0 and 3 differ"
        close(runs[0].lr, [1e-4, 5.05e-3, 1e-2, 5.05e-3], 1e-9, "learning rate")
    test("schedule OneCycle", check)


POISON = 10  # a token of the fixture's vocabulary whose embedding overflows


def poisoned(folder):
    """The fixture, untied, with one embedding so large that a sample with that token is NaN."""
    raw = (FIXTURE / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header, data = json.loads(raw[8:8 + size]), bytearray(raw[8 + size:])
    begin, end = header["transformer.wte.weight"]["data_offsets"]
    width = (end - begin) // header["transformer.wte.weight"]["shape"][0]
    header["lm_head.weight"] = {**header["transformer.wte.weight"],
                                "data_offsets": [len(data), len(data) + end - begin]}
    data += data[begin:end]
    data[begin + POISON * width:begin + (POISON + 1) * width] = struct.pack("<f", 3e38) * (width // 4)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    config = {**json.loads((FIXTURE / "config.json").read_text()), "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    tokens = [(i * i + i // 7) % POISON for i in range(40 * 6 + 1)]
    tokens[17 * 6 + 2] = POISON  # in the middle of one sample
    (folder / "tokens.bin").write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))


def skipped_steps():
    """One bad sample on one rank: every rank leaves that step out, at every stage alike."""
    def check(bf16):
        with tempfile.TemporaryDirectory() as d:
            folder = pathlib.Path(d)
            poisoned(folder)
            runs = {}
            for stage in (3,) if quick else range(4):
                r = recipe(2, 1, 6, **{
                    "model.from": d, "data.train": str(folder / "tokens.bin"), "data.format": "raw_u16",
                    "train.steps": 10, "train.on_nonfinite": "skip", "bf16.enabled": bf16,
                    "scheduler": {"type": "Cosine", "params": {"warmup_steps": 2, "min_lr": 1e-4}},
                    "zero_optimization.stage": stage})
                runs[stage] = run = Run(2, r)
                bad = [i for i, x in enumerate(run.loss) if x is None]
                assert len(bad) == 1, f"steps {bad} of ten are not finite, not just one"
                at = bad[0]
                assert [x["skipped"] for x in run.steps] == [int(i >= at) for i in range(10)]
                lrs = [x["lr"] for x in run.steps]
                assert at == 9 or lrs[at + 1] == lrs[at], "the schedule went on in the step left out"
                assert len(set(lrs)) == (10 if at == 9 else 9), lrs
                assert run.loss[-1] is None or run.loss[-1] < run.loss[0], "nothing was learnt"
            first = next(iter(runs.values()))
            named = re.search(rf"step {at + 1} is skipped: the loss is not finite, first on rank [01]\n", first.text)
            assert named, first.text
            for stage, run in runs.items():
                assert named[0] in run.text, f"stage {stage}: {run.text}"
                assert run.bits() == first.bits(), f"stage {stage} differs from stage 0"
    for precision in ("fp32",) if quick else ("fp32", "bf16"):
        test(f"steps left out, {precision}", lambda p=precision: check(p == "bf16"))


def seeds():
    """The same seed, the same run, to the bit; another seed, another run."""
    def check():
        a, b, c = (Run(2, text_recipe(**{"train.seed": s})) for s in (7, 7, 8))
        assert a.bits() == b.bits(), "the same seed gave another run"
        assert a.bits() != c.bits(), "another seed gave the same run"
    if not quick:
        test("seeds", check)


def threads():
    """Threads of a worker only share the work."""
    def check():
        one, two = (Run(2, text_recipe(**{"parallel.threads": n})) for n in (1, 2))
        close(two.loss, one.loss, 1e-6, "loss with two threads")
    if not quick:
        test("threads 1 and 2", check)


def observing():
    """Evaluating and sampling change nothing in what is learnt."""
    def check():
        plain = Run(2, text_recipe(**{"data.val_fraction": 0.2}))
        seen = Run(2, text_recipe(**{"data.val_fraction": 0.2, "train.eval_every": 1,
                                     "train.sample_every": 2, "train.sample_tokens": 3}))
        assert plain.bits() == seen.bits(), "an evaluation or a sample changed the training"
        assert all("val_loss" in x for x in seen.steps)

    def times():
        base = {"zero_optimization.stage": 3, "train.eval_every": 2, "data.val_fraction": 0.2}
        off = Run(2, text_recipe(**base))
        on = Run(2, text_recipe(**base, **{"wall_clock_breakdown": True, "flops_profiler": {
            "enabled": True, "profile_step": 3, "output_file": "profile.txt"}}))
        assert off.bits() == on.bits(), "recording times changed the training"
        assert "profile written to profile.txt" in on.text and "times" not in off.text
        assert not any("breakdown_ms" in x for x in off.steps)
        rows = [x["breakdown_ms"] for x in on.steps] + on.summary["breakdown_ms"]
        assert len(rows) == 4 + 2 and [x["rank"] for x in rows[4:]] == [0, 1], f"{rows}"
        for x in rows:
            parts = sum(x[k] for k in ("forward", "backward", "update", "reduce_exposed", "gather_exposed",
                                       "wait"))
            assert abs(parts - x["total"]) < 1e-6 * x["total"], f"{parts} of {x}"
            assert 0 < x["forward"] and 0 < x["backward"] and 0 < x["update"], f"{x}"
            assert x["reduce_exposed"] <= x["reduce"] * 1.001 + 1 and x["wait"] >= 0, f"{x}"
    test("recording times only looks", times)
    if not quick:
        test("evaluation and samples only look", check)


def evaluation_across_ranks():
    """Validation loss is over the tokens, whatever the ranks and batches, short ones too."""
    def check():
        def val(ranks, micro, stage):
            r = text_recipe(**{"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": 1,
                               "data.val_fraction": 0.1, "train.eval_every": 4, "train.steps": 0,
                               "zero_optimization.stage": stage})
            return Run(ranks, r).summary["first_val_loss"]
        want = val(1, 1, 0)
        close([val(1, 4, 0), val(2, 3, 2), val(3, 5, 3)], [want] * 3, 1e-6, "validation loss")
    if not quick:
        test("validation loss by any split", check)


def epochs():
    """Each sample once an epoch; the last step's missing samples are masked, which is exact."""
    each = EXPECTED["loss_per_sequence"]
    mean = lambda *seqs: sum(each[s] for s in seqs) / len(seqs)
    frozen = {"optimizer.params.lr": 0, "data.shuffle": False}

    def check(ranks, micro, accum):
        r = recipe(micro, accum, 6, **frozen, **{"train.epochs": 2})
        del r["train"]["steps"]
        run = Run(ranks, r)
        close(run.loss, [mean(0, 1, 2), mean(3, 0, 1), mean(2, 3)], 1e-5, "loss")
        assert [x["targets"] for x in run.steps] == [18, 18, 12], f"{run.steps}"
        assert run.steps[-1]["tokens"] == 48, f"{run.steps[-1]['tokens']} tokens in two epochs of 24"
        assert "2 epochs, 3 steps" in run.text, run.text

    def earlier():
        run = Run(1, recipe(3, 1, 6, **frozen, **{"train.epochs": 9, "train.steps": 2}))
        assert len(run.loss) == 2, f"{len(run.loss)} steps"
    for split in ((3, 1, 1),) if quick else ((1, 3, 1), (3, 1, 1), (1, 1, 3)):
        test("epochs, ranks=%d micro=%d accum=%d" % split, lambda s=split: check(*s))
    if not quick:
        test("epochs and steps: the first of both ends", earlier)


def megatron(docs):
    """A pair of files, uint8 tokens, a sequence a document."""
    ends = [sum(map(len, docs[:i])) for i in range(len(docs) + 1)]
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 1, len(docs), len(docs) + 1)
    index += struct.pack(f"<{len(docs)}i", *map(len, docs)) + struct.pack(f"<{len(docs)}q", *ends[:-1])
    return b"".join(docs), index + struct.pack(f"<{len(docs) + 1}q", *range(len(docs) + 1))


def megatron_documents():
    """Case D06: documents of an index pack as files do."""
    docs = [(REPO / "LICENSE").read_bytes()[i * 70:i * 70 + 20 + i] for i in range(40)]
    base = {"data.packing": "documents", "train.steps": 3}

    def check():
        bin_, idx = megatron(docs)
        files = Run(2, text_recipe(**base, **{"data.train": "docs"}),
                    {f"docs/{i:03}": d for i, d in enumerate(docs)})
        pair = Run(2, text_recipe(**base, **{"data.train": "pair"}), {"pair.bin": bin_, "pair.idx": idx})
        assert files.bits() == pair.bits(), f"{files.loss} and {pair.loss}"
    test("megatron documents", check)


def weighted_files():
    """The share of each file, and the numbers, do not depend on the ranks."""
    text = (REPO / "LICENSE").read_bytes()
    files = {"a": text[:1000], "b": b"0123456789" * 300}
    train = [{"path": "a", "weight": 0.25}, {"path": "b", "weight": 0.75}]

    def check():
        runs = [Run(n, text_recipe(**{"train_micro_batch_size_per_gpu": m, "gradient_accumulation_steps": a,
                                      "data.train": train, "zero_optimization.stage": n}), files)
                for n, m, a in ((1, 4, 1), (2, 1, 2), (2, 2, 1))]
        for run in runs[1:]:
            close(run.loss, runs[0].loss, 1e-5, "loss")
        other = Run(1, text_recipe(**{"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1,
                                      "data.train": train[::-1]}), files)
        assert "25 % of the samples from 1 file, 1000 tokens" in runs[0].text, runs[0].text
        assert "75 % of the samples from 1 file, 3000 tokens" in other.text, other.text
    if not quick:
        test("files with weights", check)


if __name__ == "__main__":
    for name in FIXTURES:
        fixture_traces(name)
        fixture_masks(name)
    epochs()
    megatron_documents()
    weighted_files()
    all_masked()
    packed_documents()
    stages_bit_for_bit()
    recomputation()
    offload_bit_for_bit()
    nvme_bit_for_bit()
    other_models_bit_for_bit()
    across_ranks()
    dropout()
    memory_as_predicted()
    memory_of_processes()
    fits_exactly()
    communication_type()
    optimizers()
    param_groups()
    loss_scale()
    schedules()
    skipped_steps()
    seeds()
    threads()
    observing()
    evaluation_across_ranks()
    sys.exit(1 if failures else 0)
