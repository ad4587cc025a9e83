"""Feed-forward layer with squared ReLU (docs/layers/ffn.md, Relu2)."""
import torch

from model import linear


def params(cfg, model):
    d, n = model["hidden_size"], cfg["intermediate_size"]
    out = {"up_proj.weight": [n, d], "down_proj.weight": [d, n]}
    if cfg.get("token_shift"):
        out["shift"] = [d]
    return out


def forward(cfg, w, x, rows):
    if cfg.get("token_shift"):
        before = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)
        before = torch.where((rows.position == 0).unsqueeze(-1), torch.zeros(()), before)  # 0 before a document
        x = x + w["shift"] * (before - x)
    return linear(torch.relu(linear(x, w["up_proj.weight"])) ** 2, w["down_proj.weight"])
