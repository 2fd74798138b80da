#!/usr/bin/env python3
"""Checkpoints under fire: ckpt.py [--long] [--share=I/N] ZEROTRAIN [FILTER].

Processes are killed at every call of a save that changes a file, and at random moments; calls fail; files
are cut, changed and removed; disks are full. After each: the run goes on from a checkpoint that is whole, to
the very bits that a run without trouble ends with, and no checkpoint that was said to be saved is lost.
--long: hundreds of random moments, and every call instead of a part of them. --share=I/N: every N-th test,
from the I-th. One test line each.
"""
import errno
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from harness import LONG, REPO, ZT, end  # noqa: E402

MARK = f"ZT_TEST_MARK=ckpt.{os.getpid()}"
STEPS = 6
top = pathlib.Path(tempfile.mkdtemp())


def recipe(ck, **checkpoint):
    return {"train_micro_batch_size_per_gpu": 2,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
            "model": {"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 32, "n_positions": 32,
                      "vocab_size": 256},
            "data": {"train": str(REPO / "LICENSE"), "seq_len": 32}, "train": {"steps": STEPS, "seed": 1},
            "zero_optimization": {"stage": 2}, "parallel": {"threads": 1}, "steps_per_print": 1000000,
            "checkpoint": {"dir": str(ck), "every_steps": 1, **checkpoint}}


class Job:
    """A run of two workers in a folder of its own."""
    n = 0

    def __init__(self, r, *options, env={}):
        Job.n += 1
        self.dir = top / f"run{Job.n}"
        self.dir.mkdir()
        (self.dir / "r.yaml").write_text(json.dumps(r))
        self.log = open(self.dir / "out", "w+")
        name, value = MARK.split("=")
        self.p = subprocess.Popen([ZT, "--device=cpu", "--num_gpus=2", f"--log_dir={self.dir}/run", *options,
                                   str(self.dir / "r.yaml")], stdout=self.log, stderr=self.log, cwd=self.dir,
                                  env={**os.environ, name: value, **env})

    def wait(self):
        """The exit status; when it is back, no process of the job is left."""
        self.p.wait(timeout=120)
        for _ in range(600):
            if not marked():
                break
            time.sleep(0.05)
        assert not marked(), f"still running: {marked()}"
        self.text = (self.dir / "out").read_text(errors="replace")
        return self.p.returncode if self.p.returncode >= 0 else 128 - self.p.returncode

    def saved(self):
        return max((int(s) for s in re.findall(r"^saved .*/step-(\d+):", self.text, re.M)), default=0)

    def digest(self):
        return json.loads((self.dir / "run/summary.json").read_text())["digest"]

    def end(self):
        shutil.rmtree(self.dir)


def marked():
    """Living processes of a job: {pid: name}."""
    found = {}
    for p in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if MARK.encode() in (p / "environ").read_bytes().split(b"\0"):
                found[int(p.name)] = (p / "comm").read_text().strip()
        except OSError:
            pass
    return found


def test(name, fn):
    harness.test("ckpt", name, fn)


def skip(name, why):
    harness.skip("ckpt", name, why)


def last(text):
    return " / ".join(text.strip().splitlines()[-6:])


def reference():
    job = Job(recipe(top / "whole"))
    assert job.wait() == 0, job.text
    return job.digest()


def goes_on(ck, least, what):
    """From what is in the folder, to the bits of the whole; from step `least` or later. The run's text."""
    job = Job(recipe(ck), "--resume=auto")
    assert job.wait() == 0, f"{what}: it does not go on: {last(job.text)}"
    at = re.search(r"after step (\d+)", job.text)
    at = int(at.group(1)) if at else 0
    assert at >= least, f"{what}: step {least} was saved, and it goes on from {at}: {last(job.text)}"
    assert job.digest() == WHOLE, f"{what}: other bits, from step {at}"
    assert not list(ck.glob("tmp-*")), f"{what}: left {list(ck.glob('tmp-*'))}"
    text = job.text
    job.end()
    return text


def interposer():
    lib = top / "interpose.so"
    subprocess.run([os.environ.get("CC", "gcc"), "-D_GNU_SOURCE", "-shared", "-fPIC", "-O1", "-o", str(lib),
                    str(REPO / "test/fault/interpose.c"), "-ldl"], check=True)
    return lib


def fault_env(lib, ck, rank, at, err=0, log=None):
    env = {"LD_PRELOAD": str(lib), "ZT_FAULT_DIR": str(ck), "ZT_FAULT_RANK": str(rank), "ZT_FAULT_AT": str(at),
           "ZT_FAULT_ERRNO": str(err)}
    return {**env, "ZT_FAULT_LOG": str(log)} if log else env


class Base:
    """A folder with the checkpoint of step 3; keep=1 makes each save remove the one before it."""

    def __init__(self):
        self.ck = top / "base"
        r = recipe(self.ck)
        r["train"]["steps"] = 3
        r["checkpoint"]["every_steps"] = 0
        job = Job(r)
        assert job.wait() == 0, job.text

    def copy(self, name):
        ck = top / name
        shutil.rmtree(ck, ignore_errors=True)
        shutil.copytree(self.ck, ck)
        return ck


def one_save(ck):
    """From step 3 to 4: one save, and the removal of the old one."""
    r = recipe(ck, keep=1, every_steps=0)
    r["train"]["steps"] = 4
    return r


def calls(lib, base, rank):
    ck, log = base.copy("counted"), top / f"calls-{rank}"
    job = Job(one_save(ck), "--resume=auto", env=fault_env(lib, ck, rank, 0, log=log))
    assert job.wait() == 0, job.text
    found = [line.split(" ", 2) for line in log.read_text().splitlines()] if log.exists() else []
    assert found or rank == "front", f"rank {rank}: no call was counted"
    return [(int(n), call, pathlib.Path(path).name) for n, call, path in found]


def killed_at_every_call(lib, base):
    for rank in ("0", "1", "front"):
        listed = calls(lib, base, rank)
        kinds = {c for _, c, _ in listed}
        if rank == "0":
            assert {"write", "pwrite", "fallocate", "fsync", "rename", "mkdir", "open", "unlink"} <= kinds, kinds

        def check():
            for n, call, name in listed:
                ck = base.copy("killed")
                job = Job(one_save(ck), "--resume=auto", env=fault_env(lib, ck, rank, n))
                what = f"rank {rank}, call {n}, {call} of {name}"
                status = job.wait()
                assert status == 137, f"{what}: exit status {status}: {last(job.text)}"
                goes_on(ck, max(3, job.saved()), what)
                job.end()

        test(f"rank {rank} is killed at each of {len(listed)} calls of a save", check)


def fails_at_every_call(lib, base):
    """A call of a save fails: training goes on, says so, and the next save succeeds."""
    for rank in ("0", "1"):
        listed = [c for c in calls(lib, base, rank)
                  if "probe" not in c[2] and not c[2].startswith(".lock") and c[2] != "counted"]
        picked = listed if LONG else listed[::3]

        def check():
            for n, call, name in picked:
                ck = base.copy("failed")
                r = recipe(ck, keep=1)
                r["train"]["steps"] = 5
                job = Job(r, "--resume=auto", env=fault_env(lib, ck, rank, n, errno.ENOSPC))
                what = f"rank {rank}, call {n}, {call} of {name}"
                status = job.wait()
                assert status == 0, f"{what}: exit status {status}: {last(job.text)}"
                assert "WARNING: " in job.text and "No space left on device" in job.text, f"{what}: {last(job.text)}"
                assert job.saved() == 5, f"{what}: the next save does not succeed: {last(job.text)}"
                goes_on(ck, 5, what)
                job.end()

        test(f"rank {rank}: {len(picked)} of {len(listed)} calls of a save fail", check)


def killed_at_random():
    rng = random.Random(1)
    n_cases = 400 if LONG else 40
    ck, alive = top / "random", 0
    hit = {}
    span = 0.5 # seconds: follows how long a run takes here, so that most kills find one

    def check():
        nonlocal alive, span
        for i in range(n_cases):
            job = Job(recipe(ck, keep=2), "--resume=auto")
            until = time.monotonic() + rng.uniform(0, span)
            while time.monotonic() < until and job.p.poll() is None:
                time.sleep(0.002)
            victims = sorted(marked().items())
            span *= 1.1 if job.p.poll() is None else 0.7
            if victims and job.p.poll() is None:
                pid, name = rng.choice(victims)
                hit[name] = hit.get(name, 0) + 1
                try:
                    os.kill(pid, signal.SIGKILL)
                    alive += 1
                except ProcessLookupError:
                    pass
            job.wait()
            if i % 8 == 7 or job.saved() == STEPS:
                goes_on(ck, job.saved(), f"kill {i} of {hit}")
                shutil.rmtree(ck)
            job.end()
        assert alive >= n_cases // 2, f"only {alive} were killed in time"

    test(f"killed at {n_cases} random moments", check)


def damaged(base):
    """The newest one is damaged: it is named and passed over; asked for by its path, an error."""
    def newest_two():
        ck = base.copy("damaged")
        job = Job(one_save(ck) | {"checkpoint": {"dir": str(ck)}}, "--resume=auto")
        assert job.wait() == 0, job.text
        return ck, ck / "step-000004"

    def flip(path, at):
        data = bytearray(path.read_bytes())
        data[at if at >= 0 else len(data) + at] ^= 16
        path.write_bytes(data)

    ways = {
        "a bit of a file is flipped": ("rank-00001.safetensors", lambda p: flip(p, -5000)),
        "a bit of another's first part": ("rank-00000.safetensors", lambda p: flip(p, 5000)),
        "a bit of what others gather": ("rank-00001.safetensors", lambda p: flip(p, 5000)),
        "a file is cut": ("rank-00001.safetensors", lambda p: os.truncate(p, 5000)),
        "a file is empty": ("rank-00000.safetensors", lambda p: os.truncate(p, 0)),
        "a file is missing": ("rank-00000.safetensors", lambda p: p.unlink()),
        "a bit of the manifest is flipped": ("manifest.json", lambda p: flip(p, 700)),
        "the manifest is cut": ("manifest.json", lambda p: os.truncate(p, 700)),
        "the manifest is missing": ("manifest.json", lambda p: p.unlink()),
    }
    for name, (file, damage) in ways.items():
        def check():
            ck, step = newest_two()
            damage(step / file)
            job = Job(recipe(ck), f"--resume={step}")
            assert job.wait() == 3, f"by its path: {last(job.text)}"
            assert f"step-000004/{file}" in job.text or "missing" in name, last(job.text)
            text = goes_on(ck, 3, name)
            assert re.search(rf"WARNING: .*step-000004 is passed over: .*{file}", text), last(text)
            assert "going on from" in text and "after step 3" in text, last(text)
            assert (ck / "before-1/step-000004").exists(), "the damaged one is gone"

        test(name, check)

    def all_damaged():
        ck, _ = newest_two()
        for step in ck.glob("step-*"):
            flip(step / "rank-00000.safetensors", -10)
        job = Job(recipe(ck), "--resume=auto")
        assert job.wait() == 3 and "none of its 2 checkpoints can be read" in job.text, last(job.text)

    test("all are damaged", all_damaged)


ON_OPEN = r"""
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
/* The first time that a path with AT in it is opened THEN is run; ERRNO: it fails each time. */
static int fails(const char *path)
{
    static int begun;
    const char *at = getenv("ZT_OPEN_AT"), *then = getenv("ZT_OPEN_THEN"), *error = getenv("ZT_OPEN_ERRNO");
    if (!at || !strstr(path, at))
        return 0;
    if (then && !begun) {
        begun = 1;
        unsetenv("LD_PRELOAD");
        if (system(then))
            abort();
    }
    if (error)
        errno = atoi(error);
    return error != NULL;
}
#define OPEN(name) \
    int name(const char *path, int flags, ...) \
    { \
        va_list ap; \
        va_start(ap, flags); \
        mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0; \
        va_end(ap); \
        return fails(path) ? -1 : ((int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name))(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)
"""


def on_open(at, **more):
    """The environment of a process to which something happens as it opens a file."""
    lib = top / "on_open.so"
    if not lib.exists():
        subprocess.run([os.environ.get("CC", "gcc"), "-D_GNU_SOURCE", "-shared", "-fPIC", "-o", str(lib), "-xc", "-",
                        "-ldl"], input=ON_OPEN, text=True, check=True)
    return {"LD_PRELOAD": str(lib), "ZT_OPEN_AT": at, **{f"ZT_OPEN_{k.upper()}": str(v) for k, v in more.items()}}


def cannot_be_read_now(base):
    """A shortage is no damage: the newest one is neither passed over nor moved aside."""
    def check():
        ck = base.copy("shortage")
        assert (job := Job(one_save(ck) | {"checkpoint": {"dir": str(ck)}}, "--resume=auto")).wait() == 0, job.text
        for error in (errno.EMFILE, errno.EIO):
            job = Job(recipe(ck), "--resume=auto", env=on_open("step-000004/rank-00001", errno=error))
            assert job.wait() == 1, f"exit status {job.p.returncode}: {last(job.text)}"
            assert re.search(rf"step-000004 cannot be read now: .*rank-00001.*: {os.strerror(error)}", job.text), \
                last(job.text)
            assert "passed over" not in job.text and not (ck / "before-1").exists(), last(job.text)
        goes_on(ck, 4, "after the shortage")

    test("a checkpoint cannot be read now", check)


def exported_while_a_run_goes_on(base):
    """The run removes the one that is exported, and makes a newer one."""
    def check():
        ck = base.copy("exported")
        assert (job := Job(one_save(ck) | {"checkpoint": {"dir": str(ck)}}, "--resume=auto")).wait() == 0, job.text
        (ck / "step-000004").rename(top / "newer")
        p = subprocess.run([ZT, "export", str(ck), str(top / "exported-model")], capture_output=True, text=True,
                           env={**os.environ, **on_open("step-000003/rank-00000", then=(
                               f"mv {top}/newer {ck}/step-000004 && mv {ck}/step-000003 {ck}/tmp-old-000003"))})
        assert p.returncode == 0 and "step 4 of" in p.stdout, p.stdout + p.stderr
        assert "it was removed meanwhile" in p.stderr, p.stderr

    test("a checkpoint is removed while it is exported", check)


def what_others_left():
    """A model that was exported into a checkpoint, a `latest` of somebody's, a folder that is called step-N."""
    def exported_into():
        ck = top / "exported-into"
        job = Job(recipe(ck, every_steps=2) | {"train": {"steps": 2, "seed": 1}})
        assert job.wait() == 0, job.text
        subprocess.run([ZT, "export", str(ck / "step-000002"), str(ck / "step-000002/hf")], check=True,
                       stdout=subprocess.DEVNULL)
        job = Job(recipe(ck, every_steps=2, keep=1), "--resume=auto")
        assert job.wait() == 0 and job.saved() == STEPS, last(job.text)
        assert "could not be saved" not in job.text, last(job.text)
        assert re.search("WARNING: the checkpoint is whole, but: .*tmp-old-000002/hf: cannot be removed", job.text)
        assert sorted(p.name for p in ck.glob("step-*")) == ["step-000006"], list(ck.glob("step-*"))
        assert (ck / "tmp-old-000002/hf/model.safetensors").exists(), "the model is gone"
        job = Job(recipe(ck), "--resume=auto")
        assert job.wait() == 0, last(job.text)
        assert re.search("WARNING: checkpoint.dir: .*tmp-old-000002/hf: cannot be removed", job.text), last(job.text)

    def latest(what, make, warns):
        ck = top / f"pointed-to-{what}"
        ck.mkdir()
        make(ck / "latest")
        job = Job(recipe(ck, every_steps=2, keep=1))
        assert job.wait() == 0 and job.saved() == STEPS, last(job.text)
        assert ("/latest: " in job.text) == warns, last(job.text)
        assert sorted(p.name for p in ck.glob("step-*")) == ["step-000006"], list(ck.glob("step-*"))
        assert warns or (ck / "latest").read_text() == "step-000006\n"

    def foreign_step():
        ck = top / "foreign"
        job = Job(recipe(ck, every_steps=1, keep=1) | {"train": {"steps": 1, "seed": 1}})
        assert job.wait() == 0, job.text
        r = recipe(ck, every_steps=0, keep=1)
        r["train"]["steps"] = 1000000
        job = Job(r, "--resume=auto")
        for _ in range(1200):
            if (job.dir / "run/metrics.jsonl").exists() and (job.dir / "run/metrics.jsonl").stat().st_size:
                break
            time.sleep(0.05)
        (ck / "step-900000").mkdir()
        job.p.send_signal(signal.SIGTERM)
        assert job.wait() == 7, last(job.text)
        made = f"step-{job.saved():06d}"
        assert (ck / made / "manifest.json").exists(), f"what was saved is gone: {list(ck.iterdir())}"
        assert (ck / "latest").read_text() == made + "\n"

    def far_step():
        """Its number is more than ranks can tell each other, so it is no checkpoint's."""
        ck = top / "far"
        r = recipe(ck, every_steps=3)
        assert (job := Job(r)).wait() == 0, job.text
        (ck / "step-5000000000000000000").mkdir()
        r["train"]["steps"] = STEPS + 1
        job = Job(r, "--resume=auto")
        assert job.wait() == 0 and f"after step {STEPS}" in job.text, last(job.text)
        assert (ck / "step-5000000000000000000").exists(), "it was moved"

    test("a model was exported into a checkpoint", exported_into)
    test("latest is a link to a folder", lambda: latest("link", lambda p: p.symlink_to("step-000002"), False))
    test("latest is a folder", lambda: latest("folder", lambda p: p.mkdir(), True))
    test("a folder is called step-900000", foreign_step)
    test("a folder has a number of 19 digits", far_step)


def two_runs():
    ck = top / "two"
    r = recipe(ck, every_steps=0)
    r["train"]["steps"] = 1000000
    first = Job(r)
    try:
        for _ in range(1200):
            if (first.dir / "run/metrics.jsonl").exists() and (first.dir / "run/metrics.jsonl").stat().st_size:
                break
            time.sleep(0.05)
        second = Job(recipe(ck))
        second.p.wait(timeout=60)
        text = (second.dir / "out").read_text()
        assert second.p.returncode == 3, last(text)
        assert re.search(r"another run keeps its checkpoints there: process \d+ on ", text), last(text)
    finally:
        first.p.send_signal(signal.SIGTERM)
        status = first.wait()
    assert status == 7, f"exit status {status}: {last(first.text)}"


def left_locks(ck):
    return sorted(p.name for p in ck.glob(".lock-*") if p.read_bytes().startswith(b"left"))


def put_meanwhile(lib, base):
    """Between the front end's look at the folder, which is empty, and rank 0's lock another run saves."""
    ck, go = top / "meanwhile", top / "meanwhile.go"
    job = Job(recipe(ck), env={**fault_env(lib, ck, 0, 0), "ZT_FAULT_WAIT": "/.lock-", "ZT_FAULT_GO": str(go)})
    for _ in range(1200):
        if job.p.poll() is not None or left_locks(ck):
            break
        time.sleep(0.05)
    shutil.copytree(base.ck / "step-000003", ck / "step-000003")
    go.touch()
    status = job.wait()
    assert status == 3, f"exit status {status}: {last(job.text)}"
    assert "another run has put checkpoints there meanwhile" in job.text, last(job.text)
    assert [p.name for p in ck.glob("step-*")] == ["step-000003"], "it was written to"


def another_view(lib):
    """Rank 1 sees a folder as another one, or as none: rank 0's word counts, and no older checkpoint is taken."""
    ck, other, none, step = top / "view", top / "other", top / "none", "step-000003"
    for folder, seed in ((ck, 1), (other, 2)):
        r = recipe(folder)
        r["train"] = {"steps": 3, "seed": seed}
        assert (job := Job(r)).wait() == 0, last(job.text)

    def check(what, path, a, b, why):
        job = Job(recipe(top / "view-saves"), f"--resume={path}",
                  env={**fault_env(lib, ck, 1, 0), "ZT_FAULT_SEES": f"{a}={b}"})
        status = job.wait()
        assert status == 1, f"{what}: exit status {status}: {last(job.text)}"
        said = rf"{ck}/{step} cannot be read now: rank 1 on {os.uname().nodename} does not see what rank 0 sees there: "
        assert re.search(said + why, job.text), f"{what}: {last(job.text)}"
        assert "passed over" not in job.text and not list((top / "view-saves").glob("step-*")), last(job.text)

    gone = rf"{ck}/{step}/manifest.json: No such file"
    check("one by its path is none", ck / step, ck / step, none, gone)
    check("one by its path is another", ck / step, ck / step, other / step, "it has another manifest")
    check("the newest is none", ck, ck / step, none, gone)
    check("the newest is another", ck, ck / step, other / step, "it has another manifest")
    check("the folder is none", ck, ck, none, gone)
    check("the folder is a checkpoint", ck, ck, other / step, gone)


def older_for_one(lib, base):
    """The newest checkpoint is not in the list that rank 1 gets, as of a network's folder: rank 0's word counts."""
    ck, two = base.copy("older"), top / "two-steps"
    r = recipe(two, every_steps=0)
    r["train"]["steps"] = 2
    assert Job(r).wait() == 0
    shutil.copytree(two / "step-000002", ck / "step-000002")
    job = Job(recipe(ck), "--resume=auto", env={**fault_env(lib, ck, 1, 0), "ZT_FAULT_HIDES": "step-000003"})
    assert job.wait() == 0, last(job.text)
    assert job.digest() == WHOLE, "other bits"


def not_listed(lib, base):
    """A folder that cannot be listed is not an empty one: neither of checkpoints nor of locks."""
    for rank in ("0", "front"):
        ck = base.copy("not-listed")
        env = {**fault_env(lib, ck, rank, 0), "ZT_FAULT_LISTS": str(errno.EIO)}
        for r, resume in ((recipe(ck), "auto"), (recipe(top / "not-listed-saves"), ck)):
            job = Job(r, f"--resume={resume}", env=env)
            status = job.wait()
            assert status == (3 if rank == "front" and resume == "auto" else 1), f"exit status {status}: {last(job.text)}"
            said = f"{ck}: its files cannot be listed: {os.strerror(errno.EIO)}"
            assert said in job.text, f"{rank}, {resume}: {last(job.text)}"
            assert sorted(p.name for p in ck.glob("[sb]*-*")) == ["step-000003"], list(ck.iterdir())


def aside_is_not_ours():
    """What --fresh moved aside is another run: going on from it in the same folder spares what is there."""
    ck = top / "aside"
    for seed, options in ((1, ()), (7, ("--fresh",))):
        r = recipe(ck, every_steps=2)
        r["train"]["seed"] = seed
        assert Job(r, *options).wait() == 0
    r = recipe(ck, keep=1)
    old = f"--resume={ck}/before-1/step-000006"
    job = Job(r, old)
    assert job.wait() == 3 and "holds the checkpoints of a run" in job.text, last(job.text)
    r["train"]["steps"] = STEPS + 1
    job = Job(r, old, "--fresh")
    assert job.wait() == 0, last(job.text)
    for name in ("before-1/step-000006", "before-2/step-000004", "before-2/step-000006", "step-000007"):
        assert (ck / name / "manifest.json").exists(), f"{name}: {last(job.text)}"


def other_data():
    ck, text = top / "other-data", top / "data.txt"
    text.write_bytes((REPO / "LICENSE").read_bytes()[:5000])
    r = recipe(ck, every_steps=3)
    r["data"]["train"] = str(text)
    assert Job(r).wait() == 0
    text.write_bytes((REPO / "LICENSE").read_bytes()[:9000])
    r["train"]["steps"] = STEPS + 1
    job = Job(r, "--resume=auto")
    assert job.wait() == 0
    assert re.search(r"note: data.train had \d+ samples and has \d+", job.text), last(job.text)


def signalled(sig, status, to="the front end"):
    """The step under way is saved; the run goes on from there to the same bits."""
    ck = top / f"signal-{int(sig)}-{to.split()[-1]}"
    r = recipe(ck, every_steps=0)
    r["train"]["steps"] = 1000000
    job = Job(r)
    for _ in range(1200):
        if (job.dir / "run/metrics.jsonl").exists() and (job.dir / "run/metrics.jsonl").stat().st_size:
            break
        time.sleep(0.05)
    if to == "its agent":
        os.kill(next(pid for pid, name in marked().items() if name == "zerotrain-agent"), sig)
    else:
        job.p.send_signal(sig)
    got = job.wait()
    assert got == status, f"exit status {got}, not {status}: {last(job.text)}"
    steps = [json.loads(x)["step"] for x in (job.dir / "run/metrics.jsonl").read_text().splitlines()]
    assert job.saved() == steps[-1] and "stopped after" in job.text, last(job.text)
    r["train"]["steps"] = steps[-1] + 1
    again = Job(r, "--resume=auto")
    assert again.wait() == 0 and f"after step {steps[-1]}" in again.text, last(again.text)


def full_disk():
    mount = top / "small"
    mount.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=450k", "tmpfs", str(mount)],
                                      stderr=subprocess.DEVNULL).returncode:
        return skip("the disk is full", "only root may mount a small disk")
    try:
        def check():
            job = Job(recipe(mount / "ck", keep=1))
            status = job.wait()
            assert status == 1, f"exit status {status}: {last(job.text)}"
            assert f"step {STEPS}" in job.text.replace(f"{STEPS} steps", f"step {STEPS}"), "training did not go on"
            assert re.search(r"WARNING: rank \d: .*/ck/tmp-step-.*No space left on device", job.text), last(job.text)
            assert "could not be saved; the last checkpoint of this run is that of step" in job.text, last(job.text)
            kept = job.saved()
            assert 0 < kept < STEPS, f"the disk is not of the right size for this test: step {kept}"
            shutil.copytree(mount / "ck", top / "from-full")
            goes_on(top / "from-full", kept, "full disk")

        test("the disk is full", check)

        def read_only():
            (mount / "ck").mkdir(exist_ok=True)
            subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True)
            job = Job(recipe(mount / "ck"), "--resume=auto")
            assert job.wait() == 3, last(job.text)
            assert re.search(r"/small/ck/\.lock-\d+: Read-only file system", job.text), last(job.text)

        test("the folder is read-only", read_only)
    finally:
        subprocess.run(["umount", str(mount)], check=True)


try:
    WHOLE = reference()
    base = Base()
    lib = interposer()
    killed_at_every_call(lib, base)
    fails_at_every_call(lib, base)
    killed_at_random()
    damaged(base)
    what_others_left()
    cannot_be_read_now(base)
    exported_while_a_run_goes_on(base)
    test("two runs want one folder", two_runs)
    test("another run saves before the lock is taken", lambda: put_meanwhile(lib, base))
    test("a rank does not see the newest", lambda: older_for_one(lib, base))
    test("a rank sees another folder", lambda: another_view(lib))
    test("a folder cannot be listed", lambda: not_listed(lib, base))
    test("what was moved aside is another run's", aside_is_not_ours)
    test("the data has grown", other_data)
    for sig, status in ((signal.SIGTERM, 7), (signal.SIGUSR1, 7), (signal.SIGINT, 130)):
        test(f"{sig.name} saves and ends", lambda s=sig, c=status: signalled(s, c))
    for sig in (signal.SIGTERM, signal.SIGUSR1):
        test(f"{sig.name} to the agent saves and ends", lambda s=sig: signalled(s, 7, "its agent"))
    full_disk()
finally:
    for pid in marked():
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(top, ignore_errors=True)
end()
