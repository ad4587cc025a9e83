#!/usr/bin/env python3
"""tools/peers/gpu_pytorch.py with stand-ins for PyTorch and hebb: what ends it loses no result, and nothing starts after its time."""
import os
import sys
import time
from types import SimpleNamespace
from unittest.mock import MagicMock

for module in ("torch", "torch.nn", "torch.nn.functional", "pytorch_models"):
    sys.modules[module] = MagicMock()
sys.path.insert(0, os.path.join(sys.argv[1], "tools", "peers"))
import gpu_pytorch as script  # noqa: E402

args = SimpleNamespace(rows=2, length=8, steps=1, rounds=2, device="cuda", small=False, peer_seconds=10)
shape = SimpleNamespace(config=lambda kind: {})
script.MODELS = {"model": (shape, "kind")}
script.Trainer = lambda model, shape, args: SimpleNamespace(step=lambda: 4.0)
freed = []
script.torch.cuda.empty_cache = lambda: freed.append(True)
later = time.monotonic() + 100


def hebb(args, words):
    assert freed, "PyTorch gives back its cache before hebb needs the memory"
    freed.clear()
    return {"models": [{"tokens_per_s": 8000.0}]}


def killed():
    raise KeyboardInterrupt


script.hebb = hebb
script.model_peers = lambda device, shape, kind: {"first": object, "second": killed}
report = script.Report(None, {})
try:
    script.compare_model(args, report, "model", later)
    raise AssertionError("the second peer was to end the script")
except KeyboardInterrupt:
    pass
assert [(row["peer_name"], row["ratio"]) for row in report.rows] == [("first", 2.0)], report.rows

script.hebb = lambda args, words: sys.exit("hebb was started after its time")
script.operation_peers = lambda args, tokens: []
report = script.Report(None, {})
script.compare_operations(args, report, time.monotonic() - 1)
assert report.missing[0]["peer_name"] == "hebb" and "no time left" in report.missing[0]["reason"], report.missing
print("gpu_pytorch.py keeps what it has measured and its time")
