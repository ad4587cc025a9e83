"""Softmax attention (page 10)."""
import torch

from model import linear


def params(cfg, model):
    d, H, D = model["hidden_size"], cfg["num_heads"], cfg["head_dim"]
    K = cfg.get("num_kv_heads", H)
    return {"q_proj.weight": [H * D, d], "k_proj.weight": [K * D, d], "v_proj.weight": [K * D, d], "o_proj.weight": [d, H * D]}


def forward(cfg, w, x, rows):
    B, T, _ = x.shape
    H, D = cfg["num_heads"], cfg["head_dim"]
    K = cfg.get("num_kv_heads", H)
    q = linear(x, w["q_proj.weight"]).view(B, T, K, H // K, D)
    k, v = (linear(x, w[n + "_proj.weight"]).view(B, T, K, D) for n in "kv")
    scores = torch.einsum("btkgd,bskd->bkgts", q, k) / D ** 0.5
    visible = torch.ones(T, T, dtype=torch.bool).tril() & (torch.arange(T) >= rows.start.unsqueeze(-1))  # [B, T, T]
    p = scores.masked_fill(~visible[:, None, None], -float("inf")).softmax(-1)
    return linear(torch.einsum("bkgts,bskd->btkgd", p, v).reshape(B, T, H * D), w["o_proj.weight"])
