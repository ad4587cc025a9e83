#!/usr/bin/env python3
"""The script in the page of hebb report, run by node on the page of a small run; skipped where node is not installed.

check_report_script.py SOURCE HEBB
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

SOURCE, HEBB = sys.argv[1:3]
NODE = shutil.which("node") or shutil.which("nodejs")
if NODE is None:
    print("skipped: node is not installed")
    sys.exit(77)

CONFIG = {
    "name": "small",
    "model": {"vocab_size": 64, "hidden_size": 12, "num_layers": 1, "layers": {"full": {"type": "attention", "num_heads": 3, "head_dim": 4},
              "mlp": {"type": "swiglu", "intermediate_size": 16}}, "pattern": [{"mixer": "full", "ffn": "mlp"}]},
    "data": {"sources": [{"type": "synthetic", "task": "mqar", "vocab": 64, "pairs": 2}]},
    "train": {"steps": 24, "batch_size": 2, "sequence_length": 16, "log_every": 1, "device": "cpu", "threads": 1},
    "optimizer": {"lr": 0.01},
}


def run(words, **more):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    assert done.returncode == 0, f"{words}:\n{done.stdout}"
    return done.stdout


with tempfile.TemporaryDirectory() as folder:
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(CONFIG, file)
    run([HEBB, "train", "config.json"], cwd=folder)
    run([HEBB, "report", "runs/small", "-o", "page"], cwd=folder)
    print(run([NODE, os.path.join(SOURCE, "tests/study/page_script.js"), os.path.join(folder, "page/index.html")]), end="")
