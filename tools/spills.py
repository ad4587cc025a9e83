#!/usr/bin/env python3
"""Reads what ptxas says of kernels in the log of a build, prints registers and spills, and fails when a hot kernel spills.

  cmake -S . -B build-gpu -DCMAKE_CUDA_FLAGS=-Xptxas=-v ... && cmake --build build-gpu -v 2>&1 | tee build.log
  tools/spills.py build.log [...]        # exit code 1: a hot kernel spills more than its limit, or none was found
  tools/spills.py --markdown build.log   # hot kernels and those that spill, as a table

Without -v the log holds only the warnings of --warn-on-spills, which the build always asks for: then registers are not known ("-") and a
hot kernel that is not named does not spill. Objects that were built before leave nothing in a log: only a fresh build shows all kernels.
"""
import argparse
import re
import shutil
import subprocess
import sys

# Kernels that training in bf16 spends its time in: name -> bytes of spill stores that are accepted. More needs a reason here.
HOT = {
    "attention_mma_forward_kernel": 0, "attention_mma_queries_kernel": 0, "attention_mma_keys_kernel": 0,
    "ovq_fold_kernel": 0, "read_slots_mma_kernel": 0, "slot_queries_mma_kernel": 0, "slot_gradients_mma_kernel": 0, "compare_slots_mma_kernel": 0,
    "gated_delta_mma_kernel": 0,
    "gated_delta_mma_adjoint_kernel": 0, "gated_delta_mma_chunk_kernel": 0,
    "norm_forward_kernel": 0, "norm_backward_kernel": 0, "swiglu_forward_kernel": 0, "swiglu_backward_kernel": 0,
    "cross_entropy_kernel": 0, "embedding_forward_kernel": 0, "adamw_kernel": 0, "sum_squares_kernel": 0,
    "tile_kernel": 0,  # the fast weights of lact
    "fwpkm_entries_mma_kernel": 0, "fwpkm_slots_kernel": 0, "key_lists_kernel": 0, "key_sums_kernel": 0, "reader_sums_kernel": 0,
    "fwpkm_token_backward_kernel": 0, "number_slots_kernel": 0,
    "sparse_delta_forward_kernel": 0, "sparse_delta_adjoint_kernel": 0, "sparse_delta_value_kernel": 0,
}

FUNCTION = re.compile(r"ptxas info\s*: (?:Compiling entry function|Function properties for) '?(\w+)'?")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"ptxas info\s*: Used (\d+) registers")
WARNING = re.compile(r"Registers are spilled to local memory in function '(\w+)', (\d+) bytes spill stores, (\d+) bytes spill loads")


def read_log(lines):
    """Mangled name -> {"registers", "stores", "loads"}."""
    kernels, current = {}, None
    for line in lines:
        if found := FUNCTION.search(line):
            current = found.group(1)
            kernels.setdefault(current, {"registers": None, "stores": 0, "loads": 0})
        elif found := WARNING.search(line):
            entry = kernels.setdefault(found.group(1), {"registers": None, "stores": 0, "loads": 0})
            entry["stores"], entry["loads"] = int(found.group(2)), int(found.group(3))
        elif current and (found := SPILLS.search(line)):
            kernels[current]["stores"], kernels[current]["loads"] = int(found.group(2)), int(found.group(3))
        elif current and (found := REGISTERS.search(line)):
            kernels[current]["registers"] = int(found.group(1))
    return kernels


def readable(names):
    """Mangled -> "kernel<arguments>", without name spaces and parameters."""
    texts = list(names)
    if texts and shutil.which("c++filt"):
        texts = subprocess.run(["c++filt"], input="\n".join(texts), capture_output=True, text=True, check=True).stdout.splitlines()
    short = {}
    for name, text in zip(names, texts):
        text = re.sub(r"_GLOBAL__N__\w+::|\(anonymous namespace\)::|hebb::cuda::|hebb::|std::|^void ", "", text)
        text = re.sub(r"(\(|\{)(?:lambda|unnamed).*", "", text)
        depth = 0
        for i, c in enumerate(text):  # parameters begin at the first ( outside < >
            depth += (c == "<") - (c == ">")
            if c == "(" and depth == 0 and i > 0:
                text = text[:i]
                break
        short[name] = re.sub(r"\((?:int|bool|long)\)", "", text)
    return short


def base(name):
    """The function's own name; of a mangled one, where c++filt is missing, the hot name that it holds."""
    plain = name.split("<")[0].split("::")[-1]
    return next((hot for hot in HOT if hot in plain), plain)


def markdown(rows):
    """One line per kernel; registers and spills of its variants in the order of their names."""
    groups = {}
    for name, entry in rows:
        groups.setdefault(base(name), []).append((name.partition("<")[2].rstrip(">") or "-", entry))
    lines = ["| kernel | variants | registers | spilled, bytes written / read | hot |", "|---|---|---|---|---|"]
    for name, variants in groups.items():
        registers = ", ".join(str(e["registers"] or "-") for _, e in variants)
        spills = ", ".join(f"{e['stores']} / {e['loads']}" for _, e in variants) if any(e["stores"] for _, e in variants) else "0"
        lines.append(f"| `{name}` | {'; '.join(v for v, _ in variants)} | {registers} | {spills} | {'yes' if name in HOT else ''} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("log", nargs="+")
    args = parser.parse_args()
    kernels = {}
    for path in args.log:
        try:
            with open(path, errors="replace") as log:
                kernels.update(read_log(log))
        except OSError as error:
            parser.error(f"{path}: cannot read: {error.strerror}")
    names = readable(list(kernels))
    rows = sorted((names[mangled], entry) for mangled, entry in kernels.items())
    shown = [(name, e) for name, e in rows if base(name) in HOT or e["stores"] > 0]
    if args.markdown:
        print(markdown(shown))
    else:
        for name, e in shown:
            print(f"{name:76}  {e['registers'] or '-':>9}  {e['stores']} / {e['loads']} bytes  {'hot' if base(name) in HOT else ''}")
    wrong = [(name, e["stores"]) for name, e in rows if e["stores"] > HOT.get(base(name), e["stores"])]
    for name, stores in wrong:
        print(f"spills.py: {name}: found {stores} bytes of spills, expected at most {HOT[base(name)]}", file=sys.stderr)
    if any(e["registers"] is not None for e in kernels.values()):  # a log with -v names every kernel that was compiled
        absent = [hot for hot in HOT if not any(base(name) == hot for name, _ in rows)]
        if absent:
            print(f"spills.py: not in the log, so not checked: {', '.join(absent)}", file=sys.stderr)
        if len(absent) == len(HOT):
            return 1
    elif not kernels:
        print("spills.py: no word of ptxas in the log: nothing spills, or nothing was compiled", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
