"""Large-chunk test-time training (docs/layers/lact.md): window attention and a fast SwiGLU per document, chunk by chunk."""
import math

import torch
import torch.nn.functional as F

from attention import rotate
from model import linear, rms_norm, silu

STEPS = ((4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037), (2.8769, -3.1427, 1.2046), (2.8366, -3.0525, 1.2012))


def sizes(cfg, model):
    fast_heads = cfg.get("num_fast_heads", 4)
    width = model["hidden_size"] // fast_heads
    return fast_heads, width, cfg.get("fast_dim") or width, cfg.get("rank", 32)


def params(cfg, model):
    d, (n, width, h, rank) = model["hidden_size"], sizes(cfg, model)
    out = {name + "_proj.weight": [d, d] for name in "qkvo"}
    for name in ("w0", "w2"):
        if rank > 0:
            out.update({name + "_left": [n, h, rank], name + "_right": [n, rank, width]})
        else:
            out[name] = [n, h, width]
    out.update({"w1": [n, width, h], "lr_proj.weight": [3 * n, d], "lr_proj.bias": [3 * n], "qk_scale": [d, 2], "qk_offset": [d, 2], "fast_norm.weight": [width]})
    for name, default in (("output_scale", True), ("momentum", True)):
        if cfg.get(name, default):
            projection = {"output_scale": "scale_proj", "momentum": "momentum_proj"}[name]
            out.update({projection + ".weight": [n, d], projection + ".bias": [n]})
    return out


def turn(x, rope):
    """RoPE of one document, x [T, heads, D]."""
    return rotate(x.unsqueeze(0), torch.arange(len(x)).unsqueeze(0), rope)[0]


def attention(q, k, v, window):
    """q, k, v [T, heads, D]."""
    T, _, D = q.shape
    distance = torch.arange(T)[:, None] - torch.arange(T)
    visible = (distance >= 0) & (distance < (window or T))
    scores = (torch.einsum("thd,shd->hts", q, k) / D ** 0.5).masked_fill(~visible, -float("inf"))
    return torch.einsum("hts,shd->thd", scores.softmax(-1), v)


def initial_weights(w, rank):
    def low_rank(name):
        product = w[name + "_left"] @ w[name + "_right"]
        return product + 0.5 * torch.eye(*product.shape[1:])

    return [low_rank("w0") if rank else w["w0"], w["w1"], low_rank("w2") if rank else w["w2"]]


def predict(W, z):
    """z [F, t, Df] -> [F, t, Df]."""
    hidden = silu(z @ W[0].transpose(1, 2)) * (z @ W[2].transpose(1, 2))
    return hidden @ W[1].transpose(1, 2)


def newton_schulz(G):
    tall = G.shape[1] > G.shape[2]
    X = G.transpose(1, 2) if tall else G
    X = X / (X.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    for a, b, c in STEPS:
        A = X @ X.transpose(1, 2)
        X = a * X + (b * A + c * A @ A) @ X
    return X.transpose(1, 2) if tall else X


def fast_pass(cfg, W, fq, fk, fv, eta, mu):
    """fq, fk, fv [F, T, Df], eta [F, T, 3], mu [F, T] or None -> [F, T, Df]."""
    T, C = fq.shape[1], cfg.get("chunk_size", 512)
    norms = [M.norm(dim=-1, keepdim=True) for M in W]
    momentum = [torch.zeros_like(M) for M in W]
    out = []
    for begin in range(0, T, C):
        part = slice(begin, begin + C)
        out.append(predict(W, fq[:, part]))
        if begin + C >= T:
            break
        gain = (predict(W, fk[:, part]) * fv[:, part]).sum(-1)  # [F, t]
        step = [torch.autograd.grad((eta[:, part, m] * gain).sum(), W[m], create_graph=True)[0] for m in range(3)]
        if mu is not None:
            keep = mu[:, part].mean(1)[:, None, None]
            step = momentum = [G + keep * M for G, M in zip(step, momentum)]
        if cfg.get("muon", False):
            step = [newton_schulz(G) for G in step]
        moved = [M + G for M, G in zip(W, step)]
        W = [M / (M.norm(dim=-1, keepdim=True) + 1e-5) * norm for M, norm in zip(moved, norms)]
    return torch.cat(out, 1)


def document(cfg, w, x, n):
    """x [T, d] of one document."""
    T, d = x.shape
    heads, rope = cfg["num_heads"], cfg.get("rope", {"theta": 10000.0})
    q, k, v = (linear(x, w[name + "_proj.weight"]) for name in "qkv")

    def split(y, count):
        return y.view(T, count, d // count)

    att = attention(turn(split(q, heads), rope), turn(split(k, heads), rope), split(v, heads), cfg.get("window", 2048)).reshape(T, d)

    def fast_input(y, column):
        y = split(silu(y * w["qk_scale"][:, column] + w["qk_offset"][:, column]), n)
        y = (y / (y.norm(dim=-1, keepdim=True) + 1e-5)).reshape(T, d)
        if cfg.get("fast_rope", True):
            y = turn(split(y, heads), rope).reshape(T, d)
        return split(y, n).transpose(0, 1)

    fv = split(silu(v) if cfg.get("silu_v", False) else v, n).transpose(0, 1)
    bias = math.log(math.expm1(cfg.get("base_lr", 1e-3)))
    eta = F.softplus(linear(x, w["lr_proj.weight"], w["lr_proj.bias"]) + bias).view(T, n, 3).transpose(0, 1)
    mu = torch.sigmoid(linear(x, w["momentum_proj.weight"], w["momentum_proj.bias"])).T if cfg.get("momentum", True) else None
    y = fast_pass(cfg, initial_weights(w, cfg.get("rank", 32)), fast_input(q, 0), fast_input(k, 1), fv, eta, mu)
    y = rms_norm(y.transpose(0, 1), w["fast_norm.weight"], 1e-5)  # [T, F, Df]
    if cfg.get("output_scale", True):
        y = y * silu(linear(x, w["scale_proj.weight"], w["scale_proj.bias"])).unsqueeze(-1)
    return linear(att + y.reshape(T, d), w["o_proj.weight"])


def forward(cfg, w, x, rows):
    n = sizes(cfg, rows.model)[0]
    return torch.stack([torch.cat([document(cfg, w, x[b, begin:end], n) for begin, end in rows.documents(b)]) for b in range(x.shape[0])])
