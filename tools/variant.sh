#!/usr/bin/env bash
# Builds hebb another way, with warnings as errors, and runs the quick tests. Usage: tools/variant.sh clang|portable|baseline
#   clang     by clang instead of GCC
#   portable  for any x86-64 processor: no AVX outside the kernels, which are built for each level of the instruction set
#   baseline  no AVX at all: vectors of 16 bytes; tests of kernels and layers
# The build folder is build-clang, build-portable or build-baseline.
set -euo pipefail
cd "$(dirname "$0")/.."
packages=() options=() targets=() tests='^test_[a-z_]*\.(fast|threads)$|^processor_levels$'
case ${1:-} in
  clang) packages=(--fuzz) options=(-DCMAKE_CXX_COMPILER=clang++) ;;
  portable) options=(-DHEBB_NATIVE=OFF) ;;
  baseline)
    options=(-DHEBB_NATIVE=OFF -DHEBB_PROCESSOR_LEVELS=OFF) targets=(--target test_kernels test_layers)
    tests='^test_(kernels|layers)\.fast$' ;;
  *) echo "variant.sh: found \"${1:-}\", expected clang, portable or baseline" >&2; exit 2 ;;
esac
build=build-$1
tools/setup.sh "${packages[@]}"
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DHEBB_CUDA=OFF -DHEBB_WERROR=ON "${options[@]}"
cmake --build "$build" "${targets[@]}"
result=0
ctest --test-dir "$build" -j2 --output-on-failure -R "$tests" || result=$?
tests/count_skips.sh "$build"
exit $result
