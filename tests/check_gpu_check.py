#!/usr/bin/env python3
"""tools/gpu_check.sh with stand-ins for the driver, the toolkit and hebb: what it refuses, and what it keeps when steps fail or hang."""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

SCRIPT = os.path.join(sys.argv[1], "tools", "gpu_check.sh")
TOOLS = ("bash basename cat cmake cut date dirname env find git grep gzip head ls mkdir mktemp mv nproc realpath rm sed sleep sort "
         "stat tail tar tee timeout touch tr wc").split()

SMI = """case "$*" in
  *query-gpu=compute_cap*) echo 9.0 ;;
  *query-gpu*) echo "NVIDIA Stand-in, 9.0, 555.1, 81920 MiB" ;;
  *) echo "| Driver Version: 555.1   CUDA Version: 12.4 |" ;;
esac"""
HANG = "hang() { read -rt 1200 <> <(:); }"  # longer than this check waits for anything; no process of its own
NVCC = 'echo "Cuda compilation tools, release {}, V0"'
# The self-test in fp32 fails in one layer, which passes alone; in bf16 nothing is wrong. The bench hangs.
HEBB = """case "$*" in
  "selftest list") echo "found list, expected one of attention, gdn" >&2; exit 2 ;;
  "selftest --device cuda --precision fp32") echo "attention 1e-6 passed"; echo "gdn 3e-1 FAILED"; exit 1 ;;
  "selftest --device cuda --precision fp32 gdn") echo "$2 passed, blocking $CUDA_LAUNCH_BLOCKING"; [ "$CUDA_LAUNCH_BLOCKING" = 1 ] ;;
  "selftest --device cuda --precision bf16") [ -z "$HANG" ] ;;
  "selftest --device cuda --precision bf16 "*) touch "$HANG"; hang ;;
  selftest*) echo "$2 passed" ;;
  doctor) echo "  CUDA             ${NO_GPU:-yes}"; echo "GPUs in the order $CUDA_DEVICE_ORDER" ;;
  *configs*" --steps 10 "*) [[ "$*" != *"$HANG_AT"* ]] || [ -z "$HANG_AT" ] || hang; echo "best, 900,000 median" ;;
  *train.steps=100) mkdir -p "$4"; echo '{"step": 1, "loss": 7.5}' >"$4/metrics.jsonl" ;;
  train*) echo '{"step": 200, "loss": '"${LOSS:-6.25}}" >>"$4/metrics.jsonl" ;;
  bench*) [ -z "$HANG" ] || { touch "$HANG"; hang; } ;;
esac"""


LIMITS = (1, 4, 16, 64)  # seconds, for what hangs: more where the machine was too busy for what does not
HEADERS = ("nlohmann/json.hpp", "CLI/CLI.hpp", "fmt/core.h", "spdlog/logger.h", "utf8proc.h")


class Machine(tempfile.TemporaryDirectory):
    """A folder with programs; PATH holds nothing else."""

    def __enter__(self):
        self.folder = super().__enter__()
        self.bin = self.path("bin")
        os.mkdir(self.bin)
        for tool in TOOLS:
            path = shutil.which(tool)
            if path:
                os.symlink(path, os.path.join(self.bin, tool))
        self.program("bin/python3", "exit 1")
        self.program("bin/nvidia-smi", SMI)
        self.program("toolkit/bin/nvcc", NVCC.format("12.4"))
        self.program("build/hebb", HEBB)
        self.write("toolkit/include/cublasLt.h", "")
        for header in HEADERS:
            self.write("headers/" + header, "")
        self.env = {"PATH": self.bin, "CUDACXX": self.path("toolkit/bin/nvcc"), "HEADERS": self.path("headers"), "HEBB": self.path("build/hebb"),
                    "SANITIZE": "0", "PEERS": "0", "HOME": self.folder}
        return self

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "w") as file:
            file.write(text)

    def program(self, name, text):
        self.write(name, "#!/bin/bash\n" + HANG + "\n" + text + "\n")
        os.chmod(self.path(name), 0o755)

    def start(self, **env):
        return subprocess.Popen([SCRIPT, self.path("out")], env={**self.env, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, **env):
        process = self.start(**env)
        return process.communicate(timeout=600)[0], process.returncode

    def summary(self):
        with open(self.path("out/summary.md")) as file:
            return file.read()


def refuses(reason, change=None, **env):
    with Machine() as machine:
        del machine.env["HEBB"]  # a build
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
for header in HEADERS:
    if not os.path.exists("/usr/include/" + header):
        refuses("no header " + header, remove("headers/" + header))
if not os.path.exists("/usr/include/cublasLt.h"):
    refuses("no cublasLt.h beside", remove("toolkit/include/cublasLt.h"))

with Machine() as machine:
    text, code = machine.run(HEBB="/nowhere")
    assert code == 1 and "HEBB=/nowhere: no such program" in text, text

with Machine() as machine:  # a step that fails: named, tried alone, and the others go on
    text, code = machine.run(STEPS="doctor selftest-fp32 selftest-bf16", BUDGET="600")
    summary = machine.summary()
    assert code == 1, (code, text)
    assert "# NVIDIA Stand-in, 9.0, 555.1, 81920 MiB" in summary
    assert "selftest-fp32: FAILED (exit code 1)" in text and "== gdn: passes alone" in text, text
    assert "attention" not in summary.split("### selftest-fp32")[1].split("```")[1], summary
    assert "passed: doctor selftest-bf16" in summary and "no such" not in text and "failed: selftest-fp32" in summary and "left out: nothing" in summary, summary
    assert "layers" not in text, "STEPS chooses"
    assert "GPUs in the order PCI_BUS_ID" in summary, "the first GPU of hebb is that of nvidia-smi"
    assert sorted(os.listdir(machine.path("out"))) == ["logs.tgz", "summary.md"], os.listdir(machine.path("out"))

with Machine() as machine:  # kernels one by one come before models
    machine.program("build/tests/test_device", 'echo "$*"')
    text, code = machine.run(STEPS="tests cases selftest-bf16")
    assert code == 0 and "passed: doctor cases selftest-bf16 tests" in machine.summary(), (code, text)
    assert "[fast],[threads]" in machine.summary() and "~[slow]~[fast]~[threads]" in machine.summary(), machine.summary()

with Machine() as machine:  # the names of steps are no number of measured ones
    text, code = machine.run(STEPS="targets")
    assert code == 0 and "| hybrid 340M | 16 x 4096 | 900000 | 110,000 | 160,000 | goal met |" in machine.summary(), (code, text)

with Machine() as machine:  # a model that runs over its share is given up, and the next one is measured
    for limit in LIMITS:
        text, code = machine.run(STEPS="targets", HANG_AT="hybrid-340m", MODEL_SECONDS=str(limit))
        if "| transformer 340M | 16 x 4096 | 900000 |" in machine.summary():
            break
    assert code == 1 and f"| hybrid 340M | 16 x 4096 | not measured: its {limit} s were over | 110,000 | 160,000 | |" in machine.summary(), (code, text)
    assert "| transformer 340M | 16 x 4096 | 900000 |" in machine.summary(), machine.summary()

with Machine() as machine:  # a training run ends, goes on and has to learn
    text, code = machine.run(STEPS="train")
    assert code == 0 and "loss from 7.5 to 6.25" in machine.summary(), (code, text)
    text, code = machine.run(STEPS="train", LOSS="8.5")
    assert code == 1 and "train: FAILED" in text, (code, text)

with Machine() as machine:  # each run has its steps; in all of them few files come of it
    machine.program("build/tests/test_device", 'echo "begins Gemm" >>"$HEBB_OPERATIONS"; head -c 3000000 /dev/zero | tr "\\0" x')
    machine.program("toolkit/bin/compute-sanitizer", "exit 0")
    passed = {"1": "doctor cases selftest-bf16 memcheck-bf16 racecheck-bf16 train", "2": "doctor targets models-bf16",
              "3": "doctor tests kernels-bf16 decode-cuda-graphs decode-no-cuda-graphs"}
    for run, steps in passed.items():
        text, code = machine.run(RUN=run, SANITIZE="1")
        assert "passed: " + steps + "\n" in machine.summary(), (run, code, text, machine.summary())
        assert code == (1 if run == "1" else 0), (run, code, text)  # the stand-in's self-test in fp32
    files = os.listdir(machine.path("out"))
    assert len(files) <= 8 and {"logs.tgz", "operations.txt", "summary.md"} < set(files), files
    assert all(os.path.getsize(machine.path("out/" + name)) < 16 << 20 for name in files), files
    assert 700000 < os.path.getsize(machine.path("out.logs/cases.log")) < 1 << 20, "of a long log the beginning and the end are kept"
    text, code = machine.run(RUN="4")
    assert code == 1 and "RUN=4, expected 1, 2, 3 or all" in text, text

with Machine() as machine:  # the plan needs no GPU, and its shares fit
    remove("bin/nvidia-smi")(machine)
    plan = subprocess.run([SCRIPT, "--plan"], env=machine.env, capture_output=True, text=True)
    assert plan.returncode == 0 and "Estimates:" in plan.stdout and "nothing of them was measured" in plan.stdout, plan
    runs = plan.stdout.split("\nrun ")[1:]
    assert len(runs) == 3, plan.stdout
    budgets = [int(run.split(" at most ")[1].split()[0]) for run in runs]
    for run, budget in zip(runs, budgets):
        assert int(run.split("\ntogether ")[1].split()[0]) <= budget <= 600, run
    assert sum(budgets) <= 900 - 3 * 30, "fifteen minutes, with the starts"
    assert "build/hebb: 0.0 MiB" in plan.stdout and "test_device: not there" in plan.stdout, plan.stdout

with Machine() as machine:  # the status page says of each operation what its cases said
    lines = "".join("%s %s\n" % (what, name) for name in re.findall(
        r"^HEBB_KERNEL\w*\((\w+)\)", open(os.path.join(sys.argv[1], "kernels/norm/norm.h")).read(), re.M) for what in ("begins", "agrees"))
    machine.program("simt", 'printf "%s" "$LINES_OF" >"$HEBB_OPERATIONS"')
    machine.write("out/summary.md", "# NVIDIA Stand-in, 9.0\n\n2026-01-02, abc\n\n## selftest-fp32: ok, 1 s\n")
    wrong = lines.replace("agrees NormForward", "differs NormForward")
    machine.write("out/operations.txt", wrong)
    env = {**os.environ, "SIMT": machine.path("simt"), "STATUS": machine.path("status.md"), "LINES_OF": lines}
    subprocess.run([SCRIPT, "--status", machine.path("out")], env=env, check=True, stdout=subprocess.DEVNULL)
    page = open(machine.path("status.md")).read()
    row = [line for line in page.splitlines() if "[`norm`]" in line][0]
    count = lines.count("agrees")
    assert "| %d of %d agree | %d of %d agree; not: `NormForward` |" % (count, count, count - 1, count) in row, row
    assert "Hardware: NVIDIA Stand-in, 2026-01-02; selftest fp32 ok; selftest bf16 not run." in page, page
    assert re.search(r"\| \d+ without cases \| \d+ without cases \|", [line for line in page.splitlines() if "[`rope`]" in line][0]), page
    assert "| no operation of its own |" in [line for line in page.splitlines() if "[`dictionary`]" in line][0], page
    # What began and did not end is no agreement.
    machine.write("out/operations.txt", lines + "begins NormForward\n")
    subprocess.run([SCRIPT, "--status", machine.path("out")], env=env, check=True, stdout=subprocess.DEVNULL)
    assert "not: `NormForward`" in open(machine.path("status.md")).read()

with Machine() as machine:  # the sanitizer sees bf16 first, in which tensor cores and asynchronous copies run
    machine.program("toolkit/bin/compute-sanitizer", 'echo "$*" | grep -o "precision .*"')
    text, code = machine.run(STEPS="memcheck-bf16 racecheck-bf16 memcheck-fp32 racecheck-fp32", SANITIZE="1")
    assert code == 0 and "passed: doctor memcheck-bf16 racecheck-bf16 memcheck-fp32 racecheck-fp32" in machine.summary(), (code, text)

with Machine() as machine:  # a step that hangs: its time ends, what is left is named
    for budget in (11, 14, 26, 46):  # a step begins with ten seconds or more
        text, code = machine.run(STEPS="models-bf16 models-fp32", BUDGET=str(budget), HANG=machine.path("hangs"))
        if "models-bf16: FAILED (exit code 124, its time was over)" in text:
            break
    assert code == 1 and "models-bf16: FAILED (exit code 124, its time was over)" in text, text
    assert f"models-fp32: left out, the budget of {budget} s is spent" in text, text
    assert "left out: models-fp32" in machine.summary(), machine.summary()

with Machine() as machine:  # a program that was built elsewhere needs no toolkit
    remove("toolkit/bin/nvcc", "toolkit/include/cublasLt.h", "bin/cmake")(machine)
    shutil.rmtree(machine.path("headers"))
    text, code = machine.run(STEPS="selftest-bf16 spills")
    assert code == 0 and "passed: doctor selftest-bf16\n" in machine.summary(), (code, text)
    text, code = machine.run(STEPS="doctor")
    assert [name for name in os.listdir(machine.path("out")) if name.startswith("summary-")], "the summary of an earlier call is kept"

with Machine() as machine:  # tests are skipped where there is no GPU, which is no success
    machine.program("build/tests/test_device", "exit 0")
    text, code = machine.run(NO_GPU="built, but on a machine without a usable GPU (its driver is for CUDA 12.4, this build for CUDA 13.0)")
    assert code == 1 and "has no GPU: built, but on a machine without a usable GPU (its driver is for" in text, (code, text)
    assert "passed: doctor\n" in machine.summary() and "failed: GPU" in machine.summary(), machine.summary()


with Machine() as machine:  # of tests that fail those with a heading in the log run by themselves
    machine.program("build/tests/test_device", """case "$*" in
  *--list-test-names-only*) echo "it passes"; echo "it fails, [always]"; echo "it hangs" ;;
  "[fast],[threads]") echo ----; echo "it fails, [always]"; echo ----; echo "it hangs"; exit 2 ;;
  "it fails\\\\, \\\\[always\\\\]") echo "launch of the_kernel"; exit 1 ;;
  "it hangs") hang ;;
esac""")
    for limit in LIMITS:
        text, code = machine.run(STEPS="cases", BUDGET="600", ALONE_SECONDS=str(limit))
        if "== it fails, [always]: FAILS alone, exit code 124" not in text:
            break
    assert code == 1 and "== it fails, [always]: FAILS alone, exit code 1" in text and "== it hangs: FAILS alone, exit code 124" in text, text
    assert "it passes" not in machine.summary() and "launch of the_kernel" in machine.summary(), machine.summary()


def end(steps, how):
    """Ends the script from outside while a step hangs, whose time is never over: its exit code, what it said and what still runs."""
    remove("bin/timeout")(machine)
    machine.program("bin/timeout", 'while [[ $1 == -* ]]; do [ "$1" != -k ] || shift; shift; done; shift; exec "$@"')
    process = machine.start(STEPS=steps, HANG=machine.path("hangs"))
    while not os.path.exists(machine.path("hangs")) and process.poll() is None:
        time.sleep(0.1)
    process.send_signal(how)
    process.wait(timeout=600)
    left = subprocess.run(["pgrep", "-f", machine.path("build/hebb")], capture_output=True, text=True).stdout.split()
    for pid in left if how == signal.SIGKILL else []:
        os.kill(int(pid), signal.SIGKILL)
    return process.returncode, process.communicate(timeout=600)[0], left


for steps in ("models-bf16", "selftest-bf16"):  # results stay, nothing runs on; also while what failed is run by itself
    with Machine() as machine:
        code, text, left = end(steps, signal.SIGTERM)
        assert code == 130 and left == [] and "passed: doctor" in machine.summary(), (code, text, left)

with Machine() as machine:  # killed: the archive holds what was done
    end("models-bf16", signal.SIGKILL)
    assert "out.logs/doctor.log" in subprocess.run(["tar", "tzf", machine.path("out/logs.tgz")], capture_output=True, text=True).stdout

if os.path.exists("/usr/include/utf8proc.h"):  # what --headers brings along is all that the configuration asks for
    with tempfile.TemporaryDirectory() as folder:
        deps = os.path.join(folder, "deps")
        subprocess.run([SCRIPT, "--headers", deps], check=True, stdout=subprocess.DEVNULL)
        with open(os.path.join(folder, "CMakeLists.txt"), "w") as file:
            file.write("cmake_minimum_required(VERSION 3.20)\nproject(bare CXX)\n"
                       "set(CMAKE_FIND_USE_CMAKE_SYSTEM_PATH OFF)\nset(CMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH OFF)\n"
                       "file(WRITE ${CMAKE_BINARY_DIR}/a.cpp \"\n"
                       "#include <fmt/core.h>\n#include <spdlog/logger.h>\n#include <utf8proc.h>\n"
                       "int main() { fmt::print(utf8proc_version()); return spdlog::logger(std::string()).should_log(spdlog::level::off); }\")\n"
                       "include(%s/cmake/dependencies.cmake)\nadd_executable(a a.cpp)\n"
                       "target_link_libraries(a hebb_dependencies)\n" % sys.argv[1])
        bare = ["-DCMAKE_%s_PATH=%s" % (kind, deps) for kind in ("INCLUDE", "LIBRARY", "PREFIX")]
        subprocess.run(["cmake", "-S", folder, "-B", folder + "/build", "-Wno-dev", *bare], check=True, capture_output=True, text=True)
        subprocess.run(["cmake", "--build", folder + "/build"], check=True, capture_output=True, text=True)
        libraries = subprocess.run(["ldd", folder + "/build/a"], check=True, capture_output=True, text=True).stdout
        assert not any(name in libraries for name in ("fmt", "spdlog", "utf8proc")), libraries
with open(os.path.join(sys.argv[1], "docs/status.md")) as file:  # has every operation with CUDA code
    status = file.read()
for folder, _, names in os.walk(os.path.join(sys.argv[1], "kernels")):
    operation = os.path.relpath(folder, os.path.join(sys.argv[1], "kernels"))
    if "/" not in operation and any(name.endswith(".cu") or name.startswith("cuda_") for name in names):
        assert "[`%s`]" % operation in status, "tools/gpu_check.sh --status writes docs/status.md; it lacks " + operation
print("gpu_check.sh refuses, goes on and ends as it should")
