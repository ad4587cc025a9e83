#!/usr/bin/env bash
# Builds hebb another way, with warnings as errors, and runs the quick tests. Usage: tools/variant.sh clang|portable|levels
#   clang     by clang instead of GCC
#   portable  for any x86-64 processor: no AVX outside the kernels, which are built for each level of the instruction set
#   levels    as portable, but of the tests those of kernels and layers alone, at each level that this processor has
# The build folder is build-clang, build-portable or build-levels.
set -euo pipefail
cd "$(dirname "$0")/.."
packages=() options=() targets=() tests='^test_[a-z_]*\.(fast|threads)$|^processor_levels$'
case ${1:-} in
  clang) packages=(--fuzz) options=(-DCMAKE_CXX_COMPILER=clang++) ;;
  portable) options=(-DHEBB_NATIVE=OFF) ;;
  levels) options=(-DHEBB_NATIVE=OFF) targets=(--target hebb test_kernels test_layers) tests='^processor_levels$' ;;
  *) echo "variant.sh: found \"${1:-}\", expected clang, portable or levels" >&2; exit 2 ;;
esac
build=build-$1
tools/setup.sh "${packages[@]}"
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DHEBB_CUDA=OFF -DHEBB_WERROR=ON "${options[@]}"
cmake --build "$build" "${targets[@]}"
result=0
ctest --test-dir "$build" -j2 --output-on-failure -R "$tests" || result=$?
tests/count_skips.sh "$build"
exit $result
