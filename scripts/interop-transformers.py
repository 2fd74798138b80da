#!/usr/bin/env python3
"""Train small models side by side with Hugging Face's transformers: interop-transformers.py ZEROTRAIN

Run by hand where PyTorch and transformers are installed. Each model is made at random by transformers,
written with save_pretrained in several shards, read by zerotrain (model.from), and trained by both on
the same sequences with the same AdamW: losses and gradient norms of every step must agree in fp32.
"""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

import torch
import transformers as hf

hf.logging.set_verbosity_error()
hf.utils.logging.disable_progress_bar()

SEQ, BATCH, STEPS, LR, CLIP = 24, 4, 4, 1e-2, 1.0
SMALL = dict(vocab_size=61, hidden_size=32, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.2)
LLAMA3 = {"rope_type": "llama3", "rope_theta": 1000.0, "factor": 4.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
MODELS = {
    "gpt2": hf.GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=64,
                          initializer_range=0.2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0),
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


def reference(model, tokens):
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


def ours(zerotrain, folder, tokens):
    flat = tokens[:, :-1].flatten().tolist() + [tokens[-1, -1].item()]
    (folder / "tokens.bin").write_bytes(struct.pack(f"<{len(flat)}H", *flat))
    recipe = {
        "model": {"from": str(folder / "model")},
        "data": {"train": str(folder / "tokens.bin"), "format": "raw_u16", "seq_len": SEQ, "shuffle": False},
        "train_micro_batch_size_per_gpu": BATCH // 2,
        "gradient_clipping": CLIP,
        "optimizer": {"type": "AdamW", "params": {"lr": LR, "betas": [0.9, 0.95], "eps": 1e-8,
                                                  "weight_decay": 0.1}},
        "zero_optimization": {"stage": 3},
        "train": {"steps": STEPS},
        "parallel": {"threads": 1},
    }
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    subprocess.run([zerotrain, "--device=cpu", "--num_gpus=2", f"--log_dir={folder}/run",
                    str(folder / "recipe.yaml")], check=True, capture_output=True)
    lines = [json.loads(x) for x in (folder / "run/metrics.jsonl").read_text().splitlines()]
    return [x["loss"] for x in lines], [x["grad_norm"] for x in lines]


def make_tokens():
    """Sequences that overlap by one token, as a token file is cut."""
    text = torch.randint(61, (BATCH * SEQ + 1,))
    return torch.stack([text[i * SEQ:(i + 1) * SEQ + 1] for i in range(BATCH)])


def main():
    zerotrain = str(pathlib.Path(sys.argv[1]).resolve())
    failed = False
    for name, config in MODELS.items():
        torch.manual_seed(1)
        model = hf.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        tokens = make_tokens()
        with torch.no_grad():
            for p in model.parameters():  # biases and norms away from 0 and 1, which hide mistakes
                if p.dim() == 1:
                    p.add_(torch.randn_like(p) * 0.1)
        with tempfile.TemporaryDirectory() as d:
            folder = pathlib.Path(d)
            model.save_pretrained(folder / "model", max_shard_size="20KB")
            shards = len(list((folder / "model").glob("*.safetensors")))
            got = ours(zerotrain, folder, tokens)
        want = reference(model.train(), tokens)
        worst = [max(abs(g - w) / max(1, abs(w)) for g, w in zip(*pair)) for pair in zip(got, want)]
        good = worst[0] <= 1e-5 and worst[1] <= 1e-4
        failed |= not good
        print(f"{'ok' if good else 'not ok'} {name}: {shards} shards; loss {want[0][0]:.6f} to "
              f"{want[0][-1]:.6f}, off by {worst[0]:.1e}; gradient norm off by {worst[1]:.1e}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
