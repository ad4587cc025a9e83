"""Random models over the options of every layer: python3 random_cases.py [--hebb BUILD/hebb] [--first SEED] [--count N] [--only TYPE]

Draws a model, rows and documents for each seed, small enough for a second, and compares `hebb trace` in fp64 with this reference as compare.py does.
A model that hebb refuses counts as a difference: the generator draws valid ones only. Where two keys tie, or a norm has one channel, rounding decides:
a case that differs is no difference where the reference itself moves as much when its weights move by 1e-13.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

import torch

import compare
import safetensors_file


def maybe(rng, key, values, share=0.6):
    """{key: one of values}, or {} for its default."""
    return {key: rng.choice(values)} if rng.random() < share else {}


def rope(rng, dims, required=False, dims_below=None):
    if not required and rng.random() < 0.35:
        return {}
    out = {"theta": rng.choice([100.0, 10000.0, 500000.0])}
    most = dims if dims_below is None else dims_below
    even = [r for r in range(2, most + 1, 2)]
    if not even:
        return {}
    if dims % 2 or dims_below is not None or rng.random() < 0.5:
        out["dims"] = rng.choice(even)
    used = out.get("dims", dims)
    kind = rng.random()
    if kind < 0.2 and used >= 4:
        out["endpoint"] = True
    elif kind < 0.4:
        out["yarn"] = {"factor": rng.choice([1, 1.5, 4.0, 8]), "original": rng.choice([16, 64, 4096])}
        out["yarn"].update(maybe(rng, "beta_fast", [4.0, 16.0, 32.0], 0.3))
        out["yarn"].update(maybe(rng, "beta_slow", [0.5, 1.0, 2.0], 0.3))
        out["yarn"].update(maybe(rng, "attention_factor", [0.7, 1.3], 0.3))
        out["yarn"].update(maybe(rng, "truncate", [True, False], 0.4))
    elif kind < 0.6:
        low = rng.choice([0.5, 1.0, 2.0])
        out["llama3"] = {"factor": rng.choice([1, 2.5, 8]), "original": rng.choice([16, 64, 4096]), "low_freq_factor": low,
                         "high_freq_factor": low * rng.choice([1.5, 4])}
    return {"rope": out}


def heads(rng):
    kv = rng.choice([1, 1, 2, 3])
    group = rng.choice([1, 1, 2, 3])
    return {"num_heads": kv * group, **({"num_kv_heads": kv} if group > 1 or rng.random() < 0.3 else {})}


def backbone(rng):
    out = maybe(rng, "token_shift", [True, False], 0.4)
    if rng.random() < 0.4:
        out["value_residual"] = rng.choice(["lambda", "gated"])
        out.update(maybe(rng, "value_residual_source", ["first", "embedding"]))
        out.update(maybe(rng, "value_residual_group", ["main", "other"], 0.4))
        if out["value_residual"] == "gated":
            out.update(maybe(rng, "value_residual_rank", [1, 2, 5], 0.9))
    return out


def attention(rng, d):
    D = rng.choice([1, 2, 3, 4, 6, 8])
    out = {**heads(rng), "head_dim": D, **maybe(rng, "value_head_dim", [1, 2, 5], 0.4), **rope(rng, D), **maybe(rng, "qk_norm", ["rms", "l2", "layer", "none"]),
           **maybe(rng, "gate", ["head", "element", "none"]), **backbone(rng)}
    kind = rng.random()
    if kind < 0.35:
        out["window"] = rng.choice([1, 2, 3, 7, 16])
    elif kind < 0.6:
        out["block_window"] = {"size": rng.choice([1, 2, 5, 8]), "blocks": rng.choice([1, 2, 3])}
    return out


def gdn(rng, d):
    h = rng.choice([1, 2, 3])
    conv = rng.choice([0, 2, 3, 4])
    return {"num_heads": h, **maybe(rng, "num_value_heads", [h, 2 * h, 3 * h], 0.5), "key_head_dim": rng.choice([1, 2, 3, 5]), "value_head_dim": rng.choice([1, 2, 4, 7]),
            "conv_size": conv, **(maybe(rng, "conv_bias", [True, False]) if conv else {}), **maybe(rng, "activation", ["silu", "none"]),
            **maybe(rng, "qk_norm", ["l2", "none"], 0.4), **maybe(rng, "allow_neg_eigval", [True, False]), **maybe(rng, "output_norm", ["rms", "none"]),
            **maybe(rng, "output_gate", ["silu", "sigmoid", "none"]), **maybe(rng, "dt_bias_init", ["log_uniform", "ones"]),
            **maybe(rng, "initial_state", ["zero", "learned"]), **maybe(rng, "chunk_size", [16, 32, 64, 128])}


def sdm(rng, d):
    n = rng.choice([2, 3, 4, 6])
    out = {"slots_per_head": n * n, "num_writes": rng.choice([1, 2, n, min(n + 1, n * n), n * n]), "num_reads": rng.choice([1, 3, n, n * n])}
    out["num_heads"] = rng.choice([1, 2])
    if d % out["num_heads"]:
        out["num_heads"] = 1
    out.update(maybe(rng, "value_head_dim", [1, 3, 6], 0.5))
    learned = maybe(rng, "learned_init", [True, False])
    out.update(learned)
    for key in ("write_activation", "read_activation"):
        out.update(maybe(rng, key, ["softmax", "l2", "none"]))
    for key in ("write_scale", "read_scale"):
        out.update(maybe(rng, key, [0.3, 2.5], 0.3))
    norm = maybe(rng, "out_norm", ["rms", "layer", "none"])
    if norm.get("out_norm") == "layer" and out.get("value_head_dim", d // out["num_heads"]) == 1:
        norm = {}
    out.update(norm)
    if norm.get("out_norm") != "none":
        out.update(maybe(rng, "out_norm_eps", [1e-3, 1e-6], 0.3))
    if learned.get("learned_init", True):
        out.update(maybe(rng, "memory_init_std", [0.0, 0.3], 0.3))
    out.update({**maybe(rng, "A_init_range", [[0, 2], [0.5, 3]], 0.3), **maybe(rng, "dt_init_range", [[1e-6, 1e-5], [0.01, 0.5]], 0.3)})
    out.update({**maybe(rng, "key_weighted_decay", [True, False]), **maybe(rng, "out_gate", ["sigmoid", "silu", "none"]), **maybe(rng, "bias", [True, False])})
    return out


def fast(rng):
    C = rng.choice([1, 2, 3, 5, 8, 16])
    out = {"chunk_size": C, "lookahead": rng.choice([x for x in (0, 1, 1, 2, 4) if x < C]), **maybe(rng, "value_norm", [True, False], 0.4)}
    gate = maybe(rng, "gate", [True, False], 0.5)
    out.update(gate)
    if gate.get("gate", True):
        out.update(maybe(rng, "gate_width", [1, 3], 0.5))
    return out


def fwpkm(rng, d):
    n = rng.choice([2, 3, 4, 7])
    out = {"num_subkeys": n, "key_dim": rng.choice([2, 4, 6]), "value_dim": rng.choice([2, 3, 5]), "num_heads": rng.choice([1, 1, 2, 3]), "top_k": rng.choice([1, 2, n]), **fast(rng)}
    score = maybe(rng, "score", ["idw", "dot"], 0.5)
    out.update(score)
    if score.get("score", "idw") == "idw":
        out.update(maybe(rng, "idw_eps", [1e-3, 0.1], 0.4))
    if not out.get("gate", True):
        out["weight_by_gate"] = False
    else:
        out.update(maybe(rng, "weight_by_gate", [True, False], 0.4))
    update = maybe(rng, "key_update", ["entropy", "memory", "none"], 0.7)
    out.update(update)
    if update.get("key_update") != "none":
        out.update(maybe(rng, "key_lr", [0.0, 0.1, 3.0], 0.5))
    out.update({**maybe(rng, "value_lr", [0.0, 0.2, 1.0], 0.4), **maybe(rng, "value_step", ["slots", "unit"], 0.5),
                **maybe(rng, "grad_through_update", ["full", "values", "none"], 0.6), **maybe(rng, "sync", ["global", "local"], 0.3)})
    return out


def fwmlp(rng, d):
    return {"key_dim": rng.choice([1, 3, 5]), "value_dim": rng.choice([2, 3, 6]), "fast_dim": rng.choice([1, 4, 7]), **fast(rng), **maybe(rng, "target", ["mean", "next"]),
            **maybe(rng, "lr", [0.0, 0.1, 0.3]), **maybe(rng, "grad_clip", [0.0, 0.01, 0.1]), **maybe(rng, "grad_through_update", ["full", "none"])}


def lact(rng, d):
    H = rng.choice([h for h in (1, 2, 3, 4) if d % h == 0 and d // h % 2 == 0])
    F = rng.choice([f for f in (1, 2, 3, 4) if d % f == 0])
    rank = maybe(rng, "rank", [0, 1, 2, 5], 0.9)
    out = {"num_heads": H, "num_fast_heads": F, **maybe(rng, "fast_dim", [1, 3, 6], 0.5), "window": rng.choice([0, 1, 3, 8]), "chunk_size": rng.choice([1, 3, 4, 8, 16]), **rank,
           **(maybe(rng, "fast_init_gain", [0.25, 2.0], 0.4) if rank.get("rank", 32) else {}), **maybe(rng, "base_lr", [0.01, 0.3]), **maybe(rng, "silu_v", [True, False]),
           **maybe(rng, "momentum", [True, False]), **maybe(rng, "muon", [True, False], 0.4), **maybe(rng, "output_scale", [True, False])}
    if d // F % 2 == 0:
        out.update(maybe(rng, "fast_rope", [True, False]))
    else:
        out["fast_rope"] = False
    if rng.random() < 0.4:
        out["rope"] = {"theta": rng.choice([100.0, 500000.0])}
    return out


def ovq(rng, d):
    L = rng.choice([1, 2, 3, 5, 8, 16])
    out = {**heads(rng), "head_dim": rng.choice([2, 3, 4, 6]), **maybe(rng, "value_head_dim", [1, 2, 5], 0.4), "chunk_size": L, "max_centroids": rng.choice([1, 2, 5, 9, 40]),
           **maybe(rng, "eval_max_centroids", [1, 7, 60], 0.3), **maybe(rng, "select", ["spread", "random"]), **maybe(rng, "centroid_lr", ["mean", 0.25, 1.0]),
           **maybe(rng, "normalize_centroids", ["none", "key", "key_value"]), **maybe(rng, "qk_conv", [0, 2, 3]), **maybe(rng, "v_shift", [True, False])}
    growth = maybe(rng, "growth", ["plateau", "linear", "full"])
    out.update(growth)
    if growth.get("growth") == "linear":
        out["growth_length"] = rng.choice([4, 20, 64])
    return out


def vq(rng, d):
    return {**heads(rng), "head_dim": rng.choice([2, 3, 4, 6]), **maybe(rng, "value_head_dim", [1, 2, 5], 0.4), "codebook_size": rng.choice([2, 3, 7, 12]),
            **maybe(rng, "quantizer", ["sf_diveq", "diveq"]), **maybe(rng, "idle_bonus", [0.0, 0.05]), **maybe(rng, "quantize_after", [0, 1, 2], 0.4),
            **maybe(rng, "chunk_size", [1, 4, 16])}


def mamba2(rng, d):
    g = rng.choice([1, 1, 2])
    h = g * rng.choice([1, 2, 3])
    P = rng.choice([1, 2, 4])
    out = {"num_heads": h, "head_dim": P, "state_dim": rng.choice([1, 2, 5]), "num_groups": g, "conv_size": rng.choice([0, 2, 4]), **maybe(rng, "activation", ["silu", "none"]),
           **maybe(rng, "dt_limit", [[0.0, None], [0.3, 0.9], [0.1, None]]), **maybe(rng, "A_init", [[0.5, 2.0]], 0.3),
           **maybe(rng, "dt_init", [[1e-6, 1e-5], [0.02, 0.3]], 0.3), **maybe(rng, "dt_bias_init", ["log_uniform", "uniform"], 0.4), **maybe(rng, "skip", ["head", "channel", "none"]), **maybe(rng, "output_gate", ["silu", "none"]),
           **maybe(rng, "initial_state", ["zero", "learned"]), **maybe(rng, "chunk_size", [16, 32, 256])}
    if out["conv_size"]:
        out.update(maybe(rng, "conv_bias", [True, False]))
    norm = maybe(rng, "output_norm", ["rms", "none"])
    out.update(norm)
    if norm.get("output_norm") != "none":
        out.update(maybe(rng, "norm_groups", [n for n in (1, g, h) if h * P % n == 0]))
        if out.get("output_gate", "silu") != "none":
            out.update(maybe(rng, "norm_before_gate", [True, False]))
    return out


def mesanet(rng, d):
    conv = rng.choice([0, 2, 4])
    out = {"num_heads": rng.choice([1, 2]), "key_head_dim": rng.choice([1, 2, 4, 5]), **maybe(rng, "value_head_dim", [1, 3], 0.5), "conv_size": conv,
           **(maybe(rng, "conv_bias", [True, False]) if conv else {}), **maybe(rng, "activation", ["silu", "none"]), **maybe(rng, "qk_norm", ["l2", "none"], 0.4),
           **maybe(rng, "lambda_min", [0.1, 0.5]), **maybe(rng, "lambda_init", [0.7, 3.0], 0.3),
           **maybe(rng, "decay_bias_init", [-1.0, 1.7], 0.3), **maybe(rng, "output_norm", ["rms", "none"]), **maybe(rng, "output_gate", ["none", "silu", "sigmoid"]),
           **maybe(rng, "chunk_size", [16, 32, 64])}
    if rng.random() < 0.4:
        out["solver"] = "exact"
    else:
        out.update({**maybe(rng, "cg_steps", [1, 3, 30]), **maybe(rng, "cg_epsilon", [0.0, 1e-3], 0.3)})
    return out


def kvm(rng, d):
    D = rng.choice([2, 3, 4, 6, 8])
    C = rng.choice([1, 2, 3, 5, 8])
    mode = rng.choice(["fixed", "power", "saturate"])
    state = {"mode": mode}
    if mode == "fixed":
        state["rows"] = C + rng.choice([0, 1, 5])
    elif mode == "power":
        state.update({"factor": rng.choice([0.5, 1, 2.0]), "exponent": rng.choice([0.5, 0.7, 1.0])})
    else:
        state["limit"] = rng.choice([4, 12, 30])
    if mode != "fixed":
        state.update({**maybe(rng, "min_rows", [1, 6], 0.3), **maybe(rng, "multiple", [2, 4], 0.3)})
    state.update(maybe(rng, "max_rows", [0, C, C + 3], 0.3))
    out = {**heads(rng), "head_dim": D, **maybe(rng, "value_head_dim", [1, 3], 0.4), "chunk_size": C, **maybe(rng, "window_chunks", [1, 2, 3]),
           "sinks": rng.choice([s for s in (0, 1, 2) if s < C]), "state": state, **maybe(rng, "qk_norm", ["layer", "rms", "none"]),
           **maybe(rng, "merge_gate", ["both", "keys", "values", "none"]), **maybe(rng, "gate_appends", [True, False], 0.4), **maybe(rng, "temperatures", [True, False]),
           **maybe(rng, "value_norm", ["radius", "mean", "updates"]), **backbone(rng)}
    if D > 2:
        out.update(rope(rng, D, dims_below=D - 1))
    return out


def ham(rng, d, eda_model=False):
    qk, v = rng.choice([(4, 4), (4, 8), (6, 12), (8, 4)])
    split = lambda h: [x for x in (1, 2, 4) if qk % x == 0 and v % x == 0 and x <= h]
    hr, hk = rng.choice(split(4)), rng.choice(split(4))
    router = rng.choice(["prediction_error", "input", "vector"])
    threshold = {"mode": rng.choice(["learned", "fixed", "all", "none"])}
    if threshold["mode"] in ("learned", "fixed"):
        threshold.update(maybe(rng, "tau", [0.3, 0.5, 0.7] if router != "prediction_error" else [0.5, 0.9, 1.1], 0.8))
        if threshold["mode"] == "learned":
            threshold["scope"] = "layer"
    out = {"rnn": {"num_heads": hr, "key_head_dim": qk // hr, "value_head_dim": v // hr, **maybe(rng, "activation", ["silu", "none"]),
                   **maybe(rng, "allow_neg_eigval", [True, False]), **maybe(rng, "output_gate", ["silu", "sigmoid", "none"]),
                   **maybe(rng, "dt_bias_init", ["log_uniform", "ones"], 0.4)},
           "kv": {"num_heads": hk, "key_head_dim": qk // hk, "value_head_dim": v // hk, **maybe(rng, "activation", ["silu", "none"]), **rope(rng, qk // hk)},
           "conv_size": rng.choice([0, 2, 4]), **maybe(rng, "qkv_norm", ["pre_conv", "post_conv", "none"]), **maybe(rng, "gates", ["head", "scalar", "none"]),
           **maybe(rng, "aggregate", ["min", "max"]), "threshold": threshold, **maybe(rng, "chunk_size", [16, 64], 0.3)}
    learned = {"type": router}
    if router != "prediction_error":
        learned.update({**maybe(rng, "depth", [1, 2, 3]), "hidden": rng.choice([2, 5]), **maybe(rng, "eda", [True, False])})
    if router == "input":
        learned.update(maybe(rng, "heads", [1, 2, 3]))
    if router != "prediction_error" or rng.random() < 0.5:
        out["router"] = learned
    return out


def pkm(rng, d):
    n = rng.choice([2, 3, 5, 8])
    return {"num_subkeys": n, "key_dim": rng.choice([2, 4, 6]), "value_dim": rng.choice([1, 3, 5]), "num_heads": rng.choice([1, 2, 3]), "top_k": rng.choice([1, 2, n]),
            **maybe(rng, "query_norm", [True, False]), **maybe(rng, "glu", [True, False])}


def swiglu(rng, d):
    return {"intermediate_size": rng.choice([1, 5, 12])}


def relu2(rng, d):
    return {"intermediate_size": rng.choice([1, 5, 12]), **maybe(rng, "token_shift", [True, False])}


MIXERS = [attention, gdn, sdm, lact, ovq, vq, mamba2, mesanet, kvm, ham]
MEMORIES = [fwpkm, fwmlp]
FFNS = [swiglu, relu2, pkm]
TYPES = {f.__name__: f for f in MIXERS + MEMORIES + FFNS}


def model(rng, only):
    d = rng.choice([4, 6, 8, 12])
    layers, pattern = {}, []

    def add(functions):
        chosen = [f for f in functions if f.__name__ in only] or functions
        make = rng.choice(chosen)
        name = f"l{len(layers)}"
        layers[name] = {"type": make.__name__, **make(rng, d)}
        return name

    for _ in range(rng.choice([1, 1, 2, 2, 3])):
        block = {"mixer": add(MIXERS), "ffn": add(FFNS)}
        if rng.random() < (0.9 if set(only) & {"fwpkm", "fwmlp"} else 0.25):
            block["memory"] = add(MEMORIES)
        pattern.append(block)
    out = {"vocab_size": rng.choice([5, 11, 29]), "hidden_size": d, "num_layers": rng.choice([len(pattern), len(pattern) + 1]), "layers": layers, "pattern": pattern,
           **maybe(rng, "norm", ["rms", "rms_unit_offset", "layer"]), **maybe(rng, "norm_eps", [1e-6, 1e-3], 0.3), **maybe(rng, "init_std", [0.1], 0.3), **maybe(rng, "tie_embeddings", [True, False], 0.4),
           **maybe(rng, "embed_norm", [True, False], 0.4), **maybe(rng, "residual_scale", [0.5, 1.5], 0.3)}
    if out["num_layers"] > 1 and rng.random() < 0.2:
        out["at"] = {str(rng.randrange(out["num_layers"])): {"ffn": add(FFNS)}}
    groups = {}  # layers of one group agree in the width of v; else the later ones get a group of their own
    for name, layer in layers.items():
        if layer.get("value_residual", "none") == "none":
            continue
        width = layer.get("num_kv_heads", layer["num_heads"]) * layer.get("value_head_dim", layer["head_dim"])
        group = layer.get("value_residual_group", "main")
        if groups.setdefault(group, width) != width:
            layer["value_residual_group"] = "of " + name
    return out


def case(seed, only):
    rng = random.Random(seed)
    T = rng.choice([1, 2, 5, 17, 23, 33, 48, 70])
    out = {"model": model(rng, only), "batch": rng.choice([1, 2, 3]), "length": T, "ignored": rng.random() < 0.6, "mode": "eval" if rng.random() < 0.25 else "train",
           "seed": rng.randrange(100), "step": rng.choice([0, 1, 3, 1000])}
    kind = rng.random()
    if kind < 0.4:
        out["documents"] = True
    elif kind < 0.55:
        cut = rng.randrange(T + 1)
        out["documents"] = [n for n in (cut, T - cut) if n]
    return out


def wrong_tensors(found, expected):
    """["name error"] beyond the tolerances, largest first."""
    return [f"{n} {e:.1e}" for e, n in compare.differences(found, expected) if e > (1e-9 if n in ("logits", "loss") else 1e-8)]


def rounding_decides(drawn, weights, rows, expected):
    for _ in range(3):
        moved = {name: (t.double() * (1 + 1e-13 * torch.randn(t.shape)) if t.dtype.is_floating_point else t) for name, t in weights.items()}
        if wrong_tensors(compare.run_reference(drawn["model"], moved, rows, drawn), expected):
            return True
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hebb", default="build/hebb")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--only", nargs="*", default=[], choices=sorted(TYPES))
    parser.add_argument("--keep", help="folder for cases that differ")
    options = parser.parse_args()
    torch.set_num_threads(1)
    bad = undecided = 0
    for seed in range(options.first, options.first + options.count):
        drawn = case(seed, options.only)
        weights, rows = compare.draw(drawn, f"random {seed}")
        with tempfile.TemporaryDirectory() as folder:
            with open(folder + "/model.json", "w") as f:
                json.dump(drawn["model"], f, indent=1)
            safetensors_file.write(folder + "/weights.safetensors", weights)
            safetensors_file.write(folder + "/rows.safetensors", rows)
            try:
                found = compare.run_hebb(options.hebb, folder, drawn)
                expected = compare.run_reference(drawn["model"], weights, rows, drawn)
                wrong = wrong_tensors(found, expected)
            except SystemExit as e:
                wrong, expected = [str(e).splitlines()[-1]], None
        if wrong and expected and rounding_decides(drawn, weights, rows, expected):
            undecided += 1
        elif wrong:
            bad += 1
            types = sorted({layer["type"] for layer in drawn["model"]["layers"].values()})
            print(f"seed {seed}: {', '.join(types)}: T {drawn['length']}, {drawn['mode']}: differs: {', '.join(wrong[:6])}", flush=True)
            if options.keep:
                os.makedirs(options.keep, exist_ok=True)
                with open(f"{options.keep}/random {seed}.json", "w") as f:
                    json.dump(drawn, f, indent=1)
    print(f"{options.count - bad - undecided} of {options.count} cases agree, {undecided} are decided by rounding, {bad} differ")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
