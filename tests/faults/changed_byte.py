#!/usr/bin/env python3
"""One byte of a file of a run or of its data set is another: train goes on, eval, generate and data verify refuse it with the name of the
file, or come to the same result.

Usage: changed_byte.py HEBB LIBRARY [--places N]
  LIBRARY   libfaults.so (tests/faults/faults.cpp)
  --places  changed bytes of each file, spread over it; 0: every byte (default 12)
"""
import argparse
import os
import re
import sys

import small

EVAL = {"evaluations": [{"name": "tokens", "kind": "stream_ppl", "data": {"path": "set"}, "max_tokens": 200}]}
GENERATE = ["generate", "runs/small", "--prompt", "The", "--max-new-tokens", "20", "--temperature", "0", "--ignore-eos", "--threads", "1"]


def prepare(work):
    """A run that was killed as it saved its last step, with a tokenizer, a data set and an evaluation."""
    work.start()
    for command in (["data", "synth", "--documents", "30", "--seed", "1", "-o", "text.jsonl"],
                    ["tokenizer", "train", "text.jsonl", "-o", "text.model", "--vocab-size", "320", "--threads", "1"],
                    ["data", "encode", "text.jsonl", "-t", "text.model", "-o", "set", "--val-documents", "5", "--threads", "1"]):
        code, _, err = work.run(command)
        assert code == 0, err
    run = {"name": "small", "model": small.MODEL | {"vocab_size": 320}, "data": {"sources": [{"path": "set"}]}, "train": small.TRAIN,
           "optimizer": {"lr": 1e-3}}
    small.write(work.path("run.json"), small.json.dumps(run))
    small.write(work.path("eval.json"), small.json.dumps(EVAL))
    work.run(["train", "run.json"], folder="step_00000004", call=1, signal=9)
    assert small.read(work.path("runs", "small", "checkpoints", "latest")) == b"step_00000002\n"
    work.keep("killed")


def results(work):
    """The verbs, each with what it came to: (exit code, what it said, result)."""
    run = work.path("runs", "small")
    code, out, err = work.run(GENERATE)
    yield "generate", code, out + err, out
    code, out, err = work.run(["eval", "eval.json", "--checkpoint", "runs/small", "--threads", "1"])
    found = None
    if code == 0:
        found = small.timeless(small.json.loads(small.read(os.path.join(run, "evals", "step_00000002", "tokens.json"))))["metrics"]
    yield "eval", code, out + err, found
    code, out, err = work.run(["data", "verify", "set"])
    yield "data verify", code, out + err, out
    code, out, err = work.run(["train", "run.json"])
    yield "train", code, out + err, trained(run) if code == 0 else None


def trained(run):
    last = os.path.join(run, "checkpoints", "step_00000004")
    lines = small.json_lines(small.read(os.path.join(run, "metrics.jsonl")))
    return [small.read(os.path.join(last, name)) for name in ("model.safetensors", "optimizer.safetensors")], [line["step"] for line in lines]


def places(size, count):
    count = size if count == 0 else min(count, size)
    return sorted({i * (size - 1) // max(1, count - 1) for i in range(count)})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("hebb")
    parser.add_argument("library")
    parser.add_argument("--places", type=int, default=12)
    options = parser.parse_args()
    tried = refused = failures = 0
    with small.Work(options.hebb, options.library) as work:
        prepare(work)
        expected = {}
        for verb, code, said, result in results(work):
            assert code == 0, f"{verb}: {said}"
            expected[verb] = result
        work.start("killed")
        files = [name for name, content in sorted(small.tree(work.folder).items()) if content and name.split("/")[0] in ("runs", "set")]
        files = [name for name in files if not re.search(r"train\.log|/tb/|lock$", name)]  # for people
        for name in files:
            content = small.read(work.path(name))
            for k, place in enumerate(places(len(content), options.places)):
                work.start("killed")
                other = bytes([content[place] ^ (1 << (k % 8))])  # every bit in turn
                small.write(work.path(name), content[:place] + other + content[place + 1:])
                for verb, code, said, result in results(work):
                    tried += 1
                    refused += code != 0
                    is_named = os.path.basename(name) in said
                    if (code == 0 and result != expected[verb]) or (code != 0 and not is_named):
                        failures += 1
                        print(f"{verb}, byte {place} of {name}, {content[place:place + 1]} -> {other}: exit code {code}, "
                              f"{'another result' if code == 0 else 'the file is not named'}\n{said[-500:]}", flush=True)
        print(f"{len(files)} files, {tried} starts, {refused} refused, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
