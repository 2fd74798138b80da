#!/usr/bin/env python3
"""GPT-2 in PyTorch, as zerotrain trains it: what bench_models.py measures zerotrain against.

    torch_gpt2.py KIND LAYERS WIDTH HEADS VOCAB BATCH SEQ fp32|bf16 THREADS STEPS

KIND: eager, compile (one process); ddp, zero (ZeroRedundancyOptimizer), fsdp, ds1, ds2, ds3 (DeepSpeed's
stages): two processes of this program over gloo, BATCH each. Learned positions, pre-norm, GELU (tanh),
biases, tied head, fused causal attention, mean cross-entropy, clipping to 1, AdamW: one step does what
one of ours does. bf16: autocast over fp32 parameters, as PyTorch has it; FSDP's mixed precision;
DeepSpeed's bf16 parameters with fp32 masters. Prints one line of JSON: seconds of each step.
"""
import json
import os
import resource
import socket
import subprocess
import sys
import time

LR, BETAS, EPS, DECAY, CLIP = 3e-4, (0.9, 0.95), 1e-8, 0.1, 1.0
DISTRIBUTED = ("ddp", "zero", "fsdp", "ds1", "ds2", "ds3")
N_RANKS = 2


def build(layers, width, heads, vocab, seq):
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.c_fc, self.mlp_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            b, t, _ = x.shape
            qkv = self.c_attn(self.ln_1(x)).view(b, t, 3, heads, width // heads)
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.c_proj(y.transpose(1, 2).reshape(b, t, width))
            return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))

    class GPT2(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(seq, width)
            self.h = nn.ModuleList(Block() for _ in range(layers))
            self.ln_f = nn.LayerNorm(width)
            for p in self.parameters():
                if p.dim() > 1:
                    nn.init.normal_(p, 0, 0.02)

        def forward(self, tokens, targets):
            x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
            for block in self.h:
                x = block(x)
            logits = F.linear(self.ln_f(x), self.wte.weight)
            return F.cross_entropy(logits.view(-1, vocab), targets.view(-1))

    return GPT2(), Block


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
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
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


def train(kind, layers, width, heads, vocab, batch, seq, precision, threads, steps):
    if kind.startswith("ds"):
        import logging
        os.environ["DS_ACCELERATOR"] = "cpu"
        logging.disable(logging.INFO)
    import torch
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    rank = int(os.environ.get("RANK", "0"))
    if kind.startswith("ds"):
        import deepspeed
        deepspeed.init_distributed("gloo", verbose=False)
    elif kind in DISTRIBUTED:
        torch.distributed.init_process_group("gloo")
    model, block = build(layers, width, heads, vocab, seq)
    step = make_step(kind, model, block, precision == "bf16", batch)
    torch.manual_seed(2 + rank)
    data = torch.randint(0, vocab, (batch, seq + 1))
    tokens, targets = data[:, :-1].contiguous(), data[:, 1:].contiguous()
    times, loss = [], 0.0
    for _ in range(steps):
        start = time.perf_counter()
        loss = step(tokens, targets)
        times.append(time.perf_counter() - start)
    if rank == 0:
        print(json.dumps({"step_s": times, "loss": loss,
                          "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}), flush=True)
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
        ranks.append(subprocess.Popen([sys.executable, *sys.argv], env=env))
    status = [p.wait() for p in ranks]
    sys.exit(max(map(abs, status)))


def main():
    kind, *numbers, precision, threads, steps = sys.argv[1:]
    if kind in DISTRIBUTED and "RANK" not in os.environ:
        start_ranks()
    train(kind, *map(int, numbers), precision, int(threads), int(steps))


main()
