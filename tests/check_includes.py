#!/usr/bin/env python3
"""Checks that folders include only what they may depend on:
tools -> {study, serve} -> eval -> inspect -> train -> {layers, optim, data, comm} -> kernels -> core, study/ladder -> study/report, and heavy headers only in .cpp files."""
import pathlib
import re
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


def main() -> int:
    root = pathlib.Path(sys.argv[1])
    wrong = []
    for folder, allowed in ALLOWED.items():
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
                if top in ALLOWED and "/" in name and top not in allowed:
                    wrong.append(f"{where}: {folder} must not include {name}")
                above = BELOW.get(str(path.parent.relative_to(root)), "/")
                if name.startswith(above):
                    wrong.append(f"{where}: {above} is above {path.parent.relative_to(root)}")
                if name == "CLI/CLI.hpp" and path.name != "command_line.cpp":
                    wrong.append(f"{where}: {name} costs seconds wherever it is read; declare options through tools/command_line.h")
                if top == "tests":
                    wrong.append(f"{where}: nothing includes tests/")
                if path.suffix == ".h" and name.startswith(HEAVY):
                    wrong.append(f"{where}: {name} belongs in a .cpp file")
                if "cuda" in name.lower() and not re.search(r"cuda", str(path.relative_to(root))) and top not in ALLOWED:
                    wrong.append(f"{where}: CUDA headers belong in */cuda*, kernels/*/*.cu")
    print("\n".join(wrong) if wrong else "includes follow the order of the folders")
    return 1 if wrong else 0


sys.exit(main())
