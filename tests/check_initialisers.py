#!/usr/bin/env python3
"""Checks that the args structs of kernels with four or more members are written with designated initialisers, and so is what else has
six or more values, outside of the kernels.

Many members are of one type: two neighbours that change places compile."""
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


def values_of(text, at):
    """The values of a braced list that begins behind `at`; none where it is a block of statements."""
    depth, quote, values = 0, None, [""]
    while at < len(text):
        c = text[at]
        if quote:
            quote = None if c == quote and text[at - 1] != "\\" else quote
        elif c in "\"'":
            quote = c
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
            if depth < 0:
                return [v for v in values if v.strip()]
        elif c == ";":
            return []
        elif c == "," and depth == 0:
            values.append("")
            at += 1
            continue
        values[-1] += c
        at += 1
    return []


def long_lists(path, text, structs):
    """Structs, and returned lists of other things than texts, with six or more values without names."""
    for found in re.finditer(r"(?<!struct )\b(?:(" + "|".join(sorted(structs)) + r")(?: \w+)?|return )\{", text):
        if found.group(1) and f"using {found.group(1)} =" in text:  # an array of this file
            continue
        values = values_of(text, found.end())
        if len(values) >= 6 and not values[0].strip().startswith(".") and not all(v.strip().startswith('"') for v in values):
            yield text.count("\n", 0, found.start()) + 1, found.group(1) or "a returned list"


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
    structs = {name for text in texts.values() for name in re.findall(r"\bstruct (\w+)[^;{]*\{", text)}
    for path, text in texts.items():
        if path.relative_to(root).parts[0] not in ("kernels", "tests"):
            wrong += [f"{path.relative_to(root)}:{line}: {what} is written without the names of its members" for line, what in long_lists(path, text, structs)]
    print("\n".join(wrong) if wrong else f"{len(large)} args structs are written with the names of their members")
    return 1 if wrong else 0


sys.exit(main())
