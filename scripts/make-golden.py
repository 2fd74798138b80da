#!/usr/bin/python3
"""Write test/golden/gpt2_*.safetensors: small GPT-2 models with their loss and gradients.

Run by hand where PyTorch is installed (Debian: python3-torch); the files are committed:

    scripts/make-golden.py [FOLDER]

The forward pass below is written from the model's definition, in float64 and with whole (T, T)
attention matrices; the gradients are autograd's. It shares nothing with lib/.

A file holds: config (n_layer, n_head, n_embd, n_inner, vocab_size, n_positions, tied), tokens,
targets (-100: ignored), positions and seg_start (B, T), loss (mean over the targets that count),
w.NAME for each parameter and g.NAME for its gradient. Weights are chosen representable in bfloat16,
so that fp32 and bf16 runs start from the same model.
"""
import json
import math
import os
import struct
import sys

import torch

EPS = 1e-5


def layer_norm(x, w, b):
    mean = x.mean(-1, keepdim=True)
    var = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(var + EPS) * w + b


def gelu_tanh(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def attention(q, k, v, n_head, seg_start):
    """Query i sees keys seg_start[i] .. i."""
    b, t, c = q.shape
    q, k, v = (z.view(b, t, n_head, c // n_head).transpose(1, 2) for z in (q, k, v))
    scores = q @ k.transpose(2, 3) / math.sqrt(c // n_head)
    i = torch.arange(t)
    visible = (i[None, None, :] <= i[None, :, None]) & (i[None, None, :] >= seg_start[:, :, None])
    scores = scores.masked_fill(~visible[:, None], -math.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c)


def gpt2_loss(cfg, p, tokens, targets, positions, seg_start):
    x = p["wte.weight"][tokens] + p["wpe.weight"][positions]
    for n in range(cfg["n_layer"]):
        def w(name):
            return p[f"h.{n}.{name}"]

        h = layer_norm(x, w("ln_1.weight"), w("ln_1.bias"))
        q, k, v = (h @ w("attn.c_attn.weight") + w("attn.c_attn.bias")).split(cfg["n_embd"], -1)
        h = attention(q, k, v, cfg["n_head"], seg_start)
        x = x + h @ w("attn.c_proj.weight") + w("attn.c_proj.bias")
        h = layer_norm(x, w("ln_2.weight"), w("ln_2.bias"))
        h = gelu_tanh(h @ w("mlp.c_fc.weight") + w("mlp.c_fc.bias"))
        x = x + h @ w("mlp.c_proj.weight") + w("mlp.c_proj.bias")
    x = layer_norm(x, p["ln_f.weight"], p["ln_f.bias"])
    logits = x @ p.get("lm_head.weight", p["wte.weight"]).T
    counted = targets != -100
    losses = torch.logsumexp(logits, -1)[counted] - logits[counted].gather(
        1, targets[counted][:, None])[:, 0]
    return losses.mean()


def shapes(cfg):
    c, inner = cfg["n_embd"], cfg["n_inner"]
    out = {"wte.weight": (cfg["vocab_size"], c), "wpe.weight": (cfg["n_positions"], c)}
    for n in range(cfg["n_layer"]):
        for name, shape in {
            "ln_1.weight": (c,), "ln_1.bias": (c,),
            "attn.c_attn.weight": (c, 3 * c), "attn.c_attn.bias": (3 * c,),
            "attn.c_proj.weight": (c, c), "attn.c_proj.bias": (c,),
            "ln_2.weight": (c,), "ln_2.bias": (c,),
            "mlp.c_fc.weight": (c, inner), "mlp.c_fc.bias": (inner,),
            "mlp.c_proj.weight": (inner, c), "mlp.c_proj.bias": (c,),
        }.items():
            out[f"h.{n}.{name}"] = shape
    out["ln_f.weight"] = out["ln_f.bias"] = (c,)
    if not cfg["tied"]:
        out["lm_head.weight"] = (cfg["vocab_size"], c)
    return out


def make_params(cfg, rng):
    params = {}
    for name, shape in shapes(cfg).items():
        w = torch.randn(shape, generator=rng, dtype=torch.float64)
        if len(shape) == 2:
            fan_in = shape[1] if name in ("wte.weight", "wpe.weight", "lm_head.weight") else shape[0]
            w *= 1 / math.sqrt(fan_in)
        else:
            w *= 0.1
            if "ln_" in name and name.endswith("weight"):
                w += 1
        params[name] = w.to(torch.bfloat16).to(torch.float64).requires_grad_()
    return params


def raw_bytes(t):
    t = t.detach().contiguous()
    if t.dtype == torch.bfloat16:
        t = t.view(torch.int16)
    return t.numpy().tobytes()


def write_safetensors(path, tensors):
    names = {torch.float32: "F32", torch.bfloat16: "BF16", torch.int32: "I32", torch.float64: "F64"}
    header, offset = {}, 0
    for name, t in tensors.items():
        n = t.numel() * t.element_size()
        header[name] = {"dtype": names[t.dtype], "shape": list(t.shape),
                        "data_offsets": [offset, offset + n]}
        offset += n
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for t in tensors.values():
            f.write(raw_bytes(t))


def make_case(path, seed, cfg, starts, t, ignored):
    """starts: where each sequence's documents begin; ignored: how many targets do not count."""
    rng = torch.Generator().manual_seed(seed)
    b = len(starts)
    params = make_params(cfg, rng)
    text = torch.randint(cfg["vocab_size"], (b, t + 1), generator=rng)
    tokens, targets = text[:, :-1], text[:, 1:].clone()
    targets.view(-1)[torch.randperm(b * t, generator=rng)[:ignored]] = -100
    i = torch.arange(t)
    seg_start = torch.stack([torch.tensor([max(d for d in docs if d <= j) for j in range(t)])
                             for docs in starts])
    positions = i[None, :] - seg_start
    loss = gpt2_loss(cfg, params, tokens, targets, positions, seg_start)
    loss.backward()

    keys = ("n_layer", "n_head", "n_embd", "n_inner", "vocab_size", "n_positions", "tied")
    out = {"config": torch.tensor([int(cfg[k]) for k in keys], dtype=torch.int32),
           "loss": loss.detach().view(1)}
    for name, v in (("tokens", tokens), ("targets", targets), ("positions", positions),
                    ("seg_start", seg_start)):
        out[name] = v.to(torch.int32)
    for name, p in params.items():
        out["w." + name] = p.detach().to(torch.bfloat16)
        out["g." + name] = p.grad.to(torch.float32)
    write_safetensors(path, out)
    print(f"{path}: loss {loss.item():.12f}, {sum(p.numel() for p in params.values())} parameters")


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else "test/golden"
    torch.set_num_threads(1)
    big = dict(n_layer=2, n_head=4, n_embd=32, n_inner=128, vocab_size=61, n_positions=16, tied=True)
    small = dict(n_layer=2, n_head=2, n_embd=16, n_inner=40, vocab_size=29, n_positions=12, tied=False)
    one = [0]
    make_case(os.path.join(folder, "gpt2_tied.safetensors"), 1, big, [one] * 3, 12, 5)
    make_case(os.path.join(folder, "gpt2_untied.safetensors"), 2, small, [one] * 2, 12, 0)
    make_case(os.path.join(folder, "gpt2_packed.safetensors"), 3, dict(small, tied=True),
              [[0, 5], [0], [0, 1, 3, 9]], 12, 4)


if __name__ == "__main__":
    main()
