"""Gated DeltaNet (docs/layers/gdn.md), one token after the other."""
import torch
from torch.nn.functional import softplus

from model import l2_norm, linear, rms_norm, short_conv, silu

CONVOLVED = ("q", "k", "v")


def sizes(cfg):
    H = cfg["num_heads"]
    return H, cfg.get("num_value_heads", H), cfg["key_head_dim"], cfg["value_head_dim"], cfg.get("conv_size", 4)


def params(cfg, model):
    d = model["hidden_size"]
    H, HV, dk, dv, K = sizes(cfg)
    channels = {"q": H * dk, "k": H * dk, "v": HV * dv}
    out = {name + "_proj.weight": [n, d] for name, n in channels.items()}
    out.update({"a_proj.weight": [HV, d], "b_proj.weight": [HV, d], "A_log": [HV], "dt_bias": [HV], "o_proj.weight": [d, HV * dv]})
    for name, n in channels.items():
        if K:
            out[name + "_conv.weight"] = [n, K]
        if K and cfg.get("conv_bias"):
            out[name + "_conv.bias"] = [n]
    if cfg.get("output_gate", "silu") != "none":
        out["g_proj.weight"] = [HV * dv, d]
    if cfg.get("output_norm", "rms") != "none":
        out["o_norm.weight"] = [dv]
    if cfg.get("initial_state") == "learned":
        out["initial_state"] = [HV, dk, dv]
    return out


def convolved(cfg, w, x, rows, name):
    """Projection, convolution if any, activation: [B, T, channels]."""
    y = linear(x, w[name + "_proj.weight"])
    if cfg.get("conv_size", 4):
        y = short_conv(y, w[name + "_conv.weight"], rows, w.get(name + "_conv.bias"))
    return silu(y) if cfg.get("activation", "silu") == "silu" else y


def gate(kind, x):
    return silu(x) if kind == "silu" else torch.sigmoid(x)


def forward(cfg, w, x, rows):
    B, T, _ = x.shape
    H, HV, dk, dv, _ = sizes(cfg)
    q, k, v = (convolved(cfg, w, x, rows, name) for name in CONVOLVED)
    q, k, v = q.view(B, T, H, dk), k.view(B, T, H, dk), v.view(B, T, HV, dv)
    if cfg.get("qk_norm", "l2") == "l2":
        q, k = l2_norm(q), l2_norm(k)
    q, k = (a.repeat_interleave(HV // H, 2) for a in (q * dk ** -0.5, k))
    alpha = torch.exp(-torch.exp(w["A_log"]) * softplus(linear(x, w["a_proj.weight"]) + w["dt_bias"]))
    beta = torch.sigmoid(linear(x, w["b_proj.weight"])) * (2 if cfg.get("allow_neg_eigval") else 1)

    first = w.get("initial_state", torch.zeros(HV, dk, dv))
    o = []
    for b in range(B):
        for t in range(T):
            S = first if rows.position[b, t] == 0 else S
            S = alpha[b, t, :, None, None] * S
            delta = beta[b, t, :, None] * (v[b, t] - torch.einsum("hk,hkv->hv", k[b, t], S))
            S = S + k[b, t].unsqueeze(-1) * delta.unsqueeze(-2)
            o.append(torch.einsum("hk,hkv->hv", q[b, t], S))
    o = torch.stack(o).view(B, T, HV, dv)

    if cfg.get("output_norm", "rms") == "rms":
        o = rms_norm(o, w["o_norm.weight"], rows.model.get("norm_eps", 1e-5))
    o = o.reshape(B, T, HV * dv)
    if cfg.get("output_gate", "silu") != "none":
        o = o * gate(cfg.get("output_gate", "silu"), linear(x, w["g_proj.weight"]))
    return linear(o, w["o_proj.weight"])
