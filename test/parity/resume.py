#!/usr/bin/env python3
"""Trainings that stop and go on from a checkpoint: resume.py [--quick] [--share=I/N] ZEROTRAIN [FILTER].

At the same topology the two halves give the bits of the whole: losses, norms, the digest of parameters and
moments, loss scale, batches, evaluations. At any other the state is the same to the bit when it is loaded,
and the losses go on within rounding. Prints one test line each.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

from training import EXPECTEDS, FP16, QUICK, TYPES, ZT, close, end, recipe, test, text_recipe


# A scale that overflows in the beginning, and again whenever it has grown.
SKIPS = {**FP16, "gradient_accumulation_steps": 1, "fp16.initial_scale_power": 23, "fp16.loss_scale_window": 1,
         "train.steps": 12}


class Folder:
    """A folder of checkpoints, with the runs that write to it and go on from it."""

    def __enter__(self):
        self.tmp = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.tmp.name)
        self.ck = self.path / "ck"
        self.n = 0
        return self

    def __exit__(self, *_):
        self.tmp.cleanup()

    def start(self, ranks, r, *options, status=0, env={}, device="cpu"):
        """The text of a run, its steps by number, and its summary."""
        self.n += 1
        path, log = self.path / f"r{self.n}.yaml", self.path / f"run{self.n}"
        path.write_text(json.dumps(r))
        p = subprocess.run([ZT, f"--device={device}", f"--num_gpus={ranks}", f"--log_dir={log}", *options, str(path)],
                           capture_output=True, text=True, cwd=self.path, env={**os.environ, **env})
        text = p.stdout + p.stderr
        assert p.returncode == status, f"exit status {p.returncode}, not {status}: " + " / ".join(text.splitlines()[-9:])
        if status not in (0, 7):
            return text, {}, {}
        steps = {s["step"]: s for s in map(json.loads, (log / "metrics.jsonl").read_text().splitlines())}
        return text, steps, json.loads((log / "summary.json").read_text())

    def steps(self):
        return sorted(int(p.name[5:]) for p in self.ck.glob("step-*"))


def saving(r, folder, every=0, **more):
    return {**r, "checkpoint": {"dir": str(folder.ck), "every_steps": every, **more}}


BITS = ("loss", "grad_norm", "grad_norm_clipped", "lr", "loss_scale", "skipped", "tokens", "targets", "val_loss")


def bits(step):
    return {k: step.get(k) for k in BITS}


def same_bits(name, ranks, base, at, device="cpu", env={}, options=(), **how):
    """One run to the end; another that saves at step `at` and stops; a third that goes on."""

    def check():
        with Folder() as f:
            run_ = lambda r, *o, **k: f.start(ranks, r, *options, *o, device=device, env=env, **k)
            _, whole, end = run_(base)
            # stopped there: the steps of the whole remain the recipe's, since schedules depend on them
            _, one, _ = run_(saving(base, f, at, **how))
            for step in f.steps():
                if step != at:
                    shutil.rmtree(f.ck / f"step-{step:06}")
            if "fp16" in base:
                skipped = [whole[i]["skipped"] for i in (at, max(whole))]
                assert 0 < skipped[0] < skipped[1], f"skipped {skipped}: not before and after"
            text, two, again = run_(saving(base, f, **how), "--resume=auto")
            assert f"going on from {f.ck}/step-{at:06}, after step {at}" in text, text
            assert [bits(s) for s in one.values()] == [bits(s) for s in whole.values()], "saving changes a run"
            assert sorted(two) == list(range(at + 1, max(whole) + 1)), f"steps {sorted(two)}"
            for i in two:
                assert bits(two[i]) == bits(whole[i]), f"step {i}: {bits(two[i])}, not {bits(whole[i])}"
            assert again["digest"] == end["digest"], f"digest {again['digest']}, not {end['digest']}"

    test(f"resume {name}", check)


def same_topology():
    """Every stage, type and home of the state; in mid-epoch; fp16 skips steps before and after."""
    data = {"train.steps": 8, "train.eval_every": 3, "data.val_fraction": 0.1}
    for precision, typed in {**TYPES, "fp16": SKIPS}.items():
        for stage in (3,) if QUICK else range(4):
            if QUICK and precision == "bf16":
                continue
            base = text_recipe(**{**data, **typed, "zero_optimization.stage": stage})
            same_bits(f"{precision} stage={stage} 3 ranks", 3, base, 6)
    if QUICK:
        return
    for stage, offload in ((1, ("optimizer",)), (2, ("optimizer",)), (3, ("param",)), (3, ("optimizer", "param"))):
        base = text_recipe(**{**data, **SKIPS, "zero_optimization.stage": stage,
                              **{f"zero_optimization.offload_{o}.device": "cpu" for o in offload}})
        same_bits(f"fp16 stage={stage} offload={'+'.join(offload)}", 2, base, 6)
    for stage, offload in ((2, ("optimizer",)), (3, ("param",)), (3, ("optimizer", "param"))):
        base = text_recipe(**{**data, **SKIPS, "zero_optimization.stage": stage, **{
            f"zero_optimization.offload_{o}.{k}": v for o in offload
            for k, v in (("device", "nvme"), ("nvme_path", "."))}})
        same_bits(f"fp16 stage={stage} NVMe={'+'.join(offload)}", 2, base, 6)
    base = text_recipe(**{**data, **SKIPS, "zero_optimization.stage": 2})
    same_bits("without a snapshot", 2, base, 6, **{"async": False})
    same_bits("one rank", 1, base, 6)
    lion = text_recipe(**{**data, "optimizer": {"type": "Lion", "params": {"lr": 1e-4}}, "bf16.enabled": True})
    same_bits("Lion", 2, lion, 3)
    cycle = {"type": "OneCycle", "params": {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_first_step_size": 3}}
    same_bits("OneCycle moves beta1", 2, text_recipe(**{**data, "scheduler": cycle}), 4)
    dropout = text_recipe(**{**data, "zero_optimization.stage": 1})
    dropout["model"].update(embd_pdrop=0.1, resid_pdrop=0.1, attn_pdrop=0.1)
    same_bits("dropout", 2, dropout, 4)
    frozen = text_recipe(**{**data, "zero_optimization.stage": 3, "bf16.enabled": True})
    frozen["optimizer"]["param_groups"] = [{"match": "wte*", "frozen": True}]
    same_bits("a frozen unit", 2, frozen, 3)
    epochs = text_recipe(**{"train.epochs": 1, "zero_optimization.stage": 2})
    del epochs["train"]["steps"]
    same_bits("epochs, the last step padded", 2, epochs, 7)


def state_of(ck):
    """A checkpoint as {part/tensor: [values as bytes]}, whatever files hold it."""
    m = json.loads((ck / "manifest.json").read_text())
    size = {"F32": 4, "BF16": 2, "F16": 2}
    files = [(ck / f["name"]).read_bytes() for f in m["files"]]
    state = {}
    for t in m["tensors"]:
        for part in ("param", "m", "v"):
            if part in t:
                s = size[t[part]["dtype"]]
                state[f"{part}/{t['name']}"] = b"".join(
                    files[p["file"]][p["offset"]:p["offset"] + (p["end"] - p["begin"]) * s] for p in t[part]["pieces"])
    return m, state


def any_topology():
    """CASES S03, and more: 4 -> 6 -> 3 -> 1 ranks, every stage, type and home; loaded and saved again the
    state is the same to the last bit, and the losses are those of the float64 trace."""
    want = EXPECTEDS["gpt2"]["alt_traces"]["B12_T2"]
    losses = [t[1] for t in want]

    def change(stages, offload):
        with Folder() as f:
            done = 0
            for (ranks, micro), stage, off in zip(((4, 3), (6, 2), (3, 4), (1, 12), (2, 6)), stages, offload):
                r = recipe(micro, 1, 2, **{"zero_optimization.stage": stage, "train.steps": done + 1})
                for o in off:
                    r["zero_optimization"][f"offload_{o}"] = {"device": "cpu"}
                before = state_of(f.ck / f"step-{done:06}") if done else None
                text, steps, _ = f.start(ranks, saving(r, f), *(["--resume=auto"] if done else []))
                close([steps[done + 1]["loss"]], [losses[done]], 1e-5, f"loss of step {done + 1} on {ranks} ranks")
                done += 1
                m, after = state_of(f.ck / f"step-{done:06}")
                assert (m["step"], m["updates"], m["data"]["position"]) == (done, done, 12 * done), m["step"]
                assert len(m["files"]) == ranks
                assert all(len(after[k]) == len(v) for k, v in (before[1] if before else {}).items())
            # On yet another topology, nothing to do: the same state is read to its last step and digest.
            r = recipe(3, 4, 2, **{"zero_optimization.stage": 0, "train.steps": done})
            _, steps, one = f.start(1, saving(r, f), "--resume=auto")
            r = recipe(2, 1, 2, **{"zero_optimization.stage": 3, "train.steps": done})
            _, _, six = f.start(6, saving(r, f), "--resume=auto")
            assert not steps and one["digest"] == six["digest"], "the state depends on who reads it"

    none = [()] * 5
    test("resume S03: 4 -> 6 -> 3 -> 1 -> 2 ranks, stage 0", lambda: change([0] * 5, none))
    test("resume S03: stages 3 -> 1 -> 2 -> 3 -> 0", lambda: change([3, 1, 2, 3, 0], none))
    test("resume S03: state on the host and back",
         lambda: change([2, 3, 3, 1, 3], [("optimizer",), ("param",), ("optimizer", "param"), (), ("param",)]))


def types():
    """From one precision to another: values are fp32 in between, and go on near the whole."""
    def check(first, second):
        with Folder() as f:
            base = {k: {kk: vv for kk, vv in TYPES[k].items() if kk != "train.steps"} for k in TYPES}
            _, whole, _ = f.start(2, text_recipe(**{"train.steps": 8}))
            f.start(2, saving(text_recipe(**{**base[first], "train.steps": 4, "fp16.initial_scale_power": 10}), f))
            text, two, _ = f.start(3 if QUICK else 1, saving(
                text_recipe(**{**base[second], "train.steps": 8, "fp16.initial_scale_power": 10,
                               "train_micro_batch_size_per_gpu": 4, "zero_optimization.stage": 3}), f), "--resume=auto")
            if not QUICK:
                close([two[i]["loss"] for i in range(5, 9)], [whole[i]["loss"] for i in range(5, 9)], 2e-2, "loss")

    for first, second in (("bf16", "fp32"),) if QUICK else (("fp32", "bf16"), ("bf16", "fp16"), ("fp16", "fp32")):
        test(f"resume {first} -> {second}", lambda a=first, b=second: check(a, b))


def position():
    """Another batch, or number of ranks: the next sample is the one that would have come."""
    def check():
        with Folder() as f:
            base = lambda micro, steps: text_recipe(**{"data.seq_len": 32, "train.steps": steps, "gradient_accumulation_steps": 1,
                                                       "train_micro_batch_size_per_gpu": micro})
            f.start(2, saving(base(3, 5), f))  # 30 samples
            f.start(5, saving(base(2, 7), f), "--resume=auto")  # 20
            f.start(1, saving(base(1, 8), f), "--resume=auto")
            assert state_of(f.ck / "step-000008")[0]["data"]["position"] == 51
            text, steps, _ = f.start(1, saving(base(4, 9), f), "--resume=auto")
            assert steps[9]["tokens"] == 55 * 32, steps[9]["tokens"]

    def epochs():
        """An epoch of 353 samples of 32: however they are cut into steps, each comes once."""
        with Folder() as f:
            base = text_recipe(**{"train.epochs": 1, "data.seq_len": 32, "gradient_accumulation_steps": 1,
                                  "train_micro_batch_size_per_gpu": 16})
            del base["train"]["steps"]
            _, whole, _ = f.start(2, saving(base, f, 5))
            n, last = max(whole), state_of(f.ck / f"step-{max(whole):06}")[0]["data"]
            for step in f.steps()[1:]:
                shutil.rmtree(f.ck / f"step-{step:06}")
            base["train_micro_batch_size_per_gpu"] = 8
            _, two, _ = f.start(3, saving(base, f), "--resume=auto")
            left = last["samples"] - 5 * 32
            assert max(two) == 5 + -(-left // 24), f"{max(two)} steps, {left} samples were left"
            assert two[max(two)]["tokens"] == whole[n]["tokens"] == last["samples"] * 32

    test("resume with another batch keeps the position", check)
    test("resume with another batch ends with the epoch", epochs)


def bytes_read():
    """By read(2) and its like, of this process and all that have ended below it."""
    return int(re.search(r"^rchar: (\d+)", pathlib.Path("/proc/self/io").read_text(), re.M).group(1))


def read_once():
    """All ranks together read a checkpoint's bytes about once, whatever each of them holds whole; another number of ranks
    no block more than once each. Where slices do not end alike, and are shorter than a block, two want the same."""
    def check(stage, ranks, then, most):
        with Folder() as f:
            r = text_recipe(**{"train.steps": 1, "zero_optimization.stage": stage, "bf16.enabled": True})
            r["model"].update(n_embd=384, n_layer=3)
            f.start(ranks, saving(r, f))
            size = sum(p.stat().st_size for p in (f.ck / "step-000001").glob("rank-*"))
            begun = bytes_read()
            f.start(then, saving(r, f), "--resume=auto")
            times = (bytes_read() - begun) / size
            assert 0.9 < times < most, f"{times:.2f} times its {size} bytes"

    for stage in () if QUICK else range(4):
        test(f"resume reads once, stage={stage}", lambda a=stage: check(a, 4, 4, 1.3))
    for then, most in () if QUICK else ((1, 1.1), (2, 1.5), (3, 1.8), (8, 3.0)):
        test(f"resume reads once, 4 ranks -> {then}", lambda a=then, b=most: check(2, 4, a, b))


def folders():
    """What is refused, and what is moved aside."""
    def refused():
        with Folder() as f:
            base = text_recipe(**{"train.steps": 3})
            f.start(2, saving(base, f, 1))
            text, _, _ = f.start(2, saving(base, f), status=3)
            assert "holds the checkpoints of a run, the newest of step 3" in text and "--fresh" in text, text
            f.start(2, saving({**base, "train": {"steps": 2}}, f), "--fresh")
            assert f.steps() == [2] and len(list((f.ck / "before-1").glob("step-*"))) == 3
            text, _, _ = f.start(2, saving(base, f), f"--resume={f.ck}/before-1/step-000009", status=3)
            assert "before-1/step-000009" in text, text
            text, _, _ = f.start(2, saving(base, f), f"--resume={f.path}/none", status=3)
            assert "no checkpoint" in text, text
            older = f"--resume={f.ck}/before-1/step-000001"  # of another run, though it lies here
            text, _, _ = f.start(2, saving({**base, "train": {"steps": 4}}, f), older, status=3)
            assert "holds the checkpoints of a run" in text, text
            text, steps, _ = f.start(2, saving({**base, "train": {"steps": 4}}, f), older, "--fresh")
            assert sorted(steps) == [2, 3, 4] and f.steps() == [4], f.steps()
            other = text_recipe(**{"train.steps": 3})
            other["model"]["n_layer"] = 2
            text, _, _ = f.start(2, saving(other, f), "--resume=auto", status=3)
            assert "tensors" in text, text
            lion = {**base, "optimizer": {"type": "Lion", "params": {"lr": 1e-4}}}
            text, _, _ = f.start(2, saving(lion, f), "--resume=auto", status=3)
            assert "its moments are those of AdamW" in text, text

    def retained():
        with Folder() as f:
            f.start(2, saving(text_recipe(**{"train.steps": 13, "gradient_accumulation_steps": 1}), f, 1, keep=2, keep_every=5))
            assert f.steps() == [5, 10, 12, 13], f.steps()
            assert (f.ck / "latest").read_text() == "step-000013\n"

    def by_time():
        """Rank 0's clock decides, all ranks save the same steps, and any of them goes on to the same bits."""
        with Folder() as f:
            n, every = (15, 0.0001) if QUICK else (60, 0.0005)
            r = text_recipe(**{"train.steps": n, "zero_optimization.stage": 3})
            _, _, whole = f.start(3, saving(r, f, every_minutes=every))
            saved = f.steps()
            assert len(saved) > 2 and saved[-1] == n, saved
            for step in saved[1:]:
                shutil.rmtree(f.ck / f"step-{step:06}")
            text, _, again = f.start(3, saving(r, f), "--resume=auto")
            assert f"after step {saved[0]};" in text and again["digest"] == whole["digest"], text

    def nothing_yet():
        with Folder() as f:
            text, steps, _ = f.start(2, saving(text_recipe(), f), "--resume=auto")
            assert "has no checkpoint yet" in text and sorted(steps) == [1, 2, 3, 4], text
            text, steps, _ = f.start(2, saving(text_recipe(), f), "--resume=auto")
            assert not steps and "after step 4" in text, text

    def one_record():
        """The record of a run that goes on in its own folder: each step once."""
        with Folder() as f:
            log = f.path / "log"
            go = lambda steps, *o: subprocess.run([ZT, "--device=cpu", "--num_gpus=2", f"--log_dir={log}", *o,
                                                   str(f.path / "r.yaml")], check=True, capture_output=True)
            (f.path / "r.yaml").write_text(json.dumps(saving(text_recipe(**{"train.steps": 7}), f, 3)))
            go(7)
            first = (log / "metrics.jsonl").read_text().splitlines()
            for step in (6, 7):
                shutil.rmtree(f.ck / f"step-{step:06}")
            with open(log / "metrics.jsonl", "a") as half:
                half.write('{"type": "st')
            go(7, "--resume=auto")
            again = [json.loads(x) for x in (log / "metrics.jsonl").read_text().splitlines()]
            assert [bits(s) for s in again] == [bits(json.loads(x)) for x in first]

    test("resume refuses what is not meant", refused)
    test("resume keeps what keep and keep_every say", retained)
    test("resume from what was saved by time", by_time)
    test("resume from a folder with nothing in it", nothing_yet)
    test("resume goes on with the record", one_record)


if __name__ == "__main__":
    same_topology()
    any_topology()
    types()
    position()
    read_once()
    folders()
    end()
