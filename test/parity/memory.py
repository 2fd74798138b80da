"""Memory of trainings: as planned, as the kernel counts it, and as a limit allows (of run.py)."""
import json
import os
import pathlib
import re
import struct
import subprocess
import tempfile

from training import (OPTIMIZER_ON_HOST, OPTIMIZER_ON_NVME, PARAMS_ON_HOST, PARAMS_ON_NVME, QUICK, Run, ZT, recipe, test,
                      text_recipe, touched_as_planned)


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
    for model in () if QUICK else ("gpt2", "qwen3"):
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
    for ranks, more in () if QUICK else ((1, on_host), (2, {"zero_optimization.stage": 2})):
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
