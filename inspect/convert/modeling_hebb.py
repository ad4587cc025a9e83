"""Models of hebb in plain PyTorch: every layer type, built from the `model` object of a configuration.

The formulas are those of hebb's pages docs/model.md and docs/layers/*.md, in the symbols of the papers; nothing here is fast. `hebb convert --to pytorch`
writes this file beside the weights, and hebb's own tests compare the program with it. There are two ways in:

    AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)     transformers: HebbForCausalLM, at the end
    load(FOLDER)                                                            torch and safetensors alone: Hebb

Shapes: B sequences of T tokens, d = hidden_size, V = vocab_size. A linear layer computes y = x Wᵀ + b. `model.train()` follows the rules of training,
`model.eval()` those of evaluation; they differ in `vq` (quantizers) and `ovq` (size of the dictionary).

A layer is called with (x [B, T, d], rows, state). `rows` says where documents begin. `state` is a dict of tensors that the layer reads where the same
text goes on, and writes: what a decoder carries from call to call. An empty dict is the beginning. The same code runs whole rows and single tokens.
Numbers are computed in the type of the weights, and in fp32 where that has fewer bits.
"""
import json
import math
import os

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

IGNORED = -100


# ---- rows, states, random streams ----------------------------------------------------------------------------------


class Rows:
    """Documents of the tokens of one call, and what layers leave for each other and for the caller."""

    def __init__(self, model, batch, length, doc_ids=None, state=None, training=False, seed=0, step=0, device=None):
        self.model, self.training, self.seed, self.step = model, training, seed, step
        self.state = state  # of a stream; None: whole rows from their beginning
        index = torch.arange(length, device=device).expand(batch, length)
        begins = torch.zeros(batch, length, dtype=torch.bool, device=device)
        begins[:, :1] = True
        if doc_ids is not None:
            begins[:, 1:] = doc_ids[:, 1:] != doc_ids[:, :-1]
        before = torch.zeros(batch, dtype=torch.int64, device=device)  # tokens of the document before this call
        if state is not None and state.position is not None:
            goes_on = torch.ones_like(begins[:, 0]) if doc_ids is None or state.doc_id is None else doc_ids[:, 0] == state.doc_id
            begins[:, 0] = ~goes_on
            before = torch.where(goes_on, state.position, before)
        self.offset = 0 if state is None else state.length  # tokens of the stream before this call
        first = torch.where(begins, index, torch.where(index == 0, -before.unsqueeze(1), torch.full_like(index, -2 ** 62)))
        self.start = first.cummax(1).values  # [B, T]: where the token's document begins; negative: in an earlier call
        self.position = index - self.start  # [B, T], within the document
        self.begins = begins
        self.begins_at = begins.any(0).tolist()  # [T]
        self.is_later_part = False  # of a step's micro-batches this is not the first
        self.embedded = None  # embeddings after their norm [B, T, d]
        self.norm = None  # of the block that runs, before its mixer
        self.block = 0  # index of the block that runs
        self.shared = {}  # what a layer leaves for later blocks
        self.after = {}  # fast weights after the rows, by full name
        self.restarted = {}  # parameters that begin anew, by full name
        self.inside = {}  # decisions and scores, by full name: docs/verbs/trace.md, Decisions

    def documents(self, b):
        """[(begin, end, whether it began in an earlier call)] of row b."""
        T = self.position.shape[1]
        firsts = [0] + [t for t in self.begins[b].nonzero().flatten().tolist() if t > 0]
        return [(begin, end, not bool(self.begins[b, begin])) for begin, end in zip(firsts, firsts[1:] + [T])]

    def with_past(self, x, state, name, count):
        """x [B, T, c] behind the `count` tokens before it: [B, count + T, c]; zeros before the first call."""
        seen = torch.cat([state[name] if name in state else x.new_zeros(x.shape[0], count, x.shape[2]), x], 1)
        state[name] = seen[:, x.shape[1]:]
        return seen

    def restarted_at(self, t, S, first):
        """The state S [B, ...] before token t: `first` [...] where a document begins. S None: there was no token yet."""
        if S is None:
            return first.expand(len(self.begins), *first.shape)
        if not self.begins_at[t]:
            return S
        return torch.where(self.begins[:, t].view(-1, *[1] * first.dim()), first, S)


def mapped(value, change):
    """Nested dicts and lists with change(tensor) for each tensor."""
    if isinstance(value, dict):
        return {key: mapped(v, change) for key, v in value.items()}
    if isinstance(value, list):
        return [mapped(v, change) for v in value]
    return change(value) if isinstance(value, torch.Tensor) else value


class State:
    """What a model carries from call to call: `blocks[i][role]` is the dict of one layer, role "memory", "mixer" or "ffn".

    Values are tensors with the sequence first, or lists with an entry a sequence (layers that follow each document's own chunks). They may be read and
    replaced between calls.
    """

    def __init__(self, num_layers):
        self.blocks = [{"memory": {}, "mixer": {}, "ffn": {}} for _ in range(num_layers)]
        self.length = 0  # tokens seen
        self.position, self.doc_id = None, None  # [B] of the next token

    def copy(self):
        other = State(0)
        other.__dict__.update(mapped(self.__dict__, torch.clone))
        return other

    def reorder(self, index):
        """Sequence i becomes what sequence index[i] was (beam search)."""
        def pick(value):
            if isinstance(value, torch.Tensor):
                return value[index.to(value.device)]
            return [mapped(value[i], torch.clone) for i in index.tolist()] if isinstance(value, list) else value

        for block in self.blocks:
            for layer in block.values():
                if "fast" in layer:
                    raise ValueError("beam search: the fast weights of fwpkm and fwmlp are shared by all sequences")
                layer.update({name: pick(value) for name, value in layer.items()})
        self.position, self.doc_id = pick(self.position), pick(self.doc_id)

    def reorder_cache(self, index):
        self.reorder(index)

    def get_seq_length(self, *_):
        return self.length


M32, M64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF


def fnv1a64(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = ((h ^ byte) * 0x100000001B3) & M64
    return h


def mix64(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & M64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M64
    return z ^ (z >> 31)


def philox(counter, key):
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & M32, (p0 >> 32) ^ c3 ^ k1, p0 & M32
        k0, k1 = (k0 + 0x9E3779B9) & M32, (k1 + 0xBB67AE85) & M32
    return c0, c1, c2, c3


class Stream:
    """Random streams (docs/random-streams.md): Philox4x32-10 keyed by a seed and a label, counted by an index."""

    def __init__(self, seed, label, index=0):
        key = mix64((seed & M64) ^ fnv1a64(label.encode()))
        self.key, self.index, self.block, self.words = (key & M32, key >> 32), index, 0, []

    def u32(self):
        if not self.words:
            counter = (self.block & M32, self.block >> 32, self.index & M32, self.index >> 32)
            self.words = list(philox(counter, self.key))
            self.block += 1
        return self.words.pop(0)

    def u64(self):
        low = self.u32()
        return low + (self.u32() << 32)

    def uniform(self):
        return (self.u64() >> 11) * 2.0 ** -53


# ---- parts of layers -----------------------------------------------------------------------------------------------


class Linear(nn.Linear):
    """y = x Wᵀ + b in the type of x."""

    def __init__(self, inputs, outputs, bias=False):
        super().__init__(inputs, outputs, bias)

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))


class RmsNorm(nn.Module):
    """x / sqrt(mean(x²) + eps) w;  unit_offset: (1 + w)."""

    def __init__(self, size, eps, unit_offset=False):
        super().__init__()
        self.eps, self.unit_offset = eps, unit_offset
        self.weight = nn.Parameter(torch.zeros(size) if unit_offset else torch.ones(size))

    def forward(self, x):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.eps) * (1 + self.weight if self.unit_offset else self.weight)


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(var + eps) w + b."""

    def __init__(self, size, eps):
        super().__init__()
        self.eps = eps
        self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        return centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + self.eps) * self.weight + self.bias


def block_norm(model):
    """A norm over d channels of the kind that the model has."""
    kind, eps = model.get("norm", "rms"), model.get("norm_eps", 1e-5)
    return LayerNorm(model["hidden_size"], eps) if kind == "layer" else RmsNorm(model["hidden_size"], eps, kind == "rms_unit_offset")


def l2_norm(x):
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6)


class ShortConv(nn.Module):
    """Causal convolution of each channel, zeros before a document: y_t = sum_j weight[:, K - 1 - j] x_{t - j} + bias."""

    def __init__(self, channels, size, bias=False):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(channels, size))  # [c, K]
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None

    def forward(self, x, rows, state, name):
        T, K = x.shape[1], self.weight.shape[1]
        seen = rows.with_past(x, state, name, K - 1)  # [B, K - 1 + T, c]
        y = torch.zeros_like(x)
        for j in range(K):
            inside = (rows.position >= j).unsqueeze(-1)
            y = y + torch.where(inside, seen[:, K - 1 - j:K - 1 - j + T], 0) * self.weight[:, K - 1 - j]
        return y if self.bias is None else y + self.bias


def vector(size, value=0.0):
    return nn.Parameter(torch.full((size,), value))


def activation(kind, x):
    return F.silu(x) if kind == "silu" else torch.sigmoid(x) if kind == "sigmoid" else x


def largest(scores, k):
    """Indices of the k largest along the last dimension, the best first; ties go to the lower index."""
    return scores.detach().sort(stable=True, dim=-1, descending=True).indices[..., :k]


def best_pairs(s1, s2, k):
    """Product keys: slot i n + j has the score s1[i] + s2[j]. s1, s2 [..., n] -> i, j [..., k] of the best, the best first; ties: the lower slot."""
    c = min(k, s1.shape[-1])
    i, j = largest(s1, c).sort(-1).values, largest(s2, c).sort(-1).values
    sums = s1.gather(-1, i).unsqueeze(-1) + s2.gather(-1, j).unsqueeze(-2)  # [..., c, c], ascending by slot
    chosen = largest(sums.flatten(-2), k)
    return i.gather(-1, torch.div(chosen, c, rounding_mode="floor")), j.gather(-1, chosen % c)


def frequencies(rope, R):
    """(one frequency for each pair of the R rotated channels, factor of cos and sin): docs/layers/attention.md, Rotary positions."""
    theta = rope["theta"]
    if rope.get("endpoint"):
        return torch.tensor([theta ** (-i / (R // 2 - 1)) for i in range(R // 2)], dtype=torch.float64), 1.0
    plain = [theta ** (-2 * i / R) for i in range(R // 2)]
    llama3, yarn = rope.get("llama3"), rope.get("yarn")
    if llama3 is not None:
        low, high, f = llama3["low_freq_factor"], llama3["high_freq_factor"], llama3["factor"]
        turns = [llama3["original"] * p / (2 * math.pi) for p in plain]
        kept = [min(max((t - low) / (high - low), 0.0), 1.0) for t in turns]
        return torch.tensor([p * (s + (1 - s) / f) for p, s in zip(plain, kept)], dtype=torch.float64), 1.0
    if yarn is None:
        return torch.tensor(plain, dtype=torch.float64), 1.0
    f = yarn["factor"]

    def dim(turns):
        return R * math.log(yarn["original"] / (2 * math.pi * turns)) / (2 * math.log(theta))

    low, high = dim(yarn.get("beta_fast", 32)), dim(yarn.get("beta_slow", 1))
    if yarn.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, R - 1)
    if low == high:
        high += 0.001
    slow = [min(max((i - low) / (high - low), 0.0), 1.0) for i in range(R // 2)]
    return torch.tensor([p * ((1 - s) + s / f) for p, s in zip(plain, slow)], dtype=torch.float64), yarn.get("attention_factor", 0.1 * math.log(f) + 1)


def rotate(x, position, rope):
    """RoPE. x [B, T, heads, D], position [B, T]; the first `dims` channels turn, channel i with channel i + dims / 2."""
    R = rope.get("dims", x.shape[-1])
    freq, factor = frequencies(rope, R)
    angle = position.to(torch.float64)[:, :, None, None] * freq.to(x.device)  # [B, T, 1, R / 2]
    cos, sin = (factor * angle.cos()).to(x.dtype), (factor * angle.sin()).to(x.dtype)
    a, b = x[..., :R // 2], x[..., R // 2:R]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., R:]], -1)


class Layer(nn.Module):
    """path: how full names of the layer's tensors begin, such as "blocks.0.mixer."."""

    def __init__(self, cfg, model, path):
        super().__init__()
        self.cfg, self.d, self.eps, self.path = cfg, model["hidden_size"], model.get("norm_eps", 1e-5), path


# ---- attention -----------------------------------------------------------------------------------------------------


class Projections(Layer):
    """q, k and v of `attention` and `kvm`: projections, value residual, token shift, norms per head."""

    def __init__(self, cfg, model, path):
        super().__init__(cfg, model, path)
        d, H, D = self.d, cfg["num_heads"], cfg["head_dim"]
        K, Dv = cfg.get("num_kv_heads", H), cfg.get("value_head_dim", D)
        self.heads = H, K, D, Dv
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = Linear(d, H * D), Linear(d, K * D), Linear(d, K * Dv), Linear(H * Dv, d)
        if cfg.get("token_shift"):
            self.q_shift, self.k_shift, self.v_shift = vector(H * D), vector(K * D), vector(K * Dv)
        residual = cfg.get("value_residual", "none")
        if residual == "lambda":
            self.vres_lambda = vector(K * Dv, 0.5)
        if residual == "gated":
            rank = cfg.get("value_residual_rank", 32)
            self.vres_down, self.vres_up, self.vres_bias = Linear(d, rank), Linear(rank, K * Dv), vector(K * Dv)
        kind = cfg.get("qk_norm", "none")
        if kind in ("rms", "layer"):
            norm = RmsNorm if kind == "rms" else LayerNorm
            self.q_norm, self.k_norm = norm(D, self.eps), norm(D, self.eps)
        if kind == "l2":
            self.beta = vector(H, D ** 0.5)

    def value_residual(self, x, v, rows):
        """v + lambda (v_first - v). The first block of a group gives v_first; each layer chooses from which of that block's inputs."""
        kind = self.cfg.get("value_residual", "none")
        if kind == "none":
            return v
        key = "value residual " + self.cfg.get("value_residual_group", "main")
        norm, v_proj, v_first = rows.shared.setdefault(key, (rows.norm, self.v_proj, v))
        if self.cfg.get("value_residual_source", "first") == "embedding":
            v_first = v_proj(norm(rows.embedded))
        share = self.vres_lambda if kind == "lambda" else torch.sigmoid(self.vres_bias + self.vres_up(self.vres_down(x)))
        return v + share * (v_first - v)

    def project(self, x, rows, state):
        """q [B, T, H, D], k [B, T, K, D], v [B, T, K, Dv] before norms and positions."""
        B, T, _ = x.shape
        H, K, D, Dv = self.heads
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        v = self.value_residual(x, v, rows)

        def shifted(a, mu, name):  # a_t + mu (a_{t-1} - a_t);  a_{-1} = a_0
            before = rows.with_past(a, state, name, 1)[:, :T]
            return a + mu * (torch.where((rows.position == 0).unsqueeze(-1), a, before) - a)

        if self.cfg.get("token_shift"):
            q, k, v = shifted(q, self.q_shift, "last_q"), shifted(k, self.k_shift, "last_k"), shifted(v, self.v_shift, "last_v")
        return q.view(B, T, H, D), k.view(B, T, K, D), v.view(B, T, K, Dv)

    def normed(self, q, k):
        """(q, k, scale of the logits)."""
        kind, scale = self.cfg.get("qk_norm", "none"), q.shape[-1] ** -0.5
        if kind in ("rms", "layer"):
            return self.q_norm(q), self.k_norm(k), scale
        if kind == "l2":
            return self.beta.unsqueeze(-1) * l2_norm(q), l2_norm(k), 1.0
        return q, k, scale


class Attention(Projections):
    """Softmax attention (docs/layers/attention.md). State: `k`, `v` of the tokens that later ones may see, k after norm and rotation."""

    def __init__(self, cfg, model, path):
        super().__init__(cfg, model, path)
        H, _, _, Dv = self.heads
        if cfg.get("gate", "none") != "none":
            self.gate_proj = Linear(self.d, H if cfg["gate"] == "head" else H * Dv)

    def visible_keys(self, rows, S):
        """[B, T, S], query by key, of the last S tokens."""
        T = rows.position.shape[1]
        i, j = torch.arange(T, device=rows.position.device).unsqueeze(1), torch.arange(T - S, T, device=rows.position.device)
        out = (j <= i) & (j >= rows.start.unsqueeze(-1))
        if self.cfg.get("window", 0) > 0:
            out = out & (i - j < self.cfg["window"])
        if self.cfg.get("block_window"):
            size, blocks = self.cfg["block_window"]["size"], self.cfg["block_window"]["blocks"]
            key_block = torch.div(j - rows.start.unsqueeze(-1), size, rounding_mode="floor")  # in the query's document
            out = out & (key_block > (rows.position // size).unsqueeze(-1) - blocks)
        return out

    def forward(self, x, rows, state):
        B, T, _ = x.shape
        H, K, D, Dv = self.heads
        q, k, v = self.project(x, rows, state)
        q, k, scale = self.normed(q, k)
        if self.cfg.get("rope"):
            q, k = rotate(q, rows.position, self.cfg["rope"]), rotate(k, rows.position, self.cfg["rope"])
        if "k" in state:
            k, v = torch.cat([state["k"], k], 1), torch.cat([state["v"], v], 1)
        held = self.cfg["window"] - 1 if self.cfg.get("window", 0) > 0 else k.shape[1]  # tokens that later ones may see
        if self.cfg.get("block_window"):
            held = self.cfg["block_window"]["size"] * self.cfg["block_window"]["blocks"]
        state["k"], state["v"] = k[:, max(k.shape[1] - held, 0):], v[:, max(k.shape[1] - held, 0):]

        scores = scale * torch.einsum("btkgd,bskd->bkgts", q.view(B, T, K, H // K, D), k)  # query head h reads kv head h / (H / K)
        p = scores.masked_fill(~self.visible_keys(rows, k.shape[1])[:, None, None], -float("inf")).softmax(-1)
        o = torch.einsum("bkgts,bskd->btkgd", p, v).reshape(B, T, H, Dv)
        if self.cfg.get("gate", "none") != "none":
            o = o * torch.sigmoid(self.gate_proj(x)).view(B, T, H, -1)
        return self.o_proj(o.reshape(B, T, H * Dv))


# ---- recurrences ---------------------------------------------------------------------------------------------------


def scan(tokens, states, step, is_long):
    """outputs, states = step(t, states) for each of a slice of tokens: ([each output, B, T, ...], states). Of a long text with gradients the states inside
    of parts of 64 tokens are computed again in the backward pass, so that memory holds one state for each part."""
    def part(begin, end, states):
        outputs = []
        for t in range(begin, end):
            output, states = step(t, states)
            outputs.append(output)
        return [torch.stack(o, 1) for o in zip(*outputs)], states

    parts = []
    for begin in range(tokens.start, tokens.stop, 64):
        end = min(begin + 64, tokens.stop)
        if torch.is_grad_enabled() and is_long:
            output, states = checkpoint(part, begin, end, states, use_reentrant=False, preserve_rng_state=False)
        else:
            output, states = part(begin, end, states)
        parts.append(output)
    return [torch.cat(o, 1) for o in zip(*parts)], states


def convolved(layer, name, x, rows, state):
    """Projection, convolution if any, activation: [B, T, channels]. State: the last K - 1 raw projections."""
    y = getattr(layer, name + "_proj")(x)
    if layer.cfg.get("conv_size", 4):
        y = getattr(layer, name + "_conv")(y, rows, state, name + "_conv")
    return activation(layer.cfg.get("activation", "silu"), y)


class Gdn(Layer):
    """Gated DeltaNet (docs/layers/gdn.md). State: `S` [B, HV, dk, dv] and the inputs of the convolutions."""

    def __init__(self, cfg, model, path):
        super().__init__(cfg, model, path)
        d, H, dk, dv = self.d, cfg["num_heads"], cfg["key_head_dim"], cfg["value_head_dim"]
        HV, K = cfg.get("num_value_heads", H), cfg.get("conv_size", 4)
        self.sizes = H, HV, dk, dv
        for name, n in (("q", H * dk), ("k", H * dk), ("v", HV * dv)):
            setattr(self, name + "_proj", Linear(d, n))
            if K:
                setattr(self, name + "_conv", ShortConv(n, K, cfg.get("conv_bias")))
        self.a_proj, self.b_proj, self.o_proj = Linear(d, HV), Linear(d, HV), Linear(HV * dv, d)
        self.A_log, self.dt_bias = vector(HV), vector(HV)
        if cfg.get("output_gate", "silu") != "none":
            self.g_proj = Linear(d, HV * dv)
        if cfg.get("output_norm", "rms") != "none":
            self.o_norm = RmsNorm(dv, self.eps)
        if cfg.get("initial_state") == "learned":
            self.initial_state = nn.Parameter(torch.zeros(HV, dk, dv))

    def forward(self, x, rows, state):
        B, T, _ = x.shape
        H, HV, dk, dv = self.sizes
        q, k, v = (convolved(self, name, x, rows, state) for name in "qkv")
        q, k, v = q.view(B, T, H, dk), k.view(B, T, H, dk), v.view(B, T, HV, dv)
        if self.cfg.get("qk_norm", "l2") == "l2":
            q, k = l2_norm(q), l2_norm(k)
        q, k = (a.repeat_interleave(HV // H, 2) for a in (q * dk ** -0.5, k))  # [B, T, HV, dk]
        alpha = torch.exp(-torch.exp(self.A_log) * F.softplus(self.a_proj(x) + self.dt_bias))  # [B, T, HV]
        beta = torch.sigmoid(self.b_proj(x)) * (2 if self.cfg.get("allow_neg_eigval") else 1)

        first = self.initial_state.to(x.dtype) if self.cfg.get("initial_state") == "learned" else x.new_zeros(HV, dk, dv)

        def step(t, S):
            S = rows.restarted_at(t, S, first)
            S = alpha[:, t, :, None, None] * S
            delta = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhk,bhkv->bhv", k[:, t], S))
            S = S + k[:, t].unsqueeze(-1) * delta.unsqueeze(-2)
            return [torch.einsum("bhk,bhkv->bhv", q[:, t], S)], S

        (o,), state["S"] = scan(slice(0, T), state.get("S"), step, T > 64)  # [B, T, HV, dv]

        if self.cfg.get("output_norm", "rms") == "rms":
            o = self.o_norm(o)
        o = o.reshape(B, T, HV * dv)
        if self.cfg.get("output_gate", "silu") != "none":
            o = o * activation(self.cfg.get("output_gate", "silu"), self.g_proj(x))
        return self.o_proj(o)


class Mamba2(Layer):
    """Mamba-2 (docs/layers/mamba2.md). State: `S` [B, H, N, P] and the inputs of the convolutions."""

    def __init__(self, cfg, model, path):
        super().__init__(cfg, model, path)
        d, H, P, N, G, K = self.d, cfg["num_heads"], cfg["head_dim"], cfg["state_dim"], cfg["num_groups"], cfg.get("conv_size", 4)
        for name, n in (("x", H * P), ("B", G * N), ("C", G * N)):
            setattr(self, name + "_proj", Linear(d, n))
            if K:
                setattr(self, name + "_conv", ShortConv(n, K, cfg.get("conv_bias", True)))
        self.dt_proj, self.o_proj = Linear(d, H), Linear(H * P, d)
        self.A_log, self.dt_bias = vector(H), vector(H)
        if cfg.get("output_gate", "silu") != "none":
            self.z_proj = Linear(d, H * P)
        if cfg.get("output_norm", "rms") != "none":
            self.o_norm = RmsNorm(H * P, self.eps)
        if cfg.get("skip", "head") != "none":
            self.D = vector(H if cfg.get("skip", "head") == "head" else H * P, 1.0)
        if cfg.get("initial_state") == "learned":
            self.initial_state = nn.Parameter(torch.zeros(H, N, P))

    def grouped_norm(self, y):
        """One mean square for each of `norm_groups` groups of channels; y [B, T, H P]."""
        groups = self.cfg.get("norm_groups", self.cfg["num_groups"])
        parts = y.view(*y.shape[:-1], groups, -1)
        return (parts / torch.sqrt((parts * parts).mean(-1, keepdim=True) + self.eps) * self.o_norm.weight.view(groups, -1)).reshape(y.shape)

    def forward(self, X, rows, state):
        batch, T, _ = X.shape
        H, P, N, G = self.cfg["num_heads"], self.cfg["head_dim"], self.cfg["state_dim"], self.cfg["num_groups"]
        x, Bm, Cm = (convolved(self, name, X, rows, state) for name in "xBC")
        x = x.view(batch, T, H, P)
        Bm, Cm = (a.view(batch, T, G, N).repeat_interleave(H // G, 2) for a in (Bm, Cm))  # [B, T, H, N]
        low, high = self.cfg.get("dt_limit", [0.0, None])
        dt = torch.clamp(F.softplus(self.dt_proj(X) + self.dt_bias), low, high)  # [B, T, H]
        a = torch.exp(-dt * torch.exp(self.A_log))

        first = self.initial_state.to(X.dtype) if self.cfg.get("initial_state") == "learned" else X.new_zeros(H, N, P)

        def step(t, S):
            S = rows.restarted_at(t, S, first)
            S = a[:, t, :, None, None] * S + dt[:, t, :, None, None] * Bm[:, t].unsqueeze(-1) * x[:, t].unsqueeze(-2)
            return [torch.einsum("bhn,bhnp->bhp", Cm[:, t], S)], S

        (y,), state["S"] = scan(slice(0, T), state.get("S"), step, T > 64)  # [B, T, H, P]
        if self.cfg.get("skip", "head") != "none":
            y = y + self.D.view(H, -1) * x
        y = y.reshape(batch, T, H * P)
        has_norm, norm_first = self.cfg.get("output_norm", "rms") == "rms", self.cfg.get("norm_before_gate", False)
        if has_norm and norm_first:
            y = self.grouped_norm(y)
        if self.cfg.get("output_gate", "silu") == "silu":
            y = y * F.silu(self.z_proj(X))
        if has_norm and not norm_first:
            y = self.grouped_norm(y)
        return self.o_proj(y)


class ConjugateGradients(torch.autograd.Function):
    """s = b A⁻¹ by `steps` steps, None: exactly. The derivative is implicit, one more solve: db = A⁻¹ ds, dA = -(A⁻¹ ds)ᵀ s."""

    @staticmethod
    def forward(ctx, A, b, steps, epsilon):  # A [B, H, dk, dk] symmetric, b [B, H, dk]
        s = conjugate_gradients(A, b, steps, epsilon)
        ctx.save_for_backward(A, s)
        ctx.steps, ctx.epsilon = steps, epsilon
        return s

    @staticmethod
    def backward(ctx, d_s):
        A, s = ctx.saved_tensors
        w = conjugate_gradients(A, d_s, ctx.steps, ctx.epsilon)
        return -w.unsqueeze(-1) * s.unsqueeze(-2), w, None, None


def conjugate_gradients(A, b, steps, epsilon):
    if steps is None:
        return torch.linalg.solve(A, b.unsqueeze(-1)).squeeze(-1)
    s, r, p = torch.zeros_like(b), b.clone(), b.clone()
    delta = (r * r).sum(-1, keepdim=True)
    first, damping, one = delta.clone(), epsilon * delta, b.new_ones(())
    for _ in range(steps):
        runs = delta > 2.0 ** -104 * first  # the others are frozen
        t = torch.einsum("bhi,bhij->bhj", p, A)
        alpha = delta / torch.where(runs, (p * t).sum(-1, keepdim=True) + damping, one)
        s = torch.where(runs, s + alpha * p, s)
        r = torch.where(runs, r - alpha * t, r)
        new = (r * r).sum(-1, keepdim=True)
        p = torch.where(runs, r + new / torch.where(runs, delta + damping, one) * p, p)
        delta = torch.where(runs, new, delta)
    return s


class MesaNet(Layer):
    """MesaNet (docs/layers/mesanet.md). State: `R` [B, H, dk, dk], `S` [B, H, dk, dv] and the inputs of the convolutions."""

    def __init__(self, cfg, model, path):
        super().__init__(cfg, model, path)
        d, H, dk, K = self.d, cfg["num_heads"], cfg["key_head_dim"], cfg.get("conv_size", 4)
        dv = cfg.get("value_head_dim", dk)
        self.sizes = H, dk, dv
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = Linear(d, H * dk), Linear(d, H * dk), Linear(d, H * dv), Linear(H * dv, d)
        self.a_proj, self.b_proj = Linear(d, H, True), Linear(d, H, True)
        self.lambda_raw = nn.Parameter(torch.zeros(H, dk))
        if K:
            self.q_conv, self.k_conv = ShortConv(H * dk, K, cfg.get("conv_bias")), ShortConv(H * dk, K, cfg.get("conv_bias"))
        if cfg.get("output_gate", "none") != "none":
            self.g_proj = Linear(d, H * dv)
        if cfg.get("output_norm", "rms") != "none":
            self.o_norm = RmsNorm(dv, self.eps)

    def forward(self, x, rows, state):
        B, T, _ = x.shape
        H, dk, dv = self.sizes
        q, k = (convolved(self, name, x, rows, state).view(B, T, H, dk) for name in "qk")
        if self.cfg.get("qk_norm", "l2") == "l2":
            q, k = l2_norm(q), l2_norm(k)
        v = self.v_proj(x).view(B, T, H, dv)
        decay = torch.sigmoid(self.a_proj(x))  # [B, T, H]
        beta = torch.sigmoid(self.b_proj(x))
        ridge = torch.diag_embed(self.cfg.get("lambda_min", 0.25) + F.softplus(self.lambda_raw)).to(x.dtype)  # [H, dk, dk]
        steps = self.cfg.get("cg_steps", 30)
        if rows.state is not None and T == 1:
            steps = self.cfg.get("cg_steps_decode", steps)
        if self.cfg.get("solver", "cg") == "exact":
            steps = None

        def step(t, states):
            R, S = (rows.restarted_at(t, a, x.new_zeros(H, dk, n)) for a, n in zip(states, (dk, dv)))
            write = beta[:, t, :, None, None] * k[:, t].unsqueeze(-1)
            R = decay[:, t, :, None, None] * R + write * k[:, t].unsqueeze(-2)
            S = decay[:, t, :, None, None] * S + write * v[:, t].unsqueeze(-2)
            s = ConjugateGradients.apply(R + ridge, q[:, t], steps, self.cfg.get("cg_epsilon", 0.0))
            return [torch.einsum("bhk,bhkv->bhv", s, S)], (R, S)

        (o,), (state["R"], state["S"]) = scan(slice(0, T), (state.get("R"), state.get("S")), step, T > 64)  # o [B, T, H, dv]

        if self.cfg.get("output_norm", "rms") == "rms":
            o = self.o_norm(o)
        o = o.reshape(B, T, H * dv)
        if self.cfg.get("output_gate", "none") != "none":
            o = o * activation(self.cfg["output_gate"], self.g_proj(x))
        return self.o_proj(o)


class Sdm(Layer):
    """Sparse delta memory (docs/layers/sdm.md, Update). State: `M` [B, H, N, D], the slot tables."""

    def __init__(self, cfg, model, path):
        super().__init__(cfg, model, path)
        d, H, N = self.d, cfg.get("num_heads", 1), cfg["slots_per_head"]
        n, D, bias = math.isqrt(N), cfg.get("value_head_dim", d // H), cfg.get("bias", False)
        self.sizes = H, N, n, D
        self.q_proj, self.k_proj, self.v_proj = Linear(d, 2 * n * H, bias), Linear(d, 2 * n * H, bias), Linear(d, H * D, bias)
        self.a_proj, self.b_proj, self.o_proj = Linear(d, H, bias), Linear(d, H, bias), Linear(H * D, d, bias)
        if cfg.get("out_gate", "sigmoid") != "none":
            self.g_proj = Linear(d, H * D, bias)
        self.A_log, self.dt_bias = vector(H), vector(H)
        norm = cfg.get("out_norm", "rms")
        if norm != "none":
            self.o_norm = (RmsNorm if norm == "rms" else LayerNorm)(D, cfg.get("out_norm_eps", 1e-6))
        if cfg.get("learned_init", True):
            self.memory = nn.Parameter(torch.zeros(H, N, D))

    def address(self, what, scores):
        """scores [B, T, H, 2 n] -> slots, ascending, and their weights [B, T, H, k]; what: "write" or "read"."""
        _, _, n, _ = self.sizes
        s1, s2 = scores[..., :n], scores[..., n:]
        i, j = best_pairs(s1, s2, self.cfg[f"num_{what}s"])
        slots = (i * n + j).sort(-1).values
        s = s1.gather(-1, torch.div(slots, n, rounding_mode="floor")) + s2.gather(-1, slots % n)
        kind = self.cfg.get(what + "_activation", "softmax")
        if kind == "softmax":
            return slots, (self.cfg.get(what + "_scale", 1.0) * s).softmax(-1)
        return slots, s / (s.norm(dim=-1, keepdim=True) + 1e-12) if kind == "l2" else s

    def forward(self, x, rows, state):
        B, T, _ = x.shape
        H, N, n, D = self.sizes
        write_slots, k = self.address("write", self.k_proj(x).view(B, T, H, 2 * n))
        read_slots, q = self.address("read", self.q_proj(x).view(B, T, H, 2 * n))
        rows.inside.update({self.path + "write_slots": write_slots, self.path + "read_slots": read_slots,
                            self.path + "write_weights": k.detach(), self.path + "read_weights": q.detach()})
        v = self.v_proj(x).view(B, T, H, D)
        g = -self.A_log.exp() * F.softplus(self.a_proj(x) + self.dt_bias)  # [B, T, H]: the logarithm of alpha
        beta = torch.sigmoid(self.b_proj(x))

        first = self.memory.to(x.dtype) if self.cfg.get("learned_init", True) else x.new_zeros(H, N, D)
        in_place = not torch.is_grad_enabled()  # on a table of this call
        M = state.get("M")
        M = first.repeat(B, 1, 1, 1) if M is None else M.clone() if in_place else M
        y = []
        for begin in range(0, T, 16):  # 16 tokens see `touched` [B, H, n', D], the slots that they write or read, in place of the whole table
            part = slice(begin, min(begin + 16, T))
            slots = torch.unique(torch.cat([write_slots[:, part].flatten(), read_slots[:, part].flatten()]))
            I_part, J_part = (torch.searchsorted(slots, a[:, part].contiguous()) for a in (write_slots, read_slots))
            touched = M[:, :, slots]

            def step(t, touched, begin=begin, slots=slots, I_part=I_part, J_part=J_part):  # those of this part, when it is computed again
                touched = rows.restarted_at(t, touched, first[:, slots])
                I = I_part[:, t - begin, :, :, None].expand(B, H, -1, D)
                J = J_part[:, t - begin, :, :, None].expand(B, H, -1, D)
                k_t = k[:, t, :, :, None]  # [B, H, W, 1]
                log_decay = g[:, t, :, None, None] * (k_t if self.cfg.get("key_weighted_decay", False) else 1)
                m = log_decay.exp() * touched.gather(2, I)  # [B, H, W, D]
                u = beta[:, t, :, None] * (v[:, t] - (k_t * m).sum(2))  # [B, H, D]
                touched = touched.scatter(2, I, m + k_t * u.unsqueeze(2))
                return [(q[:, t, :, :, None] * touched.gather(2, J)).sum(2)], touched

            (out,), touched = scan(part, touched, step, T > 64)  # [B, up to 16, H, D]
            y.append(out)
            if any(rows.begins_at[part]):  # slots that were not touched begin anew as well
                M = torch.where(rows.begins[:, part].any(1).view(-1, 1, 1, 1), first, M)
            M = (M.index_copy_ if in_place else M.index_copy)(2, slots, touched)
        state["M"] = M
        y = torch.cat(y, 1)  # [B, T, H, D]
        if self.cfg.get("out_norm", "rms") != "none":
            y = self.o_norm(y)
        y = y.reshape(B, T, H * D)
        gate = self.cfg.get("out_gate", "sigmoid")
        return self.o_proj(y if gate == "none" else y * activation(gate, self.g_proj(x)))


class Ham(Layer):
    """Hybrid Associative Memory (docs/layers/ham.md): Gated DeltaNet over all tokens, attention over those that a router selects.

    State: `S` [B, Hr, kr, vr]; `k`, `v` of the selected tokens, padded to the longest list, `place` [B, n] of each in the stream (-1: padding); the inputs
    of the convolutions.
    """

    def __init__(self, cfg, model, path):
        super().__init__(cfg, model, path)
        d, K, rnn, kv = self.d, cfg.get("conv_size", 4), cfg["rnn"], cfg["kv"]
        self.rnn_sizes = Hr, kr, vr = rnn["num_heads"], rnn["key_head_dim"], rnn["value_head_dim"]
        self.kv_sizes = Hk, kk, vk = kv["num_heads"], kv["key_head_dim"], kv["value_head_dim"]
        width = {"q": Hr * kr, "k": Hr * kr, "v": Hr * vr}
        self.rnn, self.kv = nn.Module(), nn.Module()
        for name, n in width.items():
            setattr(self, name + "_proj", Linear(d, n))
            for part in (self.rnn, self.kv):
                if cfg.get("qkv_norm", "pre_conv") != "none":
                    setattr(part, name + "_norm", RmsNorm(n, self.eps))
                if K:
                    setattr(part, name + "_conv", ShortConv(n, K))
        self.rnn.a_proj, self.rnn.b_proj = Linear(d, Hr), Linear(d, Hr)
        self.rnn.A_log, self.rnn.dt_bias = vector(Hr), vector(Hr)
        self.rnn.o_norm, self.kv.o_norm = RmsNorm(vr, self.eps), RmsNorm(vk, self.eps)
        self.o_proj = Linear(Hr * vr, d)
        if rnn.get("output_gate", "silu") != "none":
            self.rnn.g_proj = Linear(d, Hr * vr)
        gates = cfg.get("gates", "head")
        if gates != "none":
            self.rnn.gate_proj, self.kv.gate_proj = Linear(d, Hr if gates == "head" else 1), Linear(d, Hk if gates == "head" else 1)
        self.routing = r = {"type": "prediction_error", "depth": 1, "hidden": 256, "heads": 1, "eda": False, **cfg.get("router", {})}
        if r["type"] != "prediction_error":
            widths = [d if r["type"] == "input" else 2 * vr + d] + [r["hidden"]] * (r["depth"] - 1) + [r["heads"] if r["type"] == "input" else 1]
            self.router = nn.Module()
            self.router.layers = nn.ModuleList(Linear(a, b) for a, b in zip(widths, widths[1:]))
            if r["eda"]:
                self.router.eda_logit = vector(1)
        self.mode = cfg.get("threshold", {}).get("mode", "learned")
        if self.mode in ("learned", "fixed"):
            self.register_buffer("threshold", torch.zeros(1))

    def pathway(self, name, raw, rows, state):
        """q, k, v [B, T, channels] of one of the two paths from the shared projections."""
        part, place, out = getattr(self, name), self.cfg.get("qkv_norm", "pre_conv"), []
        for letter, a in zip("qkv", raw):
            if place == "pre_conv":
                a = getattr(part, letter + "_norm")(a)
            if self.cfg.get("conv_size", 4):
                a = getattr(part, letter + "_conv")(a, rows, state, f"{name}.{letter}_conv")
            a = activation(self.cfg[name].get("activation", "silu"), a)
            if place == "post_conv":
                a = getattr(part, letter + "_norm")(a)
            out.append(a)
        return out

    def recurrence(self, x, q, k, v, rows, state):
        """(o, p), both [B, T, Hr, vr]: what the state answers, and what it predicted for k before the token changed it."""
        alpha = torch.exp(-torch.exp(self.rnn.A_log) * F.softplus(self.rnn.a_proj(x) + self.rnn.dt_bias))
        beta = torch.sigmoid(self.rnn.b_proj(x)) * (2 if self.cfg["rnn"].get("allow_neg_eigval") else 1)

        def step(t, S):
            S = rows.restarted_at(t, S, x.new_zeros(q.shape[2], q.shape[3], v.shape[3]))
            p = torch.einsum("bhk,bhkv->bhv", k[:, t], S)
            S = alpha[:, t, :, None, None] * S
            delta = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhk,bhkv->bhv", k[:, t], S))
            S = S + k[:, t].unsqueeze(-1) * delta.unsqueeze(-2)
            return [torch.einsum("bhk,bhkv->bhv", q[:, t], S), p], S

        T = x.shape[1]
        outputs, state["S"] = scan(slice(0, T), state.get("S"), step, T > 64)
        return outputs

    def score(self, x, p, v, rows):
        """[B, T], after aggregation over heads and averaging with the EDA layer before."""
        r = self.routing
        if r["type"] == "prediction_error":
            p, v = p.detach(), v.detach()
            e = 1 - (p * v).sum(-1) / (p.norm(dim=-1) * v.norm(dim=-1) + 1e-6)  # 1 - cos(p, v)
        else:
            e = x
            if r["type"] == "vector":
                e = torch.cat([l2_norm(p.detach()), l2_norm(v.detach()), x.unsqueeze(2).expand(*p.shape[:3], x.shape[-1])], -1)
            for j, layer in enumerate(self.router.layers):
                e = layer(F.gelu(e) if j else e)
            e = torch.sigmoid(e if r["type"] == "input" else e.squeeze(-1))
        e = e.amin(-1) if self.cfg.get("aggregate", "min") == "min" else e.amax(-1)
        if r["eda"] and r["type"] != "prediction_error":
            before = rows.shared.get("eda score")
            if before is not None:
                gamma = torch.sigmoid(self.router.eda_logit)
                e = gamma * e + (1 - gamma) * before
            rows.shared["eda score"] = e
        return e

    def selected(self, e):
        if self.mode in ("all", "none"):
            return torch.full(e.shape, self.mode == "all", device=e.device)
        return e >= (2 if self.routing["type"] == "prediction_error" else 1) * torch.sigmoid(self.threshold.to(e.dtype))

    def attend(self, q, k, v, mask, rows, state):
        """Softmax over the selected tokens up to the query's own, within its document; 0 where there is none."""
        if self.cfg["kv"].get("rope"):
            q, k = (rotate(a, rows.position, self.cfg["kv"]["rope"]) for a in (q, k))
        T = q.shape[1]
        i = rows.offset + torch.arange(T, device=q.device)
        place = torch.where(mask, i, -1)  # [B, T]
        if "k" in state:
            k, v, place = torch.cat([state["k"], k], 1), torch.cat([state["v"], v], 1), torch.cat([state["place"], place], 1)
        begin = rows.offset + rows.start.unsqueeze(-1)
        visible = (place.unsqueeze(1) >= 0) & (place.unsqueeze(1) <= i.unsqueeze(-1)) & (place.unsqueeze(1) >= begin)  # [B, query, key]
        kept = [row >= 0 for row in place]
        for name, value in (("k", k), ("v", v)):
            state[name] = nn.utils.rnn.pad_sequence([a[m] for a, m in zip(value, kept)], batch_first=True)
        state["place"] = nn.utils.rnn.pad_sequence([a[m] for a, m in zip(place, kept)], batch_first=True, padding_value=-1)
        logits = torch.einsum("bthc,bshc->bhts", q, k) * q.shape[-1] ** -0.5
        some = visible.any(-1)[:, None, :, None]
        hidden = ~visible.unsqueeze(1)
        weights = logits.masked_fill(hidden & some, -float("inf")).softmax(-1)
        return torch.einsum("bhts,bshc->bthc", weights.masked_fill(hidden, 0), v)

    def forward(self, x, rows, state):
        B, T, _ = x.shape
        (Hr, kr, vr), (Hk, kk, vk) = self.rnn_sizes, self.kv_sizes
        raw = [self.q_proj(x), self.k_proj(x), self.v_proj(x)]

        q, k, v = self.pathway("rnn", raw, rows, state)
        q, k, v = l2_norm(q.view(B, T, Hr, kr)) * kr ** -0.5, l2_norm(k.view(B, T, Hr, kr)), v.view(B, T, Hr, vr)
        o, p = self.recurrence(x, q, k, v, rows, state)
        e = self.score(x, p, v, rows)
        mask = self.selected(e)
        rows.inside.update({self.path + "score": e.detach(), self.path + "mask": mask})

        q, k, v = self.pathway("kv", raw, rows, state)
        if self.routing["type"] != "prediction_error":
            v = e.unsqueeze(-1) * v
        a = self.attend(q.view(B, T, Hk, kk), k.view(B, T, Hk, kk), v.view(B, T, Hk, vk), mask, rows, state)

        r, a = self.rnn.o_norm(o), self.kv.o_norm(a)
        gate = self.cfg["rnn"].get("output_gate", "silu")
        if gate != "none":
            r = r * activation(gate, self.rnn.g_proj(x).view(B, T, Hr, vr))
        if self.cfg.get("gates", "head") != "none":
            r = r * torch.sigmoid(self.rnn.gate_proj(x)).unsqueeze(-1)
            a = a * torch.sigmoid(self.kv.gate_proj(x)).unsqueeze(-1)
        return self.o_proj(r.reshape(B, T, -1) + a.reshape(B, T, -1))


# ---- dictionaries: layers that follow each document's own chunks ----------------------------------------------------


def by_document(rows, state, heads, run):
    """[B, T, heads · width] of run(memory, b, head, begin, end) -> (o [T', width], memory), over rows, kv heads and documents.

    State: `heads`[b][head], the dict of what one head carries through one document.
    """
    B = rows.position.shape[0]
    memories = state.setdefault("heads", [[{} for _ in range(heads)] for _ in range(B)])
    out = []
    for b in range(B):
        columns = []
        for head in range(heads):
            parts = []
            for begin, end, goes_on in rows.documents(b):
                o, memories[b][head] = run(memories[b][head] if goes_on else {}, b, head, begin, end)
                parts.append(o)
            columns.append(torch.cat(parts))
        out.append(torch.cat(columns, 1))
    return torch.stack(out)


class Kvm(Projections):
    """Key-Value Means (docs/layers/kvm.md): a window of raw keys and a state of summed slots.

    State: `heads`[b][head], a dict: `seen` tokens; the window's `k`, `v`, `kb`, `kg`, `vg`; of the slots the sums `sk` [m, D], `sv` [m, Dv], the lengths
    `rho`, and counts `merged` and `updates` [m].
    """

    def __init__(self, cfg, model, path):
        super().__init__({"qk_norm": "layer", **cfg}, model, path)
        H, K, D, _ = self.heads
        self.mem_norm = LayerNorm(D, self.eps)
        if cfg.get("merge_gate", "both") != "none":
            self.merge_gate = Linear(self.d, K)
        if cfg.get("temperatures", True):
            self.window_temp, self.state_temp = vector(H, 1.0), vector(H, 1.0)

    def wanted(self, seen):
        """Slots that the schedule asks for after `seen` tokens."""
        schedule = self.cfg["state"]
        if schedule["mode"] == "fixed":
            return schedule["rows"]
        n = schedule["factor"] * math.pow(seen, schedule["exponent"]) if schedule["mode"] == "power" else schedule["limit"] * seen / (schedule["limit"] + seen)
        multiple = schedule.get("multiple", 1)
        return max(math.floor(n) // multiple * multiple, schedule.get("min_rows", 1))

    def scores(self, kb, sk):
        return kb.detach() @ self.mem_norm(sk).detach().T  # [tokens, slots]

    def fold(self, m, old, chunk):
        """Chunk `chunk` begins: the window's oldest chunk `old` joins the slots of m. Returns (slot, founded) [C] of its tokens."""
        kb, v, kg, vg = (old[name] for name in ("kb", "v", "kg", "vg"))
        C, device = len(kb), kb.device
        if "sk" not in m:
            zeros = torch.zeros(C, dtype=torch.int64, device=device)
            m.update({"sk": kb, "sv": v, "rho": v.norm(dim=-1), "merged": zeros, "updates": zeros})
            return torch.arange(C, device=device), torch.ones_like(zeros)
        slots = len(m["sk"])
        available = (chunk - self.cfg.get("window_chunks", 2) + 1) * C
        rows = min(self.wanted(chunk * C), available, self.cfg["state"].get("max_rows", 0) or available)
        n_append = min(max(rows, slots) - slots, C)
        best = self.scores(kb, m["sk"]).amax(-1)
        founders = best.sort(stable=True).indices[:n_append].sort().values
        founds = torch.zeros(C, dtype=torch.bool, device=device)
        founds[founders] = True
        sk, sv, rho, merged, updates = (m[name] for name in ("sk", "sv", "rho", "merged", "updates"))
        if n_append:
            key, value = (kg[founders], vg[founders]) if self.cfg.get("gate_appends") else (kb[founders], v[founders])
            sk, sv, rho = torch.cat([sk, key]), torch.cat([sv, value]), torch.cat([rho, value.norm(dim=-1)])
            merged = torch.cat([merged, merged.new_zeros(n_append)])
            updates = torch.cat([updates + 1, updates.new_zeros(n_append)])
        else:
            updates = updates + 1
        sinks = self.cfg.get("sinks", 1)
        target = largest(self.scores(kb, sk)[:, sinks:], 1).squeeze(-1) + sinks
        target[founders] = slots + torch.arange(n_append, device=device)
        if n_append < C:
            joins = target[~founds]
            sk, sv = sk.index_add(0, joins, kg[~founds]), sv.index_add(0, joins, vg[~founds])
            merged = merged.index_add(0, joins, torch.ones_like(joins))
        m.update({"sk": sk, "sv": sv, "rho": rho, "merged": merged, "updates": updates})
        return target, founds.long()

    def readout(self, m):
        """(keys [m, D], values [m, Dv]) of the slots as queries see them."""
        kind, sv = self.cfg.get("value_norm", "radius"), m["sv"]
        if kind == "radius":
            values = m["rho"].unsqueeze(-1) * sv / sv.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        else:
            values = sv / (1 + m["merged" if kind == "mean" else "updates"].to(sv.dtype)).unsqueeze(-1)
        return self.mem_norm(m["sk"]), values

    def document(self, m, q, new, temperatures, scale):
        """q [T, G, D]; new: k, v, kb, kg, vg of the same tokens -> (o [T, G, Dv], slot [T], founded [T], the new m)."""
        T, C, W = len(q), self.cfg["chunk_size"], self.cfg.get("window_chunks", 2)
        m = {"seen": 0, **{name: a[:0] for name, a in new.items()}, **m}
        began, at, o = m["seen"], 0, []
        slot, founded = torch.full((T,), -1, device=q.device), torch.zeros(T, dtype=torch.int64, device=q.device)
        while at < T:
            c, inside = divmod(m["seen"], C)
            if inside == 0 and c >= W:
                target, founds = self.fold(m, {name: m[name][:C] for name in new}, c)
                for j in range(C):
                    t = (c - W) * C + j - began
                    if t >= 0:
                        slot[t], founded[t] = target[j], founds[j]
                m.update({name: m[name][C:] for name in new})
            n = min(C - inside, T - at)
            m.update({name: torch.cat([m[name], a[at:at + n]]) for name, a in new.items()})
            S = len(m["k"])
            logits = temperatures[0][:, None, None] * torch.einsum("tgd,sd->gts", q[at:at + n], m["k"])  # [G, n, S]
            later = torch.arange(S, device=q.device) > S - n + torch.arange(n, device=q.device).unsqueeze(1)
            logits, values = logits.masked_fill(later, -float("inf")), m["v"]
            if "sk" in m:
                state_k, state_v = self.readout(m)
                logits = torch.cat([temperatures[1][:, None, None] * torch.einsum("tgd,sd->gts", q[at:at + n], state_k), logits], -1)
                values = torch.cat([state_v, values])
            o.append(torch.einsum("gts,sd->tgd", torch.softmax(scale * logits, -1), values))
            m["seen"] += n
            at += n
        return torch.cat(o), slot, founded, m

    def forward(self, x, rows, state):
        B, T, _ = x.shape
        H, K, D, Dv = self.heads
        q, k, v = self.project(x, rows, state)
        q, k, scale = self.normed(q, k)
        rope = self.cfg.get("rope")
        if rope:
            q, k = rotate(q, rows.position, rope), rotate(k, rows.position, rope)
        unrotated = (torch.arange(D, device=x.device) >= (rope["dims"] if rope else 0)).to(x.dtype)
        kb = self.mem_norm(k * unrotated)
        kind = self.cfg.get("merge_gate", "both")
        g = 1 + F.elu(self.merge_gate(x)).unsqueeze(-1) if kind != "none" else 1.0  # [B, T, K, 1]
        kg, vg = kb * g if kind in ("both", "keys") else kb, v * g if kind in ("both", "values") else v
        ones = x.new_ones(H)
        window, slots = (self.window_temp, self.state_temp) if self.cfg.get("temperatures", True) else (ones, ones)
        row, append = torch.full((B, K, T), -1, device=x.device), torch.zeros(B, K, T, dtype=torch.int64, device=x.device)

        def run(m, b, head, begin, end):
            own, group = slice(begin, end), slice(head * H // K, (head + 1) * H // K)
            new = {name: a[b, own, head] for name, a in (("k", k), ("v", v), ("kb", kb), ("kg", kg), ("vg", vg))}
            o, row[b, head, own], append[b, head, own], m = self.document(m, q[b, own, group], new, (window[group], slots[group]), scale)
            return o.reshape(end - begin, -1), m

        o = by_document(rows, state, K, run)  # [B, T, H Dv]
        rows.inside.update({self.path + "row": row, self.path + "append": append})
        return self.o_proj(o)


class Ovq(Layer):
    """Online vector-quantized attention (docs/layers/ovq.md).

    State: `heads`[b][head], a dict: `seen` tokens; the dictionary's `Dk` [n, D], `Dv` [n, Dv], `count` [n]; the own chunk's `k`, `v`. With `qk_conv` the
    inputs of the convolutions, with `v_shift` the last key and value.
    """

    def __init__(self, cfg, model, path):
        super().__init__(cfg, model, path)
        d, H, D, W = self.d, cfg["num_heads"], cfg["head_dim"], cfg.get("qk_conv", 0)
        K, Dv = cfg.get("num_kv_heads", H), cfg.get("value_head_dim", D)
        self.heads = H, K, D, Dv
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = Linear(d, H * D), Linear(d, K * D), Linear(d, K * Dv), Linear(H * Dv, d)
        self.beta = vector(H, D ** 0.5)
        if W:
            self.q_conv, self.k_conv = ShortConv(H * D, W), ShortConv(K * D, W)
        if cfg.get("v_shift"):
            self.v_shift = vector(1)

    def size(self, N, t):
        """Centroids after t tokens."""
        growth = self.cfg.get("growth", "plateau")
        n = {"plateau": t * N // (t + N) if t else 0, "linear": t * N // (self.cfg.get("growth_length", 1) + N), "full": t}[growth]
        return 0 if t == 0 else min(N, t, max(1, n))

    def assign(self, keys, centroids, n_new, order, founder):
        """Ids [L] of a chunk's keys [L, D] (Selection). order: what decides who founds, smallest first; None: the best similarity."""
        L, n = len(keys), len(centroids)
        if n == 0:
            rest = [j for j in range(L) if j != founder]
            ids = torch.zeros(L, dtype=torch.int64, device=keys.device)
            ids[rest] = self.assign(keys[rest], keys[founder:founder + 1], n_new - 1, order and [order[j] for j in rest], None)
            return ids
        if L == 0:
            return torch.zeros(0, dtype=torch.int64, device=keys.device)
        similarity = keys @ centroids.T  # [L, n]
        ids = largest(similarity, 1).squeeze(-1)
        best = order or similarity.amax(-1).tolist()
        founders = sorted(sorted(range(L), key=lambda j: (best[j], j))[:n_new])
        ids[founders] = n + torch.arange(n_new, device=keys.device)
        return ids

    def update(self, m, ids, n):
        """The chunk's keys and values join the slots `ids` of m; n slots from then on (Update)."""
        rate, normalize = self.cfg.get("centroid_lr", "mean"), self.cfg.get("normalize_centroids", "none")
        old = len(m["count"])
        members = torch.bincount(ids, minlength=n)
        count = torch.cat([m["count"], m["count"].new_zeros(n - old)])
        if rate == "mean":
            weight = members / (count + members).clamp_min(1)
        else:
            weight = torch.where(torch.arange(n, device=ids.device) < old, (members * rate).clamp_max(1.0), 1.0)
        changed = (members > 0).unsqueeze(-1)
        weight = weight.to(m["k"].dtype).unsqueeze(-1)
        for name, new in (("Dk", m["k"]), ("Dv", m["v"])):
            rows = torch.cat([m[name], new.new_zeros(n - old, new.shape[1])])
            mean = torch.zeros_like(rows).index_add(0, ids, new) / members.clamp_min(1).unsqueeze(-1)
            moved = rows + weight * (mean - rows)
            if normalize == "key_value" or normalize == "key" and name == "Dk":
                moved = l2_norm(moved)
            m[name] = torch.where(changed, moved, rows)
        m["count"] = count + members

    def document(self, m, q, k, v, N, order):
        """q [T, G, D], k [T, D], v [T, Dv], order(first, count) -> (o [T, G, Dv], ids [T], the new m)."""
        T, L = len(k), self.cfg.get("chunk_size", 128)
        m = {"seen": 0, "Dk": k[:0], "Dv": v[:0], "count": torch.zeros(0, dtype=torch.int64, device=k.device), "k": k[:0], "v": v[:0], **m}
        founder = 1 if self.cfg.get("v_shift") and L > 1 else 0
        began, at, o, ids = m["seen"], 0, [], torch.full((T,), -1, device=k.device)
        while at < T:
            n = min(L - len(m["k"]), T - at)
            m["k"], m["v"] = torch.cat([m["k"], k[at:at + n]]), torch.cat([m["v"], v[at:at + n]])
            slots, S = len(m["count"]), len(m["k"])
            logits = torch.einsum("tgd,sd->gts", q[at:at + n], torch.cat([m["Dk"], m["k"]])) + torch.cat([m["count"].to(q.dtype).log(), q.new_zeros(S)])
            later = torch.arange(-slots, S, device=k.device) > S - n + torch.arange(n, device=k.device).unsqueeze(1)
            p = logits.masked_fill(later, -float("inf")).softmax(-1)  # [G, n, slots + S]
            o.append(torch.einsum("gts,sd->tgd", p, torch.cat([m["Dv"], m["v"]])))
            m["seen"] += n
            at += n
            if S == L:
                size = self.size(N, m["seen"])
                a = self.assign(m["k"].detach(), m["Dk"].detach(), size - slots, order(m["seen"] - L, L), founder)
                self.update(m, a, size)
                first = m["seen"] - L - began
                ids[max(first, 0):first + L] = a[max(-first, 0):]
                m["k"], m["v"] = k[:0], v[:0]
        return torch.cat(o), ids, m

    def forward(self, x, rows, state):
        B, T, _ = x.shape
        H, K, D, Dv = self.heads
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if self.cfg.get("qk_conv", 0):
            q, k = self.q_conv(q, rows, state, "q_conv"), self.k_conv(k, rows, state, "k_conv")
        q = self.beta.unsqueeze(-1) * l2_norm(q.view(B, T, H, D))
        k, v = l2_norm(k.view(B, T, K, D)), v.view(B, T, K, Dv)
        if self.cfg.get("v_shift"):
            first = (rows.position == 0)[:, :, None, None]
            k_before, v_before = (torch.where(first, 0, rows.with_past(a.flatten(2), state, name, 1)[:, :T].view(a.shape))
                                  for a, name in ((k, "last_k"), (v, "last_v")))
            s = torch.sigmoid(self.v_shift)
            k, v = k_before, s * v_before + (1 - s) * v
        N = self.cfg["max_centroids"] if rows.training else self.cfg.get("eval_max_centroids", self.cfg["max_centroids"])
        assigned = torch.full((B, K, T), -1, device=x.device)

        def run(m, b, head, begin, end):
            def order(first, count):
                if self.cfg.get("select", "spread") == "random":
                    return [Stream(0, f"ovq/{rows.block}/{head}", t).u64() for t in range(first, first + count)]

            own, group = slice(begin, end), slice(head * H // K, (head + 1) * H // K)
            o, assigned[b, head, own], m = self.document(m, q[b, own, group], k[b, own, head], v[b, own, head], N, order)
            return o.reshape(end - begin, -1), m

        o = by_document(rows, state, K, run)  # [B, T, H Dv]
        rows.inside[self.path + "assign"] = assigned
        return self.o_proj(o)


class Vq(Layer):
    """Vector-quantized attention (docs/layers/vq.md). State, in evaluation: `count` [B, K, N] and `mean` [B, K, N, Dv] of the codewords."""

    def __init__(self, cfg, model, path):
        super().__init__(cfg, model, path)
        d, H, D, N = self.d, cfg["num_heads"], cfg["head_dim"], cfg["codebook_size"]
        K, Dv = cfg.get("num_kv_heads", H), cfg.get("value_head_dim", D)
        self.heads = H, K, D, Dv
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = Linear(d, H * D), Linear(d, K * D), Linear(d, K * Dv), Linear(H * Dv, d)
        self.beta = vector(H, D ** 0.5)
        self.codebook = nn.Parameter(torch.zeros(K, N, D))
        self.register_buffer("idle", torch.zeros(K, N, dtype=torch.int32))

    def first_codebook(self, k):
        """What the first quantized step starts from: means of runs of the unit keys k [B, T, K, D] (Start of the codebook)."""
        K, N, D = self.codebook.shape
        keys = k.detach().flatten(0, 1)  # row-major over rows and positions
        hop = len(keys) // N
        if hop == 0:
            return self.codebook
        means = keys[:hop * N].view(N, hop, K, D).mean(1).transpose(0, 1)
        return l2_norm(means) + (self.codebook - self.codebook.detach())  # the parameter's new value

    def quantize(self, k, c, idle, dither):
        """Quantized keys and ids of unit keys k [B, T, D]; c [N, D] unit codewords, idle [N], dither [N - 1] (Quantizers)."""
        def direction(r):
            """(length, direction without gradient)."""
            length = torch.sqrt((r ** 2).sum(-1, keepdim=True) + 1e-24)
            return length, (r / length).detach()

        bonus = self.cfg.get("idle_bonus", 0.0025)
        if self.cfg.get("quantizer", "sf_diveq") == "diveq":
            a = (k @ c.T + bonus * idle).argmax(-1)
            length, u = direction(c[a] - k)
            return k + length * u, a
        p = (1 - dither).unsqueeze(-1) * c[:-1] + dither.unsqueeze(-1) * c[1:]  # a point of each segment
        a = (k @ p.T - (p ** 2).sum(-1) / 2 + bonus * torch.maximum(idle[:-1], idle[1:])).argmax(-1)
        share = dither[a].unsqueeze(-1)
        (length1, u1), (length2, u2) = direction(c[a] - k), direction(c[a + 1] - k)
        return k + length1 * ((1 - share) * u1) + length2 * (share * u2), a

    def training_keys(self, k, rows):
        """kq [B, T, K, D] of unit keys k by the rules of training."""
        after = self.cfg.get("quantize_after", 0)
        if rows.step < after:
            return k
        codebook = self.codebook
        if after > 0 and rows.step == after and not rows.is_later_part:
            codebook = self.first_codebook(k)
            rows.restarted[self.path + "codebook"] = codebook.detach()
        c, stream, out, ids = l2_norm(codebook.to(k.dtype)), Stream(rows.seed, f"vq/{rows.block}", rows.step), [], []
        for head in range(c.shape[0]):
            dither = torch.tensor([stream.uniform() for _ in range(c.shape[1] - 1)], dtype=torch.float64).to(k)
            quantized, a = self.quantize(k[:, :, head], c[head], self.idle[head], dither)
            out.append(quantized)
            ids.append(a)
        rows.inside[self.path + "assign"] = torch.stack(ids, 1)
        return torch.stack(out, 2)

    def quadratic(self, q, k, v, rows):
        """Plain attention over quantized keys; q [B, T, H, D] -> [B, T, H, Dv]."""
        groups = q.shape[2] // k.shape[2]
        k, v = k.repeat_interleave(groups, 2), v.repeat_interleave(groups, 2)
        index = torch.arange(q.shape[1], device=q.device)
        visible = (index <= index.unsqueeze(-1)) & (index >= rows.start.unsqueeze(-1))  # [B, query, key]
        logits = torch.einsum("bthc,bshc->bhts", q, k).masked_fill(~visible.unsqueeze(1), -float("inf"))
        return torch.einsum("bhts,bshc->bthc", logits.softmax(-1), v)

    def linear_form(self, q, k, v, rows, state):
        """One count and one mean value for each codeword (Linear form)."""
        B, T, H, D = q.shape
        K, N, Dv = k.shape[2], self.codebook.shape[1], v.shape[3]
        c = l2_norm(self.codebook.to(q.dtype))
        a = largest(torch.einsum("btkd,knd->btkn", k, c), 1).squeeze(-1)  # [B, T, K]
        rows.inside[self.path + "assign"] = a.transpose(1, 2)
        logits = torch.einsum("btkgd,knd->btkgn", q.view(B, T, K, H // K, D), c)

        def step(t, states):
            count, mean = (rows.restarted_at(t, s, first) for s, first in zip(states, (q.new_zeros(K, N), q.new_zeros(K, N, Dv))))
            own = F.one_hot(a[:, t], N).to(q.dtype)  # [B, K, N]
            count = count + own
            mean = mean + (own / count.clamp_min(1)).unsqueeze(-1) * (v[:, t].unsqueeze(2) - mean)
            bias = torch.where(count > 0, count.clamp_min(1).log(), -float("inf"))
            p = (logits[:, t] + bias.unsqueeze(2)).softmax(-1)  # [B, K, G, N]
            return [torch.einsum("bkgn,bknd->bkgd", p, mean)], (count, mean)

        (o,), (state["count"], state["mean"]) = scan(slice(0, T), (state.get("count"), state.get("mean")), step, T > 64)
        return o.reshape(B, T, H, Dv) + 0 * k.sum()  # keys only choose: reached, with a derivative of 0

    def forward(self, x, rows, state):
        B, T, _ = x.shape
        H, K, D, Dv = self.heads
        q = self.beta.unsqueeze(-1) * l2_norm(self.q_proj(x).view(B, T, H, D))
        k, v = l2_norm(self.k_proj(x).view(B, T, K, D)), self.v_proj(x).view(B, T, K, Dv)
        if rows.training and rows.state is not None:
            raise ValueError("vq: a state needs the rules of evaluation: model.eval()")
        o = self.quadratic(q, self.training_keys(k, rows), v, rows) if rows.training else self.linear_form(q, k, v, rows, state)
        return self.o_proj(o.reshape(B, T, H * Dv))


class Lact(Layer):
    """Large-chunk test-time training (docs/layers/lact.md): window attention and a fast SwiGLU per document.

    State: `rows`[b], a dict: `seen` tokens; `k`, `v` of the window [n, heads, D]; the fast weights `W`, their row lengths `N` and momentum `M`, three
    matrices [F, ., .] each; `fk`, `fv`, `eta`, `mu` of the chunk in progress.
    """

    STEPS = ((4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037), (2.8769, -3.1427, 1.2046), (2.8366, -3.0525, 1.2012))

    def __init__(self, cfg, model, path):
        super().__init__(cfg, model, path)
        d, n, rank = self.d, cfg.get("num_fast_heads", 4), cfg.get("rank", 32)
        D, h = d // n, cfg.get("fast_dim", d // n)
        self.n = n
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = Linear(d, d), Linear(d, d), Linear(d, d), Linear(d, d)
        for name in ("w0", "w2"):
            if rank > 0:
                setattr(self, name + "_left", nn.Parameter(torch.zeros(n, h, rank)))
                setattr(self, name + "_right", nn.Parameter(torch.zeros(n, rank, D)))
            else:
                setattr(self, name, nn.Parameter(torch.zeros(n, h, D)))
        self.w1 = nn.Parameter(torch.zeros(n, D, h))
        self.lr_proj = Linear(d, 3 * n, True)
        self.qk_scale, self.qk_offset = nn.Parameter(torch.ones(d, 2)), nn.Parameter(torch.zeros(d, 2))
        self.fast_norm = RmsNorm(D, 1e-5)
        if cfg.get("output_scale", True):
            self.scale_proj = Linear(d, n, True)
        if cfg.get("momentum", True):
            self.momentum_proj = Linear(d, n, True)

    def initial_weights(self, dtype):
        """W0, W1, W2 at a document's start."""
        def first(name):
            if self.cfg.get("rank", 32) == 0:
                return getattr(self, name).to(dtype)
            product = getattr(self, name + "_left").to(dtype) @ getattr(self, name + "_right").to(dtype)
            return product + 0.5 * torch.eye(*product.shape[1:], dtype=dtype, device=product.device)

        return [first("w0"), self.w1.to(dtype), first("w2")]

    def attend(self, m, q, k, v, window):
        """Window attention. q, k, v [T, heads, D]."""
        T, D = len(q), q.shape[-1]
        k, v = torch.cat([m["k"], k]), torch.cat([m["v"], v])
        S = len(k)
        distance = torch.arange(S - T, S, device=q.device)[:, None] - torch.arange(S, device=q.device)
        visible = (distance >= 0) & (distance < (window or S))
        scores = (torch.einsum("thd,shd->hts", q, k) / D ** 0.5).masked_fill(~visible, -float("inf"))
        held = min(window - 1, S) if window else S
        m["k"], m["v"] = k[S - held:], v[S - held:]
        return torch.einsum("hts,shd->thd", scores.softmax(-1), v)

    @staticmethod
    def predict(W, z):
        """f(W, z) = W1 (silu(W0 z) * (W2 z)); z [F, t, D]."""
        return (F.silu(z @ W[0].transpose(1, 2)) * (z @ W[2].transpose(1, 2))) @ W[1].transpose(1, 2)

    @classmethod
    def newton_schulz(cls, G):
        tall = G.shape[1] > G.shape[2]
        X = G.transpose(1, 2) if tall else G
        X = X / (X.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
        for a, b, c in cls.STEPS:
            A = X @ X.transpose(1, 2)
            X = a * X + (b * A + c * A @ A) @ X
        return X.transpose(1, 2) if tall else X

    def update(self, m):
        """One step by the chunk in progress (Update)."""
        W, k, v, eta = m["W"], m["fk"], m["fv"], m["eta"]  # k, v [F, t, D], eta [F, t, 3]
        z0, z2, dh = k @ W[0].transpose(1, 2), k @ W[2].transpose(1, 2), v @ W[1]  # [F, t, h]
        sg = torch.sigmoid(z0)
        G = [(eta[..., 0:1] * dh * z2 * sg * (1 + z0 * (1 - sg))).transpose(1, 2) @ k,
             (eta[..., 1:2] * v).transpose(1, 2) @ (z0 * sg * z2),
             (eta[..., 2:3] * dh * z0 * sg).transpose(1, 2) @ k]
        if self.cfg.get("momentum", True):
            G = m["M"] = [g + m["mu"].mean(1)[:, None, None] * M for g, M in zip(G, m["M"])]
        if self.cfg.get("muon", False):
            G = [self.newton_schulz(g.double()).to(g.dtype) for g in G]
        moved = [w + g for w, g in zip(W, G)]
        m["W"] = [w / (w.norm(dim=-1, keepdim=True) + 1e-5) * N for w, N in zip(moved, m["N"])]

    def document(self, m, x, position):
        """x [T, d] and position [T] of one document -> (out [T, d], the new m)."""
        T, d = x.shape
        n, heads, C, rope = self.n, self.cfg["num_heads"], self.cfg.get("chunk_size", 512), self.cfg.get("rope", {"theta": 10000.0})
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)

        def split(y, count):
            return y.view(T, count, d // count)

        def turn(y):
            return rotate(split(y, heads).unsqueeze(0), position.unsqueeze(0), rope)[0]

        def fast_input(y, column):
            y = split(F.silu(y * self.qk_scale[:, column] + self.qk_offset[:, column]), n)
            y = (y / (y.norm(dim=-1, keepdim=True) + 1e-5)).reshape(T, d)
            if self.cfg.get("fast_rope", True):
                y = turn(y).reshape(T, d)
            return split(y, n).transpose(0, 1)  # [F, T, D]

        if not m:
            W = self.initial_weights(x.dtype)
            m = {"seen": 0, "k": split(k, heads)[:0], "v": split(v, heads)[:0], "W": W, "N": [w.norm(dim=-1, keepdim=True) for w in W],
                 "M": [torch.zeros_like(w) for w in W], "pending": 0}
        m = dict(m)
        att = self.attend(m, turn(q), turn(k), split(v, heads), self.cfg.get("window", 2048)).reshape(T, d)
        fq = fast_input(q, 0)
        new = {"fk": fast_input(k, 1), "fv": split(F.silu(v) if self.cfg.get("silu_v", False) else v, n).transpose(0, 1),
               "eta": F.softplus(self.lr_proj(x) + math.log(math.expm1(self.cfg.get("base_lr", 1e-3)))).view(T, n, 3).transpose(0, 1)}
        if self.cfg.get("momentum", True):
            new["mu"] = torch.sigmoid(self.momentum_proj(x)).T  # [F, T]
        at, y = 0, []
        while at < T:
            if m["pending"] == C:
                self.update(m)
                m["pending"] = 0
            count = min(C - m["pending"], T - at)
            y.append(self.predict(m["W"], fq[:, at:at + count]))
            part = {name: a[:, at:at + count] for name, a in new.items()}
            m.update({name: torch.cat([m[name], a], 1) for name, a in part.items()} if m["pending"] else part)
            m["pending"] += count
            m["seen"] += count
            at += count
        y = self.fast_norm(torch.cat(y, 1).transpose(0, 1))  # [T, F, D]
        if self.cfg.get("output_scale", True):
            y = y * F.silu(self.scale_proj(x)).unsqueeze(-1)
        return self.o_proj(att + y.reshape(T, d)), m

    def forward(self, x, rows, state):
        memories, out = state.setdefault("rows", [{} for _ in x]), []
        for b in range(len(x)):
            parts = []
            for begin, end, goes_on in rows.documents(b):
                part, memories[b] = self.document(memories[b] if goes_on else {}, x[b, begin:end], rows.position[b, begin:end])
                parts.append(part)
            out.append(torch.cat(parts))
        return torch.stack(out)


# ---- feed-forward layers -------------------------------------------------------------------------------------------


class Swiglu(Layer):
    """down(silu(gate x) * up x) (docs/layers/ffn.md)."""

    def __init__(self, cfg, model, path):
        super().__init__(cfg, model, path)
        n = cfg["intermediate_size"]
        self.gate_proj, self.up_proj, self.down_proj = Linear(self.d, n), Linear(self.d, n), Linear(n, self.d)

    def forward(self, x, rows, state):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Relu2(Layer):
    """down(max(up x', 0)²) (docs/layers/ffn.md). State, with `token_shift`: the last input."""

    def __init__(self, cfg, model, path):
        super().__init__(cfg, model, path)
        n = cfg["intermediate_size"]
        self.up_proj, self.down_proj = Linear(self.d, n), Linear(n, self.d)
        if cfg.get("token_shift"):
            self.shift = vector(self.d)

    def forward(self, x, rows, state):
        if self.cfg.get("token_shift"):
            before = rows.with_past(x, state, "last", 1)[:, :x.shape[1]]
            before = torch.where((rows.position == 0).unsqueeze(-1), 0, before)  # 0 before a document
            x = x + self.shift * (before - x)
        return self.down_proj(torch.relu(self.up_proj(x)) ** 2)


class Pkm(Layer):
    """Product key memory (docs/layers/pkm.md), in the place of a feed-forward layer."""

    def __init__(self, cfg, model, path):
        super().__init__(cfg, model, path)
        self.sizes = n, dk, dv, H, _ = [cfg.get(key, default) for key, default in
                                        (("num_subkeys", 512), ("key_dim", 512), ("value_dim", 512), ("num_heads", 4), ("top_k", 32))]
        self.q_proj, self.o_proj = Linear(self.d, H * dk, True), Linear(dv, self.d, True)
        self.keys, self.values = nn.Parameter(torch.zeros(H, 2, n, dk // 2)), nn.Parameter(torch.zeros(n * n, dv))
        if cfg.get("query_norm", True):
            self.q_norm = RmsNorm(H * dk, 1e-6)
        if cfg.get("glu", True):
            self.gate_proj = Linear(self.d, dv, True)

    def forward(self, x, rows, state):
        B, T, _ = x.shape
        n, dk, dv, H, k = self.sizes
        q = self.q_proj(x)
        if self.cfg.get("query_norm", True):
            q = self.q_norm(q)
        s1, s2 = torch.einsum("bthcd,hcnd->bthcn", q.view(B, T, H, 2, dk // 2), self.keys.to(q.dtype)).unbind(-2)  # [B, T, H, n]
        i, j = best_pairs(s1, s2, k)
        a = (s1.gather(-1, i) + s2.gather(-1, j)).softmax(-1)  # [B, T, H, k]
        slots = rows.inside[self.path + "slots"] = i * n + j
        r = (a.unsqueeze(-1) * self.values[slots]).sum((2, 3))  # [B, T, dv]
        if self.cfg.get("glu", True):
            r = r * F.silu(self.gate_proj(x))
        return self.o_proj(r)


# ---- memories with fast weights ------------------------------------------------------------------------------------


def ahead(v, count):
    """v [B, C, dv] of `count` tokens later, zeros beyond the chunk."""
    return torch.cat([v[:, count:], torch.zeros_like(v[:, :count])], 1)


class FastMemory(Layer):
    """What fwpkm and fwmlp share: slow projections, chunks, pairs, gate and output. Fast weights are buffers, shared by all sequences.

    Whole rows: chunk c of all rows is one update, from the buffers' values; `rows.after` has the values behind the last one. A stream: the state holds
    `fast`, the fast weights, and a queue of the tokens whose pairs have not been used, `q`, `v`, `w` and `linked` (docs/layers/fwpkm.md, Streams).
    """

    DEFAULTS = {"key_dim": 512, "value_dim": 512, "chunk_size": 512, "lookahead": 1, "value_norm": True, "gate": True, "gate_width": 8,
                "grad_through_update": "full"}

    def __init__(self, cfg, model, path, query_size):
        super().__init__(cfg, model, path)
        d, dv = self.d, cfg["value_dim"]
        self.q_norm, self.q_proj = RmsNorm(d, self.eps), Linear(d, query_size, True)
        self.v_norm, self.v_proj = RmsNorm(d, self.eps), Linear(d, dv, True)
        self.o_norm, self.o_proj = RmsNorm(dv, self.eps), Linear(dv, d, True)
        if cfg["gate"]:
            self.gate_norm, self.gate_proj = RmsNorm(d, self.eps), Linear(d, cfg["gate_width"], True)

    def add_fast(self, shapes):
        self.fast_names = tuple(shapes)
        for name, shape in shapes.items():
            self.register_buffer(name, torch.zeros(*shape))

    def chunks(self, q, v, g, fast, rows):
        """(vh [B, T, dv], new fast weights) of whole rows."""
        T, C, L, read = v.shape[1], self.cfg["chunk_size"], self.cfg["lookahead"], []
        for begin in range(0, T, C):
            part = slice(begin, min(begin + C, T))
            start = rows.start[:, part]
            paired = torch.zeros_like(start, dtype=torch.bool)  # the token L further is in the same chunk and document
            last = part.stop - part.start - L
            if last > 0:
                paired[:, :last] = start[:, :last] == start[:, L:]
            later = [ahead(v[:, part], i) for i in range(L + 1)]  # v_t ... v_{t+L}
            vh, found = self.read(fast, q[:, part])
            self.record(rows, found)
            read.append(vh)
            fast = self.learn(fast, q[:, part], later, paired, None if g is None else g[:, part])
        return torch.cat(read, 1), fast

    def stream(self, q, v, g, fast, rows, state):
        """The same for the next tokens of streams in lockstep."""
        B, T, _ = v.shape
        C, L, at, read = self.cfg["chunk_size"], self.cfg["lookahead"], 0, []
        new = {"q": q, "v": v, "w": v.new_ones(B, T, 1) if g is None else g, "linked": rows.position >= L}
        queue = {name: state.get(name, a[:, :0]) for name, a in new.items()}
        while at < T:
            count = min(T - at, max(1, C + L - queue["v"].shape[1]))
            vh, found = self.read(fast, q[:, at:at + count])
            self.record(rows, found)
            read.append(vh)
            queue = {name: torch.cat([queue[name], a[:, at:at + count]], 1) for name, a in new.items()}
            at += count
            while queue["v"].shape[1] >= C + L:
                later = [queue["v"][:, i:i + C] for i in range(L + 1)]
                fast = self.learn(fast, queue["q"][:, :C], later, queue["linked"][:, L:L + C], queue["w"][:, :C])
                queue = {name: a[:, C:] for name, a in queue.items()}
        state.update(queue)
        return torch.cat(read, 1), fast

    def record(self, rows, found):
        """Appends a chunk's choices to rows.inside."""
        for name, value in found.items():
            before = rows.inside.get(self.path + name)
            rows.inside[self.path + name] = value if before is None else torch.cat([before, value], 1)

    def forward(self, x, rows, state):
        q, v = self.q_proj(self.q_norm(x)), self.v_proj(self.v_norm(x))
        g = torch.sigmoid(self.gate_proj(self.gate_norm(x)).mean(-1, keepdim=True)) if self.cfg["gate"] else None  # [B, T, 1]
        if self.cfg["value_norm"]:
            v = (v - v.mean(-1, keepdim=True)) / (v.std(-1, unbiased=True, keepdim=True) + 1e-6)
        q = q.view(*q.shape[:2], *self.query_shape)
        fast = state.get("fast") or {name: getattr(self, name).detach().to(x.dtype) for name in self.fast_names}
        vh, fast = self.chunks(q, v, g, fast, rows) if rows.state is None else self.stream(q, v, g, fast, rows, state)
        if rows.state is not None:
            state["fast"] = fast
        rows.after.update({self.path + name: fast[name] for name in self.fast_names})
        mixed = vh + v if g is None else g * vh + (1 - g) * v
        return self.o_proj(self.o_norm(mixed))


class Fwpkm(FastMemory):
    """Fast-weight product key memory (docs/layers/fwpkm.md). Fast: `keys` [H, 2, n, D], `values` [n n, dv], the slot table."""

    def __init__(self, cfg, model, path):
        cfg = {**self.DEFAULTS, "num_subkeys": 512, "num_heads": 1, "top_k": 8, "score": "idw", "idw_eps": 1e-3, "weight_by_gate": True,
               "key_update": "entropy", "value_lr": 1.0, "key_lr": 1.0, "value_step": "slots", **cfg}
        H, n, dk = cfg["num_heads"], cfg["num_subkeys"], cfg["key_dim"]
        super().__init__(cfg, model, path, H * dk)
        self.query_shape = H, 2, dk // 2
        self.add_fast({"keys": [H, 2, n, dk // 2], "values": [n * n, cfg["value_dim"]]})

    def scores(self, q, keys):
        """s [B, C, H, 2, n] of q [B, C, H, 2, D]."""
        if self.cfg["score"] == "dot":
            return torch.einsum("bchjd,hjnd->bchjn", q, keys)
        return -torch.log(self.cfg["idw_eps"] + ((q.unsqueeze(-2) - keys) ** 2).sum(-1))

    def retrieve(self, s, values):
        """Slots and weights [B, C, H, k], and the value read vh [B, C, dv]."""
        s1, s2 = s.unbind(-2)
        i, j = best_pairs(s1, s2, self.cfg["top_k"])
        a = (s1.gather(-1, i) + s2.gather(-1, j)).flatten(-2).softmax(-1).view(i.shape)  # over all H k together
        return i, j, a, (a.unsqueeze(-1) * values[i * self.cfg["num_subkeys"] + j]).sum((-3, -2))

    def read(self, fast, q):
        s = self.scores(q, fast["keys"])
        i, j, _, vh = self.retrieve(s, fast["values"])
        return vh, {"slots": i * self.cfg["num_subkeys"] + j, "entries": largest(s, self.cfg["top_k"])}

    def key_step(self, q, keys, s, sigma):
        """sum over tokens of sigma ds / dkeys, [H, 2, n, D]; s and sigma [B, C, H, 2, n]."""
        if self.cfg["score"] == "dot":
            return torch.einsum("bchjn,bchjd->hjnd", sigma, q)
        weight = sigma * 2 * s.exp()  # sigma b;  b = 2 / (idw_eps + |u|²),  u = q - keys
        return torch.einsum("bchjn,bchjd->hjnd", weight, q) - weight.sum((0, 1)).unsqueeze(-1) * keys

    def entropy_step(self, q, keys, s):
        """d(A_0 + A_1) / dkeys, A_c = sum_i m_i ln(m_i + 1e-8), m the mean of each token's softmax over its own k best."""
        chosen = torch.zeros_like(s, dtype=torch.bool).scatter(-1, largest(s, self.cfg["top_k"]), True)
        p = s.masked_fill(~chosen, -float("inf")).softmax(-1)  # [B, C, H, 2, n]
        m = p.mean((0, 1, 2))  # [2, n]
        c = torch.log(m + 1e-8) + m / (m + 1e-8)
        mu = (p * c).sum(-1, keepdim=True)
        alpha = p * (c - mu) / (s.shape[0] * s.shape[1] * s.shape[2])
        return self.key_step(q, keys, s, alpha)

    def memory_step(self, q, keys, s, values, i, j, a, write):
        """d/dkeys of sum w |e|² / 2, through the weights a; write = w e [B, C, dv]."""
        da = -(write[:, :, None, None] * values[i * self.cfg["num_subkeys"] + j]).sum(-1)  # [B, C, H, k]
        ds = a * (da - (a * da).sum((-2, -1), keepdim=True))
        sigma = torch.stack([torch.zeros_like(s[..., 0, :]).scatter_add(-1, index, ds) for index in (i, j)], -2)
        return self.key_step(q, keys, s, sigma)

    def learn(self, fast, q, later, paired, g):
        """One update by the pairs of a chunk (Update of values, Update of keys)."""
        cfg, keys, values = self.cfg, fast["keys"], fast["values"]
        s = self.scores(q, keys)
        i, j, a, vh = self.retrieve(s, values)
        w = paired.unsqueeze(-1) * (g if g is not None and cfg["gate"] and cfg["weight_by_gate"] else torch.ones_like(vh[..., :1]))  # [B, C, 1]
        write = w * (later[-1] - vh)  # w e

        new_keys, pairs = keys, int(paired.sum())
        if cfg["key_update"] == "entropy":
            new_keys = keys - cfg["key_lr"] * self.entropy_step(q, keys, s)
        elif cfg["key_update"] == "memory" and pairs > 0:
            step = self.memory_step(q, keys, s, values, i, j, a, write) / (pairs * cfg["value_dim"])
            new_keys = keys - cfg["key_lr"] * step.detach()

        slots = (i * cfg["num_subkeys"] + j).flatten()
        readers = torch.bincount(slots, minlength=len(values)).unsqueeze(-1)  # n_i
        factor = cfg["value_lr"] * (cfg["num_heads"] * cfg["top_k"] if cfg["value_step"] == "slots" else 1)
        moves = (a.unsqueeze(-1) * write[:, :, None, None]).flatten(0, 3)  # [B C H k, dv]
        new_values = values + factor * torch.zeros_like(values).index_add(0, slots, moves) / readers.clamp(min=1)
        through = cfg["grad_through_update"]
        return {"keys": new_keys if through == "full" and cfg["key_update"] == "entropy" else new_keys.detach(),
                "values": new_values.detach() if through == "none" else new_values}


class Fwmlp(FastMemory):
    """Fast-weight MLP (docs/layers/fwmlp.md). Fast: `w_up`, `w_gate` [h, dk], `w_down` [dv, h] and their biases."""

    def __init__(self, cfg, model, path):
        cfg = {**self.DEFAULTS, "fast_dim": 512, "target": "mean", "lr": 0.1, "grad_clip": 0.0, **cfg}
        h, dk, dv = cfg["fast_dim"], cfg["key_dim"], cfg["value_dim"]
        super().__init__(cfg, model, path, dk)
        self.query_shape = (dk,)
        self.add_fast({"w_up": [h, dk], "w_gate": [h, dk], "w_down": [dv, h], "b_up": [h], "b_gate": [h], "b_down": [dv]})

    def read(self, W, q):
        hidden = F.linear(q, W["w_up"], W["b_up"]) * F.silu(F.linear(q, W["w_gate"], W["b_gate"]))
        return F.linear(hidden, W["w_down"], W["b_down"]), {}

    def learn(self, W, q, later, paired, g):
        """W - lr dloss/dW, loss = sum over pairs |vh - target|² / (P dv); P = 0 leaves W."""
        pairs, dv = int(paired.sum()), self.cfg["value_dim"]
        if pairs == 0:
            return W
        target = later[-1] if self.cfg["target"] == "next" else sum(later) / len(later)
        q, target, paired = q.flatten(0, 1), target.flatten(0, 1), paired.flatten().unsqueeze(-1)
        up, gate = F.linear(q, W["w_up"], W["b_up"]), F.linear(q, W["w_gate"], W["b_gate"])
        sg = torch.sigmoid(gate)
        hidden = up * gate * sg
        d_vh = 2 / (pairs * dv) * paired * (F.linear(hidden, W["w_down"], W["b_down"]) - target)  # [B C, dv]
        d_hidden = d_vh @ W["w_down"]
        d_up, d_gate = d_hidden * gate * sg, d_hidden * up * sg * (1 + gate * (1 - sg))
        gradients = {"w_up": d_up.T @ q, "w_gate": d_gate.T @ q, "w_down": d_vh.T @ hidden, "b_up": d_up.sum(0), "b_gate": d_gate.sum(0), "b_down": d_vh.sum(0)}
        clip = self.cfg["grad_clip"]
        if clip > 0:
            gradients = {name: d.clamp(-clip, clip) for name, d in gradients.items()}
        moved = {name: W[name] - self.cfg["lr"] * d for name, d in gradients.items()}
        return moved if self.cfg["grad_through_update"] == "full" else {name: value.detach() for name, value in moved.items()}


LAYERS = {"attention": Attention, "gdn": Gdn, "mamba2": Mamba2, "mesanet": MesaNet, "sdm": Sdm, "ham": Ham, "kvm": Kvm, "ovq": Ovq, "vq": Vq, "lact": Lact,
          "swiglu": Swiglu, "relu2": Relu2, "pkm": Pkm, "fwpkm": Fwpkm, "fwmlp": Fwmlp}


# ---- the model -----------------------------------------------------------------------------------------------------


def without_nulls(cfg):
    """A key with the value null is absent: it has its default."""
    if isinstance(cfg, dict):
        return {key: without_nulls(value) for key, value in cfg.items() if value is not None}
    return [without_nulls(value) for value in cfg] if isinstance(cfg, list) else cfg


def block_layers(model):
    """[{role: layer definition}] of the blocks (docs/model.md, Blocks)."""
    out = []
    for i in range(model["num_layers"]):
        entry = {**model["pattern"][i % len(model["pattern"])], **model.get("at", {}).get(str(i), {})}
        out.append({role: model["layers"][name] for role, name in entry.items()})
    return out


class Block(nn.Module):
    """h + rho memory(h);  + rho mixer(norm h);  + rho ffn(norm h)."""

    def __init__(self, layers, model, index):
        super().__init__()
        self.index, self.rho, self.roles = index, model.get("residual_scale", 1.0), [r for r in ("memory", "mixer", "ffn") if r in layers]
        for role in self.roles:
            if role != "memory":
                setattr(self, role + "_norm", block_norm(model))
            if layers[role]["type"] not in LAYERS:
                raise ValueError(f"block {index}, {role}: layer type {layers[role]['type']!r} is not one of {', '.join(LAYERS)}")
            setattr(self, role, LAYERS[layers[role]["type"]](layers[role], model, f"blocks.{index}.{role}."))

    def forward(self, h, rows, state):
        """h [B, T, d]; state: {role: dict}."""
        rows.block = self.index
        for role in self.roles:
            x = h
            if role != "memory":
                rows.norm = getattr(self, role + "_norm")
                x = rows.norm(h)
            h = h + self.rho * getattr(self, role)(x, rows, state[role])
        return h


class Parts:
    """The modules of a model and how they run; a base of Hebb and of HebbForCausalLM. Names of tensors are hebb's."""

    def build(self, model):
        self.definition = model = without_nulls(model)
        self.embed = nn.Embedding(model["vocab_size"], model["hidden_size"])
        if model.get("embed_norm"):
            self.embed_norm = block_norm(model)
        self.blocks = nn.ModuleList(Block(layers, model, i) for i, layers in enumerate(block_layers(model)))
        self.final_norm = block_norm(model)
        if not model.get("tie_embeddings"):
            self.lm_head = Linear(model["hidden_size"], model["vocab_size"])

    def new_state(self):
        return State(self.definition["num_layers"])

    def rows(self, ids, doc_ids=None, state=None, seed=0, step=0):
        return Rows(self.definition, *ids.shape, doc_ids, state, self.training, seed, step, ids.device)

    def run(self, ids, rows, embedded=None):
        """(logits [B, T, V], residual streams: of the embedding and after each block [B, T, d]). Advances rows.state."""
        h = self.embed(ids) if embedded is None else embedded
        h = h.to(torch.promote_types(h.dtype, torch.float32))
        if self.definition.get("embed_norm"):
            h = self.embed_norm(h)
        rows.embedded, streams = h, [h]
        for block in self.blocks:
            state = {"memory": {}, "mixer": {}, "ffn": {}} if rows.state is None else rows.state.blocks[block.index]
            h = block(h, rows, state)
            streams.append(h)
        if rows.state is not None:
            rows.state.length += ids.shape[1]
            rows.state.position = rows.position[:, -1] + 1
        h = self.final_norm(h)
        return (h @ self.embed.weight.to(h.dtype).T if self.definition.get("tie_embeddings") else self.lm_head(h)), streams

    def keep_fast_weights(self, after):
        """Fast weights and such as rows.after has them become the model's; training does so after every micro-batch."""
        buffers = dict(self.named_buffers())
        for name, value in after.items():
            buffers[name].copy_(value.detach())


def mean_loss(logits, targets):
    """Cross-entropy of logits [B, T, V], a mean over the targets [B, T] that are not -100."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


class Hebb(Parts, nn.Module):
    """A model without transformers."""

    def __init__(self, model):
        super().__init__()
        self.build(model)

    def forward(self, ids, doc_ids=None, state=None, seed=0, step=0):
        """ids [B, T] -> logits [B, T, V]. state: of new_state(), carried from call to call. doc_ids [B, T]: a document begins where it changes."""
        rows = self.rows(ids, doc_ids, state, seed, step)
        logits, _ = self.run(ids, rows)
        if state is not None and doc_ids is not None:
            state.doc_id = doc_ids[:, -1]
        return logits


def load(folder, dtype=None):
    """The model of a folder that `hebb convert --to pytorch` wrote, for evaluation. dtype: torch.float64 for comparisons."""
    from safetensors.torch import load_file

    with open(os.path.join(folder, "config.json")) as f:
        model = Hebb(json.load(f)["model"])
    weights, index = {}, os.path.join(folder, "model.safetensors.index.json")
    names = ["model.safetensors"]
    if os.path.exists(index):
        with open(index) as f:
            names = sorted(set(json.load(f)["weight_map"].values()))
    for name in names:
        weights.update(load_file(os.path.join(folder, name)))
    model.load_state_dict(weights, assign=True)
    return (model if dtype is None else model.to(dtype)).eval()


# ---- transformers --------------------------------------------------------------------------------------------------

try:
    from dataclasses import dataclass
    from typing import Any, Optional

    from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
    from transformers.utils import ModelOutput
except ImportError:  # Hebb and load() do without
    PreTrainedModel = None

if PreTrainedModel is not None:

    class HebbConfig(PretrainedConfig):
        """config.json: `model` is the object of hebb's configuration (docs/model.md)."""

        model_type = "hebb"
        keys_to_ignore_at_inference = ["state", "hidden_states", "after", "inside"]

        def __init__(self, model=None, **more):
            self.model = model or {}
            self.vocab_size, self.hidden_size = self.model.get("vocab_size", 0), self.model.get("hidden_size", 0)
            self.num_hidden_layers = self.model.get("num_layers", 0)
            more["tie_word_embeddings"] = False  # a tied model has one tensor
            super().__init__(**more)

    @dataclass
    class HebbOutput(ModelOutput):
        """loss [], logits [B, T, V], state: State of a call with use_cache, hidden_states: of the embedding and after each block, the last one after
        final_norm, after: fast weights after the rows, inside: decisions of the layers (docs/verbs/trace.md)."""

        loss: Optional[torch.Tensor] = None
        logits: Optional[torch.Tensor] = None
        state: Any = None
        hidden_states: Any = None
        after: Any = None
        inside: Any = None

    class HebbForCausalLM(Parts, PreTrainedModel, GenerationMixin):
        config_class = HebbConfig
        main_input_name = "input_ids"
        _is_stateful = True
        _no_split_modules = ["Block"]
        STATE = "past_key_values"  # how `generate` passes the state on

        def __init__(self, config):
            super().__init__(config)
            self.build(config.model)
            self.post_init()

        def _init_weights(self, module):
            """Values of a new model, for loading alone: hebb draws its own (docs/model.md, Initial values)."""

        def get_input_embeddings(self):
            return self.embed

        def set_input_embeddings(self, value):
            self.embed = value

        def get_output_embeddings(self):
            return getattr(self, "lm_head", None)

        def set_output_embeddings(self, value):
            self.lm_head = value

        def forward(self, input_ids=None, attention_mask=None, labels=None, targets=None, doc_ids=None, state=None, past_key_values=None, cache=None,
                    inputs_embeds=None, use_cache=None, output_hidden_states=None, output_attentions=None, position_ids=None, return_dict=None,
                    logits_to_keep=0, seed=0, step=0):
            """labels: next tokens are labels[:, 1:], as everywhere in transformers; targets: those of hebb, targets[t] follows input_ids[t]. Both
            ignore -100. attention_mask may hide tokens on the left, or on the right; doc_ids are documents. state, past_key_values and cache are one."""
            if position_ids is not None or output_attentions:
                raise ValueError("position_ids and output_attentions: positions follow from doc_ids and the state; layers keep no attention matrices")
            ids = input_ids if input_ids is not None else torch.zeros(inputs_embeds.shape[:2], dtype=torch.int64, device=inputs_embeds.device)
            state = next((s for s in (state, past_key_values, cache) if isinstance(s, State)), None)
            if state is None and use_cache:
                state = self.new_state()
            if attention_mask is not None and doc_ids is None and not bool(attention_mask.bool().all()):
                doc_ids = self.padding(attention_mask)[:, -ids.shape[1]:]
            rows = self.rows(ids, doc_ids, state, seed, step)
            logits, streams = self.run(ids, rows, inputs_embeds)
            if state is not None and doc_ids is not None:
                state.doc_id = doc_ids[:, -1]
            loss = None
            if targets is not None:
                loss = mean_loss(logits, targets)
            elif labels is not None:
                loss = mean_loss(logits[:, :-1], labels[:, 1:])
            if isinstance(logits_to_keep, int):
                logits = logits[:, -logits_to_keep:] if logits_to_keep else logits
            else:
                logits = logits[:, logits_to_keep]
            hidden = (*streams[:-1], self.final_norm(streams[-1])) if output_hidden_states else None
            out = HebbOutput(loss=loss, logits=logits, state=state, hidden_states=hidden, after=rows.after, inside=rows.inside)
            return out.to_tuple() if return_dict is False else out

        def padding(self, mask):
            """Documents [B, T] of a mask [B, T]: padding on the left is one of its own, on the right it changes nothing before it."""
            if any(isinstance(module, FastMemory) for module in self.modules()):
                raise ValueError("padding: fwpkm and fwmlp learn from all tokens of a batch; pass sequences of one length, or one by one")
            mask = mask.bool()
            text = mask.cumsum(1) > 0
            if bool((mask[:, 1:] & ~mask[:, :-1] & text[:, :-1]).any()):
                raise ValueError("attention_mask: hidden tokens inside a text; found them between visible ones, expected them at its ends")
            return text.long()

        def prepare_inputs_for_generation(self, input_ids, attention_mask=None, inputs_embeds=None, use_cache=True, **more):
            state = more.get(self.STATE)
            out = {"attention_mask": attention_mask, "use_cache": use_cache, "state": state}
            if isinstance(state, State) and state.length:
                out["input_ids"] = input_ids[:, state.length - (0 if inputs_embeds is None else inputs_embeds.shape[1]):]
            elif inputs_embeds is not None:
                out["inputs_embeds"] = inputs_embeds
            else:
                out["input_ids"] = input_ids
            return out

        def _update_model_kwargs_for_generation(self, outputs, model_kwargs, *more, **named):
            model_kwargs = super()._update_model_kwargs_for_generation(outputs, model_kwargs, *more, **named)
            if outputs.get("state") is not None:
                model_kwargs[self.STATE] = outputs["state"]
            return model_kwargs

        @classmethod
        def _supports_default_dynamic_cache(cls):
            return False

        def _reorder_cache(self, state, index):
            state.reorder(index)
            return state
