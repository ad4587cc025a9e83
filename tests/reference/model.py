"""The model contract (docs/model.md) in PyTorch, float64, written from the formulas alone: nothing here is fast.

A layer type is a module of this folder with two functions:

    params(cfg, model)        {local name: shape} of what the layer trains; `model` is the whole model object
    forward(cfg, w, x, rows)  [B, T, d] -> [B, T, d]; w: local name -> tensor; memories get h itself, the others its norm

and optionally `fast(cfg, model)`, {local name: shape} of fast weights and other state; forward leaves fast weights' values after the micro-batch
in `rows.after`; and `initial(name, shape)`: values of a tensor in a drawn case, or None.
"""
import importlib
import json

import torch

torch.set_default_dtype(torch.float64)


class Rows:
    """Tokens of a micro-batch and what layers may know about them."""

    def __init__(self, model, inputs, targets=None, doc_ids=None, mode="train", seed=0, step=0):
        self.model, self.inputs, self.targets, self.doc_ids = model, inputs, targets, doc_ids  # [B, T] each
        self.mode, self.seed, self.step = mode, seed, step
        self.block = 0  # index of the block that runs
        self.weights, self.embedded = {}, None  # all weights by full name; embeddings after their norm [B, T, d]
        self.shared = {}  # what a layer leaves for later blocks
        self.after = {}  # fast weights after the micro-batch, by full name
        self.is_later_part = False  # of a step's micro-batches this is not the first
        self.restarted = {}  # parameters that begin anew in this pass, by full name
        self.inside = {}  # decisions and scores of the table in docs/verbs/trace.md, Decisions, by full name
        B, T = inputs.shape
        index = torch.arange(T).expand(B, T)
        begins = torch.zeros(B, T, dtype=torch.bool)
        begins[:, 0] = True
        if doc_ids is not None:
            begins[:, 1:] = doc_ids[:, 1:] != doc_ids[:, :-1]
        self.start = torch.where(begins, index, torch.zeros_like(index)).cummax(1).values  # first token of the token's document
        self.position = index - self.start  # within the document

    def documents(self, b):
        """[(begin, end)] of the documents of row b; a layer that resets may run over each alone."""
        firsts = (self.position[b] == 0).nonzero().flatten().tolist()
        return list(zip(firsts, firsts[1:] + [self.inputs.shape[1]]))


def rms_norm(x, weight, eps):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def layer_norm(x, weight, bias, eps):
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + eps) * weight + bias


def l2_norm(x):
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def linear(x, weight, bias=None):
    y = x @ weight.T
    return y if bias is None else y + bias


def silu(x):
    return x * torch.sigmoid(x)


def block_norm(model, w, name, x):
    kind, eps = model.get("norm", "rms"), model.get("norm_eps", 1e-5)
    if kind == "layer":
        return layer_norm(x, w[name + ".weight"], w[name + ".bias"], eps)
    return rms_norm(x, w[name + ".weight"] + (1 if kind == "rms_unit_offset" else 0), eps)


def blocks(model):
    """[{role: layer definition}] of the blocks."""
    out = []
    for i in range(model["num_layers"]):
        entry = dict(model["pattern"][i % len(model["pattern"])])
        entry.update(model.get("at", {}).get(str(i), {}))
        out.append({role: model["layers"][name] for role, name in entry.items() if name is not None})
    return out


def layer_module(cfg):
    return importlib.import_module(cfg["type"])


def named_shapes(model, function="params"):
    """{full name: shape} of all parameters, or of all fast weights."""
    shapes, d, V = {}, model["hidden_size"], model["vocab_size"]

    def norm(name):
        shapes[name + ".weight"] = [d]
        if model.get("norm") == "layer":
            shapes[name + ".bias"] = [d]

    if function == "params":
        shapes["embed.weight"] = [V, d]
        if model.get("embed_norm"):
            norm("embed_norm")
    for i, block in enumerate(blocks(model)):
        for role in ("memory", "mixer", "ffn"):
            if role not in block:
                continue
            if role != "memory" and function == "params":
                norm(f"blocks.{i}.{role}_norm")
            make = getattr(layer_module(block[role]), function, None)
            for name, shape in (make(block[role], model).items() if make else ()):
                shapes[f"blocks.{i}.{role}.{name}"] = shape
    if function == "params":
        norm("final_norm")
        if not model.get("tie_embeddings"):
            shapes["lm_head.weight"] = [V, d]
    return shapes


def initial(model, name, shape):
    """What the layer that owns a parameter says of its values in a drawn case; None: nothing."""
    parts = name.split(".", 3)
    if parts[0] != "blocks" or parts[2] not in blocks(model)[int(parts[1])]:
        return None
    own = getattr(layer_module(blocks(model)[int(parts[1])][parts[2]]), "initial", None)
    return own and own(parts[3], shape)


def forward(model, w, rows):
    """logits [B, T, V]."""
    h = w["embed.weight"][rows.inputs]
    if model.get("embed_norm"):
        h = block_norm(model, w, "embed_norm", h)
    rows.weights, rows.embedded = w, h
    rho = model.get("residual_scale", 1.0)
    for i, block in enumerate(blocks(model)):
        rows.block = i
        for role in ("memory", "mixer", "ffn"):
            if role not in block:
                continue
            prefix = f"blocks.{i}.{role}."
            own = {name[len(prefix):]: tensor for name, tensor in w.items() if name.startswith(prefix)}
            x = h if role == "memory" else block_norm(model, w, f"blocks.{i}.{role}_norm", h)
            rows.prefix = prefix
            h = h + rho * layer_module(block[role]).forward(block[role], own, x, rows)
    h = block_norm(model, w, "final_norm", h)
    return h @ w["embed.weight" if model.get("tie_embeddings") else "lm_head.weight"].T


def mean_loss(logits, targets):
    valid = targets != -100
    log_p = torch.log_softmax(logits[valid], -1)
    return -log_p.gather(-1, targets[valid].unsqueeze(-1)).mean()


def short_conv(x, weight, rows, bias=None):
    """Causal depthwise convolution within documents. x [B, T, c], weight [c, K]: y_t = sum_j weight[:, K - 1 - j] x_{t - j}."""
    B, T, _ = x.shape
    y = torch.zeros_like(x)
    K = weight.shape[-1]
    for j in range(min(K, T)):
        inside = (rows.position[:, j:] >= j).unsqueeze(-1)
        y = y + torch.nn.functional.pad(torch.where(inside, x[:, :T - j], torch.zeros(())), (0, 0, j, 0)) * weight[:, K - 1 - j]
    return y if bias is None else y + bias


def load_model(path):
    with open(path) as f:
        model = json.load(f)
    return model.get("model", model)
