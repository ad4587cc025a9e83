"""The models that hebb is compared with, in PyTorch, for tools/peers/{cpu,gpu}_pytorch.py: transformer and Gated DeltaNet hybrid with
RMSNorm, RoPE and SwiGLU, each beside the configuration of the same model for `hebb bench`."""
import dataclasses

import torch
import torch.nn.functional as F


@dataclasses.dataclass(frozen=True)
class Shape:
    d: int = 256
    blocks: int = 6
    vocab: int = 4096
    ffn: int = 768
    heads: int = 4       # of attention
    head: int = 64
    gdn_heads: int = 4
    gdn_key: int = 64
    gdn_value: int = 64
    period: int = 6      # a hybrid's last block of so many is attention

    def mixers(self, model):
        """"attention" or "gdn" for every block of "transformer", "gdn" or "gdn-hybrid"."""
        if model == "transformer":
            return ["attention"] * self.blocks
        return ["attention" if model == "gdn-hybrid" and i % self.period == self.period - 1 else "gdn" for i in range(self.blocks)]

    def config(self, model):
        """The model for hebb."""
        layers = {"mlp": {"type": "swiglu", "intermediate_size": self.ffn},
                  "attention": {"type": "attention", "num_heads": self.heads, "head_dim": self.head, "rope": {"theta": 10000.0}},
                  "gdn": {"type": "gdn", "num_heads": self.gdn_heads, "key_head_dim": self.gdn_key, "value_head_dim": self.gdn_value, "conv_size": 4}}
        return {"vocab_size": self.vocab, "hidden_size": self.d, "num_layers": self.blocks, "layers": layers,
                "pattern": [{"mixer": mixer, "ffn": "mlp"} for mixer in self.mixers(model)]}


SMALL = Shape()
# 340 million parameters without embeddings: three GDN blocks, then one of attention.
MEDIUM = Shape(d=1024, blocks=24, vocab=32000, ffn=2816, heads=16, head=64, gdn_heads=6, gdn_key=128, gdn_value=256, period=4)


class RmsNorm(torch.nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(d))

    def forward(self, x):
        return (x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5).to(x.dtype)) * self.weight.to(x.dtype)


def rope(x):  # [B, H, T, D]
    t, d = x.shape[-2:]
    angle = torch.arange(t, device=x.device).float()[:, None] * (10000.0 ** (-torch.arange(0, d, 2, device=x.device).float() / d))
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., : d // 2], x[..., d // 2:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def plain_attention(q, k, v):  # [B, H, T, D], causal
    t = q.shape[-2]
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    return s.masked_fill(torch.ones(t, t, dtype=torch.bool, device=q.device).triu(1), float("-inf")).softmax(-1) @ v


def sdpa_attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def best_attention():
    return sdpa_attention if hasattr(F, "scaled_dot_product_attention") else plain_attention


def chunked_delta(q, k, v, g, beta, chunk=64):
    """Gated delta rule in tensor operations, chunk-parallel (docs/layers/gdn.md). q, k [B, T, H, K], k normalised; v [B, T, H, V]; g (log
    decay) and beta [B, T, H]; T a multiple of `chunk`. In fp32, as the recurrence needs it. Returns [B, T, H, V]."""
    b, t, h, dk = k.shape
    dv, c, n, out_dtype = v.shape[-1], chunk, t // chunk, v.dtype
    if t % chunk:
        raise ValueError(f"length: found {t}, expected a multiple of {chunk}")
    q, k, v = (z.float().view(b, n, c, h, -1).permute(0, 3, 1, 2, 4) for z in (q, k, v))  # [B, H, n, C, D]
    gam = g.float().view(b, n, c, h).permute(0, 3, 1, 2).cumsum(-1)
    beta = beta.float().view(b, n, c, h).permute(0, 3, 1, 2)[..., None]
    lower = torch.ones(c, c, dtype=torch.bool, device=q.device).tril()
    decay = (gam[..., :, None] - gam[..., None, :]).masked_fill(~lower, float("-inf")).exp()
    a = (beta * (k @ k.transpose(-1, -2)) * decay).tril(-1)
    eye = torch.eye(c, device=q.device)
    m = torch.linalg.solve_triangular(eye + a, eye.expand_as(a), upper=False, unitriangular=True)
    e = gam.exp()[..., None]
    u, w = m @ (beta * v), m @ (beta * e * k)
    p = (q @ k.transpose(-1, -2)) * decay
    last = gam[..., -1:]
    kd = k * (last - gam).exp()[..., None]
    s, out = k.new_zeros(b, h, dk, dv), []
    for i in range(n):
        delta = u[:, :, i] - w[:, :, i] @ s
        out.append((e[:, :, i] * q[:, :, i]) @ s + p[:, :, i] @ delta)
        s = last[:, :, i, :, None].exp() * s + kd[:, :, i].transpose(-1, -2) @ delta
    return torch.stack(out, 2).permute(0, 2, 3, 1, 4).reshape(b, t, h, dv).to(out_dtype)


class Attention(torch.nn.Module):
    def __init__(self, shape, core):
        super().__init__()
        self.heads, self.head, self.core = shape.heads, shape.head, core
        self.qkv = torch.nn.Linear(shape.d, 3 * shape.heads * shape.head, bias=False)
        self.o = torch.nn.Linear(shape.heads * shape.head, shape.d, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, self.head).permute(2, 0, 3, 1, 4)
        y = self.core(rope(q), rope(k), v)
        return self.o(y.transpose(1, 2).reshape(b, t, -1))


class GatedDelta(torch.nn.Module):
    """Gated DeltaNet: convolution 4, normalised keys, gated RMS output norm. `core` as chunked_delta."""

    def __init__(self, shape, core):
        super().__init__()
        h, d = shape.gdn_heads, shape.d
        self.shape, self.core = shape, core
        self.widths = [h * shape.gdn_key, h * shape.gdn_key, h * shape.gdn_value]
        self.qkv, self.g = torch.nn.Linear(d, sum(self.widths), bias=False), torch.nn.Linear(d, self.widths[2], bias=False)
        self.o = torch.nn.Linear(self.widths[2], d, bias=False)
        self.a, self.b = torch.nn.Linear(d, h, bias=False), torch.nn.Linear(d, h, bias=False)
        self.conv = torch.nn.Conv1d(sum(self.widths), sum(self.widths), 4, groups=sum(self.widths), padding=3, bias=False)
        self.a_log = torch.nn.Parameter(torch.zeros(h))
        self.dt = torch.nn.Parameter(torch.zeros(h))
        self.norm = RmsNorm(shape.gdn_value)

    def forward(self, x):
        b, t, _ = x.shape
        u = F.silu(self.conv(self.qkv(x).transpose(1, 2))[..., :t]).transpose(1, 2)
        q, k, v = (z.reshape(b, t, self.shape.gdn_heads, -1) for z in u.split(self.widths, -1))
        q, k = F.normalize(q, dim=-1) * self.shape.gdn_key ** -0.5, F.normalize(k, dim=-1)
        g = -self.a_log.exp() * F.softplus(self.a(x).float() + self.dt)
        y = self.norm(self.core(q, k, v, g, self.b(x).sigmoid()))
        return self.o(y.reshape(b, t, -1) * F.silu(self.g(x)))


class Block(torch.nn.Module):
    def __init__(self, shape, mixer):
        super().__init__()
        self.n1, self.n2, self.mixer = RmsNorm(shape.d), RmsNorm(shape.d), mixer
        self.gate, self.up, self.down = (torch.nn.Linear(shape.d, shape.ffn, bias=False), torch.nn.Linear(shape.d, shape.ffn, bias=False),
                                         torch.nn.Linear(shape.ffn, shape.d, bias=False))

    def forward(self, h):
        h = h + self.mixer(self.n1(h))
        x = self.n2(h)
        return h + self.down(F.silu(self.gate(x)) * self.up(x))


class Model(torch.nn.Module):
    """`model` as in Shape.mixers. `loss(hidden [N, d], head weight [V, d], targets [N])` replaces product and cross-entropy."""

    def __init__(self, shape, model, attention=None, delta=chunked_delta, loss=None):
        super().__init__()
        attention = attention or best_attention()
        self.embed = torch.nn.Embedding(shape.vocab, shape.d)
        self.blocks = torch.nn.ModuleList(Block(shape, Attention(shape, attention) if m == "attention" else GatedDelta(shape, delta))
                                          for m in shape.mixers(model))
        self.norm, self.head, self.loss = RmsNorm(shape.d), torch.nn.Linear(shape.d, shape.vocab, bias=False), loss

    def forward(self, x, y):
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        h = self.norm(h)
        if self.loss is not None:
            return self.loss(h.flatten(0, 1), self.head.weight, y.flatten())
        return F.cross_entropy(self.head(h).flatten(0, 1).float(), y.flatten())
