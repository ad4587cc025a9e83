"""Initial values of every tensor of a model: each from its own stream (train.seed, its name, 0), rounded to fp32 (docs/model.md, Initial values; tables of the layers' pages)."""
import math

import numpy as np
import torch

import model as reference
from streams import Rng, normals, uniforms


def size(shape):
    return int(np.prod(shape))


def normal(std):
    return lambda seed, name, shape: std * normals(seed, name, size(shape))


def uniform(low, high, f=lambda u: u):
    return lambda seed, name, shape: f(low + (high - low) * uniforms(seed, name, size(shape)))


def constant(value):
    return lambda seed, name, shape: np.full(size(shape), value, dtype=np.float64)


def truncated_normal(std):
    def draw(seed, name, shape):
        r, out = Rng(seed, name), []
        while len(out) < size(shape):
            x = r.normal()
            if abs(x) <= 3:
                out.append(std * x)
        return np.array(out)
    return draw


def orthogonal(gain):
    def draw(seed, name, shape):
        rows, cols = shape
        a = normals(seed, name, rows * cols).reshape(rows, cols)
        q, r = np.linalg.qr(a.T if cols > rows else a)
        q = q * np.sign(np.diag(r))
        return gain * (q.T if cols > rows else q).reshape(-1)
    return draw


def softplus_inverse(dt):
    dt = np.maximum(dt, 1e-4)
    return dt + np.log(-np.expm1(-dt))


def log_uniform_dt(low, high):
    return uniform(math.log(low), math.log(high), lambda u: softplus_inverse(np.exp(u)))


def falling(power):
    """1 - (i/n)^power over the channels."""
    return lambda seed, name, shape: 1 - (np.arange(size(shape)) / size(shape)) ** power


def unit_rows(seed, name, shape):
    a = normals(seed, name, size(shape)).astype(np.float32).astype(np.float64).reshape(-1, shape[-1])
    return (a / np.sqrt((a * a).sum(1, keepdims=True))).reshape(-1)


def identity_conv(seed, name, shape):
    a = np.zeros(shape)
    a[:, -1] = 1
    return a.reshape(-1)


def layer_rule(cfg, model, block, n, shape):
    """The rule of tensor n of a layer, None for the contract's."""
    kind, d, std = cfg["type"], model["hidden_size"], model.get("init_std", 0.02)
    own = n.split(".")[-1] if n.startswith(("rnn.", "kv.")) else n
    gpta = model.get("init") == "gptalpha2"
    share = 1 - block / model["num_layers"]
    if n in ("q_shift", "k_shift", "v_shift") and kind in ("attention", "kvm"):
        return falling((0.2 if n == "q_shift" else 0.7) * share)
    if n == "shift":
        return falling(share ** 4)
    if n == "vres_lambda":
        return constant(0.5)
    if n == "vres_bias":
        return lambda seed, name, s: 0.73 - 0.4 * (np.arange(s[0]) / max(s[0] - 1, 1) - 0.5)
    if n == "vres_down.weight":
        return constant(0.0)
    if n == "vres_up.weight":
        return orthogonal(0.1)
    if n == "beta":
        return constant(math.sqrt(cfg["head_dim"]))
    if kind == "relu2":
        return orthogonal(1.0) if n == "up_proj.weight" else constant(0.0)
    if kind == "kvm" or gpta and kind in ("attention", "ovq"):
        if n == "o_proj.weight":
            return constant(0.0)
        if n in ("q_proj.weight", "k_proj.weight", "v_proj.weight", "merge_gate.weight", "gate_proj.weight"):
            return uniform(-d ** -0.5, d ** -0.5)
    if n.endswith("_temp"):
        return constant(1.0)
    if kind in ("ovq", "vq") and n.endswith("conv.weight"):
        return identity_conv
    if n == "codebook":
        return unit_rows
    if kind in ("gdn", "ham") and own == "A_log":
        return uniform(0, 16, lambda u: np.log(np.maximum(u, 1e-4)))
    if kind in ("gdn", "ham") and own == "dt_bias":
        return constant(1.0) if cfg.get("rnn", cfg).get("dt_bias_init") == "ones" else log_uniform_dt(1e-3, 0.1)
    if kind == "sdm" and n == "A_log":
        return uniform(*cfg.get("A_init_range", [0, 16]), lambda u: np.log(np.maximum(u, 1e-4)))
    if kind == "sdm" and n == "dt_bias":
        return log_uniform_dt(*cfg.get("dt_init_range", [1e-3, 0.1]))
    if kind == "sdm" and n == "memory":
        given = cfg.get("memory_init_std")
        return truncated_normal(d ** -0.5 if given is None else given)
    if kind == "sdm" and n.endswith("proj.weight"):
        return truncated_normal(d ** -0.5)
    if kind == "mamba2" and n == "A_log":
        return uniform(*cfg.get("A_init", [1.0, 16.0]), np.log)
    if kind == "mamba2" and n == "dt_bias":
        low, high = cfg.get("dt_init", [1e-3, 0.1])
        return uniform(low, high, softplus_inverse) if cfg.get("dt_bias_init") == "uniform" else log_uniform_dt(low, high)
    if kind == "mamba2" and n == "D":
        return constant(1.0)
    if kind == "mesanet" and n == "lambda_raw":
        return constant(math.log(math.expm1(cfg.get("lambda_init", 1.0) - cfg.get("lambda_min", 0.25))))
    if kind == "mesanet" and n == "a_proj.bias":
        return constant(cfg.get("decay_bias_init", 0.0))
    if n == "threshold":
        c, s = cfg.get("threshold", {}), 2 if cfg.get("router", {}).get("type", "prediction_error") == "prediction_error" else 1
        return constant(math.log(c.get("tau", 0.5) / (s - c.get("tau", 0.5))))
    if n in ("initial_state", "idle", "v_shift"):
        return constant(0.0)
    if kind == "pkm" and n == "q_proj.weight":
        return uniform(-math.sqrt(6 / (d + shape[0])), math.sqrt(6 / (d + shape[0])))
    if kind in ("pkm", "fwpkm") and n == "keys":
        return uniform(-cfg["key_dim"] ** -0.5, cfg["key_dim"] ** -0.5)
    if kind in ("pkm", "fwpkm") and n == "values":
        return normal(shape[-1] ** -0.5)
    if kind == "pkm" and n.endswith("weight") and len(shape) == 2:
        return normal(d ** -0.5)
    if kind in ("fwpkm", "fwmlp", "lact") and n.endswith("proj.weight"):
        return normal(0.02)
    if kind == "lact" and n[:2] in ("w0", "w1", "w2"):
        return normal(shape[-1] ** -0.5 * (cfg.get("fast_init_gain", 0.5) if "_" in n else 1.0))
    if kind == "fwmlp" and n[:2] in ("w_", "b_"):
        return normal(shape[-1] ** -0.5) if n[0] == "w" else constant(0.0)
    if n == "qk_scale":
        return constant(1.0)
    if n in ("qk_offset", "router.eda_logit"):
        return constant(0.0)
    return None


def rule(model, name, shape):
    """How the tensor is drawn."""
    d, V, std = model["hidden_size"], model["vocab_size"], model.get("init_std", 0.02)
    block_norm = name.startswith(("embed_norm", "final_norm")) or name.split(".")[2:3] in (["mixer_norm"], ["ffn_norm"])
    if name.endswith("norm.weight"):
        return constant(0.0 if block_norm and model.get("norm") == "rms_unit_offset" else 1.0)
    if model.get("init") == "gptalpha2" and name == "embed.weight":
        return uniform(-1e-4, 1e-4)
    if model.get("init") == "gptalpha2" and name == "lm_head.weight":
        return orthogonal(0.5 * math.sqrt(V / d))
    if name.startswith("blocks.") and not block_norm:
        _, i, role, own = name.split(".", 3)
        found = layer_rule(reference.blocks(model)[int(i)][role], model, int(i), own, shape)
        if found:
            return found
    return constant(0.0) if name.endswith("bias") else normal(std)


def initial_values(run):
    """{name: fp32 tensor} of all parameters and fast weights."""
    model, seed = run["model"], run["train"].get("seed", 0)
    shapes = {**reference.named_shapes(model), **reference.named_shapes(model, "fast")}
    return {n: torch.tensor(rule(model, n, s)(seed, n, s).astype(np.int32 if n.endswith("idle") else np.float32).reshape(s)) for n, s in shapes.items()}
