#!/usr/bin/env python3
"""tools/spills.py on logs of nvcc: a hot kernel that spills fails, others do not."""
import os
import subprocess
import sys
import tempfile

TOOL = os.path.join(sys.argv[1], "tools", "spills.py")


def kernel(name, stores, registers=40):
    return (f"ptxas info    : Compiling entry function '{name}' for 'sm_90a'\nptxas info    : Function properties for {name}\n"
            f"    8 bytes stack frame, {stores} bytes spill stores, {stores} bytes spill loads\nptxas info    : Used {registers} registers, used 0 barriers\n")


def run(text, *options):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "build.log")
        with open(path, "w") as log:
            log.write(text)
        return subprocess.run([sys.executable, TOOL, *options, path], capture_output=True, text=True)


HOT, COLD = "_Z12adamw_kernel6Update", "_Z9my_kernelPf"
quiet = run("[1/2] Building\n" + kernel(HOT, 0, 54) + kernel(COLD, 12))
assert quiet.returncode == 0, quiet
assert "adamw_kernel" in quiet.stdout and "54" in quiet.stdout and "12 / 12" in quiet.stdout, quiet
assert "not checked: " in quiet.stderr and "norm_forward_kernel" in quiet.stderr, quiet
loud = run(kernel(HOT, 4))
assert loud.returncode == 1 and "adamw_kernel: found 4 bytes of spills, expected at most 0" in loud.stderr, loud
assert run(kernel(COLD, 0)).returncode == 1, "no hot kernel in a log with -v"
warning = f"ptxas warning : Registers are spilled to local memory in function '{HOT}', 4 bytes spill stores, 8 bytes spill loads\n"
assert run(warning).returncode == 1 and "4 / 8" in run(warning).stdout
assert run("[1/2] Building\n").returncode == 0
assert "| `adamw_kernel` | - | 54 | 0 | yes |" in run(kernel(HOT, 0, 54), "--markdown").stdout
print("spills are found")
