"""Fast-weight MLP (docs/layers/fwmlp.md); the outer gradient goes through the fast gradient steps."""
import torch

import fast_memory
from model import linear, silu

DEFAULTS = {**fast_memory.COMMON, "fast_dim": 512, "target": "mean", "lr": 0.1, "grad_clip": 0.0}
NAMES = ("w_up", "w_gate", "w_down", "b_up", "b_gate", "b_down")


def params(cfg, model):
    o = {**DEFAULTS, **cfg}
    return fast_memory.slow_params(o, model, o["key_dim"])


def fast(cfg, model):
    o = {**DEFAULTS, **cfg}
    h, dk, dv = o["fast_dim"], o["key_dim"], o["value_dim"]
    return {"w_up": [h, dk], "w_gate": [h, dk], "w_down": [dv, h], "b_up": [h], "b_gate": [h], "b_down": [dv]}


def predict(W, q):
    return linear(linear(q, W["w_up"], W["b_up"]) * silu(linear(q, W["w_gate"], W["b_gate"])), W["w_down"], W["b_down"])


def step(o, W, vh, target, paired):
    """W' after one gradient step; P = 0 leaves W."""
    pairs = int(paired.sum())
    if pairs == 0:
        return W
    loss = (paired.unsqueeze(-1) * (vh - target) ** 2).sum() / (pairs * o["value_dim"])
    gradients = torch.autograd.grad(loss, [W[name] for name in NAMES], create_graph=True)
    if o["grad_clip"] > 0:
        gradients = [g.clamp(-o["grad_clip"], o["grad_clip"]) for g in gradients]
    return {name: W[name] - o["lr"] * g for name, g in zip(NAMES, gradients)}


def forward(cfg, w, x, rows):
    o = {**DEFAULTS, **cfg}
    T, L = x.shape[1], o["lookahead"]
    eps = rows.model.get("norm_eps", 1e-5)
    q, v, g = fast_memory.inputs(o, w, x, eps)
    W = {name: w[name].detach().requires_grad_() for name in NAMES}
    read = []
    for begin in range(0, T, o["chunk_size"]):
        part = slice(begin, min(begin + o["chunk_size"], T))
        vh = predict(W, q[:, part])
        read.append(vh)
        later = [fast_memory.ahead(v[:, part], i) for i in range(L + 1)]  # v_t ... v_{t+L}
        target = later[L] if o["target"] == "next" else sum(later) / (L + 1)
        W = step(o, W, vh, target, fast_memory.has_pair(rows, part.start, part.stop, L))
        if o["grad_through_update"] == "none":
            W = {name: tensor.detach().requires_grad_() for name, tensor in W.items()}
    for name in NAMES:
        rows.after[rows.prefix + name] = W[name]
    return fast_memory.output(o, w, torch.cat(read, 1), v, g, eps)
