"""What the two memories with shared fast weights have in common (docs/layers/fwpkm.md and fwmlp.md): slow projections, pairs, gate, output."""
import torch

from model import linear, rms_norm

COMMON = {"key_dim": 512, "value_dim": 512, "chunk_size": 512, "lookahead": 1, "value_norm": True, "gate": True, "gate_width": 8,
          "grad_through_update": "full"}


def slow_params(o, model, query_size):
    """Parameters that the optimizer trains; o: options with defaults."""
    d, dv = model["hidden_size"], o["value_dim"]
    out = {"q_norm.weight": [d], "v_norm.weight": [d], "q_proj.weight": [query_size, d], "q_proj.bias": [query_size],
           "v_proj.weight": [dv, d], "v_proj.bias": [dv], "o_norm.weight": [dv], "o_proj.weight": [d, dv], "o_proj.bias": [d]}
    if o["gate"]:
        out.update({"gate_norm.weight": [d], "gate_proj.weight": [o["gate_width"], d], "gate_proj.bias": [o["gate_width"]]})
    return out


def inputs(o, w, x, eps):
    """q [B, T, ...], v [B, T, dv] and the gate [B, T, 1] (None without one)."""
    def project(name):
        return linear(rms_norm(x, w[name + "_norm.weight"], eps), w[name + "_proj.weight"], w[name + "_proj.bias"])

    v = project("v")
    if o["value_norm"]:
        v = (v - v.mean(-1, keepdim=True)) / (v.std(-1, unbiased=True, keepdim=True) + 1e-6)
    return project("q"), v, torch.sigmoid(project("gate").mean(-1, keepdim=True)) if o["gate"] else None


def output(o, w, vh, v, g, eps):
    mixed = vh + v if g is None else g * vh + (1 - g) * v
    return linear(rms_norm(mixed, w["o_norm.weight"], eps), w["o_proj.weight"], w["o_proj.bias"])


def has_pair(rows, begin, end, lookahead):
    """[B, end - begin]: the token `lookahead` further lies in the same chunk and document."""
    start = rows.start[:, begin:end]
    paired = torch.zeros_like(start, dtype=torch.bool)
    last = end - begin - lookahead
    if last > 0:
        paired[:, :last] = start[:, :last] == start[:, lookahead:]
    return paired


def ahead(v, count):
    """v [B, C, dv] of `count` tokens later, zeros beyond the chunk."""
    return torch.cat([v[:, count:], torch.zeros_like(v[:, :count])], 1)
