#!/usr/bin/env bash
# Compares every operation and layer with fp64 on this machine's GPU, runs compute-sanitizer, trains, and measures models and kernels beside
# their bounds and peers; what matters most comes first, each step has a share of the time, and none that fails or runs over stops the others.
# A build needs the CUDA toolkit, CMake and a C++20 compiler; a program that is brought along (--program, HEBB) needs neither.
# Usage: tools/gpu_check.sh [OUT]            OUT (default: gpu-check): summary.md, operations.txt, logs.tgz; all grow with every step
#        tools/gpu_check.sh --plan           the steps of each run with their shares and estimates; needs no GPU
#        tools/gpu_check.sh --headers [DIR]  on a machine that has them: copies what the build needs of other projects into DIR (default: .deps)
#        tools/gpu_check.sh --program [CAPABILITY]  builds hebb and test_device for GPUs elsewhere (default: 90a) into BUILD, for HEBB there
#        tools/gpu_check.sh --status [OUT]   writes docs/status.md: what the cases of each operation said in the emulator (test_simt of
#                                            SIMT=build/tests/simt/test_simt, which it runs) and in the check in OUT
# RUN=1  only the steps of a run: 1 correctness, 2 models beside targets and peers, 3 the rest (default: all). For a GPU that is lent for
#        minutes at a time: each run needs nothing of another, and all three take fifteen minutes.
# STEPS="cases peers ..."  only these steps and doctor (default: all; configure and build are skipped where HEBB names a program)
# HEBB=path  a built program instead of a build, which needs no toolkit; test_device beside it in tests/ is used where it is there
# HEADERS="DIR ..."  folders made by --headers, or that hold nlohmann/, CLI/ ... (default: .deps where it exists)    BUILD=build-gpu
# BUDGET=540  seconds for everything (of runs 1 to 3: 360, 300, 150): later steps are left out    ALONE_SECONDS=20  for what is run by itself
# SANITIZE=0, PEERS=0  without compute-sanitizer, without PyTorch    CMAKE_ARGS="..."  more for the configuration
set -uo pipefail
cd "$(dirname "$0")/.." || exit
stop() { echo "gpu_check.sh: $*" >&2; exit 1; }
brought() {  # brought HEBB: what goes to the other machine with the tree, and what it needs there
  local file bytes all=0 foreign
  for file in "$1" "$(dirname "$1")/tests/test_device"; do
    [ -e "$file" ] || { echo "  $file: not there"; continue; }
    bytes=$(stat -c %s "$file") all=$((all + bytes))
    echo "  $file: $(mebibytes "$bytes"), glibc $(grep -ao 'GLIBC_2\.[0-9]*' "$file" | sort -uV | tail -1 | cut -d_ -f2) or newer"
    foreign=$(ldd "$file" 2>/dev/null | sed -n 's/^[[:space:]]*\(lib[^ ]*\) .*/\1/p' | grep -vE '^lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)\.so' | tr '\n' ' ')
    [ -z "$foreign" ] || echo "  $file needs libraries that another machine may lack: $foreign"
  done
  echo "  together $(mebibytes $all)$([ $all -le $((64 << 20)) ] || echo ', more than 64 MiB: compress it for the way')"
}
mebibytes() { echo "$(((10 * $1 + (1 << 19)) >> 20))" | sed 's/.$/.&/; s/^\./0./; s/$/ MiB/'; }
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
  cuda=""  # one flag a line
  [ "$(uname -m)" = x86_64 ] && arch=(-DCMAKE_CXX_FLAGS=-march=x86-64-v3) cuda=-Xcompiler=-march=x86-64-v3
  for nvcc in "${CUDACXX:-}" "$(command -v nvcc)" /usr/local/cuda/bin/nvcc; do [ -x "$nvcc" ] && break; done
  "$nvcc" --help 2>/dev/null | grep -q -- --compress-mode && cuda="$cuda --compress-mode=size"
  arch+=("-DCMAKE_CUDA_FLAGS=$cuda")
  generator=()
  command -v ninja >/dev/null && generator=(-G Ninja)
  cmake -S . -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DHEBB_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="${2:-90a}-real" -DHEBB_NATIVE=OFF -DHEBB_PROCESSOR_LEVELS=OFF "${arch[@]}" \
    -DCMAKE_INCLUDE_PATH="$deps" -DCMAKE_LIBRARY_PATH="$deps" -DCMAKE_PREFIX_PATH="$deps" \
    -DHEBB_SERVE=OFF -DHEBB_ZLIB_LIBRARY= -DHEBB_ZSTD_LIBRARY= -DHEBB_SENTENCEPIECE_LIBRARY= || exit
  cmake --build "$build" -j "$(nproc)" --target hebb test_device || exit
  strip "$build/hebb" "$build/tests/test_device"
  brought "$build/hebb"
  exit
fi
said() {  # said FILE FOLDER: of the operations in a folder of kernels, how many of FILE's agree, and which do not
  local args all=0 agree=0 without=0 wrong=""
  [ -s "$1" ] || { echo "not run"; return; }
  for args in $(sed -n 's/^ *HEBB_KERNEL[A-Z_]*(\([A-Za-z0-9]*\)).*/\1/p' "$2"*.h | sort -u); do
    grep -q "HEBB_KERNEL_CPU($args)" "$2"*.h && continue
    all=$((all + 1))
    if ! grep -q " $args\$" "$1"; then
      without=$((without + 1))
      continue
    fi
    if grep -q "^differs $args\$" "$1" || [ "$(grep -c "^begins $args\$" "$1")" != "$(grep -c "^agrees $args\$" "$1")" ]; then
      wrong="$wrong \`$args\`"
    else
      agree=$((agree + 1))
    fi
  done
  [ $all != 0 ] || { echo "no operation of its own"; return; }
  local text="$agree of $((all - without)) agree"
  [ $all != $without ] || text=""
  [ $without = 0 ] || text="$text${text:+, }$without without cases"
  echo "$text${wrong:+; not:$wrong}"
}
if [ "${1:-}" = --status ]; then
  check=${2:-gpu-check} simt=${SIMT:-build/tests/simt/test_simt}
  [ -x "$simt" ] || stop "no $simt: build test_simt, or name it in SIMT"
  emulated=$(mktemp)
  trap 'rm -f "$emulated"' EXIT
  HEBB_OPERATIONS=$emulated "$simt" "[fast]" >/dev/null || echo "gpu_check.sh: $simt fails" >&2
  [ -s "$emulated" ] || stop "$simt ran no case of an operation"
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
    echo "Written by \`tools/gpu_check.sh --status\` from what ran: the cases of each operation ([cases](emulator.md#cases-of-operations)), in the"
    echo "[emulator](emulator.md) by \`test_simt\` and on hardware by the step \`cases\` of \`tools/gpu_check.sh\`. An operation agrees where all results of all"
    echo "its cases are within their limits of the CPU in fp64. What has no cases is compared by tests that this page does not count."
    echo
    echo "Hardware: $ran."
    echo
    echo "| folder | CUDA sources | emulator | hardware |"
    echo "|---|---:|---|---|"
    for folder in kernels/*/; do
      name=$(basename "$folder")
      count=$(find "$folder" -maxdepth 1 \( -name '*.cu' -o -name 'cuda_*.cpp' \) | wc -l)
      [ "$count" = 0 ] || echo "| [\`$name\`](../$folder) | $count | $(said "$emulated" "$folder") | $(said "$check/operations.txt" "$folder") |"
    done
  } >"${STATUS:-docs/status.md}"
  echo "gpu_check.sh: ${STATUS:-docs/status.md} ($ran)"
  exit
fi
planning=0
[ "${1:-}" = --plan ] && planning=1 && shift
run=${RUN:-all} build=${BUILD:-build-gpu}
case $run in
  1) budget=360 ;; 2) budget=300 ;; 3) budget=150 ;; all) budget=540 ;;
  *) stop "RUN=$run, expected 1, 2, 3 or all" ;;
esac
out=${1:-gpu-check} budget=${BUDGET:-$budget} failed=0
PATH=$PATH:/usr/local/nvidia/bin  # where containers may have the driver's programs
export CUDA_DEVICE_ORDER=PCI_BUS_ID  # as nvidia-smi counts: its first GPU is the one that is built for and measured

# What would fail after minutes is said before the build.
find_gpu() {
  command -v nvidia-smi >/dev/null || stop "nvidia-smi not found: this machine has no NVIDIA driver"
  capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>&1 | head -1 | tr -d '. ')
  [[ $capability =~ ^[0-9]+$ ]] || stop "no usable GPU: nvidia-smi says: $(nvidia-smi 2>&1 | head -2 | tr '\n' ' ')"
  gpu=$(nvidia-smi --query-gpu=name,compute_cap,driver_version,memory.total,memory.free --format=csv,noheader | head -1)
  [ "$capability" != 90 ] || capability=90a
}
[ $planning = 1 ] || find_gpu
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
if [ $planning = 1 ]; then
  capability=${CAPABILITY:-90a}
elif [ -z "${HEBB:-}" ]; then
  require_build
else  # a program that was built elsewhere looks for cuBLASLt where the loader does
  [ -x "$HEBB" ] || stop "HEBB=$HEBB: no such program"
  [ -z "$nvcc" ] || libraries=$(dirname "$(dirname "$(realpath "$nvcc")")")/lib64
  [ -z "$python_cublas" ] || libraries=$libraries:${python_cublas%/include/*}/lib
  export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}:$libraries
fi
if [ $planning = 0 ]; then
  mkdir -p "$out" || exit
  [ ! -e "$out/summary.md" ] || mv "$out/summary.md" "$out/summary-$(date -r "$out/summary.md" +%H%M%S).md"  # of an earlier call
  revision=$(git rev-parse --short HEAD 2>/dev/null || echo 'no git')
  echo "gpu_check.sh: $gpu, sm_$capability, $compiler, $revision"
  { echo "# $gpu"; echo; echo "$(date -u +%F), $revision, $compiler, $(nproc) cores"; } >"$out/summary.md"
fi
export logs=$out.logs  # beside OUT, which holds few files; OUT has all of them in one
[ $planning = 1 ] || mkdir -p "$logs" || exit

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
kMost=1048576  # bytes of a log that are kept: its beginning and its end
archive() {
  local log
  for log in "$logs"/*.log; do
    [ -e "$log" ] && [ "$(wc -c <"$log")" -gt $kMost ] || continue
    { head -c $((kMost / 4)) "$log"; printf '\n... %s bytes in all ...\n' "$(wc -c <"$log")"; tail -c $((kMost / 2)) "$log"; } >"$logs/short" && mv "$logs/short" "$log"
  done
  tar czf "$out/logs.tgz" -C "$(dirname "$logs")" "$(basename "$logs")" 2>/dev/null
  [ "$(wc -c <"$out/logs.tgz")" -le $((16 << 20)) ] || echo "  $out/logs.tgz has more than 16 MiB" >&2
}
trap 'exit 130' INT TERM
wanted() {  # wanted NAME RUNS: whether the step is asked for
  [[ -z ${STEPS:-} ]] || { [[ " $STEPS " == *" $1 "* ]]; return; }
  [[ $run == all || $2 == *$run* ]]
}
shares=0 guesses=0
# step NAME RUNS SHARE ESTIMATE COMMAND...: a step of the runs named by their digits, with a log of its own. After SHARE seconds it is ended, and
# its log is kept. The summary has whether it failed, its time and the end of its log. ESTIMATE: seconds on a machine with 16 cores and one
# H100; where nothing was measured a guess.
step() {
  local name=$1 runs=$2 limit=$3 guess=$4 start=$SECONDS left=$((budget - SECONDS)) result=ok code
  shift 4
  wanted "$name" "$runs" || [[ $name == configure || $name == build ]] || return 0
  if [ $planning = 1 ]; then
    printf '%-16s %8s %8s   %s\n' "$name" "$limit" "$guess" "$(echo "$*" | cut -c1-110)"
    shares=$((shares + limit)) guesses=$((guesses + guess))
    return 0
  fi
  if [ $left -lt 10 ]; then
    echo "  $name: left out, the budget of $budget s is spent" | tee -a "$out/summary.md"
    failed=1 left_out="$left_out $name"
    return 1
  fi
  timeout -k 5 $((limit < left ? limit : left)) "$@" >"$logs/$name.log" 2>&1 &
  wait $!  # a signal is heard meanwhile
  code=$?
  [ $code = 0 ] || result="FAILED (exit code $code$([ $code = 124 ] || [ $code = 137 ] && echo ', its time was over'))"
  echo "  $name: $result, $((SECONDS - start)) s"
  { echo; echo "## $name: $result, $((SECONDS - start)) s"; } >>"$out/summary.md"
  [[ $code = 0 && $name =~ ^(configure|build) ]] || { echo; echo '```'; tail -n 80 "$logs/$name.log" | cut -c1-200; echo '```'; } >>"$out/summary.md"
  [ $code = 0 ] || tail -n 15 "$logs/$name.log" | cut -c1-300 | sed 's/^/    /' >&2
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
  echo "gpu_check.sh: $SECONDS s; $out/summary.md, $out/logs.tgz"
}
[ $planning = 1 ] || trap finish EXIT

# alone NAME COMMAND...: a fault of the GPU fails all that comes after it in a process. So what failed is run by itself, with each line of
# the file names as the last argument, which tells causes from consequences.
alone() {
  local name=$1 argument code hangs=0 begin=$SECONDS
  shift
  # A fault is reported by the launch that caused it; a kernel that hangs costs ALONE_SECONDS, and the second one ends the list, as a minute does.
  while read -r argument; do
    if [ $((budget - SECONDS)) -le 30 ] || [ $hangs -ge 2 ] || [ $((SECONDS - begin)) -ge 60 ]; then
      echo "== not tried any more: ${argument//\\/}, and what comes behind it"
      break
    fi
    CUDA_LAUNCH_BLOCKING=1 timeout --foreground -k 5 "${ALONE_SECONDS:-20}" "$@" "$argument" </dev/null >"$logs/one.log" 2>&1
    code=$?
    if [ $code = 124 ] || [ $code = 137 ]; then hangs=$((hangs + 1)); else hangs=0; fi
    echo "== ${argument//\\/}: $([ $code = 0 ] && echo "passes alone" || echo "FAILS alone, exit code $code")"
    [ $code = 0 ] || tail -n 12 "$logs/one.log"
  done <"$logs/names" >"$logs/$name-alone.log" &
  wait $!
  rm -f "$logs/one.log" "$logs/names"
  { echo; echo "### $name: each in a process of its own"; echo; echo '```'; cut -c1-200 "$logs/$name-alone.log" | head -n 150; echo '```'; } >>"$out/summary.md"
  grep '^==' "$logs/$name-alone.log" | cut -c1-200 | sed 's/^/    /'
}
compare() {  # compare PRECISION: the self-test
  wanted "selftest-$1" 1 || return
  step "selftest-$1" 1 40 15 "$hebb" selftest --device cuda --precision "$1" && return
  for name in $("$hebb" selftest list 2>&1 | sed -n 's/.*expected one of //p' | tr -d ,); do
    grep -q "^$name .* passed\$" "$logs/selftest-$1.log" || echo "$name"
  done >"$logs/names"
  alone "selftest-$1" "$hebb" selftest --device cuda --precision "$1"
}
tests() {  # tests NAME RUNS SHARE ESTIMATE TAGS: those of test_device
  local program=$build/tests/test_device names name log
  [ -x "$program" ] || [ $planning = 1 ] || return
  wanted "$1" "$2" || return
  step "$1" "$2" "$3" "$4" "$program" "$5" && return
  names=$("$program" "$5" --list-test-names-only 2>/dev/null)
  [ -n "$names" ] || names=$("$program" "$5" --list-tests --verbosity quiet)  # Catch2 3
  log=$'\n'$(<"$logs/$1.log")
  while read -r name; do  # what failed has a heading in the log, wrapped at 79 columns
    [[ $log != *$'\n'"${name:0:60}"* ]] || echo "$name"
  done <<<"$names" | sed 's/[],[]/\\&/g' >"$logs/names"
  [ -s "$logs/names" ] || echo "$names" | sed 's/[],[]/\\&/g' >"$logs/names"
  alone "$1" "$program"
}

build_here() {
  local generator tests targets
  generator=()
  command -v ninja >/dev/null && generator=(-G Ninja)
  tests=ON
  [ -e /usr/include/catch2 ] || [ -n "$(for folder in ${includes//;/ }; do ls -d "$folder/catch2" 2>/dev/null; done)" ] || tests=OFF
  [ $tests = ON ] || echo "  no catch2 here: the device tests are left out"
  # shellcheck disable=SC2086
  step configure 123 120 15 cmake -S . -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DHEBB_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="$capability-real" \
    -DCMAKE_CUDA_FLAGS=-Xptxas=-v "${cublas[@]}" -DHEBB_TESTS=$tests \
    ${includes:+-DCMAKE_INCLUDE_PATH="$includes" -DCMAKE_LIBRARY_PATH="$includes" -DCMAKE_PREFIX_PATH="$includes"} ${CMAKE_ARGS:-} || exit 1
  targets=(hebb)
  [ $tests = ON ] && targets+=(test_device)
  [ $planning = 1 ] || rm -f "$build/hebb" "$build/tests/test_device"  # what an earlier run left says nothing of this source
  # One build for both programs; tests that do not compile leave hebb to be checked.
  step build 123 "$budget" 170 cmake --build "$build" -j "$(nproc)" --target "${targets[@]}" -- ${generator[0]:+-k 0} || [ -x "$build/hebb" ] || exit 1
}
# Small models under compute-sanitizer. In bf16 before anything is measured: kernels on tensor cores, with cp.async and ldmatrix, run in bf16 only.
sanitizer=$(command -v compute-sanitizer || echo "${nvcc:+$(dirname "$nvcc")/}compute-sanitizer")
[ "${SANITIZE:-1}" = 0 ] || [ -x "$sanitizer" ] || [ $planning = 1 ] || echo "  no compute-sanitizer here: left out"
sanitize() {  # sanitize PRECISION RUNS SHARE
  local tool layers
  [ "${SANITIZE:-1}" = 1 ] || return
  [ -x "$sanitizer" ] || [ $planning = 1 ] || return
  layers=$(sed -n 's/^== \(.*\): FAILS.*/\1/p' "$logs"/selftest-*-alone.log 2>/dev/null | sort -u)
  for tool in memcheck racecheck; do
    # shellcheck disable=SC2086
    step $tool-$1 "$2" "$3" "$3" "$sanitizer" --tool $tool --error-exitcode 1 "$hebb" selftest ${layers:-attention gdn mamba2 kvm ovq fwpkm lact} --device cuda \
      --precision "$1"
  done
}
train() {  # a run in bf16, ended after half of its steps and continued; its loss has to fall
  local folder=$logs/train
  rm -rf "$folder"
  mkdir -p "$folder" || return
  cat >"$folder/run.json" <<'END'
{"name": "check",
 "model": {"vocab_size": 2048, "hidden_size": 256, "num_layers": 4,
   "layers": {"gdn": {"type": "gdn", "num_heads": 4, "key_head_dim": 64, "value_head_dim": 64, "conv_size": 4},
              "swa": {"type": "attention", "num_heads": 4, "head_dim": 64, "window": 64, "rope": {"theta": 10000.0}},
              "mlp": {"type": "swiglu", "intermediate_size": 768}},
   "pattern": [{"mixer": "gdn", "ffn": "mlp"}, {"mixer": "swa", "ffn": "mlp"}]},
 "data": {"sources": [{"type": "synthetic", "task": "mqar", "seed": 1, "vocab": 2048, "pairs": 16}]},
 "train": {"steps": 200, "batch_size": 32, "sequence_length": 256, "seed": 1, "device": "cuda", "precision": "bf16", "log_every": 20,
           "checkpoint": {"every": 100}},
 "optimizer": {"lr": 3e-3}, "schedule": {"type": "constant", "warmup_steps": 20}}
END
  "$1" train "$folder/run.json" --run-dir "$folder/run" train.steps=100 || return
  "$1" train "$folder/run.json" --run-dir "$folder/run" || return
  local losses first last
  losses=$(sed -n 's/.*"loss": *\([0-9.e+-]*\).*/\1/p' "$folder/run/metrics.jsonl")
  first=$(head -1 <<<"$losses") last=$(tail -1 <<<"$losses")
  echo "loss from $first to $last"
  [ "$first" != "$last" ] && [ "$(sort -g <<<"$first"$'\n'"$last" | head -1)" = "$last" ]
}
export -f train

steps() {
  local precision graphs problem
  if [ -n "${HEBB:-}" ]; then
    build=$(dirname "$HEBB")
  else
    build_here
  fi
  hebb=${HEBB:-$build/hebb}
  STEPS=${STEPS:+$STEPS doctor} step doctor 123 10 3 "$hebb" doctor
  if [ $planning = 0 ]; then  # without a GPU the tests of devices are skipped, which looks like success
    problem=$(sed -n 's/^  CUDA  *\(built, but .*\|no: .*\)/\1/p' "$logs/doctor.log")
    [ -z "$problem" ] || { failed=1 wrong="$wrong GPU"; stop "$hebb has no GPU: $problem"; }
  fi
  # One kernel after the other, in seconds: what fails here explains what fails below.
  HEBB_OPERATIONS=$out/operations.txt tests cases 1 50 20 "[fast],[threads]"
  compare fp32
  compare bf16
  sanitize bf16 1 60
  step train 1 50 25 bash -c 'train "$1"' train "$hebb"
  tests tests 3 50 40 "~[slow]~[fast]~[threads]"
  step targets 2 150 120 tools/gpu_targets.sh "$hebb"
  if [ "${PEERS:-1}" = 1 ] && { [ $planning = 1 ] || python3 -c 'import torch' 2>/dev/null; }; then
    step peers 2 100 90 python3 tools/peers/gpu_pytorch.py --hebb "$hebb" --seconds 65 --peer-seconds 25 --json "$logs/peers.json"
  fi
  step models-bf16 2 40 20 "$hebb" bench transformer gdn-hybrid --device cuda --precision bf16 --rows 16 --length 1024
  step kernels-bf16 3 40 25 "$hebb" bench --kernels --device cuda --precision bf16
  for graphs in cuda-graphs no-cuda-graphs; do  # single tokens as recorded graphs, and launch by launch
    step "decode-$graphs" 3 25 12 "$hebb" bench gdn-hybrid configs/sdm/L08-gdn.json --decode --rows 1 --length 1024 --steps 2 --device cuda "--$graphs"
  done
  step models-fp32 "" 60 30 "$hebb" bench transformer gdn-hybrid --device cuda --precision fp32 --rows 16 --length 1024
  step kernels-fp32 "" 60 30 "$hebb" bench --kernels --device cuda --precision fp32
  [ -z "${HEBB:-}" ] && command -v python3 >/dev/null && step spills "" 20 2 python3 tools/spills.py "$logs/build.log"
  step layers "" 60 30 "$hebb" bench --layers --device cuda --rows 16 --length 1024 --steps 4
  tests slow-tests "" 180 100 "[slow]"
  sanitize fp32 "" 90
  [ $planning = 1 ] && return
  for precision in bf16 fp32; do
    save "selftest-$precision" selftest
    save "kernels-$precision" bench --kernels
  done
}
save() {  # save NAME COMMAND...: once more, for programs
  local name=$1
  shift
  wanted json "" && [ $((budget - SECONDS)) -gt 60 ] || return
  timeout -k 5 50 "$hebb" "$@" --device cuda --precision "$precision" --json >"$logs/$name.json" 2>/dev/null &
  wait $!
}
if [ $planning = 1 ]; then
  echo "Shares: seconds after which a step is ended. Estimates: seconds on 16 cores and one H100; nothing of them was measured on a GPU."
  for run in $([ "$run" = all ] && echo 1 2 3 || echo "$run"); do
    RUN=$run
    case $run in 1) budget=360 ;; 2) budget=300 ;; 3) budget=150 ;; esac
    printf '\nrun %s, at most %s s\n%-16s %8s %8s   %s\n' "$run" "$budget" step share estimate command
    shares=0 guesses=0
    steps
    printf '%-16s %8s %8s\n' "together" $shares $guesses
  done
  [ -z "${HEBB:-}" ] || brought "$HEBB"
  exit
fi
steps
exit $failed
