"""MesaNet (docs/layers/mesanet.md), one token after the other."""
import torch
from torch.nn.functional import logsigmoid, softplus

from gdn import convolved, gate
from model import l2_norm, linear, rms_norm


def params(cfg, model):
    d, H, dk, K = model["hidden_size"], cfg["num_heads"], cfg["key_head_dim"], cfg.get("conv_size", 4)
    dv = cfg.get("value_head_dim", dk)
    out = {"q_proj.weight": [H * dk, d], "k_proj.weight": [H * dk, d], "v_proj.weight": [H * dv, d], "o_proj.weight": [d, H * dv],
           "a_proj.weight": [H, d], "b_proj.weight": [H, d], "a_proj.bias": [H], "b_proj.bias": [H], "lambda_raw": [H, dk]}
    for name in "qk":
        if K:
            out[name + "_conv.weight"] = [H * dk, K]
        if K and cfg.get("conv_bias"):
            out[name + "_conv.bias"] = [H * dk]
    if cfg.get("output_gate", "none") != "none":
        out["g_proj.weight"] = [H * dv, d]
    if cfg.get("output_norm", "rms") != "none":
        out["o_norm.weight"] = [dv]
    return out


def solve(cfg, A, b):
    """b A^-1 of each system: A [H, dk, dk] symmetric, b [H, dk]."""
    if cfg.get("solver", "cg") == "exact":
        return torch.linalg.solve(A, b)
    s, r, p = torch.zeros_like(b), b.clone(), b.clone()
    delta = (r * r).sum(-1, keepdim=True)
    first, damping = delta.clone(), cfg.get("cg_epsilon", 0.0) * delta
    one = torch.ones(())
    for _ in range(cfg.get("cg_steps", 30)):
        runs = delta > 2.0 ** -104 * first  # the others are frozen
        t = torch.einsum("hi,hij->hj", p, A)
        alpha = delta / torch.where(runs, (p * t).sum(-1, keepdim=True) + damping, one)
        s = torch.where(runs, s + alpha * p, s)
        r = torch.where(runs, r - alpha * t, r)
        new = (r * r).sum(-1, keepdim=True)
        p = torch.where(runs, r + new / torch.where(runs, delta + damping, one) * p, p)
        delta = torch.where(runs, new, delta)
    return s


class Solve(torch.autograd.Function):
    """Implicit derivative: one more solve, never through the iterations."""

    @staticmethod
    def forward(ctx, A, b, cfg):
        s = solve(cfg, A, b)
        ctx.save_for_backward(A, s)
        ctx.cfg = cfg
        return s

    @staticmethod
    def backward(ctx, d_s):
        A, s = ctx.saved_tensors
        w = solve(ctx.cfg, A, d_s)
        return -w.unsqueeze(-1) * s.unsqueeze(-2), w, None


def forward(cfg, w, x, rows):
    B, T, _ = x.shape
    H, dk = cfg["num_heads"], cfg["key_head_dim"]
    dv = cfg.get("value_head_dim", dk)
    q, k = (convolved(cfg, w, x, rows, name).view(B, T, H, dk) for name in "qk")
    if cfg.get("qk_norm", "l2") == "l2":
        q, k = l2_norm(q), l2_norm(k)
    v = linear(x, w["v_proj.weight"]).view(B, T, H, dv)
    decay = torch.exp(logsigmoid(linear(x, w["a_proj.weight"], w["a_proj.bias"])))
    beta = torch.sigmoid(linear(x, w["b_proj.weight"], w["b_proj.bias"]))
    ridge = torch.diag_embed(cfg.get("lambda_min", 0.25) + softplus(w["lambda_raw"]))

    o = []
    for b in range(B):
        for t in range(T):
            if rows.position[b, t] == 0:
                R, S = torch.zeros(H, dk, dk), torch.zeros(H, dk, dv)
            f, key = decay[b, t, :, None, None], k[b, t].unsqueeze(-1)
            write = beta[b, t, :, None, None] * key
            R = f * R + write * k[b, t].unsqueeze(-2)
            S = f * S + write * v[b, t].unsqueeze(-2)
            o.append(torch.einsum("hk,hkv->hv", Solve.apply(R + ridge, q[b, t], cfg), S))
    o = torch.stack(o).view(B, T, H, dv)

    if cfg.get("output_norm", "rms") == "rms":
        o = rms_norm(o, w["o_norm.weight"], rows.model.get("norm_eps", 1e-5))
    o = o.reshape(B, T, H * dv)
    if cfg.get("output_gate", "none") != "none":
        o = o * gate(cfg["output_gate"], linear(x, w["g_proj.weight"]))
    return linear(o, w["o_proj.weight"])
