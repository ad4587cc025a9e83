#!/usr/bin/env python3
"""Checks that the args structs of kernels with four or more members are written with designated initialisers.

All members are tensors, sizes and flags: two neighbours that change places compile."""
import pathlib
import re
import sys

FOLDERS = ("kernels", "layers", "optim", "comm", "train", "inspect", "eval", "study", "tools", "tests")
KERNEL = re.compile(r"\bHEBB_KERNEL(?:_CPU|_WITH_SCRATCH)?\((\w+)\)")


def members(body):
    """The number of members that a struct's body declares."""
    text = re.sub(r"//[^\n]*", "", body)
    count = 0
    for statement in text.split(";"):
        if statement.strip() and "(" not in statement:
            count += 1 + re.sub(r"[<{][^<>{}]*[>}]", "", statement).count(",")
    return count


def main() -> int:
    root = pathlib.Path(sys.argv[1])
    sources = [p for folder in FOLDERS for p in sorted((root / folder).rglob("*")) if p.suffix in (".h", ".cpp", ".cu", ".cuh")]
    texts = {path: path.read_text() for path in sources}
    large = set()
    for path, text in texts.items():
        for name in KERNEL.findall(text):
            found = re.search(r"\bstruct " + name + r" \{(.*?)\n\};", text, re.S)
            if found and members(found.group(1)) >= 4:
                large.add(name)
    if not large:
        print("no args struct was found")
        return 1
    written = re.compile(r"\b(" + "|".join(sorted(large)) + r")(?: \w+)?\{\s*(?!\.|\}|\s)")
    wrong = []
    for path, text in texts.items():
        for found in written.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            if not text[: found.start()].endswith("struct "):
                wrong.append(f"{path.relative_to(root)}:{line}: {found.group(1)} is written without the names of its members")
    print("\n".join(wrong) if wrong else f"{len(large)} args structs are written with the names of their members")
    return 1 if wrong else 0


sys.exit(main())
