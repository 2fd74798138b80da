#!/usr/bin/env python3
"""Whole trainings compared: run.py [--quick|--long] [--share=I/N] ZEROTRAIN [FILTER].

The numerics contract (lib/README.md, section 2): for the same ranks, micro-batches and precision, stages
0 to 3, overlap on or off and recomputation give the same bits; across rank counts and batch splits the
same numbers within rounding. The traces of the fixtures (float64) pin them to the truth.
Kinds of what does not depend on each other are combined so that any two values meet (covering());
--long: all combinations. --share=I/N: every N-th test, from the I-th. Prints one test line each.
Needs nothing but Python's standard library.
"""
import json
import pathlib
import re
import struct
import tempfile

import data
import memory
from training import (DROPOUT, EXPECTEDS, FIXTURE, FIXTURES, FP16, LONG, OPTIMIZER_ON_HOST, OPTIMIZER_ON_NVME,
                      PARAMS_ON_HOST, PARAMS_ON_NVME, QUICK, RECOMPUTED, Run, TYPES, close, covering, end, half, recipe,
                      same_bits, test, text_recipe, touched_as_planned, trace)


def fixture_traces(fixture):
    """CASES, the fixtures: the same batch by every split, at every stage."""
    expected = EXPECTEDS[fixture]
    cases = [(6, expected["adamw"]["trace"], [(1, 4, 1), (2, 2, 1), (4, 1, 1), (1, 1, 4), (2, 1, 2)])]
    alt = expected["alt_traces"]
    cases.append((2, alt["B12_T2"], [(3, 4, 1), (6, 2, 1), (12, 1, 1), (4, 3, 1)]))
    cases.append((3, alt["B8_T3"], [(8, 1, 1)]))
    if QUICK:
        cases = [(6, expected["adamw"]["trace"], [(2, 1, 2)])]
    for seq_len, want, splits in cases:
        for ranks, micro, accum in splits:
            for stage in (3,) if QUICK else range(4):
                r = recipe(micro, accum, seq_len, fixture, **{"zero_optimization.stage": stage})
                test(f"fixture {fixture} T={seq_len} ranks={ranks} micro={micro} accum={accum} stage={stage}",
                     lambda r=r, n=ranks, w=want: trace(Run(n, r), w))


def stages_bit_for_bit():
    for precision, typed in TYPES.items():
        for ranks in (2,) if QUICK else (2, 3):
            base = {"gradient_accumulation_steps": 1, **typed}
            same_bits(f"stages {precision} ranks={ranks} accum=1", ranks,
                      [(f"stage {s} overlap {o}", text_recipe(**base, **{
                          "zero_optimization.stage": s, "zero_optimization.overlap_comm": o}))
                       for s in range(4) for o in ((True,) if QUICK else (True, False))])
            if QUICK:
                continue
            every = {"train.reduce_every_micro_batch": True, **typed}
            same_bits(f"stages {precision} ranks={ranks} accum=2, reduced every micro-batch", ranks,
                      [(f"stage {s}", text_recipe(**every, **{"zero_optimization.stage": s}))
                       for s in range(4)])
            same_bits(f"prefetch window {precision} ranks={ranks}", ranks,
                      [(f"{n}", text_recipe(**typed, **{
                          "zero_optimization.stage": 3, "zero_optimization.stage3_prefetch_bucket_size": n}))
                       for n in (1, 20000, 50000000)])


def recomputation():
    """Case M03: memory changes, and no bit; with dropout, skipped steps, micro-batches, every stage and window."""
    cases = [("gpt2", "fp32", (2, 2)), ("llama", "bf16", (2, 2))] if QUICK else covering(
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
    if not QUICK:
        test("recomputation, memory", memory)


def same_bits_elsewhere(name, staged, parameters):
    """Where states live and are updated changes no bit: steps that are skipped, micro-batches, recomputation.

    staged(stage): what moves the optimizer's state at stages 1 to 3. parameters: labels and what moves more at 3.
    """
    cases = (("fp16", (2, "gpt2"), 1),) if QUICK else covering(
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
    ways = [(0, "none"), (3, "block")] + ([] if QUICK else [(1, "none"), (2, "none"), (0, "block"), (3, "none")])
    for n, model in enumerate(("llama", "qwen2", "qwen3")):
        for i, precision in enumerate(("bf16",) if QUICK else TYPES):
            base = {**TYPES[precision], "gradient_accumulation_steps": 1}
            same_bits(f"stages {model} {precision}", 2,
                      [(f"stage {s} {policy}", text_recipe(model, **base, **{
                          "zero_optimization.stage": s, "activation_checkpointing.policy": policy}))
                       for s, policy in (ways if QUICK else half(ways, n + i))])


def across_ranks():
    """The state does not depend on who holds it: same global batch, other rank counts."""
    def check(model):
        runs = {n: Run(n, text_recipe(model, **{"train_micro_batch_size_per_gpu": 12 // n,
                                         "gradient_accumulation_steps": 1,
                                         "zero_optimization.stage": 2})) for n in (1, 2, 3, 4)}
        for n in (2, 3, 4):
            close(runs[n].loss, runs[1].loss, 1e-5, f"loss on {n} ranks")
    for model in () if QUICK else ("gpt2", "qwen3"):
        test(f"rank counts 1 2 3 4 {model}", lambda: check(model))


def dropout():
    """Masks belong to samples: stages, recomputation and overlap give the same bits, other ranks and batches
    the same numbers."""
    ways = [(s, policy, policy == "none" or s % 2 == 0) for s in range(4) for i, policy in enumerate(("none", "block"))
            if not QUICK or i == s % 2]
    for n, (model, drops) in enumerate(DROPOUT.items()):
        for i, precision in enumerate(("fp32",) if QUICK else TYPES):
            base = {**TYPES[precision], **drops, "gradient_accumulation_steps": 1}
            same_bits(f"dropout {model} {precision}", 2,
                      [(f"stage {s} {policy} overlap {o}", text_recipe(model, **base, **{
                          "zero_optimization.stage": s, "activation_checkpointing.policy": policy,
                          "zero_optimization.overlap_comm": o}))
                       for s, policy, o in half(ways, n + i)])

    def split(model, drops):
        splits = ((1, 8, 1), (1, 2, 4), (2, 2, 2), (4, 2, 1)) + (() if QUICK else ((2, 1, 4), (4, 1, 2)))
        runs = {}
        for ranks, micro, accum in splits:
            runs[ranks, micro, accum] = Run(ranks, text_recipe(model, **drops, **{
                "train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": accum,
                "zero_optimization.stage": ranks % 4}))
        first = runs[splits[0]]
        for s in splits[1:]:
            close(runs[s].loss, first.loss, 1e-5, "loss of ranks=%d micro=%d accum=%d" % s)
            close(runs[s].norm, first.norm, 1e-4, "norm of ranks=%d micro=%d accum=%d" % s)
    for model in ("gpt2",) if QUICK else DROPOUT:
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


def communication_type():
    def check():
        plain = Run(2, text_recipe(**{"bf16.enabled": True}))
        cast = Run(2, text_recipe(**{"bf16.enabled": True, "communication_data_type": "bf16"}))
        close(cast.loss, plain.loss, 5e-3, "loss with bf16 on the wire")
        assert cast.bits() != plain.bits(), "communication_data_type changed nothing"
    if not QUICK:
        test("communication_data_type bf16", check)


def optimizers():
    """Every optimizer gives the same bits in all stages and precisions' ways; Lion keeps no v."""
    kinds = {"Adam": {"type": "Adam", "params": {"lr": 1e-3, "weight_decay": 0.1, "adam_w_mode": False}},
             "Lion": {"type": "Lion", "params": {"lr": 2e-4, "weight_decay": 0.1}}}
    for n, (name, o) in enumerate(kinds.items()):
        for i, typed in enumerate(({},) if QUICK else ({}, {"bf16.enabled": True})):
            base = {"gradient_accumulation_steps": 1, "optimizer": o, **typed}
            same_bits(f"{name} {'bf16' if typed else 'fp32'}", 2,
                      [(f"stage {s}", text_recipe(**base, **{"zero_optimization.stage": s}))
                       for s in half(range(4), n + i)])

    def check():
        one = {"gradient_accumulation_steps": 1, "data.seq_len": 32, "zero_optimization.stage": 1}
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
    for ranks in (2,) if QUICK else (2, 3):
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
    for ranks, stage in ((2, 3),) if QUICK else ((1, 0), (2, 0), (2, 1), (4, 2), (2, 3)):
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
    for stage in (3,) if QUICK else range(4):
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
    if not QUICK:
        test("loss scale, hysteresis 2", lambda: check(2, False))
        test("loss scale, consecutive hysteresis", lambda: check(2, True))

    def nothing_changes(stage):
        high = {**FP16, "zero_optimization.stage": stage, "fp16.initial_scale_power": 60}
        none = Run(2, text_recipe(**{**high, "train.steps": 0}))
        run = Run(2, text_recipe(**{**high, "train.steps": 3}))
        assert run.steps[-1]["skipped"] == 3, "a scale of 2^60 did not overflow"
        assert run.digest == none.digest, "parameters, master weights or moments changed"
    for stage in (3,) if QUICK else range(4):
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
            for stage in (3,) if QUICK else range(4):
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
    for precision in ("fp32",) if QUICK else ("fp32", "bf16"):
        test(f"steps left out, {precision}", lambda p=precision: check(p == "bf16"))


def seeds():
    """The same seed, the same run, to the bit; another seed, another run."""
    def check():
        a, b, c = (Run(2, text_recipe(**{"train.seed": s})) for s in (7, 7, 8))
        assert a.bits() == b.bits(), "the same seed gave another run"
        assert a.bits() != c.bits(), "another seed gave the same run"
    if not QUICK:
        test("seeds", check)


def threads():
    """Threads of a worker only share the work."""
    def check():
        one, two = (Run(2, text_recipe(**{"parallel.threads": n})) for n in (1, 2))
        close(two.loss, one.loss, 1e-6, "loss with two threads")
    if not QUICK:
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
    if not QUICK:
        test("evaluation and samples only look", check)


if __name__ == "__main__":
    for name in FIXTURES:
        fixture_traces(name)
        data.fixture_masks(name)
    data.epochs()
    data.megatron_documents()
    data.weighted_files()
    data.all_masked()
    data.packed_documents()
    stages_bit_for_bit()
    recomputation()
    offload_bit_for_bit()
    nvme_bit_for_bit()
    other_models_bit_for_bit()
    across_ranks()
    dropout()
    memory.memory_as_predicted()
    memory.memory_of_processes()
    memory.fits_exactly()
    communication_type()
    optimizers()
    param_groups()
    loss_scale()
    schedules()
    skipped_steps()
    seeds()
    threads()
    observing()
    data.evaluation_across_ranks()
    end()
