#!/usr/bin/env python3
"""Checks that the pages and sections that sources cite exist, for example "docs/model.md, Loss", the files that their comments
name, for example core/tape.h or prelude.cuh, and the files and folders that pages name, for example `tests/layers/*_test.cpp`.
The version of CMakeLists.txt is the first one of CHANGELOG.md."""
import pathlib
import re
import sys

SUFFIXES = (".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".cmake", ".txt")
CITATION = re.compile(r"\b(docs/[\w/.-]+\.md)(?:, ([A-Z][^\n]*))?")
# Names on pages that stand for a file of the reader's: layers/NAME.cpp, the example of docs/adding-a-layer.md, parts of sweeps.
PLACEHOLDER = re.compile(r"NAME|\bOP\b|fade|gla\.|configs/.*-part\.json|configs/ovq/icr-learned\.json")
# Headers of the system and of packages, which comments name too.
FOREIGN = re.compile(r"^(?:[a-z_]*cuda|cublas|nccl|mpi|catch|utf8proc|zlib|zstd|immintrin|asan_interface)[\w]*\.(?:h|hpp)$")


def stale_comments(root, folders, sources):
    """Sources that comments name and that do not exist."""
    wrong = []
    names = {p.name for folder in folders for p in folder.rglob("*") if p.is_file()}
    name = re.compile(r"(?<![\w/.*<\"-])([\w/*-]+\.(?:h|cpp|cuh?|py))\b(?!\()")
    for path in sources:
        if path.suffix not in (".h", ".cpp", ".cu", ".cuh"):
            continue
        for comment in re.findall(r"(?<![:\"])//+[^\n]*", path.read_text(errors="replace")):
            for cited in name.findall(comment):
                if PLACEHOLDER.search(cited) or FOREIGN.search(cited):
                    continue
                places = (root, root / "kernels", path.parent)  # a comment of kernels/ovq may say dictionary/parts.h
                if not (any(list(place.glob(cited)) for place in places) if "/" in cited or "*" in cited else cited in names):
                    wrong.append(f"{path.relative_to(root)}: {cited} does not exist")
    return wrong


def stale_names(root, folders):
    """Files and folders of the repository that pages name and that do not exist."""
    wrong = []
    tops = "|".join(re.escape(p.name) for p in folders)
    name = re.compile(rf"(?<![\w/.-])(?:{tops}|docs)/[\w/.*-]*\.(?:h|cpp|cuh?|py|sh|json|md)\b")
    for page in sorted((root / "docs").rglob("*.md")) + [root / "README.md", root / "CONTRIBUTING.md", root / "tests/golden/README.md"]:
        for code in re.findall(r"`([^`\n]+)`", page.read_text()):
            for path in name.findall(code):
                if not PLACEHOLDER.search(path) and not list(root.glob(path)):
                    wrong.append(f"{page.relative_to(root)}: {path} does not exist")
    return wrong


def headings(page):
    return [h.replace("`", "").strip() for h in re.findall(r"^#+ (.+)$", page.read_text(), re.M)]


def main() -> int:
    root = pathlib.Path(sys.argv[1])
    folders = [p for p in root.iterdir() if p.is_dir() and p.name not in ("docs", "runs") and not p.name.startswith(("build", "."))]
    sources = [p for folder in folders for p in sorted(folder.rglob("*")) if p.suffix in SUFFIXES and p.is_file()]
    sections, wrong, count = {}, [], 0
    for path in sources:
        # A comment that goes on in the next line is one text.
        text = re.sub(r"\n[ \t]*(?://+|#)[ \t]*(?=\S)", " ", path.read_text(errors="replace"))
        for page, section in CITATION.findall(text):
            count += 1
            if not (root / page).is_file():
                wrong.append(f"{path.relative_to(root)}: {page} does not exist")
            elif section:
                known = sections.setdefault(page, headings(root / page))
                if not section.startswith(tuple(known)):
                    wrong.append(f"{path.relative_to(root)}: {page} has no section \"{section[:40]}\"")
    wrong += stale_names(root, folders) + stale_comments(root, folders, sources)
    version = re.search(r"project\(hebb VERSION ([\d.]+)", (root / "CMakeLists.txt").read_text()).group(1)
    newest = re.search(r"^## ([\d.]+)", (root / "CHANGELOG.md").read_text(), re.M).group(1)
    if newest != version:
        wrong.append(f"CHANGELOG.md: its first version is {newest}, expected {version} as in CMakeLists.txt")
    print("\n".join(wrong) if wrong else f"{count} citations of pages lead somewhere")
    return 1 if wrong or count == 0 else 0


sys.exit(main())
