#!/usr/bin/env python3
"""tools/gpu_check.sh with stand-ins for the driver, the toolkit and hebb: what it refuses, and what it keeps when steps fail or hang."""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

SCRIPT = os.path.join(sys.argv[1], "tools", "gpu_check.sh")
TOOLS = ("bash basename cat cmake cut date dirname env find git grep gzip head ls mkdir nproc pgrep realpath rm sed sleep sort tail tar tee timeout "
         "touch tr").split()

SMI = """case "$*" in
  *query-gpu=compute_cap*) echo 9.0 ;;
  *query-gpu*) echo "NVIDIA Stand-in, 9.0, 555.1, 81920 MiB" ;;
  *) echo "| Driver Version: 555.1   CUDA Version: 12.4 |" ;;
esac"""
NVCC = 'echo "Cuda compilation tools, release {}, V0"'
# The self-test in fp32 fails in one layer, which passes alone; in bf16 nothing is wrong. The bench hangs.
HEBB = """case "$*" in
  "selftest list") echo "found list, expected one of attention, gdn" >&2; exit 2 ;;
  "selftest --device cuda --precision fp32") echo "attention 1e-6 passed"; echo "gdn 3e-1 FAILED"; exit 1 ;;
  "selftest --device cuda --precision fp32 gdn") echo "$2 passed, blocking $CUDA_LAUNCH_BLOCKING"; [ "$CUDA_LAUNCH_BLOCKING" = 1 ] ;;
  selftest*) echo "$2 passed" ;;
  doctor) echo "GPUs in the order $CUDA_DEVICE_ORDER" ;;
  bench*) [ -z "$HANG" ] || { touch "$HANG"; sleep 60; } ;;
esac"""


class Machine:
    """A folder with programs; PATH holds nothing else."""

    def __init__(self, folder):
        self.folder, self.bin = folder, os.path.join(folder, "bin")
        os.mkdir(self.bin)
        for tool in TOOLS:
            path = shutil.which(tool)
            if path:
                os.symlink(path, os.path.join(self.bin, tool))
        self.program("bin/python3", "exit 1")
        self.program("bin/nvidia-smi", SMI)
        self.program("toolkit/bin/nvcc", NVCC.format("12.4"))
        self.program("build/hebb", HEBB)
        for header in ("toolkit/include/cublasLt.h", "headers/nlohmann/json.hpp", "headers/CLI/CLI.hpp"):
            self.write(header, "")
        self.env = {"PATH": self.bin, "CUDACXX": self.path("toolkit/bin/nvcc"), "HEADERS": self.path("headers"), "HEBB": self.path("build/hebb"),
                    "SANITIZE": "0", "PEERS": "0", "HOME": folder}

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "w") as file:
            file.write(text)

    def program(self, name, text):
        self.write(name, "#!/bin/bash\n" + text + "\n")
        os.chmod(self.path(name), 0o755)

    def start(self, **env):
        return subprocess.Popen([SCRIPT, self.path("out")], env={**self.env, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, **env):
        process = self.start(**env)
        return process.communicate(timeout=100)[0], process.returncode

    def summary(self):
        with open(self.path("out/summary.md")) as file:
            return file.read()


def refuses(reason, change=None, **env):
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(folder)
        if change:
            change(machine)
        text, code = machine.run(**env)
        assert code == 1 and reason in text, (reason, code, text)
        assert not os.path.exists(machine.path("out")), "nothing is written before the machine is known to do"


def remove(*names):
    return lambda machine: [os.remove(machine.path(name)) for name in names]


if not os.path.exists("/usr/local/nvidia/bin/nvidia-smi"):
    refuses("nvidia-smi not found", remove("bin/nvidia-smi"))
refuses("no usable GPU: nvidia-smi says: couldn't communicate",
        lambda m: m.program("bin/nvidia-smi", "echo \"couldn't communicate with the driver\"; exit 9"))
refuses("is of CUDA 11, expected 12 or newer", lambda m: m.program("toolkit/bin/nvcc", NVCC.format("11.8")))
refuses("the driver runs CUDA up to 12, but", lambda m: m.program("toolkit/bin/nvcc", NVCC.format("13.0")))
refuses("cmake not found", remove("bin/cmake"))
refuses("HEADERS: no folder", HEADERS="/nowhere")
if not os.path.exists("/usr/include/cublasLt.h"):
    refuses("no cublasLt.h beside", remove("toolkit/include/cublasLt.h"))

with tempfile.TemporaryDirectory() as folder:
    machine = Machine(folder)
    text, code = machine.run(HEBB="/nowhere")
    assert code == 1 and "HEBB=/nowhere: no such program" in text, text

with tempfile.TemporaryDirectory() as folder:  # a step that fails: named, tried alone, and the others go on
    machine = Machine(folder)
    text, code = machine.run(STEPS="doctor selftest-fp32 selftest-bf16", BUDGET="50")
    summary = machine.summary()
    assert code == 1, (code, text)
    assert "# NVIDIA Stand-in, 9.0, 555.1, 81920 MiB" in summary
    assert "selftest-fp32: FAILED (exit code 1)" in text and "== gdn: passes alone" in text, text
    assert "attention" not in summary.split("### selftest-fp32")[1].split("```")[1], summary
    assert "passed: doctor selftest-bf16" in summary and "failed: selftest-fp32" in summary and "left out: nothing" in summary, summary
    assert "layers" not in text, "STEPS chooses"
    assert "GPUs in the order PCI_BUS_ID" in summary, "the first GPU of hebb is that of nvidia-smi"
    assert os.path.getsize(machine.path("out.tgz")) > 0

with tempfile.TemporaryDirectory() as folder:  # kernels one by one come before models
    machine = Machine(folder)
    machine.program("build/tests/test_device", 'echo "$*"')
    text, code = machine.run(STEPS="tests cases selftest-bf16")
    assert code == 0 and "passed: cases selftest-bf16 tests" in machine.summary(), (code, text)
    assert "[fast],[threads]" in machine.summary() and "~[slow]~[fast]~[threads]" in machine.summary(), machine.summary()

with tempfile.TemporaryDirectory() as folder:  # the sanitizer sees bf16 first, in which tensor cores and asynchronous copies run
    machine = Machine(folder)
    machine.program("toolkit/bin/compute-sanitizer", 'echo "$*" | grep -o "precision .*"')
    text, code = machine.run(STEPS="memcheck-bf16 racecheck-bf16 memcheck-fp32 racecheck-fp32", SANITIZE="1")
    assert code == 0 and "passed: memcheck-bf16 racecheck-bf16 memcheck-fp32 racecheck-fp32" in machine.summary(), (code, text)

with tempfile.TemporaryDirectory() as folder:  # a step that hangs: its time ends, what is left is named
    machine = Machine(folder)
    text, code = machine.run(STEPS="models-bf16 models-fp32", BUDGET="11", HANG=machine.path("hangs"))
    assert code == 1 and "models-bf16: FAILED (exit code 124, its time was over)" in text, text
    assert "models-fp32: left out, the budget of 11 s is spent" in text, text
    assert "left out: models-fp32" in machine.summary(), machine.summary()

with tempfile.TemporaryDirectory() as folder:  # ended from outside: results stay, nothing runs on
    machine = Machine(folder)
    process = machine.start(STEPS="doctor models-bf16", HANG=machine.path("hangs"))
    for _ in range(200):
        if os.path.exists(machine.path("hangs")):
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    text = process.communicate(timeout=30)[0]
    assert process.returncode == 130 and "passed: doctor" in machine.summary(), (process.returncode, text)
    left = subprocess.run(["pgrep", "-f", machine.path("build/hebb")], capture_output=True, text=True).stdout
    assert left == "", left
print("gpu_check.sh refuses, goes on and ends as it should")
