#!/usr/bin/env python3
"""tools/quickstart.sh and tools/gpu_targets.sh with stand-ins for packages, CMake, the driver and hebb."""
import os
import shutil
import subprocess
import sys
import tempfile

TOOLS = os.path.join(sys.argv[1], "tools")
PROGRAMS = "bash cat cut dirname grep head mkdir mktemp rm sed tail timeout tr".split()


def program(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write("#!/bin/bash\n" + text + "\n")
    os.chmod(path, 0o755)


def run(script, smi, programs, *options):
    """The script's output and exit code where PATH holds nothing else; smi: what nvidia-smi does, None where there is none."""
    with tempfile.TemporaryDirectory() as folder:
        for name in PROGRAMS:
            os.makedirs(os.path.join(folder, "bin"), exist_ok=True)
            os.symlink(shutil.which(name), os.path.join(folder, "bin", name))
        if smi is not None:
            program(os.path.join(folder, "bin/nvidia-smi"), smi)
        for name, text in programs.items():
            program(os.path.join(folder, name), text)
        shutil.copy(os.path.join(TOOLS, script), os.path.join(folder, "tools", script))
        done = subprocess.run([os.path.join(folder, "tools", script), *options], env={"PATH": os.path.join(folder, "bin"), "HOME": folder},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        return done.stdout, done.returncode


def configured(smi, *options):
    text, code = run("quickstart.sh", smi, {"tools/setup.sh": "exit 0", "bin/cmake": 'echo "configured: $*"; exit 1'}, *options)
    assert code == 1 and "configured:" in text, text
    return text


# Kernels are compiled only where a GPU is usable, or where one asks for them.
assert "-DHEBB_CUDA=OFF" in configured(None)
assert "-DHEBB_CUDA=OFF" in configured("echo 'no devices were found'; exit 6")
assert "-DHEBB_CUDA=AUTO" in configured("exit 0")
assert "-DHEBB_CUDA=ON" in configured(None, "--cuda", "on")
assert "-DHEBB_CUDA=OFF" in configured("exit 0", "--cuda", "off")


def targets(gpu, hebb):
    return run("gpu_targets.sh", f'echo "{gpu}"', {"tools/hebb": hebb}, "tools/hebb")


# Only an H200 must have room for every model and reach every speed.
too_large = 'echo "hebb: error: memory plan: the run does not fit (found 78 GiB available)"; exit 5'
slow = 'echo "model: 2,000 tokens/s best, 1,000 median"'
for hebb, says in (too_large, "does not fit"), (slow, "missed"):
    text, code = targets("NVIDIA H100 80GB HBM3", hebb)
    assert code == 0 and says in text, (code, text)
    text, code = targets("NVIDIA H200", hebb)
    assert code == 1 and says in text, (code, text)
text, code = targets("NVIDIA H100 80GB HBM3", 'echo "hebb: error: cuda: an illegal memory access"; exit 1')
assert code == 1 and "not measured" in text, (code, text)
print("quickstart.sh and gpu_targets.sh do as they should")
