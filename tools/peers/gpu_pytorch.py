#!/usr/bin/env python3
"""Times the same models and operations in PyTorch and in hebb on one GPU, in alternation, and prints hebb / peer / ratio.

  tools/peers/gpu_pytorch.py [--hebb build/hebb] [--models NAME,...] [--rows 16] [--length 1024] [--rounds 3] [--seconds 420] [--json FILE]
  tools/peers/gpu_pytorch.py --device cpu --small --rounds 1        # the logic without a GPU; such figures mean nothing

Peers of a model: tensor operations as written, torch.compile of them, flex_attention, a fused linear cross-entropy (liger_kernel or fla), and for
gated delta rules the chunk kernel and the models of fla (flash-linear-attention). What is missing is listed with the reason, and what fails
is missing: one peer never stops the others. Training steps are forward, backward, clipping and AdamW; weights in fp32 with bf16 autocast on
a GPU, as hebb's bf16. Models: the best of all rounds on both sides. Operations: hebb's come from one `hebb bench --kernels` just before
the peers, and both sides are timed by events behind device copies, so that neither launches nor warm caches count. Ratios above 1: hebb
is faster. No peer is started after --seconds.
"""
import argparse
import contextlib
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn.functional as F
from pytorch_models import MEDIUM, SMALL, Model, RmsNorm, best_attention, chunked_delta, plain_attention

MODELS = {"transformer": (SMALL, "transformer"), "gdn-hybrid": (SMALL, "gdn-hybrid"), "gdn": (SMALL, "gdn"),
          "transformer-340m": (MEDIUM, "transformer"), "gdn-hybrid-340m": (MEDIUM, "gdn-hybrid")}


class Missing(Exception):
    """A peer that this machine does not have; says why."""


def need(module, attribute):
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except Exception as error:  # packages that do not fit the machine fail in any way
        raise Missing(f"import {module}: {type(error).__name__}: {error}") from error
    if found is None:
        raise Missing(f"{module} has no {attribute} (torch {torch.__version__})")
    return found


def compiler(device):
    if device != "cuda":
        raise Missing("torch.compile is measured on a GPU only")
    return need("torch", "compile")


def flex_core(device, compile_model):
    if device != "cuda":
        raise Missing("flex_attention is measured on a GPU only")
    flex, block_mask = need("torch.nn.attention.flex_attention", "flex_attention"), need("torch.nn.attention.flex_attention", "create_block_mask")
    flex, masks = compile_model(flex), {}

    def core(q, k, v):
        t = q.shape[-2]
        if t not in masks:
            masks[t] = block_mask(lambda b, h, i, j: i >= j, None, None, t, t, device="cuda")
        return flex(q, k, v, block_mask=masks[t])
    return core


def fused_loss(device):
    if device != "cuda":
        raise Missing("fused cross-entropies run on a GPU only")
    reasons = []
    for module, name, order in (("liger_kernel.transformers", "LigerFusedLinearCrossEntropyLoss", "weight first"),
                                ("fla.modules", "FusedLinearCrossEntropyLoss", "hidden first")):
        try:
            function = need(module, name)()
            if order == "weight first":
                return lambda h, w, y: function(w, h, y)
            return lambda h, w, y: function(h, y, w)
        except Missing as missing:
            reasons.append(str(missing))
    raise Missing("; ".join(reasons))


def fla_core(device):
    if device != "cuda":
        raise Missing("fla's kernels run on a GPU only")
    rule = need("fla.ops.gated_delta_rule", "chunk_gated_delta_rule")

    def core(q, k, v, g, beta):
        half = torch.bfloat16  # the kernel takes no fp32
        out = rule(q.to(half), k.to(half), v.to(half), g.float(), beta.to(half), scale=1.0)
        return (out[0] if isinstance(out, tuple) else out).to(v.dtype)
    return core


def fla_model(device, shape, model):
    """fla's own model: its layer is hebb's gdn but for details; hybrids take its attention layers."""
    if device != "cuda":
        raise Missing("fla's models run on a GPU only")
    config_type, model_type = need("fla.models", "GatedDeltaNetConfig"), need("fla.models", "GatedDeltaNetForCausalLM")
    attention = [i for i, mixer in enumerate(shape.mixers(model)) if mixer == "attention"]
    settings = dict(hidden_size=shape.d, num_hidden_layers=shape.blocks, num_heads=shape.gdn_heads, head_dim=shape.gdn_key,
                    expand_v=shape.gdn_value / shape.gdn_key, intermediate_size=shape.ffn, vocab_size=shape.vocab, tie_word_embeddings=False)
    if attention:
        settings["attn"] = dict(layers=attention, num_heads=shape.heads, num_kv_heads=shape.heads, rope_theta=10000.0)
    inner = model_type(config_type(**settings))

    class Wrapped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = inner

        def forward(self, x, y):
            return self.inner(input_ids=x, labels=y).loss  # shifts once more: the same work
    return Wrapped()


def model_peers(device, shape, model):
    """Name -> function that makes the model, or raises Missing."""
    has_delta = "gdn" in shape.mixers(model)

    def compiled(**settings):
        return compiler(device)(Model(shape, model, **settings))
    peers = {"PyTorch": lambda: Model(shape, model)}
    if has_delta:
        peers["PyTorch with fla's chunk kernel"] = lambda: Model(shape, model, delta=fla_core(device))
        peers["fla's model"] = lambda: fla_model(device, shape, model)
    peers["PyTorch compiled"] = lambda: compiled()  # chunks are unrolled: the compiler may need minutes for many
    if not has_delta:
        peers["PyTorch compiled, fused cross-entropy"] = lambda: compiled(loss=fused_loss(device))
        peers["PyTorch compiled, flex_attention"] = lambda: compiled(attention=flex_core(device, compiler(device)))
    return peers


@contextlib.contextmanager
def limited(seconds):
    """Gives a peer up that takes longer, as compilers may."""
    def give_up(*_):
        raise Missing(f"took longer than {seconds:.0f} s (--peer-seconds)")
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(max(1, int(seconds)))
    try:
        yield
    finally:
        signal.alarm(0)


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


class Trainer:
    """Steps of a peer. The first one compiles."""

    def __init__(self, model, shape, args):
        self.device, self.precision = args.device, args.precision
        self.model = model.to(args.device)
        fused = {"fused": True} if args.device == "cuda" else {}
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, **fused)
        torch.manual_seed(1)
        self.data = torch.randint(shape.vocab, (args.rows, args.length + 1), device=args.device)

    def step(self):
        """Milliseconds."""
        synchronize(self.device)
        start = time.perf_counter()
        self.optimizer.zero_grad()
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.precision == "bf16"):
            loss = self.model(self.data[:, :-1], self.data[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        synchronize(self.device)
        return 1e3 * (time.perf_counter() - start)


def hebb(args, words):
    command = [args.hebb, "bench", *words, "--device", args.device, "--precision", args.precision, "--json"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=args.seconds)
    except subprocess.TimeoutExpired as error:
        raise Missing(f"hebb: took longer than {args.seconds:.0f} s (--seconds)") from error
    if result.returncode != 0:
        raise Missing(f"hebb: {result.stderr.strip() or result.returncode}")
    return json.loads(result.stdout)


def reason_of(error):
    text = str(error).strip().splitlines()
    return (text[0] if text else "no message")[:300] if isinstance(error, Missing) else f"{type(error).__name__}: {(text or [''])[0][:250]}"


class Report:
    """Prints each result, and writes all so far to `path`: what is cut off keeps what it has measured."""

    def __init__(self, path, about):
        self.path, self.about, self.rows, self.missing = path, about, [], []

    def save(self):
        if self.path:
            with open(self.path + ".part", "w") as file:
                json.dump({**self.about, "results": self.rows, "missing": self.missing}, file, indent=1)
            os.replace(self.path + ".part", self.path)

    def add(self, what, unit, own, peer, name, higher_is_better):
        ratio = own / peer if higher_is_better else peer / own
        self.rows.append({"what": what, "unit": unit, "hebb": own, "peer": peer, "peer_name": name, "ratio": ratio})
        print(f"{what:44} hebb {own:12.4g}   {name:38} {peer:12.4g} {unit:9} ratio {ratio:6.2f}", flush=True)
        self.save()

    def lacks(self, what, name, reason):
        self.missing.append({"what": what, "peer_name": name, "reason": reason})
        print(f"{what:44} missing: {name}: {reason}", flush=True)
        self.save()


def compare_model(args, report, name, deadline):
    shape, kind = MODELS[name]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, name + ".json")
        with open(path, "w") as file:
            json.dump(shape.config(kind), file)
        words = [path, "--rows", str(args.rows), "--length", str(args.length), "--steps", str(args.steps), "--warmup", "2"]
        own = 0.0
        for peer, make in model_peers(args.device, shape, kind).items():
            trainer, ms = None, 1e30
            try:
                if time.monotonic() > deadline:
                    raise Missing("no time left (--seconds)")
                with limited(args.peer_seconds):
                    trainer = Trainer(make(), shape, args)
                    for _ in range(2):
                        trainer.step()
                for _ in range(args.rounds):
                    if args.device == "cuda":
                        torch.cuda.empty_cache()  # hebb needs the memory beside this process
                    own = max(own, hebb(args, words)["models"][0]["tokens_per_s"])
                    ms = min([ms] + [trainer.step() for _ in range(args.steps)])
                report.add(name, "tokens/s", own, args.rows * args.length / ms * 1e3, peer, True)  # at once: what ends the script loses nothing
                print(f"  {name}: {peer} {ms:.2f} ms a step, hebb {1e3 * args.rows * args.length / own:.2f} ms", flush=True)
            except Exception as error:  # one peer never stops the others
                report.lacks(name, peer, reason_of(error))
            del trainer
            if args.device == "cuda":
                torch.cuda.empty_cache()


AHEAD_BYTES, COPIES = 64 << 20, 8  # kAheadBytes and kCopies of inspect/bench_operations.cpp


class Timer:
    """What the device spends on a call, as Bench::ms of inspect/bench_operations.cpp: on a GPU copies go before, behind which the host
    enqueues the call, and which leave nothing of its operands in the caches. By the host's clock on the CPU."""

    def __init__(self, device):
        self.device = device
        if device == "cuda":
            self.ahead_from, self.ahead_to = (torch.zeros(AHEAD_BYTES, dtype=torch.uint8, device=device) for _ in range(2))
            self.begin, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def ms(self, function):
        if self.device != "cuda":
            begin = time.perf_counter()
            function()
            return 1e3 * (time.perf_counter() - begin)
        for _ in range(COPIES):
            self.ahead_to.copy_(self.ahead_from)
        self.begin.record()
        function()
        self.end.record()
        self.end.synchronize()
        return self.begin.elapsed_time(self.end)

    def best_ms(self, function):
        """Of at least three calls in 0.2 s, as hebb has them."""
        best, calls, start = 1e30, 0, time.monotonic()
        while calls < 3 or time.monotonic() - start < 0.2:
            best, calls = min(best, self.ms(function)), calls + 1
        return best


def operation_peers(args, tokens):
    """Operations of `hebb bench --kernels` by name -> peer -> function that returns one to time. Shapes as in inspect/bench_operations.cpp."""
    device, dtype = args.device, torch.bfloat16 if args.precision == "bf16" else torch.float32
    length = min(tokens, 1024)

    def random(*size, grad=True, kind=dtype):
        return torch.randn(*size, device=device, dtype=kind).requires_grad_(grad)

    def both(forward, *inputs):
        """Forward, and backward of a kept graph."""
        out = forward(*inputs)
        gradient = torch.randn_like(out)
        return (lambda: forward(*inputs)), (lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True))

    def product(match):
        a_t, b_t, m, n, k = match.group(1) == "T", match.group(2) == "T", *(int(x) for x in match.groups()[2:])
        a = random(k, m, grad=False).t() if a_t else random(m, k, grad=False)
        b = random(n, k, grad=False).t() if b_t else random(k, n, grad=False)
        return lambda: a @ b

    def attention(core, head, side):
        q, k, v = (random(tokens // length, 1024 // head, length, head) for _ in range(3))
        return both(core, q, k, v)[side]

    def delta(core, side):
        b = tokens // length
        q, k, v = random(b, length, 6, 128), random(b, length, 6, 128), random(b, length, 6, 256)
        g, beta = -torch.rand(b, length, 6, device=device), torch.rand(b, length, 6, device=device)
        return both(lambda q, k, v: core(q * 128 ** -0.5, F.normalize(k, dim=-1), v, g, beta), q, k, v)[side]

    def maybe_compiled(function):
        return compiler(device)(function)

    def norm(h, branch, weight=torch.ones(1024, device=device)):
        return RmsNorm.forward(argparse.Namespace(weight=weight), h + branch)

    def swiglu(gate, up):
        return F.silu(gate) * up

    def cross_entropy():
        rows = min(tokens, 1024)
        logits, targets = random(rows, 32000, kind=torch.float32), torch.zeros(rows, dtype=torch.long, device=device)
        return lambda: torch.autograd.grad(F.cross_entropy(logits, targets), logits)

    def adamw():
        p = torch.nn.Parameter(torch.randn(4 << 20, device=device))
        p.grad = torch.randn_like(p)
        return torch.optim.AdamW([p], lr=1e-3, weight_decay=0.1, **({"fused": True} if device == "cuda" else {})).step

    peers = [(re.compile(r"product ([NT])([NT]) (\d+) x (\d+) x (\d+)"), "PyTorch", product)]

    def add(name, peer, make):
        peers.append((re.compile(re.escape(name)), peer, lambda match: make()))
    for side, word in enumerate(("forward", "backward")):
        for prefix, wrap in (("PyTorch", lambda f: f), ("PyTorch compiled", maybe_compiled)):
            add(f"residual + RMSNorm, {word}", prefix, lambda s=side, w=wrap: both(w(norm), random(tokens, 1024), random(tokens, 1024))[s])
            add(f"SwiGLU, {word}", prefix, lambda s=side, w=wrap: both(w(swiglu), random(tokens, 2816), random(tokens, 2816))[s])
        for head in (64, 128):
            name = f"attention, heads of {head}, {word}"
            add(name, "plain PyTorch" if best_attention() is plain_attention else "SDPA", lambda h=head, s=side: attention(best_attention(), h, s))
            add(name, "flex_attention", lambda h=head, s=side: attention(flex_core(device, compiler(device)), h, s))
        name = f"gated delta rule, 6 heads of 128 x 256, {word}"
        add(name, "PyTorch (no convolutions)", lambda s=side: delta(chunked_delta, s))
        add(name, "PyTorch compiled (no convolutions)", lambda s=side: delta(maybe_compiled(chunked_delta), s))
        add(name, "fla's chunk kernel (no convolutions)", lambda s=side: delta(fla_core(device), s))
    add("cross-entropy with gradient, vocabulary of 32000", "PyTorch", cross_entropy)
    add("AdamW, 4 Mi parameters", "PyTorch", adamw)
    return peers


def compare_operations(args, report, deadline):
    tokens = 2048 if args.device == "cpu" or args.small else 16384
    peers = operation_peers(args, tokens)
    try:
        if time.monotonic() > deadline:
            raise Missing("no time left (--seconds)")
        rows = hebb(args, ["--kernels", "--tokens", str(tokens)])["kernels"]["rows"]
    except Missing as missing:
        report.lacks("operations", "hebb", str(missing))
        return
    timer = Timer(args.device)
    for row in rows:
        found = [(match, peer, make) for pattern, peer, make in peers if (match := pattern.fullmatch(row["name"]))]
        if not found:
            report.lacks(row["name"], "all", "this script has no peer of that name")
        for match, peer, make in found:
            try:
                if time.monotonic() > deadline:
                    raise Missing("no time left (--seconds)")
                with limited(args.peer_seconds):
                    function = make(match)
                    function()
                report.add(row["name"], "ms", row["ms"], timer.best_ms(function), peer, False)
            except Exception as error:
                report.lacks(row["name"], peer, reason_of(error))


def allow_second_backward():
    """Backward passes are timed many times on one graph. What is compiled would by default write over buffers of the forward pass."""
    try:
        importlib.import_module("torch._functorch.config").donated_buffer = False
    except (ImportError, AttributeError):  # older versions have no such thing
        pass


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hebb", default="build/hebb")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--precision", choices=["bf16", "fp32"], help="default: bf16 on a GPU, fp32 on the CPU")
    parser.add_argument("--models", default=None, help="comma-separated: " + ", ".join(MODELS))
    parser.add_argument("--small", action="store_true", help="the small models on few tokens")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--length", type=int)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=420, help="start no further peer after so many seconds")
    parser.add_argument("--peer-seconds", type=float, default=90, help="give a peer up that needs longer to be made and compiled")
    parser.add_argument("--no-operations", action="store_true")
    parser.add_argument("--json", help="file for the results")
    args = parser.parse_args()
    args.precision = args.precision or ("bf16" if args.device == "cuda" else "fp32")
    args.rows = args.rows or (1 if args.small else 16)
    args.length = args.length or (128 if args.small else 1024)
    args.models = (args.models or ("transformer,gdn-hybrid" if args.small else "transformer-340m,gdn-hybrid-340m,transformer,gdn-hybrid")).split(",")
    for name in args.models:
        if name not in MODELS:
            parser.error(f"--models: found {name}, expected some of {', '.join(MODELS)}")
    if args.length % 64:
        parser.error(f"--length: found {args.length}, expected a multiple of 64")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error(f"--device cuda: torch {torch.__version__} sees no GPU")
    if not os.access(args.hebb, os.X_OK):
        parser.error(f"--hebb: {args.hebb} is no program; build it first")
    return args


def main():
    args = read_arguments()
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("highest")  # hebb's fp32 is fp32
    allow_second_backward()
    deadline = time.monotonic() + args.seconds
    where = torch.cuda.get_device_name() if args.device == "cuda" else "the CPU"
    report = Report(args.json, {"torch": torch.__version__, "device": where, "precision": args.precision, "rows": args.rows, "length": args.length})
    print(f"PyTorch {torch.__version__} on {where}, {args.precision}, {args.rows} x {args.length} tokens, best of {args.rounds} rounds of {args.steps} steps",
          flush=True)
    for name in args.models:
        compare_model(args, report, name, deadline if args.no_operations else deadline - 0.35 * args.seconds)
    if not args.no_operations:
        compare_operations(args, report, deadline)
    report.save()
    return 0 if report.rows else 1


if __name__ == "__main__":
    sys.exit(main())
