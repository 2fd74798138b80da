#!/usr/bin/env python3
"""Whole trainings on a GPU compared with the CPU's: cuda.py [--quick] [--share=I/N] ZEROTRAIN LIBRARY [FILTER].

LIBRARY is the CUDA part on the simulator (build/cusim/libzerotrain_cuda.so), or a real one where there are
GPUs. The recipes and the truth are training.py's. Prints one test line each.

Tolerances, of losses and of gradient norms relative to 1 or to themselves: fp32 2e-5 and 2e-4, since sums are
made in another order; 16-bit types by their precision. Between stages, schedules of streams, and builds of the
same library: the same bits.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

LIBRARY = str(pathlib.Path(sys.argv.pop([i for i, a in enumerate(sys.argv) if not a.startswith("--")][2])).resolve())
import resume
import training
from training import (DROPOUT, EXPECTEDS, FIXTURES, OPTIMIZER_ON_HOST, OPTIMIZER_ON_NVME, PARAMS_ON_HOST, PARAMS_ON_NVME,
                      QUICK, RECOMPUTED, REPO, Run, ZT, close, end, recipe, test, touched_as_planned, trace)

SIMULATED = "cusim" in LIBRARY or "CUSIM_DEVICES" in os.environ
SANITIZED = ("ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS", "OMP_NUM_THREADS")  # what tests give to all processes
TYPES = {**training.TYPES, "fp16": {**training.FP16, "train.steps": 8}}  # some are skipped
TOLERANCES = {"fp32": (2e-5, 2e-4), "bf16": (5e-3, 3e-2), "fp16": (2e-3, 1e-2)}
for name in ("CUDA_VISIBLE_DEVICES", "DS_ENV_FILE"):
    os.environ.pop(name, None)


def text_recipe(model="gpt2", **more):
    """Small: the simulator takes its time for each CUDA thread. Tiles and their rests are test/cuda's and test/unit/dev's."""
    return training.text_recipe(model, **{"data.seq_len": 16, "train.steps": 3, **more})


def on_gpu(ranks, r, files={}, env={}, how="shared"):
    """how: "shared", all ranks on one GPU; "staged" or "nccl", a GPU for each, as the simulator has."""
    gpus, options = (1, [f"--devices_per_gpu={ranks}"]) if how == "shared" else (ranks, [f"--collectives={how}"])
    env = {"ZT_CUDA_LIB": LIBRARY, "CUSIM_DEVICES": str(gpus), **env}
    got = Run(gpus, r, files, "cuda", env, options)
    assert ("collectives: NCCL" in got.text) == (how == "nccl"), f"not {how}: {got.text}"
    return got


def near(got, want, precision):
    loss, norm = TOLERANCES[precision]
    close(got.loss, want.loss, loss, "loss")
    assert [n is None for n in got.norm] == [n is None for n in want.norm], f"norms {got.norm}, not {want.norm}"
    close([n for n in got.norm if n is not None], [n for n in want.norm if n is not None], norm, "gradient norm")
    assert got.lr == want.lr, f"rates {got.lr}, not {want.lr}"
    assert [s["skipped"] for s in got.steps] == [s["skipped"] for s in want.steps], "other steps are skipped"


def fixtures():
    """The float64 truth, by one rank and by several."""
    for name in FIXTURES:
        want = EXPECTEDS[name]["adamw"]["trace"]
        for ranks, micro, accum, stage in ((1, 4, 1, 0),) if QUICK else ((1, 4, 1, 0), (1, 1, 4, 0), (2, 2, 1, 3)):
            r = recipe(micro, accum, 6, name, **{"zero_optimization.stage": stage})
            test(f"cuda fixture {name} ranks={ranks} micro={micro} accum={accum} stage={stage}",
                 lambda r=r, n=ranks, w=want: trace(on_gpu(n, r), w))


def against_cpu():
    """Every model and type: the CPU's numbers, steps that are skipped included."""
    for model in ("gpt2", "llama") if QUICK else ("gpt2", "llama", "qwen3"):
        for precision, typed in TYPES.items():
            if QUICK and precision == "fp16":
                continue
            r = text_recipe(model, **typed)
            test(f"cuda like the CPU, {model} {precision}",
                 lambda r=r, p=precision: near(on_gpu(1, r), Run(1, r), p))
        r = text_recipe(model, **DROPOUT[model])
        test(f"cuda like the CPU, dropout, {model}", lambda r=r: near(on_gpu(1, r), Run(1, r), "fp32"))


def stages():
    """Host-staged collectives keep the contract: every stage has the same bits."""
    def check(ranks, typed, precision):
        runs = [on_gpu(ranks, text_recipe(**typed, **{"gradient_accumulation_steps": 1,
                                                      "zero_optimization.stage": s})) for s in range(4)]
        for s in range(1, 4):
            assert runs[s].bits() == runs[0].bits(), f"stage {s}: {runs[s].bits()}; stage 0: {runs[0].bits()}"
        near(runs[0], Run(ranks, text_recipe(**typed, **{"gradient_accumulation_steps": 1})), precision)
    cases = ((2, "bf16"),) if QUICK else ((2, "fp32"), (2, "bf16"), (3, "fp32"), (3, "fp16"))
    for ranks, precision in cases if QUICK or SIMULATED else (*cases, (4, "bf16")):
        test(f"cuda stages {precision} ranks={ranks}", lambda a=(ranks, TYPES[precision], precision): check(*a))


def transports():
    """NCCL, and host-staged on GPUs of their own and on one."""
    def check(ranks, typed, precision):
        r = text_recipe(**typed, **{"zero_optimization.stage": 3})
        staged = on_gpu(ranks, r, how="staged")
        assert on_gpu(ranks, r).bits() == staged.bits(), "other bits on one GPU"
        # A promise only of host-staged ones; but the simulator's NCCL adds up as the CPU does.
        stages = [on_gpu(ranks, text_recipe(**typed, **{"zero_optimization.stage": s}), how="nccl") for s in (0, 2, 3)]
        near(stages[2], staged, precision)
        assert stages[2].bits() == staged.bits(), "NCCL of the simulator: other bits than host-staged"
        for s in stages[:2]:
            near(s, staged, precision)
    if SIMULATED:
        for ranks, precision in ((2, "bf16"),) if QUICK else ((2, "bf16"), (3, "fp32")):
            test(f"cuda transports {precision} ranks={ranks}", lambda a=(ranks, TYPES[precision], precision): check(*a))
    test("cuda NCCL by one rank", lambda: near(on_gpu(1, text_recipe(), how="nccl"), Run(1, text_recipe()), "fp32"))


HOSTS = """node-a slots=2
node-b slots=2
"""
FAKE_SSH = REPO / "test/fake-ssh"


class Hosts:
    """Hosts that are this machine, each with GPUs of its own, behind a stand-in for ssh."""

    def __enter__(self):
        self.tmp = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.tmp.name)
        (self.path / "hosts").write_text(HOSTS)
        self.env = {"PATH": f"{FAKE_SSH}:{os.environ['PATH']}", "FAKE_HOSTS": self.tmp.name,
                    "HOME": self.tmp.name, "ZT_TCP_INTERFACE": "lo"}
        self.host("node-a", CUSIM_DEVICES=2)
        self.host("node-b", CUSIM_DEVICES=3, CUDA_VISIBLE_DEVICES="2,0")
        return self

    def __exit__(self, *_):
        self.tmp.cleanup()

    def host(self, name, **env):
        given = {"ZT_CUDA_LIB": LIBRARY, **{k: v for k, v in os.environ.items() if k in ("LD_LIBRARY_PATH", *SANITIZED)}}
        (self.path / name).write_text("".join(f"{k}={v}\n" for k, v in {**given, **env}.items()))

    def run(self, r, *options, env={}):
        return Run(0, r, {}, "cuda", {**self.env, **env},
                       ["--launcher=openssh", f"--hostfile={self.path}/hosts", *options])


def hosts():
    """GPUs of two hosts, chosen as each counts them: the bits of one host, by NCCL and by way of TCP."""
    def check(typed, chosen, ranks, runs):
        with Hosts() as h:
            for how, stage in runs:
                r = text_recipe(**typed, **{"zero_optimization.stage": stage})
                many = h.run(r, *chosen, f"--collectives={how}")
                one = on_gpu(ranks, r, how=how)
                assert many.bits() == one.bits(), f"{how}, stage {stage}: {many.bits()} / {one.bits()}"
                assert f"{ranks} GPU workers on 2 hosts" in many.text, many.text
                assert len(set(one.loss)) > 1, "the loss never changed"

    def share_a_gpu():
        with Hosts() as h:
            r = text_recipe(**{"zero_optimization.stage": 3})
            many, one = h.run(r, "--num_gpus=1", "--devices_per_gpu=2"), on_gpu(4, r)
            assert many.bits() == one.bits(), f"{many.bits()} / {one.bits()}"

    def one_gpu():
        """NCCL takes one GPU for two where it is of two hosts: between processes, by its network."""
        with Hosts() as h:
            for name in ("node-a", "node-b"):
                h.host(name, CUSIM_DEVICES=1, CUDA_VISIBLE_DEVICES=0)
            for stage in (0, 3) if QUICK else (0, 2, 3):
                r = text_recipe(**{"zero_optimization.stage": stage})
                many = h.run(r, "--num_gpus=1", "--collectives=nccl", env={"NCCL_SOCKET_IFNAME": "lo", "NCCL_NET": "Socket"})
                near(many, on_gpu(2, r), "fp32")
                assert "2 GPU workers on 2 hosts" in many.text and "collectives: NCCL" in many.text, many.text

    test("cuda NCCL between two hosts that share a GPU", one_gpu)
    if not SIMULATED:
        return
    one_each, uneven = ["--num_gpus=1"], ["--exclude=node-a:1"]
    for precision, chosen, ranks, runs in (("bf16", uneven, 3, [("nccl", 3), ("staged", 1)]),) if QUICK else (
            ("fp32", one_each, 2, [(how, stage) for how in ("nccl", "staged") for stage in range(4)]),
            ("bf16", uneven, 3, [("nccl", 3), ("nccl", 0), ("staged", 1)]), ("fp16", [], 4, [("nccl", 2)])):
        test(f"cuda hosts {precision} ranks={ranks}", lambda a=(TYPES[precision], chosen, ranks, runs): check(*a))
    test("cuda hosts, 2 ranks on each GPU", share_a_gpu)


def offload():
    """States and parameters in pinned host memory or on a drive, updated by the host: the bits of the GPU."""
    def check(ranks, precision, model):
        typed = {**TYPES[precision], "gradient_accumulation_steps": 1}
        first = on_gpu(ranks, text_recipe(model, **typed, **{"zero_optimization.stage": 2}))
        assert precision != "fp16" or 0 < first.steps[-1]["skipped"] < len(first.steps), "no step is skipped, or every one"
        for stage, where in ((1, OPTIMIZER_ON_HOST), (2, OPTIMIZER_ON_HOST), (3, OPTIMIZER_ON_HOST),
                             (3, PARAMS_ON_HOST), (3, {**OPTIMIZER_ON_HOST, **PARAMS_ON_HOST}),
                             (1, OPTIMIZER_ON_NVME), (3, PARAMS_ON_NVME),
                             (3, {**OPTIMIZER_ON_NVME, **PARAMS_ON_NVME})):
            for how in ("", "lazy") if SIMULATED and (precision, stage) == ("bf16", 3) and not QUICK else ("",):
                other = on_gpu(ranks, text_recipe(model, **typed, **where, **{"zero_optimization.stage": stage}),
                               env={"CUSIM_SCHED": how} if how else {})
                assert other.bits() == first.bits(), f"stage {stage} {where} {how}: {other.bits()} / {first.bits()}"
    for ranks, precision, model in ((2, "bf16", "gpt2"),) if QUICK else (
            (1, "fp32", "gpt2"), (2, "bf16", "llama"), (1, "fp16", "gpt2")):
        test(f"cuda offload {model} {precision} ranks={ranks}", lambda a=(ranks, precision, model): check(*a))


def recomputation():
    """What is computed again, and inputs in pinned host memory, also on late streams: the bits of keeping all."""
    def check(ranks, precision, model):
        typed = {**TYPES[precision], **DROPOUT[model], "gradient_accumulation_steps": 1}
        first = on_gpu(ranks, text_recipe(model, **typed))
        for i, (name, keys) in enumerate(RECOMPUTED.items()):
            if QUICK and name not in ("selective", "every 2, on the host"):
                continue
            r = text_recipe(model, **typed, **keys, **{"zero_optimization.stage": 3 - i % 4})
            for how in ("", "lazy") if SIMULATED and precision == "bf16" and "host" in name else ("",):
                other = on_gpu(ranks, r, env={"CUSIM_SCHED": how} if how else {})
                assert other.bits() == first.bits(), f"{name} {how}: {other.bits()}; none: {first.bits()}"
    for ranks, precision, model in ((2, "bf16", "gpt2"),) if QUICK else (
            (1, "fp32", "gpt2"), (2, "bf16", "llama"), (1, "fp16", "gpt2")):
        test(f"cuda recomputation {model} {precision} ranks={ranks}", lambda a=(ranks, precision, model): check(*a))


def schedules_of_streams():
    """Streams that are slow, late or by chance: a missing wait would show."""
    def check(ranks, r, how="shared"):
        first = on_gpu(ranks, r, how=how)
        for sched in ("lazy", "rand:1:300") if QUICK else ("lazy", "rand:1:300", "rand:2:50"):
            other = on_gpu(ranks, r, env={"CUSIM_SCHED": sched}, how=how)
            assert other.bits() == first.bits(), f"{sched}: {other.bits()}; eager: {first.bits()}"
    if SIMULATED:
        test("cuda delayed streams, 1 rank", lambda: check(1, text_recipe()))
        if not QUICK:
            for how in ("shared", "nccl"):
                test(f"cuda delayed streams, 2 ranks, stage 3, {how}", lambda h=how: check(2, text_recipe(
                    **{"zero_optimization.stage": 3, "bf16.enabled": True}), h))


def memory():
    """Touched is what the plan says, in blocks of 512 bytes; of the scratch, cuBLASLt takes what it likes. What
    collectives stage in is no more than they said."""
    def check(ranks, more):
        got = on_gpu(ranks, text_recipe(**more))
        staged = float(re.search(r"host-staged \(.*?\), ([\d.]+) MiB", got.text)[1])
        for m in got.memory:
            touched_as_planned(m)
            assert 0 < m["device_outside_bytes"] < 64 << 20 or not SIMULATED, f"{m}"
            assert 0 < m["staging_bytes"] < m["outside_bytes"], f"{m}"
        assert sum(m["staging_bytes"] for m in got.memory) <= ranks * (staged + 0.1) * (1 << 20), f"{got.memory}"
    for ranks, name, more in ((1, "", {}), (2, ", offload", {**OPTIMIZER_ON_HOST, **PARAMS_ON_HOST, **TYPES["bf16"],
                                                             "zero_optimization.stage": 3})):
        test(f"cuda memory predicted and measured, ranks={ranks}{name}", lambda r=ranks, m=more: check(r, m))


def refused(env, code, pattern):
    """A run that ends with this exit status and says so, on one line."""
    with tempfile.TemporaryDirectory() as d:
        path = pathlib.Path(d) / "r.yaml"
        path.write_text(json.dumps(text_recipe()))
        p = subprocess.run([ZT, "--device=cuda", f"--log_dir={d}/run", str(path)], capture_output=True, text=True,
                           cwd=d, env={**os.environ, "ZT_CUDA_LIB": LIBRARY, **env})
    assert p.returncode == code, f"exit status {p.returncode}: {p.stderr}"
    assert re.search(pattern, p.stderr), p.stderr


def failures():
    """No driver, an old one, no device; and a kernel that goes wrong: named, and nothing hangs."""
    other = r"\. To train with 1 CPU worker instead: "
    for name, env, code, pattern in (
            ("out of memory", {"CUSIM_MEMORY": "16M"}, 5,
             r"it does not fit: each rank needs \d+ bytes .* of its device, but may take only \d+ .*: what is free on its GPU"),
            ("no driver", {"CUSIM_DRIVER": "0"}, 4, "--device=cuda: no NVIDIA driver is installed" + other),
            ("an old driver", {"CUSIM_DRIVER": "12040"}, 4,
             r"the NVIDIA driver is too old: it is for CUDA 12\.4, and this build needs \d+\.\d+" + other),
            ("no device", {"CUSIM_DEVICES": "0"}, 4, "CUDA finds no GPU that it may use" + other),
            ("an illegal address", {"CUSIM_FAIL": "op:300"}, 1,
             r"GPU 0 \(.*\), stream [\w-]+: .*: cudaErrorIllegalAddress: ")):
        test(f"cuda {name}", lambda a=(env, code, pattern): refused(*a))


def around_training():
    """Evaluation and samples use the same arenas between the steps."""
    def check():
        r = text_recipe(**{"data.val_fraction": 0.03, "train.steps": 4, "train.eval_every": 2, "train.sample_every": 4,
                           "train.sample_tokens": 8, "train.sample_temperature": 0})
        gpu, cpu = on_gpu(1, r), Run(1, r)
        near(gpu, cpu, "fp32")
        for key in ("first_val_loss", "last_val_loss"):
            assert abs(gpu.summary[key] - cpu.summary[key]) < 1e-4, f"{key}: {gpu.summary[key]}, {cpu.summary[key]}"
        samples = [x.text.split("sample after step 4:\n")[1].split("\n")[0] for x in (gpu, cpu)]
        assert samples[0] == samples[1], f"{samples}"
    test("cuda evaluation and samples", check)


def resuming():
    """Saved from a GPU through pinned memory, and loaded: the bits of the whole; on a CPU, the same state."""
    env = {"ZT_CUDA_LIB": LIBRARY, "CUSIM_DEVICES": "1"}
    two = ["--devices_per_gpu=2"]
    for stage, offload in ((3, ()),) if QUICK else ((0, ()), (2, ("optimizer",)), (3, ()), (3, ("param",))):
        base = text_recipe(**{**resume.SKIPS, "train.steps": 10, "zero_optimization.stage": stage,
                              **{f"zero_optimization.offload_{o}.device": "cpu" for o in offload}})
        resume.same_bits(f"on a GPU, stage={stage}{' offload=' if offload else ''}{'+'.join(offload)}", 1, base, 5, "cuda", env, two)
    base = text_recipe(**{**resume.SKIPS, "train.steps": 10, "zero_optimization.stage": 1})
    resume.same_bits("on a GPU without a snapshot", 1, base, 5, "cuda", env, two, **{"async": False})

    def to_cpu():
        with resume.Folder() as f:
            r = resume.saving(text_recipe(**{"train.steps": 3, "bf16.enabled": True}), f)
            _, _, gpu = f.start(1, r, *two, device="cuda", env=env)
            _, steps, cpu = f.start(3, r, "--resume=auto")
            assert not steps and cpu["digest"] == gpu["digest"], "the state differs"

    test("resume from a GPU to the CPU", to_cpu)


if __name__ == "__main__":
    fixtures()
    against_cpu()
    stages()
    transports()
    hosts()
    offload()
    recomputation()
    schedules_of_streams()
    memory()
    resuming()
    if SIMULATED:
        failures()
    around_training()
    end()
