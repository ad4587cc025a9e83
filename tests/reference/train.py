"""Training (docs/training.md) in PyTorch, float64: python3 train.py [--hebb BUILD/hebb] [--keep] RUN...

RUN: a run configuration, or the folder of a golden run: run.json, its data, perhaps init.safetensors (otherwise the run starts from
initial values of its own), and what must come out: metrics.jsonl, final.safetensors. Trains here and with hebb in fp64 and prints the largest
differences of loss, lr, gradient norm and final weights. --keep writes what must come out into the folder.
"""
import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile

import torch

import model as reference
import safetensors_file
from initial import initial_values
from owned import Owned
from rows import Mixture, open_source
from streams import Rng

NO_DECAY = re.compile(r"lambda_raw$")  # exempt by its layer's page although it has two dimensions


def learning_rate(s, run):
    """lr of step index s."""
    peak, S, c = run["optimizer"]["lr"], steps(run), run.get("schedule", {})
    kind, w, lo = c.get("type", "constant"), c.get("warmup_steps", 0), c.get("min_lr", 0.0)
    shape = c.get("decay", "linear") if kind == "wsd" else kind
    if s < w:
        return peak * (s + 1) / w
    if kind == "constant":
        return peak
    d = c.get("decay_steps", math.floor(c.get("decay_fraction", 0.2) * S + 0.5)) if kind == "wsd" else S - w
    if s < S - d:
        return peak
    q = (s - (S - d)) / d
    if shape == "inverse":
        return 1 / (q / lo + (1 - q) / peak)
    y = {"linear": 1 - q, "cosine": (1 + math.cos(math.pi * q)) / 2, "one_minus_sqrt": 1 - math.sqrt(q), "sqrt": math.sqrt(1 - q)}[shape]
    return lo + (peak - lo) * y


def steps(run):
    t = run["train"]
    return t["steps"] if "steps" in t else -(-t["tokens"] // (t["batch_size"] * t["sequence_length"]))


class AdamW:
    """Sections 3 and 4."""

    def __init__(self, run, weights):
        self.run, self.o = run, run["optimizer"]
        self.state = {n: [torch.zeros_like(p), torch.zeros_like(p), 0] for n, p in weights.items()}  # m, v, updates

    def group(self, name):
        """Index and settings of the parameter's group; -1: none matches."""
        for i, g in enumerate(self.o.get("groups", [])):
            if re.search(g["match"], name):
                return i, g
        return -1, {}

    def norms(self, grads):
        """{group with a clip_norm of its own, or -1: its norm before clipping}."""
        sums = {-1: 0.0}
        for name, g in grads.items():
            i, group = self.group(name)
            key = i if "clip_norm" in group else -1
            sums[key] = sums.get(key, 0.0) + (g * g).sum().item()
        return {key: math.sqrt(s) for key, s in sums.items()}

    def step(self, weights, grads, norms, s):
        for name, g in grads.items():
            i, group = self.group(name)
            get = lambda key, default: group.get(key, self.o.get(key, default))
            limit = get("clip_norm", 1.0)
            if limit > 0:
                g = g * min(1.0, limit / (norms[i if "clip_norm" in group else -1] + 1e-6))
            p, state = weights[name], self.state[name]
            base = get("lr", None)
            lr = base if group.get("schedule") is False else learning_rate(s, self.run) * base / self.o["lr"]
            exempt = p.dim() < 2 or NO_DECAY.search(name) or any(re.search(r, name) for r in self.o.get("no_decay", []))
            decay = get("weight_decay", 0.1) if not exempt or group.get("force_decay") else 0.0
            if self.o.get("weight_decay_follows_lr"):
                decay *= lr / base
            (b1, b2), eps = get("betas", [0.9, 0.95]), get("eps", 1e-8)
            state[2] += 1
            state[0] = b1 * state[0] + (1 - b1) * g
            state[1] = b2 * state[1] + (1 - b2) * g * g
            p *= 1 - lr * decay
            p -= lr * (state[0] / (1 - b1 ** state[2])) / (torch.sqrt(state[1] / (1 - b2 ** state[2])) + eps)


def windowed(model, run, s):
    """The model of step s: full attention may get the random window."""
    c = run["train"].get("random_window")
    if not c or Rng(run["train"].get("seed", 0), "random_window", s).uniform() >= c["p"]:
        return model
    model = json.loads(json.dumps(model))
    for layer in model["layers"].values():
        if layer["type"] == "attention" and not layer.get("window") and not layer.get("block_window"):
            layer["window"] = c["window"]
    return model


def stack(rows):
    return [torch.tensor(part) for part in map(lambda p: [list(map(int, r)) for r in p], zip(*rows))]


def forward(model, weights, fast, rows, run, mode, s, owned=None, optimizer=None, is_later_part=False):
    """Sum of token losses of a micro-batch; fast weights are replaced by their new values, and `owned` sees the decisions. Parameters that begin
    anew lose their moments."""
    x, y, ids = stack(rows)
    r = reference.Rows(model, x, y, ids if run["train"].get("document_mask") else None, mode, run["train"].get("seed", 0), s)
    r.is_later_part = is_later_part
    logits = reference.forward(model, {**weights, **fast}, r)
    for name, value in r.restarted.items():
        weights[name].data = value.clone()
        optimizer.state[name] = [torch.zeros_like(value), torch.zeros_like(value), 0]
    fast.update({n: t.detach() for n, t in r.after.items()})
    if owned:
        owned.saw(r.inside)
    valid = y != -100
    log_p = torch.log_softmax(logits[valid], -1)
    return -log_p.gather(-1, y[valid].unsqueeze(-1)).sum()


def validate(run, weights, fast, folder):
    """{name: (mean loss, tokens)}; every micro-batch starts from the fast weights of training, on a copy."""
    out, micro = {}, run["train"].get("micro_batch_size", run["train"]["batch_size"])
    for source in run["data"].get("validation", []):
        rows = open_source(source, run, None, folder)
        count = source["max_rows"] if source.get("type") == "synthetic" else min(rows.count(), source.get("max_rows", rows.count()))
        total, tokens = 0.0, 0
        for k in range(0, count, micro):
            every = count if source.get("type") == "synthetic" else rows.count()
            part = [rows.row((2 * i + 1) * every // (2 * count)) for i in range(k, min(k + micro, count))]  # max_rows: spread evenly
            total += forward(run["model"], weights, dict(fast), part, run, "eval", 0).item()
            tokens += sum(int((y != -100).sum()) for _, y, _ in part)
        out[source["name"]] = (total / tokens, tokens)
    return out


def train(run, initial, folder):
    """Lines of metrics of every step, validation's included, and the final weights. initial: {name: tensor}."""
    t, fast_names = run["train"], reference.named_shapes(run["model"], "fast")
    weights = {n: w.double().requires_grad_() for n, w in initial.items() if n not in fast_names}
    fast = {n: w.double() for n, w in initial.items() if n in fast_names}
    data, optimizer, owned, lines, skipped = Mixture(run, folder), AdamW(run, weights), Owned(run["model"]), [], 0
    B, S = t["batch_size"], steps(run)
    micro = t.get("micro_batch_size", B)
    for s in range(S):
        rows = [data.row() for _ in range(B)]
        valid = sum(int((y != -100).sum()) for _, y, _ in rows)
        model, loss = windowed(run["model"], run, s), 0.0
        for w in weights.values():
            w.grad = None
        for m in range(0, B, micro):
            part = forward(model, weights, fast, rows[m:m + micro], run, "train", s, owned, optimizer, m > 0)
            if valid:
                (part / valid).backward()
                loss += part.item() / valid
        grads = {n: w.grad for n, w in weights.items() if w.grad is not None}
        norms = optimizer.norms(grads)
        with torch.no_grad():
            if valid and all(map(math.isfinite, [loss, *norms.values()])):
                optimizer.step(weights, grads, norms, s)
                owned.step(fast, s)
            else:
                owned.inside, skipped = [], skipped + 1
        lines.append({"step": s + 1, "tokens": (s + 1) * B * t["sequence_length"], "loss": loss if valid else math.nan, "lr": learning_rate(s, run),
                      "grad_norm": norms[-1], "skipped": skipped})
        every = t.get("val_every", 0)
        if s + 1 == S or every and (s + 1) % every == 0:
            lines += [{"step": s + 1, "val": name, "loss": loss, "tokens": tokens} for name, (loss, tokens) in validate(run, weights, fast, folder).items()]
    return lines, {**{n: w.detach() for n, w in weights.items()}, **{n: t.to(initial[n].dtype) if n.endswith("idle") else t for n, t in fast.items()}}, optimizer


def run_hebb(hebb, config, run_dir, *more):
    command = [hebb, "train", config, "--run-dir", run_dir, *more]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\nexit {done.returncode}\n{done.stdout[-2000:]}{done.stderr}")


def read_lines(path):
    with open(path) as f:
        return [json.loads(line) for line in f]


def difference(found, expected):
    """Largest relative difference of two sets of lines, and of two sets of tensors relative to their largest entries."""
    if isinstance(found, dict):
        if found.keys() != expected.keys():
            return math.inf, str(found.keys() ^ expected.keys())
        out = [((found[n].double() - w).abs().max().item() / max(w.abs().max().item(), 1e-300), n) for n, w in expected.items()]
        return max(out)
    worst = (0.0, "")
    at = {(line["step"], line.get("val")): line for line in expected}
    for line in found:
        other = at.get((line["step"], line.get("val")))
        if other is None:
            return math.inf, f"step {line['step']}"
        for key in set(line) & {"loss", "lr", "grad_norm", "tokens", "skipped"}:
            a, b = float(line[key]), float(other.get(key, line[key]))
            if a != b and not (math.isnan(a) and math.isnan(b)):
                worst = max(worst, (abs(a - b) / max(abs(b), 1e-12), f"{key} of step {line['step']}"))
    return worst


def check(path, options):
    """True if the reference and hebb (and the golden run) agree."""
    golden = os.path.isdir(path)
    config = os.path.join(path, "run.json") if golden else path
    folder = os.path.dirname(os.path.abspath(config))
    with open(config) as f:
        run = json.load(f)
    good = True

    def judge(what, lines, weights, expected_lines, expected):
        nonlocal good
        loss, weight = difference(lines, expected_lines), difference(weights, expected)
        good &= loss[0] < 1e-9 and weight[0] < 1e-7
        print(f"{run['name']}: {what}: {loss[0]:.1e} {loss[1]}, weights {weight[0]:.1e} {weight[1]}")

    with tempfile.TemporaryDirectory() as scratch:
        out = os.path.join(scratch, "run")
        init = os.path.join(folder, "init.safetensors")
        has_init = golden and os.path.exists(init)
        lines, weights, _ = train(run, safetensors_file.read(init) if has_init else initial_values(run), folder)
        if golden and options.keep:
            keep(path, lines, weights)
        if golden:
            judge("reference against the golden run", read_lines(os.path.join(path, "metrics.jsonl")),
                  safetensors_file.read(os.path.join(path, "final.safetensors")), lines, weights)
        run_hebb(options.hebb, config, out, *(["--init-from", init] if has_init else []))
        final = os.path.join(out, "checkpoints", f"step_{steps(run):08d}", "model.safetensors")
        judge("hebb against the reference", read_lines(os.path.join(out, "metrics.jsonl")), safetensors_file.read(final), lines, weights)
    return good


def keep(folder, lines, weights):
    with open(os.path.join(folder, "metrics.jsonl"), "w") as f:
        f.writelines(json.dumps({k: "nan" if v != v else v for k, v in line.items()}) + "\n" for line in lines)
    safetensors_file.write(os.path.join(folder, "final.safetensors"), weights)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hebb", default="build/hebb")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("runs", nargs="+")
    options = parser.parse_args()
    bad = [path for path in options.runs if not check(path, options)]
    sys.exit(f"differ: {bad}" if bad else 0)


if __name__ == "__main__":
    main()
