#!/usr/bin/env python3
"""Skipped cases are lines that tests/count_skips.sh counts, and a run of nothing else says so. Arguments: the source folder, skip_cases."""
import os
import subprocess
import sys
import tempfile

SCRIPT = os.path.join(os.path.abspath(sys.argv[1]), "tests", "count_skips.sh")
EVERY = "every case of this run was skipped\n"


def cases(tags):
    done = subprocess.run([sys.argv[2], tags], stdout=subprocess.PIPE, text=True)
    return done.stdout, done.returncode


def counted(log):
    """What the script says of a build folder whose last run of ctest wrote `log`; None: no run."""
    with tempfile.TemporaryDirectory() as build:
        if log is not None:
            os.makedirs(os.path.join(build, "Testing/Temporary"))
            with open(os.path.join(build, "Testing/Temporary/LastTest.log"), "w", encoding="utf-8") as file:
                file.write(log)
        done = subprocess.run([SCRIPT, build], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.stdout.replace(build, "BUILD"), done.returncode


whole, code = cases("[whole]")
assert code == 0 and whole.count("skipped: no such thing: a skipped case: whole\n") == 1 and EVERY in whole, whole
some, code = cases("[skips]")
assert code == 0 and some.count("skipped: no such thing: ") == 2 and EVERY not in some, some
assert EVERY not in cases("[part]")[0]
for tags in "[whole],[fails]", "[fails]":
    failed, code = cases(tags)
    assert code != 0 and EVERY not in failed, failed
assert EVERY not in cases("[no such tag]")[0]
text, code = counted("1/3 Test: a\n" + some + "2/3 Test: b\nskipped: no mpirun\nthe task was skipped: no\n3/3 Test: c\n" + whole)
assert (text, code) == ("skipped: 4 (BUILD/Testing/Temporary/LastTest.log names them)\n      3 no such thing\n      1 no mpirun\n", 0), text
assert counted("1/1 Test: a\n") == ("skipped: none\n", 0)
text, code = counted(None)
assert code == 1 and "BUILD/Testing/Temporary/LastTest.log is missing" in text, text
print("skipped tests are counted")
