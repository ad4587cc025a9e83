#!/usr/bin/env python3
"""Prints the line coverage of CUDA code in kernels/ that a build with HEBB_COVERAGE=ON has counted, by file.

A line counts as executed if any instance of its template, in any source that includes it, executed it.
"""
import argparse
import collections
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
KERNELS = ROOT / "kernels"


def executed_lines(build):
    """{file below kernels/: {line: executions}}"""
    lines = collections.defaultdict(collections.Counter)
    notes = sorted((build / "tests" / "simt").rglob("*.gcno"))
    if not notes:
        sys.exit(f"coverage: no kernels with counters in {build}; configure it with -DHEBB_COVERAGE=ON")
    for note in notes:
        run = subprocess.run(["gcov", "--json-format", "--stdout", str(note)], cwd=build, capture_output=True, text=True, check=True)
        for text in run.stdout.splitlines():
            for file in json.loads(text)["files"]:
                path = pathlib.Path(build, file["file"]).resolve()
                if KERNELS in path.parents and path.suffix in (".cu", ".cuh"):
                    for line in file["lines"]:
                        lines[path.relative_to(KERNELS)][line["line_number"]] += line["count"]
    return lines


def ranges(numbers):
    """[1, 2, 3, 7] as "1-3 7"."""
    parts = []
    for number in sorted(numbers):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--all", type=float, default=0, help="percent of all lines that must have been executed")
    parser.add_argument("--file", type=float, default=0, help="percent of each file's lines")
    limits = parser.parse_args()
    total = executed = 0
    low = []
    print(f"{'file':<36}{'lines':>7}{'executed':>10}   lines that nothing executed")
    for path, counts in sorted(executed_lines(limits.build.resolve()).items()):
        missed = [line for line, count in counts.items() if count == 0]
        percent = 100 * (1 - len(missed) / len(counts))
        print(f"{str(path):<36}{len(counts):>7}{percent:>9.1f}%   {ranges(missed)}")
        total += len(counts)
        executed += len(counts) - len(missed)
        if percent < limits.file:
            low.append(f"{path}: {percent:.1f} %, expected at least {limits.file:g} %")
    percent = 100 * executed / total
    print(f"{'all':<36}{total:>7}{percent:>9.1f}%")
    if percent < limits.all:
        low.append(f"all: {percent:.1f} %, expected at least {limits.all:g} %")
    sys.exit("\n".join(f"coverage: {line}" for line in low) or 0)


if __name__ == "__main__":
    main()
