"""Vector-quantized attention (docs/layers/vq.md) in its quadratic form: plain attention over quantized keys."""
import torch

from model import l2_norm, linear
from ovq import sizes
from random_stream import Stream


def params(cfg, model):
    d = model["hidden_size"]
    H, K, D, Dv = sizes(cfg)
    return {"q_proj.weight": [H * D, d], "k_proj.weight": [K * D, d], "v_proj.weight": [K * Dv, d], "o_proj.weight": [d, H * Dv], "beta": [H],
            "codebook": [K, cfg["codebook_size"], D]}


def fast(cfg, model):
    return {"idle": [cfg.get("num_kv_heads", cfg["num_heads"]), cfg["codebook_size"]]}


def initial(name, shape):
    """Counts of steps, where a case draws the state of a trained model."""
    return torch.randint(120, shape, dtype=torch.int32) if name == "idle" else None


def first_codebook(codebook, k):
    """The codebook that the first quantized step starts from: means of runs of the micro-batch's unit keys k [B, T, K, D]."""
    K, N, D = codebook.shape
    keys = k.detach().flatten(0, 1)  # row-major over rows and positions
    hop = len(keys) // N
    if hop == 0:
        return codebook
    means = keys[:hop * N].view(N, hop, K, D).mean(1).transpose(0, 1)
    return l2_norm(means) + (codebook - codebook.detach())  # the parameter's new value


def direction(difference):
    """(length, direction without gradient)."""
    length = torch.sqrt((difference ** 2).sum(-1, keepdim=True) + 1e-24)
    return length, (difference / length).detach()


def quantize(cfg, k, c, idle, dither):
    """Quantized keys and ids of unit keys k [B, T, D]; c [N, D] unit codewords, idle [N], dither [N - 1]."""
    rho = cfg.get("idle_bonus", 0.0025)
    if cfg.get("quantizer", "sf_diveq") == "diveq":
        a = (k @ c.T + rho * idle).argmax(-1)
        length, u = direction(c[a] - k)
        return k + length * u, a
    p = (1 - dither).unsqueeze(-1) * c[:-1] + dither.unsqueeze(-1) * c[1:]
    a = (k @ p.T - (p ** 2).sum(-1) / 2 + rho * torch.maximum(idle[:-1], idle[1:])).argmax(-1)
    share = dither[a].unsqueeze(-1)
    (length1, u1), (length2, u2) = direction(c[a] - k), direction(c[a + 1] - k)
    return k + length1 * ((1 - share) * u1) + length2 * (share * u2), a


def quantized(cfg, w, k, rows):
    """[B, T, K, D]."""
    after, training = cfg.get("quantize_after", 0), rows.mode == "train"
    if training and rows.step < after:
        return k
    codebook = w["codebook"]
    if training and after > 0 and rows.step == after and not rows.is_later_part:
        codebook = first_codebook(codebook, k)
        rows.restarted[rows.prefix + "codebook"] = codebook.detach()
    c = l2_norm(codebook)
    stream = Stream(rows.seed, f"vq/{rows.block}", rows.step)
    out, ids = [], []
    for head in range(c.shape[0]):
        if training:
            dither = torch.tensor([stream.uniform() for _ in range(c.shape[1] - 1)])
            quantized_keys, a = quantize(cfg, k[:, :, head], c[head], w["idle"][head], dither)
        else:
            a = (k[:, :, head] @ c[head].T).argmax(-1)
            quantized_keys = c[head][a] + 0 * k[:, :, head]  # keys only choose: reached, with a derivative of 0
        out.append(quantized_keys)
        ids.append(a)
    rows.inside[rows.prefix + "assign"] = torch.stack(ids, 1)
    return torch.stack(out, 2)


def forward(cfg, w, x, rows):
    B, T, _ = x.shape
    H, K, D, Dv = sizes(cfg)
    q, k, v = (linear(x, w[name + "_proj.weight"]) for name in "qkv")
    q = w["beta"].unsqueeze(-1) * l2_norm(q.view(B, T, H, D))
    k = quantized(cfg, w, l2_norm(k.view(B, T, K, D)), rows)
    k, v = k.repeat_interleave(H // K, 2), v.view(B, T, K, Dv).repeat_interleave(H // K, 2)
    index = torch.arange(T)
    visible = (index <= index.unsqueeze(-1)) & (index >= rows.start.unsqueeze(-1))  # [B, query, key]
    logits = torch.einsum("bthc,bshc->bhts", q, k).masked_fill(~visible.unsqueeze(1), -float("inf"))
    o = torch.einsum("bhts,bshc->bthc", logits.softmax(-1), v)
    return linear(o.reshape(B, T, H * Dv), w["o_proj.weight"])
