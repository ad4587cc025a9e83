#!/usr/bin/env python3
"""Two to eight starts of one command in one folder at the same time: one works, or each after the other; the others say who has the folder;
the result is that of a single start, and nothing else is left.

Usage: starts.py HEBB [--groups N] [train|encode|eval|ladder ...]
  --groups  of each command (default 15: sixty in all)
"""
import argparse
import re
import subprocess
import sys

import at_every_call
import small


IN_USE = r"in use by (process \d+|a process that has ended meanwhile)"


def starts(work, command, count):
    """Exit code and output of each."""
    running = [subprocess.Popen([work.hebb, *command], cwd=work.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True, errors="replace") for _ in range(count)]
    said = [process.communicate()[0] for process in running]
    return [(process.returncode, text) for process, text in zip(running, said)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("hebb")
    parser.add_argument("--groups", type=int, default=15)
    parser.add_argument("cases", nargs="*")
    options = parser.parse_intermixed_args()
    failures = 0
    with small.Work(options.hebb) as work:
        for name in options.cases or ("train", "encode", "eval", "ladder"):
            case = at_every_call.CASES[name]
            case.prepare(work)
            work.keep(f"before-{name}")
            code, _, err = work.run(case.command)
            assert code == 0, err
            expected, worked, held = case.result(work), 0, 0
            for group in range(options.groups):
                count = 2 + group % 7
                work.start(f"before-{name}")
                ends = starts(work, case.command, count)
                done = [text for code, text in ends if code == 0]
                others = [(code, text) for code, text in ends if code != 0]
                worked, held = worked + len(done), held + len(others)
                wrong = [f"exit code {code}: {text[-300:]}" for code, text in others if code not in case.codes or not re.search(IN_USE, text)]
                try:
                    found = case.result(work)
                except (OSError, ValueError, KeyError) as error:
                    found = error
                if not done:
                    wrong.append("none works")
                if left := case.left(work):
                    wrong.append(f"{left} is left")
                if found != expected:
                    wrong.append(f"another result: {at_every_call.difference(found, expected)}")
                if wrong:
                    failures += 1
                    print(f"{name}, {count} starts, exit codes {[code for code, _ in ends]}: " + "\n  ".join(wrong), flush=True)
            print(f"{name}: {options.groups} groups, {worked} starts worked, {held} found the folder in use", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
