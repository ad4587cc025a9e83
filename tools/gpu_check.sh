#!/usr/bin/env bash
# Builds for this machine's GPU, runs the tests on it, and measures kernels and models beside their bounds. Needs the CUDA toolkit, CMake
# and a C++20 compiler; headers that are not installed can come from folders named in HEADERS.
# Usage: tools/gpu_check.sh [OUT]            OUT (default: gpu-check): logs, selftest-*.json, bench-*.json, summary.md
# HEADERS="DIR ..."  folders that hold nlohmann/, CLI/ or catch2/    BUILD=build-gpu    SANITIZE=0 leaves compute-sanitizer out
set -uo pipefail
cd "$(dirname "$0")/.." || exit
out=${1:-gpu-check} build=${BUILD:-build-gpu}
mkdir -p "$out"
failed=0
command -v nvidia-smi >/dev/null || { echo "gpu_check.sh: nvidia-smi not found: this machine has no NVIDIA driver" >&2; exit 1; }
gpu=$(nvidia-smi --query-gpu=name,compute_cap,driver_version,memory.total --format=csv,noheader | head -1)
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
[ "$capability" = 90 ] && capability=90a
echo "gpu_check.sh: $gpu, sm_$capability, $(git rev-parse --short HEAD 2>/dev/null || echo 'no git')"

# step NAME COMMAND...: runs it with a log of its own, says how long it took and whether it failed.
step() {
  local name=$1 start=$SECONDS
  shift
  if "$@" >"$out/$name.log" 2>&1; then
    echo "  $name: ok, $((SECONDS - start)) s"
    echo "| $name | ok | $((SECONDS - start)) s |" >>"$out/summary.md"
  else
    echo "  $name: FAILED, $((SECONDS - start)) s; see $out/$name.log" >&2
    echo "| $name | **failed** | $((SECONDS - start)) s |" >>"$out/summary.md"
    failed=1
    return 1
  fi
}

{ echo "# $gpu"; echo; echo "$(date -u +%F), $(git rev-parse --short HEAD 2>/dev/null), $(nvcc --version 2>/dev/null | tail -1)"; echo; echo "| step | result | time |"; echo "|---|---|---|"; } >"$out/summary.md"

includes=""
for folder in ${HEADERS:-}; do includes="${includes:+$includes;}$(realpath "$folder")"; done
export CPLUS_INCLUDE_PATH="${includes//;/:}${CPLUS_INCLUDE_PATH:+:$CPLUS_INCLUDE_PATH}"
generator=()
command -v ninja >/dev/null && generator=(-G Ninja)
step configure cmake -S . -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DHEBB_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="$capability-real" \
  ${includes:+-DCMAKE_INCLUDE_PATH="$includes"} || exit 1
step build cmake --build "$build" -j "$(nproc)" --target hebb test_device || exit 1
hebb=$build/hebb
step doctor "$hebb" doctor
for precision in fp32 bf16; do
  step "selftest-$precision" "$hebb" selftest --device cuda --precision $precision
  "$hebb" selftest --device cuda --precision $precision --json >"$out/selftest-$precision.json" 2>/dev/null
done
step tests "$build/tests/test_device"
if [ "${SANITIZE:-1}" = 1 ] && command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck; do
    step "$tool" compute-sanitizer --tool $tool --error-exitcode 1 "$hebb" selftest attention gdn sdm fwpkm ovq optimizer --device cuda --precision fp32
  done
fi
for precision in fp32 bf16; do
  step "kernels-$precision" "$hebb" bench --kernels --device cuda --precision $precision
  "$hebb" bench --kernels --device cuda --precision $precision --json >"$out/kernels-$precision.json" 2>/dev/null
  step "models-$precision" "$hebb" bench transformer gdn-hybrid --device cuda --precision $precision --rows 16 --length 1024
done
step layers "$hebb" bench --layers --device cuda --rows 16 --length 1024 --steps 4
step decode "$hebb" bench gdn-hybrid --decode --device cuda
for log in selftest-fp32 selftest-bf16 kernels-bf16 kernels-fp32 models-bf16 models-fp32 layers decode; do
  { echo; echo "## $log"; echo; echo '```'; cat "$out/$log.log" 2>/dev/null; echo '```'; } >>"$out/summary.md"
done
echo "gpu_check.sh: $SECONDS s; $out/summary.md"
exit $failed
