#!/usr/bin/env bash
# Builds for this machine's GPU, compares every layer with fp64, runs the device tests, and measures models and kernels beside their bounds
# and peers; what matters most comes first, each step has a time limit, and none that fails stops the others. Needs the CUDA toolkit, CMake
# and a C++20 compiler.
# Usage: tools/gpu_check.sh [OUT]            OUT (default: gpu-check): a log per step, *.json, summary.md (grows with every step), and OUT.tgz
#        tools/gpu_check.sh --headers        on a machine that has them: copies the headers that the build needs into .deps/
#        tools/gpu_check.sh --status [OUT]   writes docs/status.md: the operations with CUDA code, and what the check in OUT says of them
# STEPS="doctor peers ..."  only these steps (default: all; configure and build are skipped where HEBB names a program)
# HEBB=path  a built program instead of a build; test_device beside it in tests/ is used where it is there
# HEADERS="DIR ..."  folders that hold nlohmann/, CLI/ or catch2/ (default: .deps where it exists)    BUILD=build-gpu
# BUDGET=540  seconds for everything: later steps are left out    SANITIZE=0, PEERS=0  without compute-sanitizer, without PyTorch
# CMAKE_ARGS="..."  more for the configuration
set -uo pipefail
cd "$(dirname "$0")/.." || exit
if [ "${1:-}" = --headers ]; then
  mkdir -p .deps
  for header in nlohmann CLI catch2; do
    for folder in /usr/include /usr/local/include; do
      [ -d "$folder/$header" ] && rm -rf ".deps/$header" && cp -rL "$folder/$header" .deps/ && break
    done
    [ -d ".deps/$header" ] || { echo "gpu_check.sh: no headers $header/ here; run tools/setup.sh first" >&2; exit 1; }
  done
  du -sh .deps
  exit
fi
if [ "${1:-}" = --status ]; then
  check=${2:-gpu-check}
  ran="not run on hardware"
  if [ -f "$check/summary.md" ]; then
    ran="$(sed -n 's/^# //p' "$check/summary.md" | head -1 | cut -d, -f1), $(sed -n '3s/,.*//p' "$check/summary.md")"
    for precision in fp32 bf16; do
      result=$(sed -n "s/^## selftest-$precision: \\([A-Za-z]*\\).*/\\1/p" "$check/summary.md" | head -1)
      ran="$ran; selftest $precision ${result:-not run}"
    done
  fi
  {
    echo "# Status of the GPU kernels"
    echo
    echo "Written by \`tools/gpu_check.sh --status\`. Emulator: the operation's kernels run in the tests of \`tests/simt\` and of \`tests/device\`."
    echo
    echo "| operation | CUDA sources | emulator | hardware |"
    echo "|---|---:|---|---|"
    for folder in kernels/*/; do
      name=$(basename "$folder")
      count=$(find "$folder" -maxdepth 1 \( -name '*.cu' -o -name 'cuda_*.cpp' \) | wc -l)
      [ "$count" = 0 ] || echo "| [\`$name\`](../kernels/$name/) | $count | $([ "$name" = gemm ] && echo "stand-in" || echo yes) | $ran |"
    done
  } >docs/status.md
  echo "gpu_check.sh: docs/status.md ($ran)"
  exit
fi
out=${1:-gpu-check} build=${BUILD:-build-gpu} budget=${BUDGET:-540}
failed=0
stop() { echo "gpu_check.sh: $*" >&2; exit 1; }
PATH=$PATH:/usr/local/nvidia/bin  # where containers may have the driver's programs
export CUDA_DEVICE_ORDER=PCI_BUS_ID  # as nvidia-smi counts: its first GPU is the one that is built for and measured

# What would fail after minutes is said before the build.
command -v nvidia-smi >/dev/null || stop "nvidia-smi not found: this machine has no NVIDIA driver"
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>&1 | head -1 | tr -d '. ')
[[ $capability =~ ^[0-9]+$ ]] || stop "no usable GPU: nvidia-smi says: $(nvidia-smi 2>&1 | head -2 | tr '\n' ' ')"
gpu=$(nvidia-smi --query-gpu=name,compute_cap,driver_version,memory.total --format=csv,noheader | head -1)
[ "$capability" = 90 ] && capability=90a
for nvcc in "${CUDACXX:-}" "$(command -v nvcc)" /usr/local/cuda/bin/nvcc /usr/local/cuda-*/bin/nvcc; do [ -x "$nvcc" ] && break; done
[ -x "$nvcc" ] || stop "nvcc not found: install the CUDA toolkit, or name it with CUDACXX=.../nvcc"
export CUDACXX=$nvcc
toolkit=$("$nvcc" --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
driver=$(nvidia-smi | sed -n 's/.*CUDA Version: \([0-9]*\)\..*/\1/p' | head -1)
[ -n "$toolkit" ] && [ "$toolkit" -ge 12 ] || stop "$nvcc is of CUDA ${toolkit:-?}, expected 12 or newer (C++20)"
[ -z "$driver" ] || [ "$driver" -ge "$toolkit" ] || stop "the driver runs CUDA up to $driver, but $nvcc is of CUDA $toolkit; name an older one with CUDACXX"
command -v cmake >/dev/null || stop "cmake not found"
[ -z "${HEADERS:-}" ] && [ -d .deps ] && HEADERS=.deps
includes=""
for folder in ${HEADERS:-}; do
  [ -d "$folder" ] || stop "HEADERS: no folder $folder"
  includes="${includes:+$includes;}$(realpath "$folder")"
done
for header in nlohmann/json.hpp CLI/CLI.hpp; do
  found=0
  for folder in ${includes//;/ } /usr/include /usr/local/include ${CPLUS_INCLUDE_PATH:+${CPLUS_INCLUDE_PATH//:/ }}; do [ -e "$folder/$header" ] && found=1; done
  [ $found = 1 ] || stop "no header $header; bring it with tools/gpu_check.sh --headers, or name its folder in HEADERS"
done
# cuBLASLt: the toolkit's or, where that is a compiler with little beside it, that of the Python package which PyTorch brings along.
cublas=()
root=$(dirname "$(dirname "$(realpath "$nvcc")")")
found=0
for header in "$root"/{include,targets/*/include}/cublasLt.h /usr/include/cublasLt.h; do [ -e "$header" ] && found=1; done
if [ $found = 0 ]; then
  header=$(python3 -c 'import glob, sys; print(*(h for p in sys.path for h in sorted(glob.glob(p + "/nvidia/*/include/cublasLt.h"))), sep="\n")' 2>/dev/null | tail -1)
  library=$(ls "${header%/include/*}"/lib/libcublasLt.so."$toolkit" 2>/dev/null)
  [ -n "$header" ] && [ -n "$library" ] || stop "no cublasLt.h beside $nvcc, nor libcublasLt.so.$toolkit among Python's packages: install cuBLAS of CUDA $toolkit"
  echo "  cuBLASLt: $library"
  cublas=(-DCUDA_cublasLt_LIBRARY="$library" -DHEBB_CUBLASLT_INCLUDE="$(dirname "$header")")
fi
mkdir -p "$out" || exit
revision=$(git rev-parse --short HEAD 2>/dev/null || echo 'no git')
echo "gpu_check.sh: $gpu, sm_$capability, $("$nvcc" --version | tail -1), $revision"
{ echo "# $gpu"; echo; echo "$(date -u +%F), $revision, $("$nvcc" --version | tail -1), $(nproc) cores"; } >"$out/summary.md"

# step NAME SECONDS COMMAND...: runs it with a log of its own and a limit, and adds it to the summary: whether it failed, its time, its output.
passed="" wrong="" left_out=""
# What the script started ends with it.
end_tree() {
  local child children
  children=$(pgrep -P "$1")
  [ "$1" = $$ ] || kill -TERM "$1" 2>/dev/null  # before its children: it starts no more of them
  for child in $children; do end_tree "$child"; done
}
trap 'exit 130' INT TERM
step() {
  local name=$1 limit=$2 start=$SECONDS left=$((budget - SECONDS)) result=ok code
  shift 2
  [[ -z ${STEPS:-} || " $STEPS " == *" $name "* || $name == configure || $name == build ]] || return 0
  if [ $left -lt 10 ]; then
    echo "  $name: left out, the budget of $budget s is spent" | tee -a "$out/summary.md"
    failed=1 left_out="$left_out $name"
    return 1
  fi
  timeout -k 5 $((limit < left ? limit : left)) "$@" >"$out/$name.log" 2>&1 &
  wait $!  # a signal is heard meanwhile
  code=$?
  [ $code = 0 ] || result="FAILED (exit code $code$([ $code = 124 ] && echo ', its time was over'))"
  echo "  $name: $result, $((SECONDS - start)) s"
  { echo; echo "## $name: $result, $((SECONDS - start)) s"; } >>"$out/summary.md"
  [[ $code = 0 && $name =~ ^(configure|build) ]] || { echo; echo '```'; tail -n 80 "$out/$name.log" | cut -c1-200; echo '```'; } >>"$out/summary.md"
  [ $code = 0 ] && passed="$passed $name" && return 0
  tail -n 15 "$out/$name.log" | cut -c1-300 | sed 's/^/    /' >&2
  failed=1 wrong="$wrong $name"
  return 1
}
# shellcheck disable=SC2317
finish() {
  local line
  end_tree $$
  for line in "passed:${passed:- nothing}" "failed:${wrong:- nothing}" "left out:${left_out:- nothing}"; do
    echo "  $line"
    { echo; echo "$line"; } >>"$out/summary.md"
  done
  tar czf "$out.tgz" -C "$(dirname "$out")" "$(basename "$out")" 2>/dev/null
  echo "gpu_check.sh: $SECONDS s; $out/summary.md, $out.tgz"
}
trap finish EXIT

# alone NAME COMMAND... <arguments: a fault of the GPU fails all that comes after it in a process. So what failed is run by itself, with
# each line of the input as the last argument, which tells causes from consequences.
alone() {
  local name=$1 argument code hangs=0
  shift
  # A fault is reported by the launch that caused it; a kernel that hangs costs 20 s, and the second one ends the list.
  while read -r argument && [ $((budget - SECONDS)) -gt 30 ] && [ $hangs -lt 2 ]; do
    CUDA_LAUNCH_BLOCKING=1 timeout --foreground -k 5 20 "$@" "$argument" </dev/null >"$out/one.log" 2>&1
    code=$?
    if [ $code = 124 ] || [ $code = 137 ]; then hangs=$((hangs + 1)); else hangs=0; fi
    echo "== $argument: $([ $code = 0 ] && echo "passes alone" || echo "FAILS alone, exit code $code")"
    [ $code = 0 ] || tail -n 12 "$out/one.log"
  done >"$out/$name-alone.log"
  rm -f "$out/one.log"
  { echo; echo "### $name: each in a process of its own"; echo; echo '```'; cut -c1-200 "$out/$name-alone.log" | head -n 150; echo '```'; } >>"$out/summary.md"
  grep '^==' "$out/$name-alone.log" | cut -c1-200 | sed 's/^/    /'
}
compare() {  # compare PRECISION: the self-test
  [[ -z ${STEPS:-} || " $STEPS " == *" selftest-$1 "* ]] || return
  step "selftest-$1" 60 "$hebb" selftest --device cuda --precision "$1" && return
  for name in $("$hebb" selftest list 2>&1 | sed -n 's/.*expected one of //p' | tr -d ,); do
    grep -q "^$name .* passed\$" "$out/selftest-$1.log" || echo "$name"
  done | alone "selftest-$1" "$hebb" selftest --device cuda --precision "$1"
}
tests() {  # tests NAME SECONDS TAGS: those of test_device
  local program=$build/tests/test_device names
  [ -x "$program" ] || return
  [[ -z ${STEPS:-} || " $STEPS " == *" $1 "* ]] || return
  step "$1" "$2" "$program" "$3" && return
  names=$("$program" "$3" --list-test-names-only 2>/dev/null)
  [ -n "$names" ] || names=$("$program" "$3" --list-tests --verbosity quiet)  # Catch2 3
  echo "$names" | sed 's/[],[]/\\&/g' | alone "$1" "$program"
}

generator=()
command -v ninja >/dev/null && generator=(-G Ninja)
tests=ON
[ -e /usr/include/catch2 ] || [ -n "$(for folder in ${includes//;/ }; do ls -d "$folder/catch2" 2>/dev/null; done)" ] || tests=OFF
[ $tests = ON ] || echo "  no catch2 here: the device tests are left out"
if [ -n "${HEBB:-}" ]; then
  [ -x "$HEBB" ] || stop "HEBB=$HEBB: no such program"
  build=$(dirname "$HEBB")
else
# shellcheck disable=SC2086
step configure 120 cmake -S . -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DHEBB_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="$capability-real" \
  -DCMAKE_CUDA_FLAGS=-Xptxas=-v "${cublas[@]}" -DHEBB_TESTS=$tests ${includes:+-DCMAKE_INCLUDE_PATH="$includes"} ${CMAKE_ARGS:-} || exit 1
targets=(hebb)
[ $tests = ON ] && targets+=(test_device)
hebb=$build/hebb
rm -f "$hebb" "$build/tests/test_device"  # what an earlier run left says nothing of this source
# One build for both programs; tests that do not compile leave hebb to be checked.
step build "$budget" cmake --build "$build" -j "$(nproc)" --target "${targets[@]}" -- ${generator[0]:+-k 0} || [ -x "$hebb" ] || exit 1
fi
hebb=${HEBB:-$build/hebb}
step doctor 20 "$hebb" doctor
tests cases 60 "[fast],[threads]"  # one kernel after the other, in seconds: what fails here explains what fails below
compare fp32
compare bf16
tests tests 150 "~[slow]~[fast]~[threads]"
for precision in bf16 fp32; do
  step "models-$precision" 60 "$hebb" bench transformer gdn-hybrid --device cuda --precision $precision --rows 16 --length 1024
done
for precision in bf16 fp32; do
  step "kernels-$precision" 60 "$hebb" bench --kernels --device cuda --precision $precision
done
command -v python3 >/dev/null && step spills 20 python3 tools/spills.py "$out/build.log"
step targets 150 tools/gpu_targets.sh "$hebb"
step layers 60 "$hebb" bench --layers --device cuda --rows 16 --length 1024 --steps 4
step decode 30 "$hebb" bench gdn-hybrid --decode --device cuda
tests slow-tests 180 "[slow]"
if [ "${SANITIZE:-1}" = 1 ]; then
  sanitizer=$(command -v compute-sanitizer || echo "$(dirname "$nvcc")/compute-sanitizer")
  layers=$(sed -n 's/^== \(.*\): FAILS.*/\1/p' "$out"/selftest-*-alone.log 2>/dev/null | sort -u)
  if [ -x "$sanitizer" ]; then
    # bf16 first: kernels on tensor cores, with cp.async and ldmatrix, run in bf16 only.
    for precision in bf16 fp32; do
      for tool in memcheck racecheck; do
        # shellcheck disable=SC2086
        step $tool-$precision 90 "$sanitizer" --tool $tool --error-exitcode 1 "$hebb" selftest ${layers:-attention gdn kvm ovq fwpkm lact} --device cuda --precision $precision
      done
    done
  else
    echo "  no compute-sanitizer here: left out"
  fi
fi
if [ "${PEERS:-1}" = 1 ] && python3 -c 'import torch' 2>/dev/null; then
  step peers 220 python3 tools/peers/gpu_pytorch.py --hebb "$hebb" --seconds 150 --peer-seconds 45 --json "$out/peers.json"
fi
for precision in bf16 fp32; do  # the same once more, for programs
  [ $((budget - SECONDS)) -gt 60 ] && timeout -k 5 50 "$hebb" selftest --device cuda --precision $precision --json >"$out/selftest-$precision.json" 2>/dev/null
  [ $((budget - SECONDS)) -gt 60 ] && timeout -k 5 50 "$hebb" bench --kernels --device cuda --precision $precision --json >"$out/kernels-$precision.json" 2>/dev/null
done
exit $failed
