#!/usr/bin/env python3
"""Measures this machine and rewrites docs/benchmarks/cpu.md: date, commit, processor, versions, and every table of the page.

  tools/peers/cpu_page.py [--hebb build/hebb] [--python PYTHON] [--text FILE --text-is NAME] [--page docs/benchmarks/cpu.md] [--rounds 8] [--threads 2]

--python runs the peers: one with PyTorch. --text is the text of the character model (cpu_nanogpt.py), --text-is what the page
calls it; without a text that table is left out.
Some minutes. On a machine with other work run it with real-time priority: chrt -f 50 tools/peers/cpu_page.py (as root).
"""
import argparse
import datetime
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PEERS = ROOT / "tools" / "peers"
# Models of width 64: docs/recall.md.
SMALL = ("swa", "gdn", "sdm", "fwpkm", "ham", "ovq", "kvm", "vq", "mesanet", "mamba2", "lact")


def run(*words):
    ended = subprocess.run([str(word) for word in words], capture_output=True, text=True, cwd=ROOT)
    if ended.returncode != 0:
        sys.exit(f"cpu_page.py: {' '.join(str(word) for word in words)}: {ended.stderr}")
    return ended.stdout


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "|".join("---" if i == 0 else "---:" for i in range(len(head))) + "|"]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])


def processor():
    info = pathlib.Path("/proc/cpuinfo").read_text()
    value = lambda key: re.search(rf"^{key}\s*: (.*)$", info, re.M).group(1)
    flags = value("flags").split()
    units = "AVX-512" if "avx512f" in flags else "AVX2" if "avx2" in flags else "no AVX2"
    virtual = ", virtual machine" if "hypervisor" in flags else ""
    return f"{value('model name')}, family {value('cpu family')} model {value('model')}, {units}, {info.count('processor')} cores{virtual}"


class Page:
    def __init__(self, args):
        self.args, self.parts = args, []

    def bench(self, *words):
        return json.loads(run(self.args.hebb, "bench", *words, "--json", "--device", "cpu", "--precision", "fp32", "--threads", self.args.threads))

    def add(self, *lines):
        self.parts.append("\n".join(lines))

    def head(self):
        a = self.args
        compiled = re.search(r"compiled for +(\S+)", run(a.hebb, "doctor")).group(1)
        commit = run("git", "rev-parse", "--short", "HEAD").strip()
        self.kernels = self.bench("--kernels")
        self.peak = max(rate["peak_gflops"] for rate in self.kernels["gemm"])
        self.add("# CPU", "",
                 f"Measured on {datetime.date.today()} with commit {commit} by `tools/peers/cpu_page.py`, which rewrites this page. fp32, {a.threads} threads. "
                 "Times are the best of their repetitions.", "",
                 f"* Processor: {processor()}.",
                 f"* Kernels are compiled for {compiled}. Peak of fused multiply-adds in registers: {self.peak:.0f} GFLOP/s. "
                 f"A copy: {self.kernels['kernels']['copy_gb_per_s']:.0f} GB/s.")

    def steps(self):
        a = self.args
        peers = json.loads(run(a.python, PEERS / "cpu_pytorch.py", "--hebb", pathlib.Path(a.hebb).resolve(), "--rounds", a.rounds, "--threads",
                               a.threads, "--compiled", "--json"))
        models = {m["model"]: m for m in self.bench("transformer", "gdn-hybrid", "gdn", "--profile")["models"]}
        self.profiles = [(name, m["profile"]) for name, m in models.items()]
        self.add("## Training steps", "",
                 "`hebb bench`: width 256, 6 blocks, vocabulary 4,096, 4 rows of 512 tokens. The GDN hybrid has 5 GDN blocks and 1 attention block.", "",
                 table(("model", "tokens/s", "GFLOP/s", "of peak"),
                       [(name, f"{m['tokens_per_s']:,.0f}", f"{m['gflops']:.0f}", f"{m['gflops'] / self.peak:.0%}") for name, m in models.items()]))
        self.add("## Beside PyTorch", "",
                 f"`tools/peers/cpu_pytorch.py --compiled`: PyTorch {peers['pytorch']}, in alternation, best of {peers['rounds']} rounds. Its matrix product of "
                 f"2048 x 768 x 2048 reaches {peers['product_gflops']:.0f} GFLOP/s. It computes the delta rule in chunks of tensor operations, as one writes it "
                 "without a kernel.", "",
                 table(("model", "hebb, tokens/s", "PyTorch", "compiled", "ratio", "ratio to compiled"),
                       [(row["model"], f"{row['hebb']:,.0f}", f"{row['eager']:,.0f}", f"{row['compiled']:,.0f}", f"{row['hebb'] / row['eager']:.2f}",
                         f"{row['hebb'] / row['compiled']:.2f}") for row in peers["rows"]]))

    def characters(self):
        a = self.args
        r = json.loads(run(a.python, PEERS / "cpu_nanogpt.py", pathlib.Path(a.text).resolve(), "--hebb", pathlib.Path(a.hebb).resolve(), "--threads",
                           a.threads, "--json"))
        self.add("## A character model", "",
                 f"`tools/peers/cpu_nanogpt.py`: 4 blocks of width 128, 12 rows of 64 bytes, {r['steps']:,} steps on {r['text_bytes']:,} bytes of {a.text_is}, the size of "
                 "nanoGPT's example for a CPU. The loss is over the whole validation part.", "",
                 table(("program", "seconds", "validation loss [nats]"),
                       [("hebb", f"{r['hebb_seconds']:.0f}", f"{r['hebb_loss']:.3f}"),
                        (f"PyTorch {r['pytorch']}", f"{r['pytorch_seconds']:.0f}", f"{r['pytorch_loss']:.3f}")]))

    def operations(self):
        self.add("## Operations", "", "`hebb bench --kernels`, 2,048 tokens. The bound is the larger of FLOPs at the best product and bytes at the rate of a copy. "
                 "Small tensors stay in the cache and can be faster than a bound by memory.", "",
                 table(("operation", "ms", "GFLOP/s", "GB/s", "of bound", "bound"),
                       [(r["name"], f"{r['ms']:.2f}", f"{1e3 * r['tflops']:.0f}", f"{r['gb_per_s']:.0f}", f"{r['share_of_bound']:.0%}", r["bound"])
                        for r in self.kernels["kernels"]["rows"]]))

    def layers(self):
        models = self.bench("--layers", "--rows", "2", "--length", "1024", "--steps", "4")["models"]
        self.add("## Layers", "", "`hebb bench --layers --rows 2 --length 1024 --steps 4`: `gdn` with one layer of another type. The ratio is to the speed of `gdn`, "
                 "measured right before.", "",
                 table(("layer", "tokens/s", "ratio"), [(m["model"], f"{m['tokens_per_s']:,.0f}", f"{m['tokens_per_s'] / m['against_tokens_per_s']:.2f}")
                                                        for m in models]))

    def small(self):
        rows = []
        for name in SMALL:
            m = self.bench(f"configs/recall/{name}.json", "--rows", "64", "--length", "128", "--profile")["models"][0]
            rows.append((f"`{name}`", f"{m['tokens_per_s']:,.0f}", f"{m['gflops']:.0f}", f"{m['gflops'] / self.peak:.0%}"))
            self.profiles.append((f"recall/{name}", m["profile"]))
        self.add("## Models of width 64", "", "The models of [recall](../recall.md), 64 rows of 128 tokens.", "",
                 table(("model", "tokens/s", "GFLOP/s", "of peak"), rows))
        self.add("## Where a step's time goes", "",
                 "`hebb bench MODEL --profile`: matrix products together, with their rate, and the three longest other operations, as shares of the step.", "",
                 table(("model", "step, ms", "products", "GFLOP/s", "others"), [self.profile_row(*p) for p in self.profiles]))

    @staticmethod
    def profile_row(name, profile):
        step = profile["step_ms"]
        products = [o for o in profile["operations"] if o["flops"] > 0]
        others = [o for o in profile["operations"] if o["flops"] == 0][:3]
        ms = sum(o["ms"] for o in products)
        return (f"`{name}`", f"{step:.1f}", f"{ms / step:.0%}", f"{sum(o['flops'] for o in products) / ms * 1e-6:.0f}",
                ", ".join(f"{o['name']} {o['ms'] / step:.0%}" for o in others))

    def write(self):
        self.head()
        self.steps()
        if self.args.text:
            self.characters()
        self.operations()
        self.layers()
        self.small()
        path = pathlib.Path(self.args.page)
        old = path.read_text() if path.exists() else ""
        kept = old[old.index("## Length of rows"):] if "## Length of rows" in old else ""
        path.write_text("\n\n".join(self.parts + [kept.strip()] * bool(kept)) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hebb", default=str(ROOT / "build" / "hebb"))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--text")
    parser.add_argument("--text-is", default="text")
    parser.add_argument("--page", default=str(ROOT / "docs" / "benchmarks" / "cpu.md"))
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    Page(parser.parse_args()).write()


if __name__ == "__main__":
    main()
