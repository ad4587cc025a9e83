"""Random training runs: python3 random_runs.py [--hebb BUILD/hebb] [--first SEED] [--count N] [--keep FOLDER]

Draws a run of a few steps for each seed: a model of random_cases.py, data from a file and from tasks, the options of the step, the optimizer and the
schedule. Both sides start from their own initial values. Compares metrics and final weights as train.py does; where rounding decides (random_cases.py),
a difference is none.
"""
import argparse
import json
import os
import random
import sys
import tempfile

import numpy as np
import torch

import random_cases
import safetensors_file
import train
from initial import initial_values
from random_cases import maybe

V = 31


def file_source(rng, folder, name):
    np.random.seed(rng.randrange(1 << 30))
    np.random.randint(0, V, rng.choice([150, 400, 900])).astype("<u2").tofile(os.path.join(folder, name))
    packing = rng.choice(["stream", "row", "document"])
    out = {"path": name, "format": "raw_u16", **({"packing": packing} if packing != "row" else {}), **({"split_token": 7, **maybe(rng, "split", ["before", "after"], 0.4)} if rng.random() < 0.7 else {}),
           **maybe(rng, "shuffle", ["none", "rows", "documents", "documents+rows"]), **maybe(rng, "mask_cross_document_targets", [True, False], 0.4)}
    if packing == "document":
        out.update({**maybe(rng, "tail", ["drop", "pad"], 0.9), **maybe(rng, "document_rows", ["all", "first"], 0.4), "min_document_tokens": rng.choice([2, 5])})
    return out


def source(rng, folder, i, T):
    if T % 2 or rng.random() < 0.7:
        out = file_source(rng, folder, f"tokens{i}.bin")
    else:
        out = {"type": "synthetic", "task": "mqar", "vocab": rng.choice([V, V - 2]), "pairs": rng.choice([1, 2]), **maybe(rng, "seed", [5], 0.5), **maybe(rng, "filler", [True, False], 0.4)}
    out.update(maybe(rng, "weight", [0.5, 1, 3.0], 0.5))
    return out


def group(rng):
    out = {"match": rng.choice(["norm", "embed", "mixer", "_proj", "blocks\\.0\\."]), **maybe(rng, "lr", [1e-3, 0.02], 0.5), **maybe(rng, "betas", [[0.8, 0.9], [0.0, 0.99]], 0.3),
           **maybe(rng, "eps", [1e-5], 0.3), **maybe(rng, "weight_decay", [0.0, 0.5], 0.5), **maybe(rng, "clip_norm", [0.0, 0.1], 0.3), **maybe(rng, "force_decay", [True, False], 0.4)}
    if "lr" in out:
        out.update(maybe(rng, "schedule", [False], 0.4))
    return out


def schedule(rng, steps):
    kind = rng.choice(["constant", "linear", "cosine", "wsd", "inverse"])
    out = {"type": kind, **maybe(rng, "warmup_steps", [0, 1, 2], 0.7), **(maybe(rng, "min_lr", [1e-4, 0.02]) if kind != "constant" else {})}
    if kind == "wsd":
        out.update(rng.choice([{"decay_steps": 2}, {"decay_fraction": 0.4}, {}]))
        out.update(maybe(rng, "decay", ["linear", "cosine", "one_minus_sqrt", "sqrt"]))
    if kind == "inverse":
        out = {"type": "wsd", "decay": "inverse", "decay_steps": 2, "min_lr": 1e-4, **maybe(rng, "warmup_steps", [1], 0.5)}
    return out


def run_of(seed, folder):
    rng = random.Random(f"run {seed}")
    T, micro, parts, steps = rng.choice([8, 16, 17, 28]), rng.choice([1, 2, 3]), rng.choice([1, 1, 2, 3]), rng.choice([3, 4, 6])
    model = {**random_cases.model(rng, []), "vocab_size": V}
    t = {"steps": steps, "batch_size": micro * parts, "micro_batch_size": micro, "sequence_length": T, "precision": "fp64", "device": "cpu", "log_every": 1,
         **maybe(rng, "seed", [3, 1234]), **maybe(rng, "document_mask", [True, False]), **maybe(rng, "val_every", [0, 2], 0.5), **maybe(rng, "recompute", ["none", "block", "mixer", "ffn"], 0.4)}
    if rng.random() < 0.3:
        t["random_window"] = {"p": rng.choice([0.5, 1.0]), "window": rng.choice([1, 4])}
    optimizer = {"lr": rng.choice([1e-3, 0.01]), **maybe(rng, "betas", [[0.9, 0.99], [0.5, 0.5]], 0.4), **maybe(rng, "eps", [1e-6, 1e-3], 0.4), **maybe(rng, "weight_decay", [0.0, 0.3], 0.5),
                 **maybe(rng, "clip_norm", [0.0, 0.05, 10.0], 0.5), **maybe(rng, "weight_decay_follows_lr", [True, False], 0.4), **maybe(rng, "no_decay", [["embed"], ["proj", "norm"]], 0.3),
                 **({"groups": [group(rng) for _ in range(rng.choice([1, 2]))]} if rng.random() < 0.5 else {})}
    data = {"sources": [source(rng, folder, i, T) for i in range(rng.choice([1, 1, 2, 3]))], **maybe(rng, "seed", [9], 0.3)}
    if rng.random() < 0.5:
        data["validation"] = [{**{k: v for k, v in file_source(rng, folder, "validation.bin").items() if k != "shuffle"}, "name": "held", **maybe(rng, "max_rows", [1, 5], 0.5)}]
    for layer in model["layers"].values():
        if layer.get("threshold", {}).get("mode") == "learned":
            layer["threshold"].update({"freeze_steps": rng.choice([0, 2]), "lr": 0.05, **maybe(rng, "gain", [0.5, 3.0], 0.4), **maybe(rng, "clip", [0.1], 0.3)})
    return {"name": f"random {seed}", "model": model, "data": data, "train": t, "optimizer": optimizer, "schedule": schedule(rng, steps)}


def judged(found, expected):
    loss, weight = train.difference(found[0], expected[0]), train.difference(found[1], expected[1])
    return [f"{name} {error:.1e}" for (error, name), limit in ((loss, 1e-9), (weight, 1e-7)) if not error < limit]


def check(run, folder, hebb):
    """What differs, and whether rounding decides it."""
    config, out = os.path.join(folder, "run.json"), os.path.join(folder, "out")
    with open(config, "w") as f:
        json.dump(run, f, indent=1)
    try:
        train.run_hebb(hebb, config, out)
    except SystemExit as e:
        return [str(e)[-400:]], False
    found = (train.read_lines(os.path.join(out, "metrics.jsonl")),
             safetensors_file.read(os.path.join(out, "checkpoints", f"step_{train.steps(run):08d}", "model.safetensors")))
    initial = initial_values(run)
    expected = train.train(run, initial, folder)
    wrong = judged(found, expected)
    for _ in range(3 if wrong else 0):
        moved = {n: (w.double() * (1 + 1e-13 * torch.randn(w.shape)) if w.dtype.is_floating_point else w) for n, w in initial.items()}
        if judged(train.train(run, moved, folder), expected):
            return wrong, True
    return wrong, False


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hebb", default="build/hebb")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--keep", help="folder for runs that differ")
    options = parser.parse_args()
    torch.set_num_threads(1)
    bad = undecided = 0
    for seed in range(options.first, options.first + options.count):
        with tempfile.TemporaryDirectory() as folder:
            run = run_of(seed, folder)
            wrong, decided_by_rounding = check(run, folder, options.hebb)
            undecided += bool(wrong) and decided_by_rounding
            if wrong and not decided_by_rounding:
                bad += 1
                types = sorted({layer["type"] for layer in run["model"]["layers"].values()})
                print(f"seed {seed}: {', '.join(types)}: differs: {', '.join(wrong)}", flush=True)
                if options.keep:
                    os.makedirs(options.keep, exist_ok=True)
                    os.system(f"cp -r '{folder}' '{options.keep}/run {seed}'")
    print(f"{options.count - bad - undecided} of {options.count} runs agree, {undecided} are decided by rounding, {bad} differ")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
