"""Online vector-quantized attention (docs/layers/ovq.md), chunk after chunk of each document."""
import torch

from model import l2_norm, linear, short_conv
from random_stream import Stream


def sizes(cfg):
    """(query heads, key/value heads, head size of keys, head size of values)."""
    H, D = cfg["num_heads"], cfg["head_dim"]
    return H, cfg.get("num_kv_heads", H), D, cfg.get("value_head_dim", D)


def params(cfg, model):
    d, W = model["hidden_size"], cfg.get("qk_conv", 0)
    H, K, D, Dv = sizes(cfg)
    out = {"q_proj.weight": [H * D, d], "k_proj.weight": [K * D, d], "v_proj.weight": [K * Dv, d], "o_proj.weight": [d, H * Dv], "beta": [H]}
    if W:
        out.update({"q_conv.weight": [H * D, W], "k_conv.weight": [K * D, W]})
    if cfg.get("v_shift"):
        out["v_shift"] = [1]
    return out


def size(cfg, N, t):
    """Centroids after t tokens (4.1)."""
    growth = cfg.get("growth", "plateau")
    n = {"plateau": t * N // (t + N) if t else 0, "linear": t * N // (cfg.get("growth_length", 1) + N), "full": t}[growth]
    return 0 if t == 0 else min(N, t, max(1, n))


def assign(keys, centroids, n_new, order, founder):
    """Ids of a chunk's keys [L, D] (4.2, 4.3). order: what decides who founds, smallest first; None: the best similarity."""
    L, n = len(keys), len(centroids)
    if n == 0:
        rest = [j for j in range(L) if j != founder]
        ids = assign(keys[rest], keys[founder:founder + 1], n_new - 1, order and [order[j] for j in rest], None)
        out = [0] * L
        for j, a in zip(rest, ids):
            out[j] = a
        return out
    if L == 0:
        return []
    best, ids = [], []
    for similarity in (keys @ centroids.T).tolist():
        best.append(max(similarity))
        ids.append(similarity.index(best[-1]))  # the smallest of equals
    founders = sorted(sorted(range(L), key=lambda j: ((order or best)[j], j))[:n_new])
    for number, j in enumerate(founders):
        ids[j] = n + number
    return ids


def update(cfg, ids, n, Dk, Dv, count, k, v):
    """The dictionary after a chunk's keys and values joined the rows `ids` of it (4.4); n rows from now on."""
    rate, normalize = cfg.get("centroid_lr", "mean"), cfg.get("normalize_centroids", "none")
    keys, values, counts = [], [], []
    for r in range(n):
        mine = [j for j, a in enumerate(ids) if a == r]
        old = r < len(count)
        c, m = count[r] if old else 0, len(mine)
        counts.append(c + m)
        if m == 0:
            keys.append(Dk[r])
            values.append(Dv[r])
            continue
        weight = m / (c + m) if rate == "mean" else min(1.0, m * rate) if old else 1.0
        mean_k, mean_v = k[mine].mean(0), v[mine].mean(0)
        keys.append(Dk[r] + weight * (mean_k - Dk[r]) if old else mean_k)
        values.append(Dv[r] + weight * (mean_v - Dv[r]) if old else mean_v)
        if normalize != "none":
            keys[-1] = l2_norm(keys[-1])
        if normalize == "key_value":
            values[-1] = l2_norm(values[-1])
    return torch.stack(keys), torch.stack(values), counts


def document(cfg, q, k, v, N, order):
    """q [T, G, D], k [T, D], v [T, Dv] of one document and kv head -> (o [T, G, Dv], ids)."""
    T, L = len(k), cfg.get("chunk_size", 128)
    Dk, Dv, count = k[:0], v[:0], []
    founder = 1 if cfg.get("v_shift") and L > 1 else 0
    o, ids = [], []
    for t0 in range(0, T, L):
        t1 = min(t0 + L, T)
        for i in range(t0, t1):
            keys, values = torch.cat([Dk, k[t0:i + 1]]), torch.cat([Dv, v[t0:i + 1]])
            bias = torch.cat([torch.tensor(count, dtype=torch.float64).log(), torch.zeros(i + 1 - t0)])
            o.append(torch.softmax(q[i] @ keys.T + bias, -1) @ values)
        if t1 - t0 < L:
            ids += [-1] * (t1 - t0)
            continue
        n = size(cfg, N, t1)
        a = assign(k[t0:t1].detach(), Dk.detach(), n - len(count), order and order[t0:t1], founder)
        Dk, Dv, count = update(cfg, a, n, Dk, Dv, count, k[t0:t1], v[t0:t1])
        ids += a
    return torch.stack(o), ids


def forward(cfg, w, x, rows):
    B, T, _ = x.shape
    H, K, D, Dv = sizes(cfg)
    q, k, v = (linear(x, w[name + "_proj.weight"]) for name in "qkv")
    if cfg.get("qk_conv", 0):
        q, k = short_conv(q, w["q_conv.weight"], rows), short_conv(k, w["k_conv.weight"], rows)
    q = w["beta"].unsqueeze(-1) * l2_norm(q.view(B, T, H, D))
    k, v = l2_norm(k.view(B, T, K, D)), v.view(B, T, K, Dv)
    if cfg.get("v_shift"):
        first = (rows.position == 0)[:, :, None, None]
        k_before, v_before = (torch.where(first, torch.zeros(()), torch.cat([a[:, :1], a[:, :-1]], 1)) for a in (k, v))
        s = torch.sigmoid(w["v_shift"])
        k, v = k_before, s * v_before + (1 - s) * v
    N = cfg["max_centroids"] if rows.mode == "train" else cfg.get("eval_max_centroids", cfg["max_centroids"])

    o, assigned = [], torch.full((B, K, T), -1)
    for b in range(B):
        heads = []
        for head in range(K):
            parts = []
            for begin, end in rows.documents(b):
                order = None
                if cfg.get("select", "spread") == "random":
                    order = [Stream(0, f"ovq/{rows.block}/{head}", t).u64() for t in range(end - begin)]
                part, ids = document(cfg, q[b, begin:end, head * H // K:(head + 1) * H // K], k[b, begin:end, head], v[b, begin:end, head], N, order)
                parts.append(part)
                assigned[b, head, begin:end] = torch.tensor(ids)
            heads.append(torch.cat(parts))
        o.append(torch.cat(heads, 1).reshape(T, H * Dv))
    rows.inside[rows.prefix + "assign"] = assigned
    return linear(torch.stack(o), w["o_proj.weight"])
