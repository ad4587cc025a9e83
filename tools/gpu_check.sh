#!/usr/bin/env bash
# Builds for this machine's GPU, compares every layer with fp64, runs compute-sanitizer and the device tests, and measures models and
# kernels beside their bounds and peers; what matters most comes first, each step has a time limit, and none that fails stops the others.
# Needs the CUDA toolkit, CMake and a C++20 compiler.
# Usage: tools/gpu_check.sh [OUT]            OUT (default: gpu-check): a log per step, *.json, summary.md, and OUT.tgz; all grow with every step
#        tools/gpu_check.sh --headers [DIR]  on a machine that has them: copies what the build needs of other projects into DIR (default: .deps)
#        tools/gpu_check.sh --program [CAPABILITY]  builds hebb and test_device for GPUs elsewhere (default: 90a) into BUILD, for HEBB there
#        tools/gpu_check.sh --status [OUT]   writes docs/status.md: the operations with CUDA code, and what the check in OUT says of them
# STEPS="cases peers ..."  only these steps and doctor (default: all; configure and build are skipped where HEBB names a program)
# HEBB=path  a built program instead of a build, which needs no toolkit; test_device beside it in tests/ is used where it is there
# HEADERS="DIR ..."  folders made by --headers, or that hold nlohmann/, CLI/ ... (default: .deps where it exists)    BUILD=build-gpu
# BUDGET=540  seconds for everything: later steps are left out    SANITIZE=0, PEERS=0  without compute-sanitizer, without PyTorch
# CMAKE_ARGS="..."  more for the configuration
set -uo pipefail
cd "$(dirname "$0")/.." || exit
stop() { echo "gpu_check.sh: $*" >&2; exit 1; }
if [ "${1:-}" = --headers ]; then
  to=${2:-.deps}
  mkdir -p "$to" || exit
  for header in nlohmann CLI catch2 fmt spdlog utf8proc.h; do
    for folder in /usr/include /usr/local/include; do
      [ -e "$folder/$header" ] && rm -rf "${to:?}/$header" && cp -rL "$folder/$header" "$to/" && break
    done
    [ -e "$to/$header" ] || stop "no headers $header here; run tools/setup.sh first"
  done
  library=$(g++ -print-file-name=libutf8proc.a)
  [ -e "$library" ] || stop "no libutf8proc.a here; run tools/setup.sh first"
  cp -L "$library" "$to/" || exit
  # fmt and spdlog without their libraries, which another distribution does not have.
  cat >"$to/fmt-config.cmake" <<'END'
add_library(fmt::fmt INTERFACE IMPORTED)
set_target_properties(fmt::fmt PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_LIST_DIR}" INTERFACE_COMPILE_DEFINITIONS FMT_HEADER_ONLY)
END
  cat >"$to/spdlog-config.cmake" <<'END'
add_library(spdlog::spdlog INTERFACE IMPORTED)
set_target_properties(spdlog::spdlog PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_LIST_DIR}"
  INTERFACE_COMPILE_DEFINITIONS SPDLOG_FMT_EXTERNAL INTERFACE_LINK_LIBRARIES "fmt::fmt;Threads::Threads")
END
  du -sh "$to"
  exit
fi
if [ "${1:-}" = --program ]; then  # of nothing that another machine may lack: of its processor AVX2, of its libraries those of g++
  build=${BUILD:-build-gpu}
  "$0" --headers "$build/deps" || exit
  deps=$(realpath "$build/deps") arch=()
  [ "$(uname -m)" = x86_64 ] && arch=(-DCMAKE_CXX_FLAGS=-march=x86-64-v3 -DCMAKE_CUDA_FLAGS=-Xcompiler=-march=x86-64-v3)
  generator=()
  command -v ninja >/dev/null && generator=(-G Ninja)
  cmake -S . -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DHEBB_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="${2:-90a}-real" -DHEBB_NATIVE=OFF "${arch[@]}" \
    -DCMAKE_INCLUDE_PATH="$deps" -DCMAKE_LIBRARY_PATH="$deps" -DCMAKE_PREFIX_PATH="$deps" \
    -DHEBB_ZLIB_LIBRARY= -DHEBB_ZSTD_LIBRARY= -DHEBB_SENTENCEPIECE_LIBRARY= || exit
  cmake --build "$build" -j "$(nproc)" --target hebb test_device || exit
  strip "$build/hebb" "$build/tests/test_device"
  du -h "$build/hebb" "$build/tests/test_device"
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
PATH=$PATH:/usr/local/nvidia/bin  # where containers may have the driver's programs
export CUDA_DEVICE_ORDER=PCI_BUS_ID  # as nvidia-smi counts: its first GPU is the one that is built for and measured

# What would fail after minutes is said before the build.
command -v nvidia-smi >/dev/null || stop "nvidia-smi not found: this machine has no NVIDIA driver"
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>&1 | head -1 | tr -d '. ')
[[ $capability =~ ^[0-9]+$ ]] || stop "no usable GPU: nvidia-smi says: $(nvidia-smi 2>&1 | head -2 | tr '\n' ' ')"
gpu=$(nvidia-smi --query-gpu=name,compute_cap,driver_version,memory.total,memory.free --format=csv,noheader | head -1)
[ "$capability" = 90 ] && capability=90a
for nvcc in "${CUDACXX:-}" "$(command -v nvcc)" /usr/local/cuda/bin/nvcc /usr/local/cuda-*/bin/nvcc; do [ -x "$nvcc" ] && break; done
[ -x "$nvcc" ] || nvcc=""
compiler="no nvcc" libraries="" includes="" cublas=()
[ -z "$nvcc" ] || compiler=$("$nvcc" --version | tail -1)
# cuBLASLt of the Python package which PyTorch brings along: its header where the toolkit is a compiler with little beside it, or its library.
python_cublas=$(python3 -c 'import glob, sys; print(*(h for p in sys.path for h in sorted(glob.glob(p + "/nvidia/*/include/cublasLt.h"))), sep="\n")' 2>/dev/null | tail -1)
require_build() {  # what a build needs
  local toolkit driver folder header found library root
  [ -n "$nvcc" ] || stop "nvcc not found: install the CUDA toolkit, or name it with CUDACXX=.../nvcc"
  export CUDACXX=$nvcc
  toolkit=$("$nvcc" --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
  driver=$(nvidia-smi | sed -n 's/.*CUDA Version: \([0-9]*\)\..*/\1/p' | head -1)
  [ -n "$toolkit" ] && [ "$toolkit" -ge 12 ] || stop "$nvcc is of CUDA ${toolkit:-?}, expected 12 or newer (C++20)"
  [ -z "$driver" ] || [ "$driver" -ge "$toolkit" ] || stop "the driver runs CUDA up to $driver, but $nvcc is of CUDA $toolkit; name an older one with CUDACXX"
  command -v cmake >/dev/null || stop "cmake not found"
  [ -z "${HEADERS:-}" ] && [ -d .deps ] && HEADERS=.deps
  for folder in ${HEADERS:-}; do
    [ -d "$folder" ] || stop "HEADERS: no folder $folder"
    includes="${includes:+$includes;}$(realpath "$folder")"
  done
  for header in nlohmann/json.hpp CLI/CLI.hpp fmt/core.h spdlog/logger.h utf8proc.h; do
    found=0
    for folder in ${includes//;/ } /usr/include /usr/local/include ${CPLUS_INCLUDE_PATH:+${CPLUS_INCLUDE_PATH//:/ }}; do [ -e "$folder/$header" ] && found=1; done
    [ $found = 1 ] || stop "no header $header; bring it with tools/gpu_check.sh --headers, or name its folder in HEADERS"
  done
  root=$(dirname "$(dirname "$(realpath "$nvcc")")")
  for header in "$root"/{include,targets/*/include}/cublasLt.h /usr/include/cublasLt.h; do [ -e "$header" ] && return; done
  library=$(ls "${python_cublas%/include/*}"/lib/libcublasLt.so."$toolkit" 2>/dev/null)
  [ -n "$library" ] || stop "no cublasLt.h beside $nvcc, nor libcublasLt.so.$toolkit among Python's packages: install cuBLAS of CUDA $toolkit"
  echo "  cuBLASLt: $library"
  cublas=(-DCUDA_cublasLt_LIBRARY="$library" -DHEBB_CUBLASLT_INCLUDE="$(dirname "$python_cublas")")
}
if [ -z "${HEBB:-}" ]; then
  require_build
else  # a program that was built elsewhere looks for cuBLASLt where the loader does
  [ -x "$HEBB" ] || stop "HEBB=$HEBB: no such program"
  [ -z "$nvcc" ] || libraries=$(dirname "$(dirname "$(realpath "$nvcc")")")/lib64
  [ -z "$python_cublas" ] || libraries=$libraries:${python_cublas%/include/*}/lib
  export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}:$libraries
fi
mkdir -p "$out" || exit
[ ! -e "$out/summary.md" ] || mv "$out/summary.md" "$out/summary-$(date -r "$out/summary.md" +%H%M%S).md"  # of an earlier call
revision=$(git rev-parse --short HEAD 2>/dev/null || echo 'no git')
echo "gpu_check.sh: $gpu, sm_$capability, $compiler, $revision"
{ echo "# $gpu"; echo; echo "$(date -u +%F), $revision, $compiler, $(nproc) cores"; } >"$out/summary.md"

# step NAME SECONDS COMMAND...: runs it with a log of its own and a limit, and adds it to the summary: whether it failed, its time, its output.
passed="" wrong="" left_out=""
# What the script started ends with it. Without pgrep, which small containers lack.
end_tree() {
  local stat line words child children=""
  for stat in /proc/[0-9]*/stat; do
    { read -r line <"$stat"; } 2>/dev/null || continue
    read -ra words <<<"${line##*) }"  # state, parent, ...
    [ "${words[1]:-}" = "$1" ] && children="$children ${line%% *}"
  done
  [ "$1" = $$ ] || kill -TERM "$1" 2>/dev/null  # before its children: it starts no more of them
  for child in $children; do end_tree "$child"; done
}
archive() { tar czf "$out.tgz" -C "$(dirname "$out")" "$(basename "$out")" 2>/dev/null; }
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
  [ $code = 0 ] || tail -n 15 "$out/$name.log" | cut -c1-300 | sed 's/^/    /' >&2
  archive  # what ends the script leaves all that was done
  [ $code = 0 ] && passed="$passed $name" && return 0
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
  archive
  echo "gpu_check.sh: $SECONDS s; $out/summary.md, $out.tgz"
}
trap finish EXIT

# alone NAME COMMAND...: a fault of the GPU fails all that comes after it in a process. So what failed is run by itself, with each line of
# OUT/names as the last argument, which tells causes from consequences.
alone() {
  local name=$1 argument code hangs=0 begin=$SECONDS
  shift
  # A fault is reported by the launch that caused it; a kernel that hangs costs 20 s, and the second one ends the list, as a minute does.
  while read -r argument; do
    if [ $((budget - SECONDS)) -le 30 ] || [ $hangs -ge 2 ] || [ $((SECONDS - begin)) -ge 60 ]; then
      echo "== not tried any more: ${argument//\\/}, and what comes behind it"
      break
    fi
    CUDA_LAUNCH_BLOCKING=1 timeout --foreground -k 5 20 "$@" "$argument" </dev/null >"$out/one.log" 2>&1
    code=$?
    if [ $code = 124 ] || [ $code = 137 ]; then hangs=$((hangs + 1)); else hangs=0; fi
    echo "== ${argument//\\/}: $([ $code = 0 ] && echo "passes alone" || echo "FAILS alone, exit code $code")"
    [ $code = 0 ] || tail -n 12 "$out/one.log"
  done <"$out/names" >"$out/$name-alone.log" &
  wait $!
  rm -f "$out/one.log" "$out/names"
  { echo; echo "### $name: each in a process of its own"; echo; echo '```'; cut -c1-200 "$out/$name-alone.log" | head -n 150; echo '```'; } >>"$out/summary.md"
  grep '^==' "$out/$name-alone.log" | cut -c1-200 | sed 's/^/    /'
}
compare() {  # compare PRECISION: the self-test
  [[ -z ${STEPS:-} || " $STEPS " == *" selftest-$1 "* ]] || return
  step "selftest-$1" 60 "$hebb" selftest --device cuda --precision "$1" && return
  for name in $("$hebb" selftest list 2>&1 | sed -n 's/.*expected one of //p' | tr -d ,); do
    grep -q "^$name .* passed\$" "$out/selftest-$1.log" || echo "$name"
  done >"$out/names"
  alone "selftest-$1" "$hebb" selftest --device cuda --precision "$1"
}
tests() {  # tests NAME SECONDS TAGS: those of test_device
  local program=$build/tests/test_device names name log
  [ -x "$program" ] || return
  [[ -z ${STEPS:-} || " $STEPS " == *" $1 "* ]] || return
  step "$1" "$2" "$program" "$3" && return
  names=$("$program" "$3" --list-test-names-only 2>/dev/null)
  [ -n "$names" ] || names=$("$program" "$3" --list-tests --verbosity quiet)  # Catch2 3
  log=$'\n'$(<"$out/$1.log")
  while read -r name; do  # what failed has a heading in the log, wrapped at 79 columns
    [[ $log != *$'\n'"${name:0:60}"* ]] || echo "$name"
  done <<<"$names" | sed 's/[],[]/\\&/g' >"$out/names"
  [ -s "$out/names" ] || echo "$names" | sed 's/[],[]/\\&/g' >"$out/names"
  alone "$1" "$program"
}

if [ -n "${HEBB:-}" ]; then
  build=$(dirname "$HEBB")
else
  generator=()
  command -v ninja >/dev/null && generator=(-G Ninja)
  tests=ON
  [ -e /usr/include/catch2 ] || [ -n "$(for folder in ${includes//;/ }; do ls -d "$folder/catch2" 2>/dev/null; done)" ] || tests=OFF
  [ $tests = ON ] || echo "  no catch2 here: the device tests are left out"
  # shellcheck disable=SC2086
  step configure 120 cmake -S . -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DHEBB_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="$capability-real" \
    -DCMAKE_CUDA_FLAGS=-Xptxas=-v "${cublas[@]}" -DHEBB_TESTS=$tests \
    ${includes:+-DCMAKE_INCLUDE_PATH="$includes" -DCMAKE_LIBRARY_PATH="$includes" -DCMAKE_PREFIX_PATH="$includes"} ${CMAKE_ARGS:-} || exit 1
  targets=(hebb)
  [ $tests = ON ] && targets+=(test_device)
  rm -f "$build/hebb" "$build/tests/test_device"  # what an earlier run left says nothing of this source
  # One build for both programs; tests that do not compile leave hebb to be checked.
  step build "$budget" cmake --build "$build" -j "$(nproc)" --target "${targets[@]}" -- ${generator[0]:+-k 0} || [ -x "$build/hebb" ] || exit 1
fi
hebb=${HEBB:-$build/hebb}
STEPS=${STEPS:+$STEPS doctor} step doctor 20 "$hebb" doctor
# Without a GPU the tests of devices are skipped, which looks like success.
problem=$(sed -n 's/^  CUDA  *\(built, but .*\|no: .*\)/\1/p' "$out/doctor.log")
[ -z "$problem" ] || { failed=1 wrong="$wrong GPU"; stop "$hebb has no GPU: $problem"; }
tests cases 60 "[fast],[threads]"  # one kernel after the other, in seconds: what fails here explains what fails below
compare fp32
compare bf16
# Small models of every layer under compute-sanitizer: of bf16 before anything is measured, since kernels on tensor cores, with cp.async and
# ldmatrix, run in bf16 only.
sanitizer=$(command -v compute-sanitizer || echo "${nvcc:+$(dirname "$nvcc")/}compute-sanitizer")
[ "${SANITIZE:-1}" = 0 ] || [ -x "$sanitizer" ] || echo "  no compute-sanitizer here: left out"
sanitize() {  # sanitize PRECISION SECONDS
  local tool layers
  [ "${SANITIZE:-1}" = 1 ] && [ -x "$sanitizer" ] || return
  layers=$(sed -n 's/^== \(.*\): FAILS.*/\1/p' "$out"/selftest-*-alone.log 2>/dev/null | sort -u)
  for tool in memcheck racecheck; do
    # shellcheck disable=SC2086
    step $tool-$1 "$2" "$sanitizer" --tool $tool --error-exitcode 1 "$hebb" selftest ${layers:-attention gdn kvm ovq fwpkm lact} --device cuda --precision "$1"
  done
}
sanitize bf16 60
tests tests 150 "~[slow]~[fast]~[threads]"
step targets 150 tools/gpu_targets.sh "$hebb"
for precision in bf16 fp32; do
  step "models-$precision" 60 "$hebb" bench transformer gdn-hybrid --device cuda --precision $precision --rows 16 --length 1024
done
for precision in bf16 fp32; do
  step "kernels-$precision" 60 "$hebb" bench --kernels --device cuda --precision $precision
done
[ -z "${HEBB:-}" ] && command -v python3 >/dev/null && step spills 20 python3 tools/spills.py "$out/build.log"
step layers 60 "$hebb" bench --layers --device cuda --rows 16 --length 1024 --steps 4
for graphs in cuda-graphs no-cuda-graphs; do  # single tokens as recorded graphs, and launch by launch
  step "decode-$graphs" 60 "$hebb" bench gdn-hybrid configs/sdm/L08-gdn.json --decode --rows 1 --length 1024 --steps 2 --device cuda "--$graphs"
done
if [ "${PEERS:-1}" = 1 ] && python3 -c 'import torch' 2>/dev/null; then
  step peers 220 python3 tools/peers/gpu_pytorch.py --hebb "$hebb" --seconds 150 --peer-seconds 45 --json "$out/peers.json"
fi
tests slow-tests 180 "[slow]"
sanitize fp32 90
save() {  # save NAME COMMAND...: once more, for programs
  local name=$1
  shift
  [[ -z ${STEPS:-} || " $STEPS " == *" json "* ]] && [ $((budget - SECONDS)) -gt 60 ] || return
  timeout -k 5 50 "$hebb" "$@" --device cuda --precision "$precision" --json >"$out/$name.json" 2>/dev/null &
  wait $!
}
for precision in bf16 fp32; do
  save "selftest-$precision" selftest
  save "kernels-$precision" bench --kernels
done
exit $failed
