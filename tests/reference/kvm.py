"""Key-Value Means (docs/layers/kvm.md): a window of raw keys and a state of summed rows, chunk after chunk of each document."""
import math

import torch
from torch.nn.functional import elu

from attention import normed, option_params, project, rotate, sizes
from model import layer_norm, linear


def params(cfg, model):
    d = model["hidden_size"]
    H, K, D, Dv = sizes(cfg)
    out = {"q_proj.weight": [H * D, d], "k_proj.weight": [K * D, d], "v_proj.weight": [K * Dv, d], "o_proj.weight": [d, H * Dv]}
    out.update(option_params({"qk_norm": "layer", **cfg}, d, H, K, D, Dv))
    out.update({"mem_norm.weight": [D], "mem_norm.bias": [D]})
    if cfg.get("merge_gate", "both") != "none":
        out["merge_gate.weight"] = [K, d]
    if cfg.get("temperatures", True):
        out.update({"window_temp": [H], "state_temp": [H]})
    return out


def wanted(state, seen):
    """Rows that the schedule asks for after `seen` tokens (4.3)."""
    if state["mode"] == "fixed":
        return state["rows"]
    n = state["factor"] * math.pow(seen, state["exponent"]) if state["mode"] == "power" else state["limit"] * seen / (state["limit"] + seen)
    multiple = state.get("multiple", 1)
    return max(math.floor(n) // multiple * multiple, state.get("min_rows", 1))


class State:
    """Rows of one key/value head: sums of memory keys and values, and the length of each row's first value."""

    def __init__(self, cfg, norm, kb, v):
        self.cfg, self.norm = cfg, norm  # norm: LN_s
        self.sk, self.sv, self.rho = list(kb), list(v), list(v.norm(dim=-1))
        self.merged, self.updates = [0] * len(kb), [0] * len(kb)

    def scores(self, kb):
        return kb.detach() @ self.norm(torch.stack(self.sk)).detach().T  # [tokens, rows]

    def update(self, kb, v, kg, vg, chunk):
        """Chunk `chunk` begins: the oldest chunk of the window joins. Returns (row, appended) of each of its tokens."""
        cfg, C, m = self.cfg, len(kb), len(self.sk)
        schedule = cfg["state"]
        available = (chunk - cfg.get("window_chunks", 2) + 1) * C
        rows = min(wanted(schedule, chunk * C), available, schedule.get("max_rows", 0) or available)
        n_append = min(max(rows, m) - m, C)
        score = self.scores(kb).amax(-1).tolist()
        founders = sorted(sorted(range(C), key=lambda j: (score[j], j))[:n_append])
        self.updates = [u + 1 for u in self.updates]
        for j in founders:
            key, value = (kg[j], vg[j]) if cfg.get("gate_appends") else (kb[j], v[j])
            self.sk.append(key)
            self.sv.append(value)
            self.rho.append(value.norm())
            self.merged.append(0)
            self.updates.append(0)
        sinks = cfg.get("sinks", 1)
        target = (self.scores(kb)[:, sinks:].argmax(-1) + sinks).tolist()
        for number, j in enumerate(founders):
            target[j] = m + number
        for j in range(C):
            if j not in founders:
                self.sk[target[j]] = self.sk[target[j]] + kg[j]
                self.sv[target[j]] = self.sv[target[j]] + vg[j]
                self.merged[target[j]] += 1
        return target, [int(j in founders) for j in range(C)]

    def read(self):
        """(keys [m, D], values [m, Dv]) as queries see them (4.6)."""
        sv, kind = torch.stack(self.sv), self.cfg.get("value_norm", "radius")
        if kind == "radius":
            values = torch.stack(self.rho).unsqueeze(-1) * sv / sv.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        else:
            values = sv / (1 + torch.tensor(self.merged if kind == "mean" else self.updates, dtype=torch.float64)).unsqueeze(-1)
        return self.norm(torch.stack(self.sk)), values


def document(cfg, norm, temperatures, q, k, v, kb, kg, vg, scale):
    """One document and key/value head: q [T, G, D] -> (o [T, G, Dv], row of each token, appended). temperatures: (window, state), [G] each."""
    T, C, W = len(k), cfg["chunk_size"], cfg.get("window_chunks", 2)
    state, o, row, append = None, [], [-1] * T, [0] * T
    for c in range((T + C - 1) // C):
        if c >= W:
            old = slice((c - W) * C, (c - W + 1) * C)
            if c == W:
                state = State(cfg, norm, kb[old], v[old])
                row[old], append[old] = list(range(C)), [1] * C
            else:
                row[old], append[old] = state.update(kb[old], v[old], kg[old], vg[old], c)
            state_k, state_v = state.read()
        begin = max(0, (c - W + 1) * C)
        for t in range(c * C, min(T, (c + 1) * C)):
            logits = temperatures[0].unsqueeze(-1) * (q[t] @ k[begin:t + 1].T)
            values = v[begin:t + 1]
            if c >= W:
                logits = torch.cat([temperatures[1].unsqueeze(-1) * (q[t] @ state_k.T), logits], -1)
                values = torch.cat([state_v, values])
            o.append(torch.softmax(scale * logits, -1) @ values)
    return torch.stack(o), row, append


def forward(cfg, w, x, rows):
    cfg = {"qk_norm": "layer", **cfg}
    B, T, _ = x.shape
    H, K, D, Dv = sizes(cfg)
    eps, rope = rows.model.get("norm_eps", 1e-5), cfg.get("rope")
    q, k, v = project(cfg, w, x, rows)
    q, k, scale = normed(cfg, w, q, k, eps)
    if rope:
        q, k = rotate(q, rows.position, rope), rotate(k, rows.position, rope)

    def norm(a):
        return layer_norm(a, w["mem_norm.weight"], w["mem_norm.bias"], eps)

    unrotated = (torch.arange(D) >= (rope["dims"] if rope else 0)).double()
    kb = norm(k * unrotated)
    kind = cfg.get("merge_gate", "both")
    g = 1 + elu(linear(x, w["merge_gate.weight"])).unsqueeze(-1) if kind != "none" else torch.ones(())
    kg, vg = kb * g if kind in ("both", "keys") else kb, v * g if kind in ("both", "values") else v
    ones = torch.ones(H)
    window, state = (w["window_temp"], w["state_temp"]) if cfg.get("temperatures", True) else (ones, ones)

    o, row, append = [], torch.full((B, K, T), -1), torch.zeros(B, K, T, dtype=torch.int64)
    for b in range(B):
        heads = []
        for n in range(K):
            group, parts = slice(n * H // K, (n + 1) * H // K), []
            for begin, end in rows.documents(b):
                own = slice(begin, end)
                part, row[b, n, own], append[b, n, own] = (torch.tensor(a) if isinstance(a, list) else a for a in document(
                    cfg, norm, (window[group], state[group]), q[b, own, group], k[b, own, n], v[b, own, n], kb[b, own, n], kg[b, own, n], vg[b, own, n], scale))
                parts.append(part)
            heads.append(torch.cat(parts))
        o.append(torch.cat(heads, 1).reshape(T, H * Dv))
    rows.inside.update({rows.prefix + "row": row, rows.prefix + "append": append})
    return linear(torch.stack(o), w["o_proj.weight"])
