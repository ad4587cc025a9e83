#!/usr/bin/env python3
"""Checks that the pages and sections that sources cite exist, for example "docs/model.md, Loss"."""
import pathlib
import re
import sys

SUFFIXES = (".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".cmake", ".txt")
CITATION = re.compile(r"\b(docs/[\w/.-]+\.md)(?:, ([A-Z][^\n]*))?")


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
    print("\n".join(wrong) if wrong else f"{count} citations of pages lead somewhere")
    return 1 if wrong or count == 0 else 0


sys.exit(main())
