#!/usr/bin/env python3
"""Trains hebb's two small benchmark models in PyTorch on the CPU, in alternation with `hebb bench`, and prints the ratio.

  tools/peers/cpu_pytorch.py [--hebb build/hebb] [--threads 2] [--rounds 8] [--rows 4] [--length 512]

Needs PyTorch and a fast BLAS (Debian: python3-torch, libopenblas0-pthread; run it with /usr/bin/python3).
Both run the same shapes (d 256, 6 blocks, vocabulary 4096) with the same number of threads; the best of all rounds counts on both sides. The gated-delta peer is the chunk-parallel form in tensor operations, C = 64
(docs/layers/gdn.md): what one writes without a compiled kernel. OpenBLAS falls back to a core without AVX on processors that it does
not know, so OPENBLAS_CORETYPE is set from /proc/cpuinfo unless the caller did; the rate of a matrix product is printed as a check.
"""
import argparse
import json
import os
import subprocess
import time


def core_type():
    with open("/proc/cpuinfo") as info:
        flags = next((line for line in info if line.startswith("flags")), "")
    return "SkylakeX" if "avx512vl" in flags else "Haswell" if "avx2" in flags else None


if core_type() is not None:
    os.environ.setdefault("OPENBLAS_CORETYPE", core_type())
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

D, BLOCKS, VOCAB, FFN, HEADS, HEAD = 256, 6, 4096, 768, 4, 64


class RmsNorm(torch.nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(d))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


def rope(x):  # [B, H, T, D]
    t, d = x.shape[-2:]
    angle = torch.arange(t).float()[:, None] * (10000.0 ** (-torch.arange(0, d, 2).float() / d))
    cos, sin = angle.cos(), angle.sin()
    a, b = x[..., : d // 2], x[..., d // 2:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(D, 3 * HEADS * HEAD, bias=False)
        self.o = torch.nn.Linear(HEADS * HEAD, D, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, HEAD).permute(2, 0, 3, 1, 4)
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(rope(q), rope(k), v, is_causal=True)
        else:
            s = rope(q) @ rope(k).transpose(-1, -2) * HEAD ** -0.5
            y = s.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf")).softmax(-1) @ v
        return self.o(y.transpose(1, 2).reshape(b, t, -1))


class GatedDelta(torch.nn.Module):
    """Gated DeltaNet, chunk-parallel: heads of key 64, value 64, convolution 4, gated RMS output norm."""

    def __init__(self, chunk=64):
        super().__init__()
        self.chunk = chunk
        self.q, self.k, self.v, self.g, self.o = (torch.nn.Linear(D, D, bias=False) for _ in range(5))
        self.a, self.b = torch.nn.Linear(D, HEADS, bias=False), torch.nn.Linear(D, HEADS, bias=False)
        self.conv = torch.nn.Conv1d(3 * D, 3 * D, 4, groups=3 * D, padding=3, bias=False)
        self.a_log = torch.nn.Parameter(torch.zeros(HEADS))
        self.dt = torch.nn.Parameter(torch.zeros(HEADS))
        self.norm = RmsNorm(HEAD)

    def forward(self, x):
        b, t, _ = x.shape
        c, n = self.chunk, t // self.chunk
        u = torch.cat([self.q(x), self.k(x), self.v(x)], -1).transpose(1, 2)
        u = F.silu(self.conv(u)[..., :t]).transpose(1, 2)
        q, k, v = (z.view(b, n, c, HEADS, HEAD).permute(0, 3, 1, 2, 4) for z in u.split(D, -1))  # [B, H, n, C, D]
        q, k = F.normalize(q, dim=-1) * HEAD ** -0.5, F.normalize(k, dim=-1)
        g = (-self.a_log.exp() * F.softplus(self.a(x) + self.dt)).view(b, n, c, HEADS).permute(0, 3, 1, 2)
        beta = self.b(x).sigmoid().view(b, n, c, HEADS).permute(0, 3, 1, 2)[..., None]
        gam = g.cumsum(-1)
        lower = torch.ones(c, c, dtype=torch.bool).tril()
        decay = (gam[..., :, None] - gam[..., None, :]).masked_fill(~lower, float("-inf")).exp()
        a = (beta * (k @ k.transpose(-1, -2)) * decay).tril(-1)
        m = torch.linalg.solve_triangular(torch.eye(c) + a, torch.eye(c).expand_as(a), upper=False, unitriangular=True)
        e = gam.exp()[..., None]
        uu, w = m @ (beta * v), m @ (beta * e * k)
        p = (q @ k.transpose(-1, -2)) * decay
        last = gam[..., -1:]
        kd = k * (last - gam).exp()[..., None]
        s, out = x.new_zeros(b, HEADS, HEAD, HEAD), []
        for i in range(n):
            delta = uu[:, :, i] - w[:, :, i] @ s
            out.append((e[:, :, i] * q[:, :, i]) @ s + p[:, :, i] @ delta)
            s = last[:, :, i, :, None].exp() * s + kd[:, :, i].transpose(-1, -2) @ delta
        y = self.norm(torch.stack(out, 2)).permute(0, 2, 3, 1, 4).reshape(b, t, D)
        return self.o(y * F.silu(self.g(x)))


class Block(torch.nn.Module):
    def __init__(self, mixer):
        super().__init__()
        self.n1, self.n2, self.mixer = RmsNorm(D), RmsNorm(D), mixer
        self.gate, self.up, self.down = (torch.nn.Linear(D, FFN, bias=False), torch.nn.Linear(D, FFN, bias=False),
                                         torch.nn.Linear(FFN, D, bias=False))

    def forward(self, h):
        h = h + self.mixer(self.n1(h))
        x = self.n2(h)
        return h + self.down(F.silu(self.gate(x)) * self.up(x))


class Model(torch.nn.Module):
    def __init__(self, mixers):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCAB, D)
        self.blocks = torch.nn.ModuleList(Block(m()) for m in mixers)
        self.norm, self.head = RmsNorm(D), torch.nn.Linear(D, VOCAB, bias=False)

    def forward(self, x, y):
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1), y.flatten())


def peer_best(mixers, rows, length, steps):
    torch.manual_seed(1)
    model = Model(mixers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    data = torch.randint(VOCAB, (rows, length + 1))
    best = 1e9
    for i in range(steps + 1):
        start = time.perf_counter()
        optimizer.zero_grad()
        model(data[:, :-1], data[:, 1:]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if i > 0:
            best = min(best, time.perf_counter() - start)
    return rows * length / best


def product_rate():
    """GFLOP/s of a matrix product of the feed-forward layers' size."""
    a, b = torch.randn(2048, FFN), torch.randn(FFN, 2048)
    best = 1e9
    for _ in range(20):
        start = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - start)
    return 2e-9 * 2048 * 2048 * FFN / best


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--hebb", default="build/hebb")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--length", type=int, default=512)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    models = {"transformer": [Attention] * BLOCKS, "gdn-hybrid": [GatedDelta] * 5 + [Attention]}
    print(f"PyTorch {torch.__version__}, {args.threads} threads, {args.rows} x {args.length} tokens, best of {args.rounds} rounds; "
          f"its matrix product of 2048 x {FFN} x 2048: {product_rate():.0f} GFLOP/s")
    for name, mixers in models.items():
        own, peer = 0.0, 0.0
        for _ in range(args.rounds):
            text = subprocess.run([args.hebb, "bench", name, "--json", "--steps", "2", "--warmup", "1", "--threads", str(args.threads),
                                   "--rows", str(args.rows), "--length", str(args.length), "--device", "cpu", "--precision", "fp32"],
                                  check=True, capture_output=True, text=True).stdout
            own = max(own, json.loads(text)["models"][0]["tokens_per_s"])
            peer = max(peer, peer_best(mixers, args.rows, args.length, 2))
        print(f"{name:12} hebb {own:8.0f} tokens/s   PyTorch {peer:8.0f} tokens/s   ratio {own / peer:.2f}")


if __name__ == "__main__":
    main()
