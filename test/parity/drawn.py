#!/usr/bin/env python3
"""Trainings drawn by seed: drawn.py [--quick|--long] [--share=I/N] ZEROTRAIN [FILTER]. ("random" is Python's.)

Each seed draws a model, its data, batches, types, an optimizer and a schedule, and ways to carry them out: stage,
offload, recomputation, windows, threads. The ways must give the same bits, those of stage 0 (lib/README.md, section 2),
touch the bytes that are planned, and go on from each other's checkpoints to the same bits; one rank gives the
same batch's numbers within rounding, and so does another number of ranks from a checkpoint. A seed is a test by its
number: "drawn.py ZEROTRAIN 0017" draws it again. --long: hundreds of seeds.
"""
import random
import struct

from resume import Folder, bits, saving
from training import LONG, QUICK, RECOMPUTED, close, end, put, test, touched_as_planned

SEEDS = range(400) if LONG else range(2) if QUICK else range(8)


def model(d, seq_len):
    kind = d.choice(("gpt2", "llama", "llama", "mistral", "qwen2", "qwen3"))
    heads, layers = d.randint(1, 5), d.randint(1, 5)
    m = {"model_type": kind, "n_layer": layers, "n_head": heads, "n_positions": seq_len + d.choice((0, 0, 3, 20)),
         "vocab_size": d.choice((d.randint(3, 70), d.randint(60, 700))), "initializer_range": d.choice((0.02, 0.1, 0.3)),
         "tie_word_embeddings": d.random() < 0.5}
    if kind == "gpt2":
        m["n_embd"] = heads * d.choice((1, 3, 4, 7, 8, 16))
        m |= {"n_inner": d.randint(1, 70)} if d.random() < 0.5 else {}
        m |= {f"{k}_pdrop": d.choice((0, 0.1, 0.4)) for k in ("embd", "resid", "attn")} if d.random() < 0.4 else {}
        return m
    m["num_key_value_heads"] = d.choice([n for n in range(1, heads + 1) if heads % n == 0])
    m |= {"n_inner": d.randint(1, 90), "rope_theta": d.choice((100, 10000, 1e6)), "n_embd": heads * d.choice((2, 4, 6, 8, 14, 32))}
    if kind == "qwen3" or d.random() < 0.3:
        m |= {"head_dim": d.choice((2, 6, 8, 16, 34)), "n_embd": d.randint(heads, 50)}
    if kind in ("llama", "qwen3") and d.random() < 0.4:
        m["attention_bias"] = True
    if kind == "llama" and d.random() < 0.4:
        m["mlp_bias"] = True
    if kind == "mistral" and d.random() < 0.7:
        m["sliding_window"] = seq_len + d.choice((0, 1, 100))
    if d.random() < 0.4:
        m["rope_scaling"] = d.choice(({"rope_type": "linear", "factor": 3.0}, {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": d.choice((8, 64))}))
    m |= {"attention_dropout": 0.3} if d.random() < 0.2 else {}
    return m


def tokens(d, vocab):
    """A file of uint16, some tokens far more frequent than others, and its mask."""
    n = 5000
    ids = [min(int(d.expovariate(4 / vocab)), vocab - 1) for _ in range(n)]
    density, masked = d.choice((0.05, 0.5, 0.95)), 0
    mask = bytearray(n)
    for i in range(n):  # stretches without any target, longer than a sample
        masked = d.randint(20, 150) if masked == 0 and d.random() < 0.01 else max(masked - 1, 0)
        mask[i] = masked == 0 and d.random() < density
    return struct.pack(f"<{n}H", *ids), bytes(mask)


def optimizer(d, m):
    kind = d.choice(("AdamW", "AdamW", "Adam", "Lion"))
    params = {"lr": d.choice((1e-4, 1e-3)) * (0.3 if kind == "Lion" else 1), "weight_decay": d.choice((0, 0.1))}
    if d.random() < 0.5:
        params["betas"] = d.choice(([0.9, 0.95], [0.0, 0.9], [0.8, 0.999]))
    if kind == "Adam":
        params["adam_w_mode"] = d.random() < 0.5
    gpt2 = m["model_type"] == "gpt2"
    groups = [{"match": "*mlp*weight", "frozen": True}, *([{"match": "*.0.*", "frozen": True}] if m["n_layer"] > 1 else []),
              *([{"match": "*ln_*", "lr_scale": 0.5}, {"match": "*bias", "weight_decay": 0.3}, {"match": "*wte*", "frozen": True}]
                if gpt2 else [{"match": "*norm*", "lr_scale": 0.5}, {"match": "*embed_tokens*", "frozen": True},
                              {"match": "*q_proj.weight", "frozen": True}])]
    return {"type": kind, "params": params}, d.sample(groups, 2) if d.random() < 0.4 else []


SCHEDULES = [
    {}, {}, {"type": "Cosine", "params": {"warmup_steps": 2, "min_lr": 1e-5}}, {"type": "WarmupLR", "params": {"warmup_num_steps": 3}},
    {"type": "OneCycle", "params": {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_first_step_size": 2}},
    {"type": "WarmupCosineLR", "params": {"warmup_num_steps": 2, "total_num_steps": 9}}]
PRECISIONS = [{}, {}, {"bf16": {"enabled": True}}, {"fp16": {
    "enabled": True, "initial_scale_power": 16, "hysteresis": 1, "loss_scale_window": 2}}, {"fp16": {
        "enabled": True, "initial_scale_power": 24, "hysteresis": 2, "loss_scale_window": 3}}]


def trained(d):
    """What is trained: a recipe without a way to carry it out, the number of ranks, and its files."""
    seq_len, ranks = d.choice((1, 2, 5, 16, 31, 64)), d.choice((1, 2, 2, 3, 4))
    m = model(d, seq_len)
    ids, mask = tokens(d, m["vocab_size"])
    o, groups = optimizer(d, m)
    r = {"model": m, "optimizer": {**o, "param_groups": groups} if groups else o,
         "train_micro_batch_size_per_gpu": d.randint(1, 3), "gradient_accumulation_steps": d.choice((1, 1, 2, 3, 5)),
         "gradient_clipping": d.choice((0, 0.05, 1)), "steps_per_print": 1000, "parallel": {"threads": 1},
         "data": {"train": "t.bin", "format": "raw_u16", "seq_len": seq_len},
         "train": {"steps": 6, "seed": d.randint(0, 1 << 30), "on_nonfinite": "skip",
                   "reduce_every_micro_batch": d.random() < 0.7}, **d.choice(PRECISIONS)}
    schedule = d.choice(SCHEDULES)
    r |= {"scheduler": schedule} if schedule else {}
    if d.random() < 0.25:
        r["communication_data_type"] = d.choice(("fp32", "bf16", "fp16"))
    if d.random() < 0.4:
        put(r, {"data.train_mask": "m"})
    if d.random() < 0.3:
        put(r, {"data.packing": "documents", "data.document_separator": 0})
    if d.random() < 0.3:
        put(r, {"data.val_fraction": 0.1, "train.eval_every": 2, "train.eval_batches": d.randint(0, 2)})
    if d.random() < 0.15:
        put(r, {"train.sample_every": 3, "train.sample_tokens": 3, "train.sample_prompt": "\1"})
    return r, ranks, {"t.bin": ids, "m": mask}


def way(d, r, stages):
    """The recipe, carried out in a drawn way."""
    z = "zero_optimization"
    stage = d.choice(stages)
    more = {f"{z}.stage": stage, f"{z}.overlap_comm": d.random() < 0.7}
    kept = dict(d.choice([{}, *RECOMPUTED.values()]))
    every = "activation_checkpointing.every"
    if every in kept:
        kept[every] = d.randint(1, r["model"]["n_layer"])
    for what, least in (("offload_optimizer", 1), ("offload_param", 3)):
        device = d.choice((None, None, "cpu", "nvme"))
        if device and stage >= least:
            more[f"{z}.{what}.device"] = device
            more |= {f"{z}.{what}.nvme_path": "."} if device == "nvme" else {}
    if "nvme" in more.values():
        more |= {"aio.backend": d.choice(("auto", "threads")), "aio.block_size": d.choice((4096, 1 << 20))}
        if more.get(f"{z}.offload_optimizer.device") == "nvme":
            more[f"{z}.offload_optimizer.buffer_count"] = d.choice((2, 3, 5))
    if stage == 3 and d.random() < 0.6:
        more[f"{z}.prefetch_bucket_size"] = d.choice((1, 500, 20000))
    return put(copy(r), more | kept)


def copy(x):
    return {k: copy(v) for k, v in x.items()} if isinstance(x, dict) else x


def tolerances(r):
    """Of the first step's loss and norm, and of the last's loss, by another split of the batch."""
    exact = not any(k in r for k in ("bf16", "fp16", "communication_data_type"))
    return (1e-5, 1e-4, 2e-3) if exact else (2e-2, 2e-1, 5e-2)


def near(got, want, r, what):
    """Steps that went on from the same state: the first is the same within rounding, later ones drift."""
    loss, norm, later = tolerances(r)
    for n, i in enumerate(sorted(got)):
        g, w = got[i], want[i]
        assert g["targets"] == w["targets"] and g["tokens"] == w["tokens"], f"{what}: {g} / {w}"
        if g["grad_norm"] is None or w["grad_norm"] is None:
            return  # one of them may be the first to overflow: what follows is another training
        assert (g["loss"] is None) == (w["loss"] is None), f"{what}: {g} / {w}"
        if g["loss"] is not None:
            close([g["loss"]], [w["loss"]], later if n else loss, f"{what}: step {i}, loss")
        if n == 0:
            close([g["grad_norm"]], [w["grad_norm"]], norm, f"{what}: step {i}, norm")


def same(got, want, ends, what):
    for i in got:
        assert bits(got[i]) == bits(want[i]), f"{what}: step {i}: {bits(got[i])}, not {bits(want[i])}"
    assert ends[0]["digest"] == ends[1]["digest"], f"{what}: digest {ends[0]['digest']}, not {ends[1]['digest']}"


def split(d, r, ranks):
    """The same global batch on another number of ranks."""
    batch = r["train_micro_batch_size_per_gpu"] * r["gradient_accumulation_steps"] * ranks
    n = d.choice([n for n in range(1, 5) if batch % n == 0])
    micro = d.choice([m for m in range(1, 9) if batch // n % m == 0])
    return n, {**r, "train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": batch // n // micro}


def check(seed):
    d = random.Random(seed)
    r, ranks, files = trained(d)
    accumulates = r["gradient_accumulation_steps"] > 1 and not r["train"]["reduce_every_micro_batch"]
    stages = (0, 1) if accumulates else range(4)

    with Folder() as f:
        for name, content in files.items():
            (f.path / name).write_bytes(content)

        def run(n, what, recipe, *options):
            try:
                text, steps, summary = f.start(n, recipe, *options)
            except AssertionError as e:
                raise AssertionError(f"{what} on {n} ranks: {e}: {recipe}") from None
            assert len(summary["memory"]) == n
            for m in summary["memory"]:
                touched_as_planned(m)
                assert m.get("nvme_touched_bytes") == m.get("nvme_predicted_bytes"), f"{what}: {m}"
            return steps, summary

        def compare(fn, *args):
            try:
                fn(*args)
            except AssertionError as e:
                raise AssertionError(f"{e}: {ranks} ranks, {args[-1]}") from None

        base, base_end = run(ranks, "stage 0", put(copy(r), {"zero_optimization.stage": 0}))
        assert len(base) == 6
        saves, at = way(d, r, stages), d.randint(1, 5)
        steps, ends = run(ranks, "a way", saving(saves, f, at, keep=9, **{"async": d.random() < 0.7}))
        compare(same, steps, base, (ends, base_end), f"{saves}")
        resumed = ("--resume=ck/step-%06d" % at,)
        goes_on = way(d, r, stages)
        steps, ends = run(ranks, f"after step {at} of {saves}", goes_on, *resumed)
        assert sorted(steps) == list(range(at + 1, 7))
        compare(same, steps, base, (ends, base_end), f"after step {at} of {saves}, {goes_on}")
        n, other = split(d, r, ranks)
        other = way(d, other, range(4))
        steps, _ = run(n, f"after step {at} of {saves}", other, *resumed)
        compare(near, steps, base, r, f"after step {at}, on {n} ranks {other}")
        one = put(copy(r), {"train_micro_batch_size_per_gpu": r["train_micro_batch_size_per_gpu"] * ranks})
        compare(near, run(1, "one rank", one)[0], base, r, f"one rank {one}")


if __name__ == "__main__":
    for seed in SEEDS:
        test(f"drawn {seed:04}", lambda: check(seed))
    end()
