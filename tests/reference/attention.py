"""Softmax attention (docs/layers/attention.md) with its options: token shift, value residual, block windows, rope endpoints."""
import math

import torch

from model import block_norm, l2_norm, layer_norm, linear, rms_norm


def sizes(cfg):
    """(query heads, key/value heads, head size of keys, head size of values)."""
    H, D = cfg["num_heads"], cfg["head_dim"]
    return H, cfg.get("num_kv_heads", H), D, cfg.get("value_head_dim", D)


def option_params(cfg, d, H, K, D, Dv):
    """Parameters of token shift, value residual and qk_norm; the same for `kvm`."""
    out = {}
    if cfg.get("token_shift"):
        out.update({"q_shift": [H * D], "k_shift": [K * D], "v_shift": [K * Dv]})
    residual = cfg.get("value_residual", "none")
    if residual == "lambda":
        out["vres_lambda"] = [K * Dv]
    if residual == "gated":
        rank = cfg.get("value_residual_rank", 32)
        out.update({"vres_down.weight": [rank, d], "vres_up.weight": [K * Dv, rank], "vres_bias": [K * Dv]})
    kind = cfg.get("qk_norm", "none")
    if kind in ("rms", "layer"):
        out.update({"q_norm.weight": [D], "k_norm.weight": [D]})
    if kind == "layer":
        out.update({"q_norm.bias": [D], "k_norm.bias": [D]})
    if kind == "l2":
        out["beta"] = [H]
    return out


def params(cfg, model):
    d = model["hidden_size"]
    H, K, D, Dv = sizes(cfg)
    out = {"q_proj.weight": [H * D, d], "k_proj.weight": [K * D, d], "v_proj.weight": [K * Dv, d], "o_proj.weight": [d, H * Dv]}
    if cfg.get("gate", "none") != "none":
        out["gate_proj.weight"] = [H if cfg["gate"] == "head" else H * Dv, d]
    out.update(option_params(cfg, d, H, K, D, Dv))
    return out


def value_residual(cfg, w, x, v, rows):
    """v + lambda * (v_first - v). The first block of a group gives v_first; each layer chooses from which of that block's inputs."""
    kind = cfg.get("value_residual", "none")
    if kind == "none":
        return v
    key = "value residual " + cfg.get("value_residual_group", "main")
    block, v_proj, v_first = rows.shared.setdefault(key, (rows.block, w["v_proj.weight"], v))
    if cfg.get("value_residual_source", "first") == "embedding":
        v_first = linear(block_norm(rows.model, rows.weights, f"blocks.{block}.mixer_norm", rows.embedded), v_proj)
    share = w["vres_lambda"] if kind == "lambda" else torch.sigmoid(w["vres_bias"] + linear(linear(x, w["vres_down.weight"]), w["vres_up.weight"]))
    return v + share * (v_first - v)


def token_shift(a, mu, rows):
    before = torch.cat([a[:, :1], a[:, :-1]], 1)
    return a + mu * (torch.where((rows.position == 0).unsqueeze(-1), a, before) - a)


def project(cfg, w, x, rows):
    """q [B,T,H,D], k [B,T,K,D], v [B,T,K,Dv] before norms and positions."""
    B, T, _ = x.shape
    H, K, D, Dv = sizes(cfg)
    q, k, v = (linear(x, w[name + "_proj.weight"]) for name in "qkv")
    v = value_residual(cfg, w, x, v, rows)
    if cfg.get("token_shift"):
        q, k, v = (token_shift(a, w[name + "_shift"], rows) for a, name in ((q, "q"), (k, "k"), (v, "v")))
    return q.view(B, T, H, D), k.view(B, T, K, D), v.view(B, T, K, Dv)


def normed(cfg, w, q, k, eps):
    """(q, k, scale of the logits)."""
    kind, scale = cfg.get("qk_norm", "none"), q.shape[-1] ** -0.5
    if kind == "rms":
        return rms_norm(q, w["q_norm.weight"], eps), rms_norm(k, w["k_norm.weight"], eps), scale
    if kind == "layer":
        return layer_norm(q, w["q_norm.weight"], w["q_norm.bias"], eps), layer_norm(k, w["k_norm.weight"], w["k_norm.bias"], eps), scale
    if kind == "l2":
        return w["beta"].unsqueeze(-1) * l2_norm(q), l2_norm(k), 1.0
    return q, k, scale


def frequencies(rope, R):
    """(one frequency for each pair of the R rotated channels, factor of cos and sin)."""
    theta = rope["theta"]
    if rope.get("endpoint"):
        return torch.tensor([theta ** (-i / (R // 2 - 1)) for i in range(R // 2)]), 1.0
    plain = [theta ** (-2 * i / R) for i in range(R // 2)]
    if llama3 := rope.get("llama3"):
        low, high, f = llama3["low_freq_factor"], llama3["high_freq_factor"], llama3["factor"]
        turns = [llama3["original"] * p / (2 * math.pi) for p in plain]
        kept = [min(max((t - low) / (high - low), 0.0), 1.0) for t in turns]
        return torch.tensor([p * (s + (1 - s) / f) for p, s in zip(plain, kept)]), 1.0
    yarn = rope.get("yarn")
    if yarn is None:
        return torch.tensor(plain), 1.0
    f = yarn["factor"]

    def dim(turns):
        return R * math.log(yarn["original"] / (2 * math.pi * turns)) / (2 * math.log(theta))

    low, high = dim(yarn.get("beta_fast", 32)), dim(yarn.get("beta_slow", 1))
    if yarn.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, R - 1)
    if low == high:
        high += 0.001
    slow = [min(max((i - low) / (high - low), 0.0), 1.0) for i in range(R // 2)]
    return torch.tensor([p * ((1 - s) + s / f) for p, s in zip(plain, slow)]), yarn.get("attention_factor", 0.1 * math.log(f) + 1)


def rotate(x, position, rope):
    """x [B, T, heads, D]; the first `dims` channels turn, channel i with channel i + dims / 2."""
    R = rope.get("dims", x.shape[-1])
    freq, factor = frequencies(rope, R)
    angle = position.double()[:, :, None, None] * freq
    cos, sin = factor * angle.cos(), factor * angle.sin()
    a, b = x[..., :R // 2], x[..., R // 2:R]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., R:]], -1)


def visible_keys(cfg, rows):
    """[B, T, T], query by key."""
    T = rows.inputs.shape[1]
    i, j = torch.arange(T).unsqueeze(1), torch.arange(T)
    out = (j <= i) & (j >= rows.start.unsqueeze(-1))
    if cfg.get("window", 0) > 0:
        out = out & (i - j < cfg["window"])
    if cfg.get("block_window"):
        block = rows.position // cfg["block_window"]["size"]
        out = out & (block.unsqueeze(1) > block.unsqueeze(2) - cfg["block_window"]["blocks"])
    return out


def forward(cfg, w, x, rows):
    B, T, _ = x.shape
    H, K, D, Dv = sizes(cfg)
    q, k, v = project(cfg, w, x, rows)
    q, k, scale = normed(cfg, w, q, k, rows.model.get("norm_eps", 1e-5))
    if cfg.get("rope"):
        q, k = rotate(q, rows.position, cfg["rope"]), rotate(k, rows.position, cfg["rope"])
    scores = scale * torch.einsum("btkgd,bskd->bkgts", q.view(B, T, K, H // K, D), k)
    p = scores.masked_fill(~visible_keys(cfg, rows)[:, None, None], -float("inf")).softmax(-1)
    o = torch.einsum("bkgts,bskd->btkgd", p, v).reshape(B, T, H, Dv)
    if cfg.get("gate", "none") != "none":
        o = o * torch.sigmoid(linear(x, w["gate_proj.weight"])).view(B, T, H, -1)
    return linear(o.reshape(B, T, H * Dv), w["o_proj.weight"])
