#!/usr/bin/env python3
"""tools/quickstart.sh and tools/gpu_targets.sh with stand-ins for packages, CMake, the driver and hebb; with the path of
hebb as second argument quickstart.sh on small texts too."""
import os
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.abspath(sys.argv[1])
TOOLS = os.path.join(ROOT, "tools")
PROGRAMS = "bash cat cut dirname grep head mkdir mktemp realpath rm sed tail timeout tr".split()


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
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
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


def quickstart(hebb, files, *options):
    """The output of quickstart.sh in a folder with the configurations alone. files: of the text; without any, none is given and the
    program `bible` is missing. The next commands of the README must work on what it has made."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(os.path.join(ROOT, "configs"), os.path.join(folder, "configs"), ignore=lambda _, names: [n for n in names if not n.startswith("quick")])
        os.makedirs(os.path.join(folder, "tools"))
        shutil.copy(os.path.join(TOOLS, "quickstart.sh"), os.path.join(folder, "tools"))
        path = {**os.environ}
        given = []
        if files:
            for name, text in files.items():
                os.makedirs(os.path.dirname(os.path.join(folder, name)) or folder, exist_ok=True)
                with open(os.path.join(folder, name), "w", newline="", encoding="utf-8") as file:
                    file.write(text)
            given = ["--text", next(iter(files)).split("/")[0]]
        else:
            os.makedirs(os.path.join(folder, "bin"))
            for name in "awk bash cat cmp cut dirname find grep head iconv mkdir mv realpath rm sed sort wc".split():
                os.symlink(shutil.which(name), os.path.join(folder, "bin", name))
            path["PATH"] = os.path.join(folder, "bin")
        command = ["tools/quickstart.sh", "--hebb", hebb, "--steps", "2", *given, *options]
        done = subprocess.run(command, cwd=folder, env=path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, (files.keys(), done.stdout)
        for part in "held-out (stream_ppl): ok", "by-position (position_ppl): ok", "7/7 A sample", "Done.":
            assert part in done.stdout, (part, done.stdout)
        with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as readme:
            lines = [line.split("#")[0].strip() for line in readme if line.startswith("build/hebb") and "quickstart" in line]
        assert len(lines) == 5, lines
        for line in lines:
            then = subprocess.run(line.replace("build/hebb", hebb), shell=True, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            assert then.returncode == 0, (line, then.stdout)
        return done.stdout


if len(sys.argv) > 2:
    sentence = "The river carries the stones of the mountain, and the mountain forgets them slowly; so it was in year {}.\n"
    lines = [sentence.format(i) for i in range(600)]
    quickstart(sys.argv[2], {"small text.txt": "".join(lines[:20])})  # 2 KB without a blank line
    quickstart(sys.argv[2], {"crlf.txt": "\n".join(lines[:400]).replace("\n", "\r\n")})
    quickstart(sys.argv[2], {"books/a [1].txt": "".join(lines), "books/deep/b.txt": "\n\n".join(lines[:300])})
    quickstart(sys.argv[2], {"line.txt": "山と川の物語。" * 3000})  # one line, no space
    assert "synthetic corpus" in quickstart(sys.argv[2], {})
print("quickstart.sh and gpu_targets.sh do as they should")
