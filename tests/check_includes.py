#!/usr/bin/env python3
"""Checks that folders include only what they may depend on:
tools -> {study, serve} -> eval -> inspect -> train -> {layers, optim, data, comm} -> kernels -> core, study/ladder -> study/report, and heavy headers only in .cpp files.
With a second argument, a build folder, that their objects call nothing above them either: a header can declare what it does not own."""
import collections
import os
import pathlib
import re
import subprocess
import sys

ALLOWED = {
    "core": {"core"},
    "kernels": {"kernels", "core"},
    "layers": {"layers", "kernels", "core"},
    "optim": {"optim", "kernels", "core"},
    "data": {"data", "core"},
    "comm": {"comm", "kernels", "core"},
    "train": {"train", "layers", "optim", "data", "comm", "kernels", "core"},
    "inspect": {"inspect", "train", "layers", "optim", "data", "comm", "kernels", "core"},
    "eval": {"eval", "inspect", "train", "layers", "optim", "data", "comm", "kernels", "core"},
    "serve": {"serve", "eval", "inspect", "train", "layers", "optim", "data", "comm", "kernels", "core"},
    "study": {"study", "eval", "inspect", "train", "layers", "optim", "data", "comm", "kernels", "core"},
    "tools": {"tools", "serve", "inspect", "study", "eval", "train", "layers", "optim", "data", "comm", "kernels", "core"},
}
BELOW = {"study/report": "study/ladder"}  # folders and those above them in the same folder
HEAVY = ("nlohmann/", "spdlog/", "fmt/", "sentencepiece", "zstd.h", "zlib.h", "CLI/", "httplib.h")


def is_above(folder, other):
    """Whether a source of `folder` must not use what is in `other`, for example "study/report" and "study/ladder"."""
    top, other_top = folder.split("/")[0], other.split("/")[0]
    return (other_top not in ALLOWED[top]) or BELOW.get(folder) == other


def calls_above(root, build):
    """Symbols that an object needs and that only folders above it define."""
    wrong, needs, owners = [], [], collections.defaultdict(set)
    for path in sorted(build.glob("CMakeFiles/*.dir/*/**/*.o")):
        source = path.relative_to(build / "CMakeFiles").parts[1:]
        source = pathlib.Path(*source).with_suffix("")
        if source.parts[0] not in ALLOWED or not (root / source).is_file():  # an object of a source that is gone stays in the folder
            continue
        folder = str(source.parent)
        for line in subprocess.run(["nm", "-P", path], capture_output=True, text=True, check=True).stdout.splitlines():
            name, kind = line.split()[:2]
            if kind == "U":
                needs.append((source, folder, name))
            elif kind in "TDBR":  # weak ones are of headers
                owners[name].add(folder)
    for source, folder, name in needs:
        lent = {"kernels/add"} if folder == "core" else set()  # holds the device code of core/cuda_device.h
        if owners[name] - lent and all(is_above(folder, owner) for owner in owners[name]):
            text = subprocess.run(["c++filt", name], capture_output=True, text=True).stdout.strip()
            wrong.append(f"{source}: {folder} must not call {text} of {', '.join(sorted(owners[name]))}")
    if not owners:
        wrong.append(f"{build}: no objects")
    return wrong


def main() -> int:
    root = pathlib.Path(sys.argv[1])
    wrong = []
    for folder in ALLOWED:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in (".h", ".cpp", ".cu", ".cuh"):
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                match = re.match(r'\s*#\s*include\s*[<"]([^>"]+)[>"]', line)
                if not match:
                    continue
                name = match.group(1)
                top = name.split("/")[0]
                where = f"{path.relative_to(root)}:{number}"
                if top in ALLOWED and "/" in name and is_above(str(path.parent.relative_to(root)), os.path.dirname(name)):
                    wrong.append(f"{where}: {folder} must not include {name}")
                if name == "CLI/CLI.hpp" and path.name != "command_line.cpp":
                    wrong.append(f"{where}: {name} costs seconds wherever it is read; declare options through tools/command_line.h")
                if top == "tests":
                    wrong.append(f"{where}: nothing includes tests/")
                if path.suffix == ".h" and name.startswith(HEAVY):
                    wrong.append(f"{where}: {name} belongs in a .cpp file")
                if "cuda" in name.lower() and not re.search(r"cuda", str(path.relative_to(root))) and top not in ALLOWED:
                    wrong.append(f"{where}: CUDA headers belong in */cuda*, kernels/*/*.cu")
    if len(sys.argv) > 2:
        wrong += calls_above(root, pathlib.Path(sys.argv[2]))
    print("\n".join(wrong) if wrong else "the folders keep their order")
    return 1 if wrong else 0


sys.exit(main())
