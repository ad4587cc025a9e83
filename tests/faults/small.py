"""A small run, data set, evaluation and ladder that hebb makes in a moment, and what of their results does not depend on time. All work
happens in one folder of a fixed name, since configurations hold absolute paths."""
import json
import os
import random
import shutil
import struct
import subprocess
import tempfile

MODEL = {
    "vocab_size": 40, "hidden_size": 16, "num_layers": 1,
    "layers": {"mix": {"type": "gdn", "num_heads": 2, "key_head_dim": 4, "value_head_dim": 4},
               "mlp": {"type": "swiglu", "intermediate_size": 20}},
    "pattern": [{"mixer": "mix", "ffn": "mlp"}]}
TRAIN = {"steps": 4, "batch_size": 4, "sequence_length": 16, "device": "cpu", "threads": 1, "log_every": 1, "checkpoint": {"every": 2, "keep": 1}}
DATA = {"path": "tokens.bin", "format": "raw_u16"}
# Of results: times, and what depends on when files were written.
MEASURED = ("time", "tokens_per_s", "step_ms", "mem_bytes", "seconds", "setting", "comm", "fingerprint")


def inputs(folder):
    """The files that a user would write."""
    draw = random.Random(1)
    os.makedirs(folder)
    run = {"name": "small", "model": MODEL, "data": {"sources": [DATA]}, "train": TRAIN, "optimizer": {"lr": 1e-3}}
    files = {
        "run.json": run,
        "base.json": {key: value for key, value in run.items() if key != "name"},
        "sweep.json": {"name": "ladder", "base": "base.json", "max_parallel": 1, "grid": {"train.seed": [1, 2]}},
        "eval.json": {"evaluations": [{"name": "tokens", "kind": "stream_ppl", "data": DATA, "max_tokens": 200},
                                      {"name": "recall", "kind": "mqar", "vocab": 30, "cases": [{"length": 16, "pairs": 2}], "samples": 3}]}}
    for name, value in files.items():
        write(os.path.join(folder, name), json.dumps(value))
    write(os.path.join(folder, "tokens.bin"), b"".join(struct.pack("<H", draw.randrange(40)) for _ in range(4000)))
    for name, words in (("old.jsonl", "six seven eight"), ("docs.jsonl", "one two three four five")):
        lines = [json.dumps({"text": " ".join(draw.choice(words.split()) for _ in range(9))}) + "\n" for _ in range(60)]
        write(os.path.join(folder, name), "".join(lines))


def write(path, content):
    with open(path, "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode())


def read(path):
    with open(path, "rb") as file:
        return file.read()


def tree(folder):
    """What lies below a folder: bytes by path, None for folders."""
    found = {}
    for at, folders, files in os.walk(folder):
        for name in folders:
            found[os.path.relpath(os.path.join(at, name), folder)] = None
        for name in files:
            found[os.path.relpath(os.path.join(at, name), folder)] = read(os.path.join(at, name))
    return found


def timeless(value):
    """A JSON value without MEASURED."""
    if isinstance(value, dict):
        return {key: timeless(v) for key, v in value.items() if key not in MEASURED}
    return [timeless(v) for v in value] if isinstance(value, list) else value


def json_lines(text):
    return [timeless(json.loads(line)) for line in text.splitlines()]


class Work:
    """The folder, and hebb in it."""

    def __init__(self, hebb, library=None):
        self.hebb, self.library = os.path.abspath(hebb), library and os.path.abspath(library)
        self.top = tempfile.mkdtemp(prefix="hebb-faults-")
        self.folder = os.path.join(self.top, "work")
        inputs(os.path.join(self.top, "inputs"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.top, ignore_errors=True)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def keep(self, name):
        """The state of the folder, for start()."""
        shutil.copytree(self.folder, os.path.join(self.top, name), symlinks=True)

    def start(self, name="inputs"):
        """The folder anew, in a state that was kept."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(os.path.join(self.top, name), self.folder, symlinks=True)

    def run(self, command, **fault):
        """hebb with a fault: what faults.cpp reads. Returns exit code (negative: signal) and standard error."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FAULT_")}
        if fault:
            environment["LD_PRELOAD"] = self.library
            environment.update({"FAULT_" + name.upper(): str(value) for name, value in fault.items()})
        done = subprocess.run([self.hebb, *command], cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              errors="replace", check=False)
        return done.returncode, done.stdout, done.stderr
