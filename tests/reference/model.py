"""The models of inspect/convert/modeling_hebb.py as functions of weights by name, in float64: what the checks of this folder compare with."""
import functools
import json
import os
import sys

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "inspect", "convert"))

import modeling_hebb  # noqa: E402
from modeling_hebb import block_layers as blocks  # noqa: E402, F401
from modeling_hebb import mean_loss  # noqa: E402, F401

torch.set_default_dtype(torch.float64)


class Rows(modeling_hebb.Rows):
    """Tokens of a micro-batch [B, T] and their documents."""

    def __init__(self, model, inputs, targets=None, doc_ids=None, mode="train", seed=0, step=0):
        super().__init__(model, *inputs.shape, doc_ids, None, mode == "train", seed, step)
        self.inputs, self.targets = inputs, targets


class Module(modeling_hebb.Hebb):
    def forward(self, rows):
        return self.run(rows.inputs, rows)[0]


@functools.lru_cache(8)
def skeleton(text):
    """The modules of a model without values."""
    with torch.device("meta"):
        return Module(json.loads(text))


def module_of(model):
    return skeleton(json.dumps(model))


def named_shapes(model, kind="params"):
    """{full name: shape} of all parameters, or of all fast weights and other state ("fast")."""
    module = module_of(model)
    return {name: list(t.shape) for name, t in (module.named_parameters() if kind == "params" else module.named_buffers())}


def initial(name, shape):
    """What a layer says of a tensor's values in a drawn case; None: nothing."""
    return torch.randint(120, shape, dtype=torch.int32) if name.endswith(".idle") else None  # counts of steps, as in a trained model


def forward(model, w, rows):
    """logits [B, T, V]. w: all parameters and fast weights by name."""
    return torch.func.functional_call(module_of(model), w, (rows,))


def load_model(path):
    with open(path) as f:
        model = json.load(f)
    return model.get("model", model)
