#!/usr/bin/env python3
"""Models side by side with Hugging Face's transformers: run.py ZEROTRAIN [FILTER]

For each kind of model: transformers makes one at random and writes it with save_pretrained in several
shards. zerotrain's export of that folder is the same model to the bit. zerotrain reads it (model.from)
and trains it with 2 workers at ZeRO stage 3, PyTorch trains it too, on the same sequences with the same
AdamW: losses and gradient norms of every step must agree in fp32. Then zerotrain exports its last checkpoint, transformers loads that, and the two give the same
logits and the same greedy text. At last zerotrain trains a model on text from noise, and its greedy
sample must be what transformers generates from the export.

Prints one test line each. Needs PyTorch and transformers: of the Python that runs this, or of
build/interop-venv, into which they are installed where they can be had (PyTorch is taken from
build/bench-venv if that is there). Otherwise all is skipped, with the reason.
"""
import fcntl
import importlib.util
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
VENV, BENCH = ROOT / "build/interop-venv", ROOT / "build/bench-venv"
NEEDED = ("torch", "transformers", "safetensors")
PIP = ["-m", "pip", "-q", "install", "--no-compile", "--retries", "1", "--timeout", "15"]  # Python compiles what it imports
CPU_WHEELS = ["--index-url", "https://download.pytorch.org/whl/cpu"]


# ---- a Python that has what is needed ----

def skip(reason):
    print(f"skip interop transformers: {reason}")
    sys.exit(0)


def missing(python=None):
    code = f"import importlib.util as u; print(*[m for m in {NEEDED} if not u.find_spec(m)])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    return done.stdout.split() if done.returncode == 0 else list(NEEDED)


def borrow_torch(python):
    """PyTorch of the benchmarks' environment, if it is of the same version of Python."""
    places = [p for p in BENCH.glob("lib/python3*/site-packages") if (p / "torch").exists()]
    for place in places:
        mine = VENV / "lib" / place.parent.name / "site-packages"
        if mine.is_dir():
            (mine / "bench.pth").write_text(f"{place.resolve()}\n")


def install(python):
    if not pathlib.Path(python).exists():
        done = subprocess.run([sys.executable, "-m", "venv", str(VENV)], capture_output=True, text=True)
        if done.returncode:
            skip(f"no environment can be made: {done.stdout.strip().splitlines()[-1:]}")
        borrow_torch(python)
    for name in missing(python):
        ways = [CPU_WHEELS, []] if name == "torch" else [[]]
        for way in ways:
            done = subprocess.run([python, *PIP, *way, name], capture_output=True, text=True)
            if done.returncode == 0:
                break
        else:
            last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            skip(f"{name} cannot be installed: {last}")


def ensure_packages():
    if all(importlib.util.find_spec(m) for m in NEEDED):
        return
    python = str(VENV / "bin/python3")
    if os.path.abspath(sys.executable) == python:
        skip(f"{', '.join(missing(python))} cannot be imported")
    VENV.parent.mkdir(exist_ok=True)
    with open(f"{VENV}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        install(python)
    os.execv(python, [python, *sys.argv])


ensure_packages()
import torch  # noqa: E402
import transformers as hf  # noqa: E402

hf.logging.set_verbosity_error()
hf.utils.logging.disable_progress_bar()
torch.set_num_threads(1)

# ---- models ----

SEQ, BATCH, STEPS, LR, CLIP, VOCAB = 24, 4, 4, 1e-2, 1.0, 61
SMALL = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.2)
LLAMA3 = {"rope_type": "llama3", "rope_theta": 1000.0, "factor": 4.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
GPT2 = dict(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=64, initializer_range=0.2,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
MODELS = {
    "gpt2": hf.GPT2Config(**GPT2),
    "gpt2, untied": hf.GPT2Config(**GPT2, n_inner=48, tie_word_embeddings=False),
    "llama": hf.LlamaConfig(**SMALL),
    "llama, llama3 angles, biases, tied": hf.LlamaConfig(
        **SMALL, rope_parameters=LLAMA3, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "llama, linear angles, one key/value head": hf.LlamaConfig(**{
        **SMALL, "num_key_value_heads": 1,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}),
    "mistral": hf.MistralConfig(**SMALL, head_dim=12, sliding_window=SEQ),
    "qwen2": hf.Qwen2Config(**SMALL, tie_word_embeddings=True),
    "qwen3": hf.Qwen3Config(**SMALL, head_dim=16, attention_bias=True),
}


def make_model(config):
    torch.manual_seed(1)
    model = hf.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for p in model.parameters():  # biases and norms away from 0 and 1, which hide mistakes
            if p.dim() == 1:
                p.add_(torch.randn_like(p) * 0.1)
    return model


def make_tokens():
    """Sequences that overlap by one token, as a token file is cut."""
    text = torch.randint(VOCAB, (BATCH * SEQ + 1,))
    return torch.stack([text[i * SEQ:(i + 1) * SEQ + 1] for i in range(BATCH)])


def train_by_torch(model, tokens):
    """The losses, and the norms before clipping, of PyTorch's AdamW; only matrices decay."""
    groups = [{"params": [p for p in model.parameters() if (p.dim() >= 2) == decay],
               "weight_decay": 0.1 if decay else 0.0} for decay in (True, False)]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95), eps=1e-8)
    losses, norms = [], []
    for _ in range(STEPS):
        logits = model(tokens[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, norms


# ---- zerotrain ----

def run(zerotrain, *args):
    done = subprocess.run([zerotrain, *map(str, args)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"zerotrain {args[0]}: exit status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def train(zerotrain, folder, recipe):
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    out = run(zerotrain, "--device=cpu", "--num_gpus=2", f"--log_dir={folder}/run", folder / "recipe.yaml")
    lines = [json.loads(x) for x in (folder / "run/metrics.jsonl").read_text().splitlines()]
    return out, [x for x in lines if "loss" in x]


def train_from(zerotrain, folder, tokens):
    flat = tokens[:, :-1].flatten().tolist() + [tokens[-1, -1].item()]
    (folder / "tokens.bin").write_bytes(struct.pack(f"<{len(flat)}H", *flat))
    _, steps = train(zerotrain, folder, {
        "model": {"from": str(folder / "model")},
        "data": {"train": str(folder / "tokens.bin"), "format": "raw_u16", "seq_len": SEQ, "shuffle": False},
        "train_micro_batch_size_per_gpu": BATCH // 2,
        "gradient_clipping": CLIP,
        "optimizer": {"type": "AdamW",
                      "params": {"lr": LR, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
        "zero_optimization": {"stage": 3},
        "train": {"steps": STEPS},
        "checkpoint": {"dir": str(folder / "checkpoints"), "every_steps": STEPS},
        "parallel": {"threads": 1},
    })
    return [x["loss"] for x in steps], [x["grad_norm"] for x in steps]


def load(folder):
    model, info = hf.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    wrong = {k: v for k, v in info.items() if v}
    if wrong:
        raise RuntimeError(f"{folder.name}: from_pretrained found {wrong}")
    return model.eval()


def greedy(model, prompt, n_new):
    with torch.no_grad():
        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=n_new, do_sample=False,
                             pad_token_id=0, eos_token_id=None)
    return out[0, prompt.shape[1]:].tolist()


# ---- tests ----

def off(got, want):
    return max(abs(g - w) / max(1, abs(w)) for g, w in zip(got, want, strict=True))


def compare_exports(zerotrain, folder, model, tokens):
    """What is wrong with the exports of the last checkpoint; None: nothing."""
    model.eval()
    with torch.no_grad():
        want = model(tokens[:, :-1]).logits
    scale = want.abs().max().item()
    for name, args, tolerance in [("fp32", [], 1e-3), ("shards", ["--max_shard_size=20kB"], 1e-3),
                                  ("bf16", ["--dtype=bf16"], 0.05), ("fp16", ["--dtype=fp16"], 0.01)]:
        run(zerotrain, "export", *args, folder / "checkpoints", folder / name)
        run(zerotrain, "inspect", "--verify", folder / name)
        loaded = load(folder / name)
        with torch.no_grad():
            got = loaded.float()(tokens[:, :-1]).logits
        error = (got - want).abs().max().item() / scale
        if not error <= tolerance:
            return f"{name}: logits differ by {error:.1e} of the largest"
        if name == "fp32" and greedy(loaded, tokens[:1, :8], 16) != greedy(model, tokens[:1, :8], 16):
            return "greedy text differs"
    return None


def compare_folder(zerotrain, folder, model, tokens):
    """What is wrong with the export of the folder that transformers has written; None: nothing."""
    run(zerotrain, "export", "--max_shard_size=20kB", folder / "model", folder / "again")
    again = load(folder / "again")
    pair = [{k: v for k, v in m.config.to_dict().items() if k != "_name_or_path"} for m in (model, again)]
    if pair[0] != pair[1]:
        return f"config.json differs: {sorted(set(map(str, pair[0].items())) ^ set(map(str, pair[1].items())))}"
    with torch.no_grad():
        if not torch.equal(model.eval()(tokens[:, :-1]).logits, again(tokens[:, :-1]).logits):
            return "the folder's export has other logits"
    return None


def check_model(zerotrain, config):
    model, tokens = make_model(config), make_tokens()
    with tempfile.TemporaryDirectory() as d:
        folder = pathlib.Path(d)
        model.save_pretrained(folder / "model", max_shard_size="20KB")
        why = compare_folder(zerotrain, folder, model, tokens)
        if why:
            return why
        got = train_from(zerotrain, folder, tokens)
        want = train_by_torch(model.train(), tokens)
        loss, norm = (off(*pair) for pair in zip(got, want))
        if not (loss <= 1e-5 and norm <= 1e-4):
            return f"losses differ by {loss:.1e}, gradient norms by {norm:.1e}"
        return compare_exports(zerotrain, folder, model, tokens)


def check_text(zerotrain, model):
    """A model of bytes, trained from noise by zerotrain alone: its greedy sample."""
    prompt, n_new, seq = "The ", 40, 64
    with tempfile.TemporaryDirectory() as d:
        folder = pathlib.Path(d)
        (folder / "text.txt").write_bytes((ROOT / "LICENSE").read_bytes()[:6000])
        out, _ = train(zerotrain, folder, {
            "model": {"n_layer": 2, "n_head": 2, "n_embd": 64, "n_positions": seq, "vocab_size": 256, **model},
            "data": {"train": str(folder / "text.txt"), "seq_len": seq},
            "train_micro_batch_size_per_gpu": 4,
            "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}},
            "train": {"steps": 40, "sample_every": 40, "sample_tokens": n_new, "sample_prompt": prompt,
                      "sample_temperature": 0},
            "checkpoint": {"dir": str(folder / "checkpoints"), "every_steps": 40},
            "parallel": {"threads": 1},
        })
        run(zerotrain, "export", folder / "checkpoints", folder / "model")
        ids = torch.tensor([list(prompt.encode())])
        want = prompt + bytes(greedy(load(folder / "model"), ids, n_new)).decode()
        shown = "\n".join(x[4:] for x in out.splitlines() if x.startswith("  | "))
        return None if want in shown else f"greedy text is {want!r}, not {shown!r}"


def main():
    zerotrain = str(pathlib.Path(sys.argv[1]).resolve())
    only = sys.argv[2] if len(sys.argv) > 2 else ""
    texts = {"gpt2": {}, "llama": {"n_inner": 128, "num_key_value_heads": 1},
             "qwen3": {"n_inner": 128, "num_key_value_heads": 1, "head_dim": 32}}
    tests = [(f"{name}: train, export, load", check_model, config) for name, config in MODELS.items()]
    tests += [(f"{name}: greedy text", check_text, {"model_type": name, **more}) for name, more in texts.items()]
    failed = False
    for name, test, arg in tests:
        if only not in name:
            continue
        try:
            why = test(zerotrain, arg)
        except RuntimeError as e:
            why = str(e).replace("\n", " ")
        failed |= why is not None
        print(f"not ok interop {name}: {why}" if why else f"ok interop {name}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
