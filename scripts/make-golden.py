#!/usr/bin/python3
"""Write test/golden/*.safetensors: small models with their loss and gradients.

Run by hand where PyTorch is installed (Debian: python3-torch); the files are committed:

    scripts/make-golden.py [FOLDER]

The forward passes below are written from the models' definitions, in float64 and with whole (T, T)
attention matrices; the gradients are autograd's. It shares nothing with lib/.

A file holds: config (n_layer, n_head, n_embd, n_inner, vocab_size, n_positions, tied), tokens,
targets (-100: ignored), positions and seg_start (B, T), loss (mean over the targets that count),
w.NAME for each parameter and g.NAME for its gradient. Llama and the models built like it also have:
llama (n_kv_head, head_dim, qkv_bias, o_bias, mlp_bias, qk_norm, kind of rope) and rope (theta, factor,
low_freq_factor, high_freq_factor, original_max_position_embeddings). With dropout there is: dropout
(embd_pdrop, resid_pdrop, attn_pdrop, seed, place of the first sample). Weights are chosen representable
in bfloat16, so that fp32 and bf16 runs start from the same model.
"""
import json
import math
import os
import struct
import sys

import torch

EPS = 1e-5
U32 = 0xFFFFFFFF


def layer_norm(x, w, b):
    mean = x.mean(-1, keepdim=True)
    var = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(var + EPS) * w + b


def gelu_tanh(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def split_heads(x, n_head):
    """(B, T, C) -> (B, heads, T, head_dim)"""
    b, t, c = x.shape
    return x.view(b, t, n_head, c // n_head).transpose(1, 2)


def philox(key, counter):
    """Philox4x32-10 (Salmon et al. 2011) of two and four 32-bit words."""
    (k0, k1), (c0, c1, c2, c3) = key, counter
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & U32, (a >> 32) ^ c3 ^ k1, a & U32
        k0, k1 = (k0 + 0x9E3779B9) & U32, (k1 + 0xBB67AE85) & U32
    return c0, c1, c2, c3


def words(x):
    return x & U32, x >> 32 & U32


class Dropout:
    """The masks of lib/dev/dropout.h, by its words. x is (B, T, C) or (B, heads, T, T)."""

    SITES = {"embed": 0, "attention": 1, "projection": 2, "mlp": 3}  # and 3 for each layer before

    def __init__(self, embd=0.0, resid=0.0, attn=0.0, seed=0, first_sample=0):
        self.p = {"embed": embd, "attention": attn, "projection": resid, "mlp": resid}
        self.seed, self.first_sample = seed, first_sample
        self.tensor = torch.tensor([embd, resid, attn, seed, first_sample], dtype=torch.float64)

    def __call__(self, x, site, layer=0):
        threshold = round(self.p[site] * 65536)
        if threshold == 0:
            return x
        shape = x.shape if x.dim() == 4 else (x.shape[0], 1, *x.shape[1:])
        purpose = 3 * 0x9E3779B97F4A7C15
        keep = torch.empty(shape, dtype=torch.float64)
        for b in range(shape[0]):
            counter = words(self.first_sample + b) + words(self.SITES[site] + 3 * layer)
            k0, k1, tweak, _ = philox(words(self.seed ^ purpose), counter)
            for head in range(shape[1]):
                for row in range(shape[2]):
                    for column in range(shape[3]):
                        group, m, j = column // 64, column % 64 // 8, column % 8
                        block = philox((k0, k1), (8 * group + j, row, head, tweak))
                        number = block[m // 2] >> m % 2 * 16 & 0xFFFF
                        keep[b, head, row, column] = number >= threshold
        return x * keep.view(x.shape) * (65536 / (65536 - threshold))


def attention(q, k, v, seg_start, drop):
    """Query i sees keys seg_start[i] .. i. Heads are split; the result is (B, T, C) again."""
    b, n_head, t, head_dim = q.shape
    scores = q @ k.transpose(2, 3) / math.sqrt(head_dim)
    i = torch.arange(t)
    visible = (i[None, None, :] <= i[None, :, None]) & (i[None, None, :] >= seg_start[:, :, None])
    scores = scores.masked_fill(~visible[:, None], -math.inf)
    return (drop(scores.softmax(-1)) @ v).transpose(1, 2).reshape(b, t, n_head * head_dim)


def cross_entropy(logits, targets):
    counted = targets != -100
    losses = torch.logsumexp(logits, -1)[counted] - logits[counted].gather(
        1, targets[counted][:, None])[:, 0]
    return losses.mean()


def gpt2_loss(cfg, p, tokens, targets, positions, seg_start):
    drop = cfg["dropout"]
    x = drop(p["wte.weight"][tokens] + p["wpe.weight"][positions], "embed")
    for n in range(cfg["n_layer"]):
        def w(name):
            return p[f"h.{n}.{name}"]

        h = layer_norm(x, w("ln_1.weight"), w("ln_1.bias"))
        q, k, v = (h @ w("attn.c_attn.weight") + w("attn.c_attn.bias")).split(cfg["n_embd"], -1)
        h = attention(*(split_heads(z, cfg["n_head"]) for z in (q, k, v)), seg_start,
                      lambda probs: drop(probs, "attention", n))
        x = x + drop(h @ w("attn.c_proj.weight") + w("attn.c_proj.bias"), "projection", n)
        h = layer_norm(x, w("ln_2.weight"), w("ln_2.bias"))
        h = gelu_tanh(h @ w("mlp.c_fc.weight") + w("mlp.c_fc.bias"))
        x = x + drop(h @ w("mlp.c_proj.weight") + w("mlp.c_proj.bias"), "mlp", n)
    x = layer_norm(x, p["ln_f.weight"], p["ln_f.bias"])
    return cross_entropy(x @ p.get("lm_head.weight", p["wte.weight"]).T, targets)


def gpt2_shapes(cfg):
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


def rms_norm(x, w):
    return x / torch.sqrt((x**2).mean(-1, keepdim=True) + EPS) * w


def inverse_frequencies(head_dim, kind, theta, factor, low, high, original):
    """transformers' modeling_rope_utils: default, linear, llama3."""
    inv_freq = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    if kind == "linear":
        return inv_freq / factor
    if kind == "llama3":
        wavelen = 2 * math.pi / inv_freq
        smooth = (original / wavelen - low) / (high - low)
        mixed = (1 - smooth) * inv_freq / factor + smooth * inv_freq
        inv_freq = torch.where(wavelen > original / low, inv_freq / factor,
                               torch.where(wavelen < original / high, inv_freq, mixed))
    return inv_freq


def rotate(x, angles):
    """transformers' apply_rotary_pos_emb; x (B, heads, T, head_dim), angles (B, T, head_dim / 2)."""
    cos, sin = (torch.cat((f(angles), f(angles)), -1)[:, None] for f in (torch.cos, torch.sin))
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def llama_loss(cfg, p, tokens, targets, positions, seg_start):
    n_head, n_kv_head = cfg["n_head"], cfg["n_kv_head"]
    angles = positions[:, :, None] * inverse_frequencies(cfg["head_dim"], cfg["rope_kind"], *cfg["rope"])
    x = p["embed_tokens.weight"][tokens]
    for n in range(cfg["n_layer"]):
        def w(name):
            return p[f"layers.{n}.{name}.weight"]

        def linear(x, name):
            return x @ w(name).T + p.get(f"layers.{n}.{name}.bias", 0)

        h = rms_norm(x, w("input_layernorm"))
        q, k, v = (split_heads(linear(h, f"self_attn.{z}_proj"), n_head if z == "q" else n_kv_head)
                   for z in "qkv")
        if cfg["qk_norm"]:
            q, k = rms_norm(q, w("self_attn.q_norm")), rms_norm(k, w("self_attn.k_norm"))
        q, k = rotate(q, angles), rotate(k, angles)
        k, v = (z.repeat_interleave(n_head // n_kv_head, 1) for z in (k, v))
        h = attention(q, k, v, seg_start, lambda probs: cfg["dropout"](probs, "attention", n))
        x = x + linear(h, "self_attn.o_proj")
        h = rms_norm(x, w("post_attention_layernorm"))
        gate, up = linear(h, "mlp.gate_proj"), linear(h, "mlp.up_proj")
        x = x + linear(gate * torch.sigmoid(gate) * up, "mlp.down_proj")
    x = rms_norm(x, p["norm.weight"])
    return cross_entropy(x @ p.get("lm_head.weight", p["embed_tokens.weight"]).T, targets)


def llama_shapes(cfg):
    c, inner, dim = cfg["n_embd"], cfg["n_inner"], cfg["head_dim"]
    q, kv = cfg["n_head"] * dim, cfg["n_kv_head"] * dim
    out = {"embed_tokens.weight": (cfg["vocab_size"], c)}
    for n in range(cfg["n_layer"]):
        layer = f"layers.{n}."
        for name, shape, bias in (
                ("self_attn.q_proj", (q, c), "qkv_bias"), ("self_attn.k_proj", (kv, c), "qkv_bias"),
                ("self_attn.v_proj", (kv, c), "qkv_bias"), ("self_attn.o_proj", (c, q), "o_bias"),
                ("mlp.gate_proj", (inner, c), "mlp_bias"), ("mlp.up_proj", (inner, c), "mlp_bias"),
                ("mlp.down_proj", (c, inner), "mlp_bias")):
            out[f"{layer}{name}.weight"] = shape
            if cfg[bias]:
                out[f"{layer}{name}.bias"] = shape[:1]
        for name in ("self_attn.q_norm", "self_attn.k_norm") if cfg["qk_norm"] else ():
            out[f"{layer}{name}.weight"] = (dim,)
        for name in ("input_layernorm", "post_attention_layernorm"):
            out[f"{layer}{name}.weight"] = (c,)
    out["norm.weight"] = (c,)
    if not cfg["tied"]:
        out["lm_head.weight"] = (cfg["vocab_size"], c)
    return out


def make_params(cfg, rng):
    """Matrices scaled by their inputs (Conv1D's are its rows), norms about 1, biases about 0."""
    params = {}
    conv1d = "n_kv_head" not in cfg
    for name, shape in (gpt2_shapes if conv1d else llama_shapes)(cfg).items():
        w = torch.randn(shape, generator=rng, dtype=torch.float64)
        if len(shape) == 2:
            by_row = conv1d and name not in ("wte.weight", "wpe.weight", "lm_head.weight")
            w *= 1 / math.sqrt(shape[0] if by_row else shape[1])
        else:
            w *= 0.1
            if ("ln_" in name or "norm" in name) and name.endswith("weight"):
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


def make_case(path, seed, cfg, starts, t, ignored, dropout=None):
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
    forward = llama_loss if "n_kv_head" in cfg else gpt2_loss
    loss = forward(dict(cfg, dropout=dropout or Dropout()), params, tokens, targets, positions, seg_start)
    loss.backward()

    keys = ("n_layer", "n_head", "n_embd", "n_inner", "vocab_size", "n_positions", "tied")
    out = {"config": torch.tensor([int(cfg[k]) for k in keys], dtype=torch.int32),
           "loss": loss.detach().view(1)}
    if "n_kv_head" in cfg:
        keys = ("n_kv_head", "head_dim", "qkv_bias", "o_bias", "mlp_bias", "qk_norm")
        kind = ("default", "linear", "llama3").index(cfg["rope_kind"])
        out["llama"] = torch.tensor([int(cfg[k]) for k in keys] + [kind], dtype=torch.int32)
        out["rope"] = torch.tensor(cfg["rope"], dtype=torch.float32)
    if dropout:
        out["dropout"] = dropout.tensor
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

    llama = dict(n_layer=2, n_head=4, n_kv_head=2, head_dim=8, n_embd=32, n_inner=56, vocab_size=43,
                 n_positions=16, tied=False, qkv_bias=False, o_bias=False, mlp_bias=False, qk_norm=False,
                 rope_kind="default", rope=[10000, 1, 1, 4, 16])
    make_case(os.path.join(folder, "llama_grouped.safetensors"), 4, llama, [one] * 3, 12, 5)
    make_case(os.path.join(folder, "llama_scaled_biases.safetensors"), 5,
              dict(llama, n_embd=16, n_inner=24, n_head=2, n_kv_head=1, qkv_bias=True, o_bias=True,
                   mlp_bias=True, rope_kind="llama3", rope=[100, 4, 1, 4, 16]), [one] * 2, 12, 0)
    make_case(os.path.join(folder, "qwen2_packed.safetensors"), 6,
              dict(llama, n_embd=24, n_head=3, n_kv_head=1, tied=True, qkv_bias=True,
                   rope_kind="linear", rope=[1000, 2, 1, 4, 16]),
              [[0, 5], [0], [0, 1, 3, 9]], 12, 4)
    make_case(os.path.join(folder, "qwen3_tied.safetensors"), 7,
              dict(llama, n_embd=20, head_dim=12, tied=True, qk_norm=True), [[0], [0, 7]], 12, 3)
    make_case(os.path.join(folder, "gpt2_dropout.safetensors"), 8, dict(small, n_embd=66, tied=True),
              [one] * 3, 12, 5, Dropout(embd=0.1, resid=0.3, attn=0.2, seed=1234, first_sample=56))
    make_case(os.path.join(folder, "llama_dropout.safetensors"), 9, llama, [one] * 3, 12, 5,
              Dropout(attn=0.25, seed=77, first_sample=2**33))


if __name__ == "__main__":
    main()
