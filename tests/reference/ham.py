"""Hybrid Associative Memory (docs/layers/ham.md): Gated DeltaNet over all tokens, softmax attention over those that a router selects.

The delta rule runs token after token, attention over the whole row with a mask.
"""
import torch
from torch.nn.functional import gelu, softplus

from attention import rotate
from model import l2_norm, linear, rms_norm, short_conv, silu


def sizes(part):
    return part["num_heads"], part["key_head_dim"], part["value_head_dim"]


def router(cfg):
    return {"type": "prediction_error", "depth": 1, "hidden": 256, "heads": 1, "eda": False, **cfg.get("router", {})}


def params(cfg, model):
    d, K = model["hidden_size"], cfg.get("conv_size", 4)
    (Hr, kr, vr), (Hk, kk, vk) = sizes(cfg["rnn"]), sizes(cfg["kv"])
    width = {"q": Hr * kr, "k": Hr * kr, "v": Hr * vr}
    out = {name + "_proj.weight": [n, d] for name, n in width.items()}
    for path in ("rnn.", "kv."):
        for name, n in width.items():
            if cfg.get("qkv_norm", "pre_conv") != "none":
                out[path + name + "_norm.weight"] = [n]
            if K:
                out[path + name + "_conv.weight"] = [n, K]
    out.update({"rnn.a_proj.weight": [Hr, d], "rnn.b_proj.weight": [Hr, d], "rnn.A_log": [Hr], "rnn.dt_bias": [Hr]})
    out.update({"rnn.o_norm.weight": [vr], "kv.o_norm.weight": [vk], "o_proj.weight": [d, Hr * vr]})
    if cfg["rnn"].get("output_gate", "silu") != "none":
        out["rnn.g_proj.weight"] = [Hr * vr, d]
    gates = cfg.get("gates", "head")
    if gates != "none":
        out["rnn.gate_proj.weight"] = [Hr if gates == "head" else 1, d]
        out["kv.gate_proj.weight"] = [Hk if gates == "head" else 1, d]
    r = router(cfg)
    if r["type"] != "prediction_error":
        widths = [d if r["type"] == "input" else 2 * vr + d] + [r["hidden"]] * (r["depth"] - 1)
        widths.append(r["heads"] if r["type"] == "input" else 1)
        out.update({f"router.layers.{j}.weight": [widths[j + 1], widths[j]] for j in range(r["depth"])})
    if r["eda"]:
        out["router.eda_logit"] = [1]
    return out


def fast(cfg, model):
    return {"threshold": [1]} if cfg.get("threshold", {}).get("mode", "learned") in ("learned", "fixed") else {}


def path(cfg, w, name, raw, rows):
    """q, k, v [B, T, channels] of one of the two paths from the shared projections."""
    prefix, place, eps = name + ".", cfg.get("qkv_norm", "pre_conv"), rows.model.get("norm_eps", 1e-5)
    out = []
    for letter, a in zip("qkv", raw):
        if place == "pre_conv":
            a = rms_norm(a, w[f"{prefix}{letter}_norm.weight"], eps)
        if cfg.get("conv_size", 4):
            a = short_conv(a, w[f"{prefix}{letter}_conv.weight"], rows)
        if cfg[name].get("activation", "silu") == "silu":
            a = silu(a)
        if place == "post_conv":
            a = rms_norm(a, w[f"{prefix}{letter}_norm.weight"], eps)
        out.append(a)
    return out


def recurrence(cfg, w, x, q, k, v, rows):
    """(o, p), both [B, T, Hr, vr]: what the state answers, and what it predicted for k before the token changed it."""
    B, T, H, _ = q.shape
    alpha = torch.exp(-torch.exp(w["rnn.A_log"]) * softplus(linear(x, w["rnn.a_proj.weight"]) + w["rnn.dt_bias"]))
    beta = torch.sigmoid(linear(x, w["rnn.b_proj.weight"])) * (2 if cfg["rnn"].get("allow_neg_eigval") else 1)
    o, p = [], []
    for b in range(B):
        for t in range(T):
            if rows.position[b, t] == 0:
                S = torch.zeros(H, q.shape[-1], v.shape[-1])
            p.append(torch.einsum("hk,hkv->hv", k[b, t], S))
            S = alpha[b, t, :, None, None] * S
            delta = beta[b, t, :, None] * (v[b, t] - torch.einsum("hk,hkv->hv", k[b, t], S))
            S = S + torch.einsum("hk,hv->hkv", k[b, t], delta)
            o.append(torch.einsum("hk,hkv->hv", q[b, t], S))
    return torch.stack(o).view(v.shape), torch.stack(p).view(v.shape)


def score(cfg, w, x, p, v, rows):
    """[B, T], after aggregation over heads and averaging with the EDA layer before."""
    r = router(cfg)
    if r["type"] == "prediction_error":
        p, v = p.detach(), v.detach()
        e = 1 - (p * v).sum(-1) / (p.norm(dim=-1) * v.norm(dim=-1) + 1e-6)
    else:
        if r["type"] == "vector":
            seen = x.unsqueeze(2).expand(*p.shape[:3], x.shape[-1])
            e = torch.cat([l2_norm(p.detach()), l2_norm(v.detach()), seen], -1)
        else:
            e = x
        for j in range(r["depth"]):
            e = linear(gelu(e) if j else e, w[f"router.layers.{j}.weight"])
        e = torch.sigmoid(e if r["type"] == "input" else e.squeeze(-1))
    e = e.amin(-1) if cfg.get("aggregate", "min") == "min" else e.amax(-1)
    if r["eda"]:
        before = rows.shared.get("eda score")
        if before is not None:
            gamma = torch.sigmoid(w["router.eda_logit"])
            e = gamma * e + (1 - gamma) * before
        rows.shared["eda score"] = e
    return e


def selected(cfg, w, e):
    mode = cfg.get("threshold", {}).get("mode", "learned")
    if mode in ("all", "none"):
        return torch.full(e.shape, mode == "all")
    return e >= (2 if router(cfg)["type"] == "prediction_error" else 1) * torch.sigmoid(w["threshold"])


def attend(cfg, q, k, v, mask, rows):
    """Softmax over the selected tokens up to the query's own, within its document; 0 where there is none."""
    T = q.shape[1]
    if cfg["kv"].get("rope"):
        q, k = (rotate(a, rows.position, cfg["kv"]["rope"]) for a in (q, k))
    index = torch.arange(T)
    visible = mask.unsqueeze(1) & (index <= index.unsqueeze(-1)) & (index >= rows.start.unsqueeze(-1))  # [B, query, key]
    logits = torch.einsum("bthc,bshc->bhts", q, k) * q.shape[-1] ** -0.5
    some = visible.any(-1)[:, None, :, None]
    hidden = ~visible.unsqueeze(1)
    weights = torch.where(hidden & some, torch.tensor(-float("inf")), logits).softmax(-1)
    weights = torch.where(hidden, torch.zeros(()), weights)
    return torch.einsum("bhts,bshc->bthc", weights, v)


def forward(cfg, w, x, rows):
    B, T, _ = x.shape
    (Hr, kr, vr), (Hk, kk, vk) = sizes(cfg["rnn"]), sizes(cfg["kv"])
    eps = rows.model.get("norm_eps", 1e-5)
    raw = [linear(x, w[name + "_proj.weight"]) for name in "qkv"]

    q, k, v = path(cfg, w, "rnn", raw, rows)
    q, k, v = l2_norm(q.view(B, T, Hr, kr)) * kr ** -0.5, l2_norm(k.view(B, T, Hr, kr)), v.view(B, T, Hr, vr)
    o, p = recurrence(cfg, w, x, q, k, v, rows)
    e = score(cfg, w, x, p, v, rows)
    mask = selected(cfg, w, e)
    rows.inside.update({rows.prefix + "score": e.detach(), rows.prefix + "mask": mask})

    q, k, v = path(cfg, w, "kv", raw, rows)
    if router(cfg)["type"] != "prediction_error":
        v = e.unsqueeze(-1) * v
    a = attend(cfg, q.view(B, T, Hk, kk), k.view(B, T, Hk, kk), v.view(B, T, Hk, vk), mask, rows)

    r = rms_norm(o, w["rnn.o_norm.weight"], eps)
    a = rms_norm(a, w["kv.o_norm.weight"], eps)
    gate = cfg["rnn"].get("output_gate", "silu")
    if gate != "none":
        g = linear(x, w["rnn.g_proj.weight"]).view(B, T, Hr, vr)
        r = r * (silu(g) if gate == "silu" else torch.sigmoid(g))
    if cfg.get("gates", "head") != "none":
        r = r * torch.sigmoid(linear(x, w["rnn.gate_proj.weight"])).unsqueeze(-1)
        a = a * torch.sigmoid(linear(x, w["kv.gate_proj.weight"])).unsqueeze(-1)
    return linear(r.reshape(B, T, -1) + a.reshape(B, T, -1), w["o_proj.weight"])
