#!/usr/bin/env python3
"""A character model of the size of nanoGPT's CPU example, trained on one text in PyTorch and in hebb: seconds and validation loss of both.

  tools/peers/cpu_nanogpt.py TEXT [--hebb build/hebb] [--steps 2000] [--threads 2] [--json]

TEXT is a file, such as tinyshakespeare; its bytes are the tokens and its last tenth is for validation. 4 blocks, width 128, 4 heads, rows of 64
bytes, 12 rows a step, AdamW with lr 1e-3, cosine to 1e-4, 100 steps of warm-up. The PyTorch model is that of nanoGPT: learned positions, layer
norms, GELU, head tied to the embeddings, no dropout; 0.83 million parameters. hebb's has as many, with RoPE, RMSNorm and SwiGLU.
Both validation losses are over the same rows: the whole validation part, cut every 64 bytes.
"""
import argparse
import json
import math
import pathlib
import subprocess
import tempfile
import time

import torch
import torch.nn.functional as F

D, BLOCKS, HEADS, T, ROWS, VOCAB = 128, 4, 4, 64, 12, 256


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(D), torch.nn.LayerNorm(D)
        self.qkv, self.out = torch.nn.Linear(D, 3 * D), torch.nn.Linear(D, D)
        self.up, self.down = torch.nn.Linear(D, 4 * D), torch.nn.Linear(4 * D, D)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, D // HEADS).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, D))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.place = torch.nn.Embedding(VOCAB, D), torch.nn.Embedding(T, D)
        self.blocks, self.norm = torch.nn.ModuleList(Block() for _ in range(BLOCKS)), torch.nn.LayerNorm(D)
        for module in self.modules():
            if isinstance(module, (torch.nn.Linear, torch.nn.Embedding)):
                torch.nn.init.normal_(module.weight, std=0.02)

    def forward(self, x, y):
        h = self.embed(x) + self.place.weight
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy((self.norm(h) @ self.embed.weight.T).flatten(0, 1), y.flatten())


def train_pytorch(text, steps):
    """Seconds of the steps, validation loss."""
    torch.manual_seed(1)
    ids = torch.tensor(list(text), dtype=torch.long)
    border = len(ids) * 9 // 10
    train, held = ids[:border], ids[border:]
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)
    start = time.perf_counter()
    for step in range(steps):
        share = min(1.0, max(0.0, (step - 100) / max(1, steps - 100)))
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * (step + 1) / 100 if step < 100 else 1e-4 + 0.45e-3 * (1 + math.cos(math.pi * share))
        at = torch.randint(len(train) - T - 1, (ROWS,))
        rows = torch.stack([train[i:i + T + 1] for i in at])
        optimizer.zero_grad(set_to_none=True)
        model(rows[:, :-1], rows[:, 1:]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    seconds = time.perf_counter() - start
    rows = held[:(len(held) - 1) // T * T + 1]
    with torch.no_grad():
        losses = [model(x, y).item() for x, y in zip(rows[:-1].view(-1, 1, T), rows[1:].view(-1, 1, T))]
    return seconds, sum(losses) / len(losses)


def train_hebb(hebb, path, steps, threads):
    """Seconds of the steps and the last validation loss."""
    config = {
        "name": "characters",
        "model": {"vocab_size": 259, "hidden_size": D, "num_layers": BLOCKS, "tie_embeddings": True,
                  "layers": {"full": {"type": "attention", "num_heads": HEADS, "head_dim": D // HEADS, "rope": {"theta": 10000.0}},
                             "mlp": {"type": "swiglu", "intermediate_size": 341}},
                  "pattern": [{"mixer": "full", "ffn": "mlp"}]},
        "data": {"sources": [{"path": "data"}], "validation": [{"name": "held", "path": "data/val_*.bin"}]},
        "train": {"steps": steps, "batch_size": ROWS, "sequence_length": T, "seed": 1, "log_every": steps, "val_every": steps,
                  "device": "cpu", "precision": "fp32", "checkpoint": {"every": steps, "keep": 1}},
        "optimizer": {"lr": 1e-3, "betas": [0.9, 0.99], "weight_decay": 0.1},
        "schedule": {"type": "cosine", "warmup_steps": 100, "min_lr": 1e-4}}
    with tempfile.TemporaryDirectory() as folder:
        def run(*words):
            ended = subprocess.run([hebb, *map(str, words)], capture_output=True, text=True, cwd=folder)
            if ended.returncode != 0:
                raise SystemExit(ended.stderr)
        run("data", "encode", path, "--tokenizer", "bytes", "--out", "data", "--val-tokens", "0.1")
        pathlib.Path(folder, "run.json").write_text(json.dumps(config))
        run("train", "run.json", "--run-dir", "run", "--threads", threads)
        records = [json.loads(line) for line in pathlib.Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
    rate = [record["tokens_per_s"] for record in records if "tokens_per_s" in record][-1]
    return steps * ROWS * T / rate, [record["loss"] for record in records if "val" in record][-1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--hebb", default="build/hebb", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    report = {"pytorch": torch.__version__, "steps": args.steps, "threads": args.threads, "text_bytes": args.text.stat().st_size}
    report["hebb_seconds"], report["hebb_loss"] = train_hebb(args.hebb.resolve(), args.text.resolve(), args.steps, args.threads)
    report["pytorch_seconds"], report["pytorch_loss"] = train_pytorch(args.text.read_bytes(), args.steps)
    if args.json:
        print(json.dumps(report, indent=1))
    else:
        print("hebb    {hebb_seconds:7.1f} s   {hebb_loss:.3f} nats\nPyTorch {pytorch_seconds:7.1f} s   {pytorch_loss:.3f} nats".format(**report))


if __name__ == "__main__":
    main()
