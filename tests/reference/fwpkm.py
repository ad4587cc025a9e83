"""Fast-weight product key memory (docs/layers/fwpkm.md): row mode, chunk by chunk; the outer gradient by differentiating the updates."""
import torch

import fast_memory
from product_keys import best_pairs, largest

DEFAULTS = {**fast_memory.COMMON, "num_subkeys": 512, "num_heads": 1, "top_k": 8, "score": "idw", "idw_eps": 1e-3, "weight_by_gate": True,
            "key_update": "entropy", "value_lr": 1.0, "key_lr": 1.0, "value_step": "slots"}


def params(cfg, model):
    o = {**DEFAULTS, **cfg}
    return fast_memory.slow_params(o, model, o["num_heads"] * o["key_dim"])


def fast(cfg, model):
    o = {**DEFAULTS, **cfg}
    n = o["num_subkeys"]
    return {"keys": [o["num_heads"], 2, n, o["key_dim"] // 2], "values": [n * n, o["value_dim"]]}


def score(o, q, keys):
    """q [B, C, H, 2, D], keys [H, 2, n, D] -> [B, C, H, 2, n]."""
    q = q.unsqueeze(-2)
    if o["score"] == "dot":
        return (q * keys).sum(-1)
    return -torch.log(o["idw_eps"] + ((q - keys) ** 2).sum(-1))


def retrieve(o, s, values):
    """Slots and weights [B, C, H, k], and the value read [B, C, dv]."""
    s1, s2 = s.unbind(-2)
    i, j = best_pairs(s1, s2, o["top_k"])
    a = (s1.gather(-1, i) + s2.gather(-1, j)).flatten(-2).softmax(-1).view(i.shape)
    slots = i * o["num_subkeys"] + j
    return slots, a, (a.unsqueeze(-1) * values[slots]).sum((-3, -2))


def written_values(o, values, slots, a, write):
    """V'; write [B, C, dv] = w e."""
    readers = torch.bincount(slots.flatten(), minlength=len(values)).unsqueeze(-1)
    factor = o["value_lr"] * (o["num_heads"] * o["top_k"] if o["value_step"] == "slots" else 1)
    rows = (a.unsqueeze(-1) * write[:, :, None, None]).flatten(0, 3)  # [B C H k, dv]
    sums = torch.zeros_like(values).index_add(0, slots.flatten(), rows)
    return values + factor * sums / readers.clamp(min=1)


def negative_entropy(o, s):
    """A_0 + A_1: of the mean over tokens and heads of each codebook's softmax over its own k best."""
    chosen = torch.zeros_like(s, dtype=torch.bool).scatter(-1, largest(s, o["top_k"]), True)
    m = s.masked_fill(~chosen, -float("inf")).softmax(-1).mean((0, 1, 2))  # [2, n]
    return (m * torch.log(m + 1e-8)).sum()


def written_keys(o, keys, values, q, s, v_ahead, weight, pairs):
    if o["key_update"] == "entropy":
        return keys - o["key_lr"] * torch.autograd.grad(negative_entropy(o, s), keys, create_graph=True)[0]
    if o["key_update"] == "memory" and pairs > 0:
        e = v_ahead - retrieve(o, s, values)[2]
        loss = 0.5 * (weight * e * e).sum() / (pairs * o["value_dim"])
        return keys - o["key_lr"] * torch.autograd.grad(loss, keys, retain_graph=True)[0]
    return keys


def forward(cfg, w, x, rows):
    o = {**DEFAULTS, **cfg}
    B, T, _ = x.shape
    eps = rows.model.get("norm_eps", 1e-5)
    q, v, g = fast_memory.inputs(o, w, x, eps)
    q = q.view(B, T, o["num_heads"], 2, o["key_dim"] // 2)
    keys, values = w["keys"].detach().requires_grad_(), w["values"].detach()
    read, entries, chosen = [], [], []
    for begin in range(0, T, o["chunk_size"]):
        part = slice(begin, min(begin + o["chunk_size"], T))
        s = score(o, q[:, part], keys)
        slots, a, vh = retrieve(o, s, values)
        read.append(vh)
        entries.append(largest(s, o["top_k"]))
        chosen.append(slots)
        paired = fast_memory.has_pair(rows, part.start, part.stop, o["lookahead"]).unsqueeze(-1)
        weight = paired * (g[:, part] if o["gate"] and o["weight_by_gate"] else 1.0)
        v_ahead = fast_memory.ahead(v[:, part], o["lookahead"])
        new_keys = written_keys(o, keys, values, q, s, v_ahead, weight, int(paired.sum()))
        values = written_values(o, values, slots, a, weight * (v_ahead - vh))
        if o["grad_through_update"] == "none":
            values = values.detach()
        keys = new_keys if o["grad_through_update"] == "full" and o["key_update"] == "entropy" else new_keys.detach().requires_grad_()
    rows.after[rows.prefix + "keys"], rows.after[rows.prefix + "values"] = keys, values
    rows.inside.update({rows.prefix + "entries": torch.cat(entries, 1), rows.prefix + "slots": torch.cat(chosen, 1)})
    return fast_memory.output(o, w, torch.cat(read, 1), v, g, eps)
