"""Mamba-2 (docs/layers/mamba2.md), one token after the other."""
import torch
from torch.nn.functional import softplus

from gdn import convolved
from model import linear, rms_norm, silu


def params(cfg, model):
    d = model["hidden_size"]
    H, P, N, G, K = cfg["num_heads"], cfg["head_dim"], cfg["state_dim"], cfg["num_groups"], cfg.get("conv_size", 4)
    channels = {"x": H * P, "B": G * N, "C": G * N}
    out = {name + "_proj.weight": [n, d] for name, n in channels.items()}
    out.update({"dt_proj.weight": [H, d], "A_log": [H], "dt_bias": [H], "o_proj.weight": [d, H * P]})
    for name, n in channels.items():
        if K:
            out[name + "_conv.weight"] = [n, K]
        if K and cfg.get("conv_bias", True):
            out[name + "_conv.bias"] = [n]
    if cfg.get("output_gate", "silu") != "none":
        out["z_proj.weight"] = [H * P, d]
    if cfg.get("output_norm", "rms") != "none":
        out["o_norm.weight"] = [H * P]
    if cfg.get("skip", "head") != "none":
        out["D"] = [H if cfg.get("skip", "head") == "head" else H * P]
    if cfg.get("initial_state") == "learned":
        out["initial_state"] = [H, N, P]
    return out


def gated_norm(cfg, w, y, X, eps):
    """y [B, T, H·P], X the layer's input."""
    def norm(a):
        groups = cfg.get("norm_groups", cfg["num_groups"])
        blocks = a.view(*a.shape[:-1], groups, -1)
        return rms_norm(blocks, w["o_norm.weight"].view(groups, -1), eps).reshape(a.shape)

    has_norm = cfg.get("output_norm", "rms") == "rms"
    norm_first = cfg.get("norm_before_gate", False)
    if has_norm and norm_first:
        y = norm(y)
    if cfg.get("output_gate", "silu") == "silu":
        y = y * silu(linear(X, w["z_proj.weight"]))
    return norm(y) if has_norm and not norm_first else y


def forward(cfg, w, X, rows):
    batch, T, _ = X.shape
    H, P, N, G = cfg["num_heads"], cfg["head_dim"], cfg["state_dim"], cfg["num_groups"]
    x, Bm, Cm = (convolved(cfg, w, X, rows, name) for name in "xBC")
    x = x.view(batch, T, H, P)
    Bm, Cm = (a.view(batch, T, G, N).repeat_interleave(H // G, 2) for a in (Bm, Cm))
    low, high = cfg.get("dt_limit", [0.0, None])
    dt = torch.clamp(softplus(linear(X, w["dt_proj.weight"]) + w["dt_bias"]), low, high)
    a = torch.exp(-dt * torch.exp(w["A_log"]))

    first = w.get("initial_state", torch.zeros(H, N, P))
    y = []
    for b in range(batch):
        for t in range(T):
            S = first if rows.position[b, t] == 0 else S
            S = a[b, t, :, None, None] * S + dt[b, t, :, None, None] * Bm[b, t].unsqueeze(-1) * x[b, t].unsqueeze(-2)
            y.append(torch.einsum("hn,hnp->hp", Cm[b, t], S))
    y = torch.stack(y).view(batch, T, H, P)
    if cfg.get("skip", "head") != "none":
        y = y + w["D"].view(H, -1) * x
    return linear(gated_norm(cfg, w, y.reshape(batch, T, H * P), X, rows.model.get("norm_eps", 1e-5)), w["o_proj.weight"])
