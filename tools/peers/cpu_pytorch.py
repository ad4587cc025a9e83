#!/usr/bin/env python3
"""Trains hebb's two small benchmark models in PyTorch on the CPU, in alternation with `hebb bench`, and prints the ratio.

  tools/peers/cpu_pytorch.py [--hebb build/hebb] [--threads 2] [--rounds 8] [--rows 4] [--length 512] [--compiled] [--json]

Needs PyTorch and a fast BLAS (Debian: python3-torch, libopenblas0-pthread; run it with /usr/bin/python3).
Both run the same shapes (d 256, 6 blocks, vocabulary 4096) with the same number of threads; the best of all rounds counts on both sides. The gated-delta peer is the chunk-parallel form in tensor operations, C = 64
(docs/layers/gdn.md): what one writes without a compiled kernel. --compiled measures torch.compile of the same model as well. OpenBLAS falls
back to a core without AVX on processors that it does not know, so OPENBLAS_CORETYPE is set from /proc/cpuinfo unless the caller did; the rate
of a matrix product is printed as a check.
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
from pytorch_models import SMALL, Model  # noqa: E402


class Peer:
    def __init__(self, name, compiled, rows, length):
        torch.manual_seed(1)
        self.model = Model(SMALL, name)
        self.run = torch.compile(self.model) if compiled else self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
        self.data = torch.randint(SMALL.vocab, (rows, length + 1))
        self.tokens = rows * length
        self.step()  # compiles

    def step(self):
        """Tokens/s of one training step."""
        start = time.perf_counter()
        self.optimizer.zero_grad()
        self.run(self.data[:, :-1], self.data[:, 1:]).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return self.tokens / (time.perf_counter() - start)


def product_rate():
    """GFLOP/s of a matrix product of the feed-forward layers' size."""
    a, b = torch.randn(2048, SMALL.ffn), torch.randn(SMALL.ffn, 2048)
    best = 1e9
    for _ in range(20):
        start = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - start)
    return 2e-9 * 2048 * 2048 * SMALL.ffn / best


def hebb_rate(args, name):
    command = [args.hebb, "bench", name, "--json", "--steps", "2", "--warmup", "1", "--threads", str(args.threads), "--rows", str(args.rows),
               "--length", str(args.length), "--device", "cpu", "--precision", "fp32"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["models"][0]["tokens_per_s"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--hebb", default="build/hebb")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    report = {"pytorch": torch.__version__, "threads": args.threads, "rounds": args.rounds, "product_gflops": product_rate(), "rows": []}
    if not args.json:
        print(f"PyTorch {torch.__version__}, {args.threads} threads, {args.rows} x {args.length} tokens, best of {args.rounds} rounds; "
              f"its matrix product of 2048 x {SMALL.ffn} x 2048: {report['product_gflops']:.0f} GFLOP/s")
    for name in ("transformer", "gdn-hybrid"):
        peers = {kind: Peer(name, kind == "compiled", args.rows, args.length) for kind in ("eager", "compiled")[:1 + args.compiled]}
        own, best = 0.0, dict.fromkeys(peers, 0.0)
        for _ in range(args.rounds):
            own = max(own, hebb_rate(args, name))
            for kind, peer in peers.items():
                best[kind] = max(best[kind], peer.step(), peer.step())
        report["rows"].append({"model": name, "hebb": own, **best})
        for kind, rate in best.items():
            if not args.json:
                print(f"{name:12} hebb {own:8.0f} tokens/s   PyTorch {kind} {rate:8.0f} tokens/s   ratio {own / rate:.2f}")
    if args.json:
        print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
