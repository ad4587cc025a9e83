"""Feed-forward layer of docs/layers/ffn.md, Swiglu."""
from model import linear, silu


def params(cfg, model):
    d, n = model["hidden_size"], cfg["intermediate_size"]
    return {"gate_proj.weight": [n, d], "up_proj.weight": [n, d], "down_proj.weight": [d, n]}


def forward(cfg, w, x, rows):
    return linear(silu(linear(x, w["gate_proj.weight"])) * linear(x, w["up_proj.weight"]), w["down_proj.weight"])
