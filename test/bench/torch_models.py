#!/usr/bin/env python3
"""GPT-2 and Llama in PyTorch, as zerotrain trains them: what bench_models.py measures zerotrain against.

    torch_models.py KIND CONFIG BATCH SEQ fp32|bf16 THREADS|cuda

KIND: eager, compile (one process); ddp, zero (ZeroRedundancyOptimizer), fsdp, ds0 to ds3 (DeepSpeed's
stages): two processes of this program over gloo, BATCH each. CONFIG: JSON in the vocabulary of
config.json. Fused causal attention, tied head, mean cross-entropy, clipping to 1, AdamW: one step does
what one of ours does. GPT-2: learned positions, pre-norm, GELU (tanh), biases. Llama: RMSNorm, rotary
positions, SwiGLU, grouped heads. bf16: autocast over fp32 parameters, as PyTorch has it; FSDP's mixed
precision; DeepSpeed's bf16 parameters with fp32 masters. cuda instead of a number of threads: eager and
compile on the GPU.

Each line of input is a number of steps to take; the answer is a line of JSON: seconds of each of them,
the last loss, and the most memory of a process and on the GPU. Ends with its input.
"""
import json
import os
import resource
import socket
import subprocess
import sys
import time

LR, BETAS, EPS, DECAY, CLIP = 3e-4, (0.9, 0.95), 1e-8, 0.1, 1.0
DISTRIBUTED = ("ddp", "zero", "fsdp", "ds0", "ds1", "ds2", "ds3")
N_RANKS = 2


def gpt2_block(c):
    from torch import nn
    from torch.nn import functional as F
    width, heads = c["n_embd"], c["n_head"]

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.c_fc, self.mlp_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x, _):
            b, t, _ = x.shape
            qkv = self.c_attn(self.ln_1(x)).view(b, t, 3, heads, width // heads)
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.c_proj(y.transpose(1, 2).reshape(b, t, width))
            return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))

    return Block, nn.LayerNorm(width)


def llama_block(c):
    import torch
    from torch import nn
    from torch.nn import functional as F
    width, heads, kv_heads = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
    dim, inner, eps = width // heads, c["intermediate_size"], c["rms_norm_eps"]

    def turn(x, cos_sin):
        cos, sin = cos_sin
        lo, hi = x.chunk(2, dim=-1)
        return (x * cos + torch.cat((-hi, lo), dim=-1) * sin).to(x.dtype)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm_1, self.norm_2 = nn.RMSNorm(width, eps), nn.RMSNorm(width, eps)
            self.q, self.o = (nn.Linear(width, width, bias=False) for _ in range(2))
            self.k, self.v = (nn.Linear(width, kv_heads * dim, bias=False) for _ in range(2))
            self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
            self.down = nn.Linear(inner, width, bias=False)

        def forward(self, x, cos_sin):
            b, t, _ = x.shape
            h = self.norm_1(x)
            q = turn(self.q(h).view(b, t, heads, dim).transpose(1, 2), cos_sin)
            k = turn(self.k(h).view(b, t, kv_heads, dim).transpose(1, 2), cos_sin)
            v = self.v(h).view(b, t, kv_heads, dim).transpose(1, 2)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + self.o(y.transpose(1, 2).reshape(b, t, width))
            h = self.norm_2(x)
            return x + self.down(F.silu(self.gate(h)) * self.up(h))

    return Block, nn.RMSNorm(width, eps)


def rope_table(c, seq):
    """cos and sin of every position, (seq, head_dim): the halves of a head turn alike."""
    import torch
    dim = c["hidden_size"] // c["num_attention_heads"]
    angle = torch.outer(torch.arange(seq).float(), c["rope_theta"] ** (-torch.arange(0, dim, 2) / dim))
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


def build(c, seq):
    import torch
    from torch import nn
    from torch.nn import functional as F
    llama = c["model_type"] == "llama"
    width, vocab = c["hidden_size" if llama else "n_embd"], c["vocab_size"]
    layers = c["num_hidden_layers" if llama else "n_layer"]
    block, last_norm = (llama_block if llama else gpt2_block)(c)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(vocab, width)
            self.positions = None if llama else nn.Embedding(seq, width)
            self.h = nn.ModuleList(block() for _ in range(layers))
            self.last_norm = last_norm
            self.cos_sin = rope_table(c, seq) if llama else None
            for p in self.parameters():
                if p.dim() > 1:
                    nn.init.normal_(p, 0, 0.02)

        def forward(self, tokens, targets):
            x = self.embed(tokens)
            if self.positions is not None:
                x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
            for h in self.h:
                x = h(x, self.cos_sin)
            logits = F.linear(self.last_norm(x), self.embed.weight)
            return F.cross_entropy(logits.view(-1, vocab), targets.view(-1))

    return Model(), block


def groups(params):
    """AdamW's two groups: matrices decay, vectors do not."""
    params = list(params)
    return [{"params": [p for p in params if p.dim() > 1], "weight_decay": DECAY},
            {"params": [p for p in params if p.dim() <= 1], "weight_decay": 0.0}]


def adamw(model):
    import torch
    return torch.optim.AdamW(groups(model.parameters()), lr=LR, betas=BETAS, eps=EPS, fused=True)


def make_step(kind, model, block, bf16, batch):
    """What one training step is: a function of (tokens, targets) that returns the loss."""
    import torch
    if kind.startswith("ds"):
        return deepspeed_step(int(kind[2:]), model, bf16, batch)
    clip = torch.nn.utils.clip_grad_norm_
    net, autocast = model, bf16
    if kind == "compile":
        net = torch.compile(model)
    elif kind in ("ddp", "zero"):
        net = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    elif kind == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        mesh = init_device_mesh("cpu", (N_RANKS,))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16) if bf16 else MixedPrecisionPolicy()
        for m in model.modules():
            if isinstance(m, block):
                fully_shard(m, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        autocast = False
    if kind == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer
        opt = ZeroRedundancyOptimizer(groups(model.parameters()), optimizer_class=torch.optim.AdamW,
                                      lr=LR, betas=BETAS, eps=EPS, fused=True)
    else:
        opt = adamw(model)

    def step(tokens, targets):
        with torch.autocast(tokens.device.type, dtype=torch.bfloat16, enabled=autocast):
            loss = net(tokens, targets)
        loss.backward()
        clip(model.parameters(), CLIP)
        opt.step()
        opt.zero_grad(set_to_none=True)
        return loss.item()

    return step


def deepspeed_step(stage, model, bf16, batch):
    import deepspeed
    config = {"train_micro_batch_size_per_gpu": batch, "gradient_accumulation_steps": 1,
              "gradient_clipping": CLIP, "bf16": {"enabled": bf16}, "steps_per_print": 10 ** 9,
              "zero_optimization": {"stage": stage, "overlap_comm": False},
              "zero_allow_untested_optimizer": True}
    engine, *_ = deepspeed.initialize(model=model, optimizer=adamw(model), config=config)

    def step(tokens, targets):
        loss = engine(tokens, targets)
        engine.backward(loss)
        engine.step()
        return loss.item()

    return step


def take_steps(rank, step, batch):
    """Carries out the numbers of steps that rank 0 reads, on all ranks, until it reads no more."""
    import torch
    tokens, targets = batch
    for_all = torch.zeros(1, dtype=torch.int64)
    while True:
        if rank == 0:
            for_all[0] = int(sys.stdin.readline() or 0)
        if torch.distributed.is_initialized():
            torch.distributed.broadcast(for_all, 0)
        times, loss = [], 0.0
        for _ in range(int(for_all)):
            start = time.perf_counter()
            loss = step(tokens, targets)
            times.append(time.perf_counter() - start)
        if not times:
            return
        if rank == 0:
            used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            gpu = torch.cuda.max_memory_allocated() if tokens.is_cuda else 0
            print(json.dumps({"step_s": times, "loss": loss, "rss": used, "gpu": gpu}), flush=True)


def train(kind, config, batch, seq, precision, threads):
    if kind.startswith("ds"):
        import logging
        os.environ["DS_ACCELERATOR"] = "cpu"
        logging.disable(logging.INFO)
    import torch
    if threads != "cuda":
        torch.set_num_threads(int(threads))
    torch.manual_seed(1)
    rank = int(os.environ.get("RANK", "0"))
    if kind.startswith("ds"):
        import deepspeed
        deepspeed.init_distributed("gloo", verbose=False)
    elif kind in DISTRIBUTED:
        torch.distributed.init_process_group("gloo")
    with torch.device("cuda" if threads == "cuda" else "cpu"):
        model, block = build(config, seq)
    step = make_step(kind, model, block, precision == "bf16", batch)
    torch.manual_seed(2 + rank)
    data = torch.randint(0, config["vocab_size"], (batch, seq + 1))
    if threads == "cuda":
        data = data.to("cuda")
    take_steps(rank, step, (data[:, :-1].contiguous(), data[:, 1:].contiguous()))
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may outlive the peers they talk to


def start_ranks():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    ranks = []
    for r in range(N_RANKS):
        env = dict(os.environ, RANK=str(r), LOCAL_RANK=str(r), WORLD_SIZE=str(N_RANKS),
                   LOCAL_WORLD_SIZE=str(N_RANKS), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        ranks.append(subprocess.Popen([sys.executable, *sys.argv], env=env,
                                      stdin=None if r == 0 else subprocess.DEVNULL))
    status = [p.wait() for p in ranks]
    sys.exit(max(map(abs, status)))


def main():
    kind, config, batch, seq, precision, threads = sys.argv[1:]
    if kind in DISTRIBUTED and "RANK" not in os.environ:
        start_ranks()
    train(kind, json.loads(config), int(batch), int(seq), precision, threads)


main()
