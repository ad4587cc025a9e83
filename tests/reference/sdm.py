"""Sparse delta memory (docs/layers/sdm.md, Update): the recurrence, token by token."""
import math

import torch
import torch.nn.functional as F

from model import layer_norm, linear, rms_norm, silu
from product_keys import best_pairs


def sizes(cfg, model):
    H, N = cfg.get("num_heads", 1), cfg["slots_per_head"]
    return H, N, math.isqrt(N), cfg.get("value_head_dim") or model["hidden_size"] // H


def params(cfg, model):
    d, (H, N, n, D) = model["hidden_size"], sizes(cfg, model)
    rows = {"q_proj": 2 * n * H, "k_proj": 2 * n * H, "v_proj": H * D, "a_proj": H, "b_proj": H}
    if cfg.get("out_gate", "sigmoid") != "none":
        rows["g_proj"] = H * D
    out = {name + ".weight": [count, d] for name, count in rows.items()}
    out["o_proj.weight"] = [d, H * D]
    if cfg.get("bias", False):
        out.update({name + ".bias": [count] for name, count in {**rows, "o_proj": d}.items()})
    out.update({"A_log": [H], "dt_bias": [H]})
    norm = cfg.get("out_norm", "rms")
    if norm != "none":
        out["o_norm.weight"] = [D]
    if norm == "layer":
        out["o_norm.bias"] = [D]
    if cfg.get("learned_init", True):
        out["memory"] = [H, N, D]
    return out


def activate(kind, scale, s):
    if kind == "softmax":
        return (scale * s).softmax(-1)
    return s / (s.norm(dim=-1, keepdim=True) + 1e-12) if kind == "l2" else s


def address(cfg, what, scores, n, k):
    """scores [..., 2n] -> slots, ascending, and their weights [..., k]."""
    s1, s2 = scores[..., :n], scores[..., n:]
    i, j = best_pairs(s1, s2, k)
    slots = (i * n + j).sort(-1).values
    s = s1.gather(-1, torch.div(slots, n, rounding_mode="floor")) + s2.gather(-1, slots % n)
    return slots, activate(cfg.get(what + "_activation", "softmax"), cfg.get(what + "_scale", 1.0), s)


def forward(cfg, w, x, rows):
    B, T, d = x.shape
    H, N, n, D = sizes(cfg, rows.model)

    def project(name, y=x):
        return linear(y, w[name + "_proj.weight"], w.get(name + "_proj.bias"))

    write_slots, k = address(cfg, "write", project("k").view(B, T, H, 2 * n), n, cfg["num_writes"])
    read_slots, q = address(cfg, "read", project("q").view(B, T, H, 2 * n), n, cfg["num_reads"])
    rows.inside.update({rows.prefix + "write_slots": write_slots, rows.prefix + "read_slots": read_slots})
    v = project("v").view(B, T, H, D)
    g = -w["A_log"].exp() * F.softplus(project("a") + w["dt_bias"])  # [B, T, H]
    beta = torch.sigmoid(project("b"))
    start = (w["memory"] if "memory" in w else torch.zeros(H, N, D)).expand(B, H, N, D)
    M, out = start, []
    for t in range(T):
        M = torch.where((rows.position[:, t] == 0)[:, None, None, None], start, M)
        I = write_slots[:, t, :, :, None].expand(B, H, -1, D)
        J = read_slots[:, t, :, :, None].expand(B, H, -1, D)
        k_t = k[:, t, :, :, None]  # [B, H, W, 1]
        log_decay = g[:, t, :, None, None] * (k_t if cfg.get("key_weighted_decay", False) else 1)
        m = log_decay.exp() * M.gather(2, I)
        u = beta[:, t, :, None] * (v[:, t] - (k_t * m).sum(2))  # [B, H, D]
        M = M.scatter(2, I, m + k_t * u.unsqueeze(2))
        out.append((q[:, t, :, :, None] * M.gather(2, J)).sum(2))
    y = torch.stack(out, 1)  # [B, T, H, D]
    norm, eps = cfg.get("out_norm", "rms"), cfg.get("out_norm_eps", 1e-6)
    if norm == "rms":
        y = rms_norm(y, w["o_norm.weight"], eps)
    elif norm == "layer":
        y = layer_norm(y, w["o_norm.weight"], w["o_norm.bias"], eps)
    y = y.reshape(B, T, H * D)
    gate = cfg.get("out_gate", "sigmoid")
    if gate != "none":
        y = y * (torch.sigmoid if gate == "sigmoid" else silu)(project("g"))
    return project("o", y)
