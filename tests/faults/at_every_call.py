#!/usr/bin/env python3
"""hebb at work while calls of the system fail: at each call that changes a file, once and from then on; killed in front of each; and after a
power cut behind each, with all that was not synced lost. Whatever happened: an error that names the file, or none; nothing that was
finished is lost; and the next start comes to the result of a start without faults, to the byte.

Usage: at_every_call.py HEBB LIBRARY [--stride N] [train|encode|eval|ladder|report ...]
  LIBRARY   libfaults.so (tests/faults/faults.cpp)
  --stride  every N-th call of each fault, of every kind another; 1 (default) is all
"""
import argparse
import errno
import os
import re
import shutil
import signal
import sys

import disk
import small

FAULTS = {
    "full disk": {"errno": errno.ENOSPC}, "I/O error": {"errno": errno.EIO}, "read-only": {"errno": errno.EROFS},
    "interrupted": {"errno": errno.EINTR}, "short write": {"short": 1}, "killed": {"signal": int(signal.SIGKILL)},
    "full disk from then on": {"errno": errno.ENOSPC, "sticks": 1}, "I/O errors from then on": {"errno": errno.EIO, "sticks": 1},
    "read-only from then on": {"errno": errno.EROFS, "sticks": 1}}
HARMLESS = ("interrupted", "short write")


class Train:
    """A run of four steps that saves after two."""
    command = again = ["train", "run.json"]
    codes = (4,)  # of errors
    weight = 2

    @staticmethod
    def prepare(work):
        work.start()

    @staticmethod
    def result(work):
        run = work.path("runs", "small")
        last = {name: small.read(os.path.join(run, "checkpoints", "step_00000004", name))
                for name in ("model.safetensors", "optimizer.safetensors", "state.json", "config.json")}
        return last, small.read(os.path.join(run, "checkpoints", "latest")), small.json_lines(small.read(os.path.join(run, "metrics.jsonl")))

    @staticmethod
    def left(work):
        return [name for name in small.tree(work.path("runs")) if "tmp" in name or name.endswith("step_00000002")]

    @staticmethod
    def check(work, expected, out):
        """What a start that was disturbed left: each checkpoint that it named is there, or a later one."""
        del expected
        saved = [int(step) for step in re.findall(r"^saved .*step_(\d+)$", out, re.M)]
        there = [int(name[5:]) for name in small.tree(work.path("runs")) for name in [os.path.basename(name)] if name.startswith("step_")]
        if saved and max(there, default=0) < saved[-1]:
            return f"checkpoint {saved[-1]} was saved, found {there}"
        return ""


class Encode:
    """A data set takes the place of another."""
    command = again = ["data", "encode", "docs.jsonl", "-t", "bytes", "-o", "set", "--shard-tokens", "1000", "--val-documents", "5", "--overwrite",
                       "--threads", "1"]
    codes = (4,)  # of errors
    weight = 1

    @staticmethod
    def prepare(work):
        work.start()
        code, _, err = work.run(["data", "encode", "old.jsonl", "-t", "bytes", "-o", "set", "--shard-tokens", "1500", "--val-documents", "9"])
        assert code == 0, err
        Encode.old = Encode.result(work)

    @staticmethod
    def result(work):
        files = {name: content for name, content in small.tree(work.path("set")).items() if "tmp" not in name and "lock" not in name}
        if "dataset.json" in files:
            files["dataset.json"] = small.timeless(small.json.loads(files["dataset.json"]))
        return files

    @staticmethod
    def left(work):
        return [name for name in small.tree(work.path("set")) if "tmp" in name or "lock" in name]

    @staticmethod
    def check(work, expected, out):
        """The old one, the new one, or none that is taken for whole."""
        del out
        found = Encode.result(work)
        code, _, err = work.run(["data", "verify", "set"])
        if (code == 0) != (found in (Encode.old, expected)):
            return f"neither the old data set nor the new one: data verify says {code} {err}, files {sorted(found)}"
        return "" if code in (0, 3) else f"data verify: {code} {err}"


class Eval:
    """Two evaluations of a run."""
    command = again = ["eval", "eval.json", "--checkpoint", "runs/small"]
    codes = (1, 4)  # of errors
    weight = 1

    @staticmethod
    def prepare(work):
        work.start()
        code, _, err = work.run(Train.command)
        assert code == 0, err

    @staticmethod
    def result(work):
        files = small.tree(work.path("runs", "small", "evals"))
        values = {name: content for name, content in files.items() if name.endswith(".items.jsonl")}
        return values | {name: small.timeless(small.json.loads(content)) for name, content in files.items() if name.endswith(".json")}

    @staticmethod
    def left(work):
        return [name for name, content in small.tree(work.path("runs", "small", "evals")).items()
                if content is not None and not name.endswith((".json", ".items.jsonl"))]

    @staticmethod
    def check(work, expected, out):
        """Each result that is there is right, or says that it failed."""
        del out
        if os.path.exists(work.path("runs", "small", "evals")):
            for name, content in Eval.result(work).items():
                if content != expected[name] and (name.endswith(".items.jsonl") or content["status"] != "failed"):
                    return f"{name} differs"
        return ""


class Ladder:
    """Two runs of a sweep and their report."""
    command = again = ["ladder", "sweep.json"]
    codes = (1, 4)  # of errors
    weight = 6

    @staticmethod
    def prepare(work):
        work.start()

    @staticmethod
    def result(work):
        files = small.tree(work.path("runs", "ladder"))
        weights = {name: content for name, content in files.items() if "step_00000004" in name and name.endswith("safetensors")}
        return weights, small.json_lines(files["results.jsonl"]), [small.json_lines(files[f"seed={seed}/metrics.jsonl"]) for seed in (1, 2)]

    @staticmethod
    def left(work):
        return [name for name in small.tree(work.path("runs")) if "tmp" in name or "lock" in name]

    @staticmethod
    def check(work, expected, out):
        del work, expected, out
        return ""


class Report:
    """The report of a run."""
    command = again = ["report", "runs/small", "-o", "./rep"]
    codes = (1, 4)  # of errors
    weight = 4

    @staticmethod
    def prepare(work):
        work.start()
        code, _, err = work.run(Train.command)
        assert code == 0, err

    @staticmethod
    def result(work):
        return {name: content for name, content in small.tree(work.path("rep")).items() if "tmp" not in name and "lock" not in name}

    @staticmethod
    def left(work):
        return [name for name in small.tree(work.path("rep")) if "tmp" in name or "lock" in name]

    @staticmethod
    def check(work, expected, out):
        del work, expected, out
        return ""


class Output:
    """A verb that writes one file or folder in the place of none."""
    codes = (1, 4)  # of errors
    weight = 1
    needs = ()  # commands before
    is_once = False  # what is there is not made again
    name = ""

    @classmethod
    def prepare(cls, work):
        work.start()
        for command in cls.needs:
            code, _, err = work.run(command)
            assert code == 0, err

    @classmethod
    def result(cls, work):
        path = work.path(cls.name)
        return small.tree(path) if os.path.isdir(path) else small.read(path)

    @classmethod
    def left(cls, work):
        return [name for name in small.tree(work.folder) if "tmp" in name or "lock" in name]

    @classmethod
    def check(cls, work, expected, out):
        """All of it, or nothing under its name."""
        del out
        return "" if not os.path.exists(work.path(cls.name)) or cls.result(work) == expected else f"a part of {cls.name} is there"


class Synth(Output):
    command = again = ["data", "synth", "--documents", "30", "--seed", "1", "-o", "./text.jsonl"]
    name = "text.jsonl"


class Tokenizer(Output):
    needs = [Synth.command]
    command = again = ["tokenizer", "train", "text.jsonl", "-o", "./text.model", "--vocab-size", "320", "--threads", "1",
                       "--overwrite"]
    name = "text.model"


class Convert(Output):
    """A checkpoint that becomes a folder of transformers."""
    is_once = True
    needs = [Train.command]
    command = again = ["convert", "runs/small", "./foreign"]
    name = "foreign"


CASES = {"train": Train, "encode": Encode, "eval": Eval, "ladder": Ladder, "report": Report, "synth": Synth, "tokenizer": Tokenizer,
         "convert": Convert}


class Test:
    def __init__(self, work, name, stride):
        self.work, self.name, self.case, self.stride = work, name, CASES[name], stride * CASES[name].weight if stride > 1 else 1
        self.failures, self.tried = [], 0
        self.case.prepare(work)
        self.start = f"before-{name}"
        work.keep(self.start)

    def fail(self, what, text):
        self.failures.append(f"{self.name}, {what}: {text}")
        print(self.failures[-1], flush=True)

    def undisturbed(self):
        """The result, the number of calls and their journal."""
        counter, journal = os.path.join(self.work.top, "counter"), os.path.join(self.work.top, "journal")
        small.write(counter, bytes(8))
        small.write(journal, b"")
        code, _, err = self.work.run(self.case.command, folder=self.work.path(), counter=counter, journal=journal)
        assert code == 0, err
        return self.case.result(self.work), int.from_bytes(small.read(counter), "little"), small.read(journal)

    def again(self, what, first="", is_clean=True):
        """The next start comes to the result, and removes what a killed one had begun."""
        if getattr(self.case, "is_once", False) and os.path.exists(self.work.path(self.case.name)):
            return None
        code, out, err = self.work.run(self.case.again)
        if code != 0:
            return self.fail(what, f"{first}the next start ends with {code}: {err}{out[-300:]}")
        if is_clean and (left := self.case.left(self.work)):
            self.fail(what, f"{first}the next start leaves {left}")
        return self.compare(what, f"{first}the next start has another result")

    def compare(self, what, text):
        """The result is there, and as it should be."""
        try:
            found = self.case.result(self.work)
        except (OSError, ValueError, LookupError) as error:
            return self.fail(what, f"{text}: {error!r}")
        if found != self.expected:
            self.fail(what, f"{text}: {difference(found, self.expected)}")
        return None

    def disturb(self, fault, settings, call):
        what = f"{fault} at call {call} of {self.calls}"
        counter = os.path.join(self.work.top, "counter")
        small.write(counter, bytes(8))
        self.work.start(self.start)
        code, out, err = self.work.run(self.case.command, folder=self.work.path(), counter=counter, call=call, **settings)
        self.tried += 1
        allowed = (0,) if fault in HARMLESS else (0, *self.case.codes, *([-signal.SIGKILL] if fault == "killed" else []))
        if code not in allowed:
            self.fail(what, f"exit code {code}: {err}{out}")
        if code > 0 and not re.search(r"^(error:|.* failed:|failed ).*(standard output|killed by signal|/|set:)", err + out, re.M):
            self.fail(what, f"the error does not name the file: {err}{out}")
        if text := self.case.check(self.work, self.expected, out):
            self.fail(what, text)
        if code == 0:
            self.compare(what, "exit code 0 with another result")
        self.again(what, f"exit code {code}; ", fault == "killed")

    def cut(self, number, kind, left, is_end):
        what = f"power cut after call {number} of {self.calls}, {kind} lost"
        shutil.rmtree(self.work.folder, ignore_errors=True)
        disk.build(left, self.work.folder)
        for path in left:  # results of eval belong to the times of their inputs
            before, after = os.path.join(self.work.top, self.start, path), self.work.path(path)
            if os.path.isfile(before) and os.path.isfile(after):
                shutil.copystat(before, after)
        self.tried += 1
        if text := self.case.check(self.work, self.expected, ""):
            self.fail(what, text)
        if is_end:  # the exit code was 0: all is there
            self.compare(what, "the result is not durable")
        self.again(what)

    def run(self):
        self.work.start(self.start)
        before = disk.Disk(self.work.folder)
        self.expected, self.calls, journal = self.undisturbed()
        for shift, (fault, settings) in enumerate(FAULTS.items()):
            # The strides of the kinds of faults are shifted, so that together they meet more calls.
            for call in range(1 + shift * self.stride // len(FAULTS), self.calls + 1, self.stride):
                self.disturb(fault, settings, call)
        for index, (number, kind, left, is_end) in enumerate(disk.cuts(before, journal)):
            if is_end or index % self.stride == 0:
                self.cut(number, kind, left, is_end)
        print(f"{self.name}: {self.calls} calls, {self.tried} faults and cuts, {len(self.failures)} failures", flush=True)
        return len(self.failures)


def difference(found, expected):
    """Where two results differ."""
    if isinstance(found, dict) and isinstance(expected, dict):
        for name in sorted(set(found) | set(expected)):
            if found.get(name, "absent") != expected.get(name, "absent"):
                return f"{name}: {difference(found.get(name, 'absent'), expected.get(name, 'absent'))}"
    if isinstance(found, (list, tuple)) and isinstance(expected, (list, tuple)) and len(found) == len(expected):
        for one, other in zip(found, expected):
            if one != other:
                return difference(one, other)
    return f"found {str(found)[:200]}, expected {str(expected)[:200]}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("hebb")
    parser.add_argument("library")
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("cases", nargs="*")
    options = parser.parse_intermixed_args()
    failures = 0
    with small.Work(options.hebb, options.library) as work:
        for name in options.cases or CASES:
            failures += Test(work, name, options.stride).run()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
