"""Product key memory (docs/layers/pkm.md), in the place of a feed-forward layer."""
from model import linear, rms_norm, silu
from product_keys import best_pairs


def sizes(cfg):
    return [cfg.get(key, default) for key, default in
            (("num_subkeys", 512), ("key_dim", 512), ("value_dim", 512), ("num_heads", 4), ("top_k", 32))]


def params(cfg, model):
    d, (n, dk, dv, H, _) = model["hidden_size"], sizes(cfg)
    out = {"q_proj.weight": [H * dk, d], "q_proj.bias": [H * dk], "keys": [H, 2, n, dk // 2], "values": [n * n, dv],
           "o_proj.weight": [d, dv], "o_proj.bias": [d]}
    if cfg.get("query_norm", True):
        out["q_norm.weight"] = [H * dk]
    if cfg.get("glu", True):
        out.update({"gate_proj.weight": [dv, d], "gate_proj.bias": [dv]})
    return out


def forward(cfg, w, x, rows):
    B, T, _ = x.shape
    n, dk, dv, H, k = sizes(cfg)
    q = linear(x, w["q_proj.weight"], w["q_proj.bias"])
    if cfg.get("query_norm", True):
        q = rms_norm(q, w["q_norm.weight"], 1e-6)
    q = q.view(B, T, H, 2, 1, dk // 2)
    s = (q * w["keys"]).sum(-1)  # [B, T, H, 2, n]
    s1, s2 = s.unbind(-2)
    i, j = best_pairs(s1, s2, k)
    a = (s1.gather(-1, i) + s2.gather(-1, j)).softmax(-1)  # [B, T, H, k]
    slots = rows.inside[rows.prefix + "slots"] = i * n + j
    r = (a.unsqueeze(-1) * w["values"][slots]).sum((2, 3))
    if cfg.get("glu", True):
        r = r * silu(linear(x, w["gate_proj.weight"], w["gate_proj.bias"]))
    return linear(r, w["o_proj.weight"], w["o_proj.bias"])
