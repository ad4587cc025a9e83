"""Compares `hebb trace` with this reference: python3 compare.py [--hebb BUILD/hebb] [--keep FOLDER] CASE...

CASE: a folder of a golden case (model.json, weights, rows; trace.json with mode, seed and step where they are not the defaults), or a JSON file
{"model": {...}, "batch": B, "length": T, "documents": bool or the documents' lengths, "ignored": bool, "mode": "train"|"eval", "seed": S, "step": N},
whose weights and rows are drawn here. Prints the largest difference of each kind of tensor, relative to the tensor's largest entry, and fails above
1e-9 (logits, loss) and 1e-8 (gradients, fast weights, scores; decisions must be equal). --keep writes the drawn cases as golden cases, one folder each.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import zlib

import torch

import model as reference
import safetensors_file


def draw(case, name):
    """Weights (fp32 values) and rows of a described case; the same for the same name."""
    model = case["model"]
    torch.manual_seed(zlib.crc32(name.encode()))
    weights = {}
    for tensor, shape in {**reference.named_shapes(model), **reference.named_shapes(model, "fast")}.items():
        weights[tensor] = reference.initial(tensor, shape)
        if weights[tensor] is not None:
            continue
        if len(shape) > 1:
            weights[tensor] = torch.randn(shape) / shape[-1] ** 0.5
        else:
            weights[tensor] = (1.0 if "norm" in tensor and tensor.endswith("weight") else 0.0) + 0.3 * torch.randn(shape)
        weights[tensor] = weights[tensor].float()
    B, T, V = case.get("batch", 2), case.get("length", 23), model["vocab_size"]
    rows = {"inputs": torch.randint(V, (B, T)), "targets": torch.randint(V, (B, T))}
    if case.get("ignored", True):
        rows["targets"][torch.rand(B, T) < 0.2] = -100
        rows["targets"][0, 0] = 1
    lengths = case.get("documents")
    if isinstance(lengths, list):
        rows["doc_ids"] = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)).repeat(B, 1)
    elif lengths:
        rows["doc_ids"] = (torch.rand(B, T) < 0.15).long().cumsum(1)
    return weights, rows


def run_reference(model, weights, rows, case):
    fast = reference.named_shapes(model, "fast")
    w = {name: t.double().requires_grad_(name not in fast) for name, t in weights.items()}
    r = reference.Rows(model, rows["inputs"], rows.get("targets"), rows.get("doc_ids"), case.get("mode", "train"), case.get("seed", 0), case.get("step", 0))
    logits = reference.forward(model, w, r)
    out = {"logits": logits.detach(), **r.inside}
    if "targets" in rows:
        loss = reference.mean_loss(logits, rows["targets"])
        loss.backward()
        out["loss"] = loss.detach().reshape(1)
        out.update({"grad." + name: t.grad for name, t in w.items() if t.grad is not None})
    if case.get("mode", "train") == "train":
        out.update({"after." + name: t.detach() for name, t in r.after.items()})
    return out


def run_hebb(hebb, folder, case):
    out = os.path.join(folder, "out.safetensors")
    command = [hebb, "trace", folder + "/model.json", "--weights", folder + "/weights.safetensors", "--rows", folder + "/rows.safetensors", "--out", out,
               "--grads", "--inside", "--mode", case.get("mode", "train"), "--seed", str(case.get("seed", 0)), "--step", str(case.get("step", 0))]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\nexit {done.returncode}\n{done.stdout}{done.stderr}")
    return safetensors_file.read(out)


def trace_options(folder):
    """Mode, seed and step of a golden case, where they are not the defaults."""
    path = folder + "/trace.json"
    if not os.path.exists(path):
        return {}
    with open(path) as f:
        return json.load(f)


def differences(found, expected):
    """[(relative error, tensor)], largest first. A missing gradient counts as 0."""
    out = []
    for name in sorted(set(found) | set(expected)):
        if name not in found and not name.startswith("grad.") or name not in expected and not name.startswith(("grad.", "blocks.")):
            out.append((float("inf"), name + (" is missing" if name not in found else " is not expected")))
            continue
        if name in found and name not in expected and name.startswith("blocks."):
            continue
        a = found.get(name, torch.zeros(())).double()
        b = expected.get(name, torch.zeros(())).double()
        error = (a - b).abs().max().item() if a.numel() and b.numel() else 0.0
        scale = b.abs().max().item() if b.numel() else 0.0
        finite = bool(torch.isfinite(a).all()) and bool(torch.isfinite(b).all())
        out.append((float("inf") if not finite else max(0.0, error - 1e-12) / max(scale, 1e-300), name))
    return sorted(out, reverse=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hebb", default="build/hebb")
    parser.add_argument("--keep")
    parser.add_argument("cases", nargs="+")
    options = parser.parse_args()
    bad = 0
    for path in options.cases:
        name = os.path.basename(path.rstrip("/")).removesuffix(".json")
        with tempfile.TemporaryDirectory() as folder:
            if os.path.isdir(path):
                case = {"model": reference.load_model(path + "/model.json"), **trace_options(path)}
                weights, rows = safetensors_file.read(path + "/weights.safetensors"), safetensors_file.read(path + "/rows.safetensors")
            else:
                with open(path) as f:
                    case = json.load(f)
                weights, rows = draw(case, name)
            if options.keep and not os.path.isdir(path):
                folder = os.path.join(options.keep, name)
                os.makedirs(folder, exist_ok=True)
            with open(folder + "/model.json", "w") as f:
                json.dump(case["model"], f, indent=1)
            settings = {key: case[key] for key in ("mode", "seed", "step") if key in case}
            if settings:
                with open(folder + "/trace.json", "w") as f:
                    json.dump(settings, f)
            safetensors_file.write(folder + "/weights.safetensors", weights)
            safetensors_file.write(folder + "/rows.safetensors", rows)
            expected = run_reference(case["model"], weights, rows, case)
            found = differences(run_hebb(options.hebb, folder, case), expected)
            if os.path.isdir(path):
                kept = differences(expected, safetensors_file.read(path + "/expected.safetensors"))
                print(f"{name}: reference against the golden case: {kept[0][0]:.1e} in {kept[0][1]}")
            if options.keep and not os.path.isdir(path):
                os.remove(folder + "/out.safetensors")
                safetensors_file.write(folder + "/expected.safetensors", {n: t for n, t in expected.items() if not n.startswith("blocks.")})
            wrong = [(e, n) for e, n in found if e > (1e-9 if n in ("logits", "loss") else 1e-8)]
            print(f"{name}: {'differs' if wrong else 'agrees'}: " + ", ".join(f"{n} {e:.1e}" for e, n in (wrong or found)[:8]))
            bad += bool(wrong)
    sys.exit(f"{bad} of {len(options.cases)} cases differ" if bad else 0)


if __name__ == "__main__":
    main()
