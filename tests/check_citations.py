#!/usr/bin/env python3
"""Checks that the pages and sections that sources cite exist, for example "docs/model.md, Loss", and the files and folders
that pages name, for example `core/tape.h` and `tests/layers/*_test.cpp`."""
import pathlib
import re
import sys

SUFFIXES = (".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".cmake", ".txt")
CITATION = re.compile(r"\b(docs/[\w/.-]+\.md)(?:, ([A-Z][^\n]*))?")
# Names on pages that stand for a file of the reader's: layers/NAME.cpp, the example of docs/adding-a-layer.md, parts of sweeps.
PLACEHOLDER = re.compile(r"NAME|\bOP\b|fade|configs/.*-part\.json|configs/ovq/icr-learned\.json")


def stale_names(root, folders):
    """Files and folders of the repository that pages name and that do not exist."""
    wrong = []
    tops = "|".join(re.escape(p.name) for p in folders)
    name = re.compile(rf"(?<![\w/.-])(?:{tops}|docs)/[\w/.*-]*\.(?:h|cpp|cuh?|py|sh|json|md)\b")
    for page in sorted((root / "docs").rglob("*.md")) + [root / "README.md"]:
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
    wrong += stale_names(root, folders)
    print("\n".join(wrong) if wrong else f"{count} citations of pages lead somewhere")
    return 1 if wrong or count == 0 else 0


sys.exit(main())
