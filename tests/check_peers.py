#!/usr/bin/env python3
"""tools/peers/gpu_pytorch.py with stand-ins for PyTorch and hebb: what ends it loses no result, nothing starts after its time, and operations are
timed as hebb times its own."""
import os
import re
import sys
import time
from types import SimpleNamespace
from unittest.mock import MagicMock

for module in ("torch", "torch.nn", "torch.nn.functional", "pytorch_models"):
    sys.modules[module] = MagicMock()
sys.path.insert(0, os.path.join(sys.argv[1], "tools", "peers"))
import gpu_pytorch as script  # noqa: E402

args = SimpleNamespace(rows=2, length=8, steps=1, rounds=2, device="cuda", small=False, peer_seconds=600)
shape = SimpleNamespace(config=lambda kind: {})
script.MODELS = {"model": (shape, "kind")}
script.Trainer = lambda model, shape, args: SimpleNamespace(step=lambda: 4.0)
freed = []
script.torch.cuda.empty_cache = lambda: freed.append(True)
later = time.monotonic() + 6000


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

# One operation of hebb's and a peer that waits: the device's log has copies, the call between two events, and one wait.
log = []


class Event:
    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        log.append("event")

    def synchronize(self):
        log.append("wait")

    def elapsed_time(self, end):
        return 0.5


class Bytes:
    def __init__(self, count, dtype, device):
        self.count, self.device = count, device

    def copy_(self, other):
        log.append(("copy", min(self.count, other.count), self.device))


script.torch.cuda.Event = Event
script.torch.zeros = Bytes
script.torch.cuda.synchronize = lambda: log.append("host waits")
script.hebb = lambda args, words: {"kernels": {"rows": [{"name": "operation", "ms": 0.25}]}}
script.operation_peers = lambda args, tokens: [(re.compile("operation"), "peer", lambda match: lambda: log.append("call"))]
report = script.Report(None, {})
script.compare_operations(args, report, later)
assert [row["ratio"] for row in report.rows] == [2.0], (report.rows, report.missing)
with open(os.path.join(sys.argv[1], "inspect", "bench_operations.cpp")) as file:
    source = file.read()
shift, copies = (int(re.search(pattern, source).group(1)) for pattern in (r"kAheadBytes = int64_t\{64\} << (\d+)", r"kCopies = (\d+)"))
once = [("copy", 64 << shift, "cuda")] * copies + ["event", "call", "event", "wait"]
assert log[0] == "call" and len(log) > 3 * len(once), log[:20]  # the first call compiles
assert log[1:] == once * ((len(log) - 1) // len(once)), log[1:1 + len(once)]
print("gpu_pytorch.py keeps what it has measured and its time, and times as hebb does")
