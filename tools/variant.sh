#!/usr/bin/env bash
# Builds hebb another way, with warnings as errors, and runs the quick tests. Usage: tools/variant.sh clang|portable
#   clang     by clang instead of GCC
#   portable  for any x86-64 processor: no AVX outside the kernels, which are built for each level of the instruction set
# The build folder is build-clang or build-portable.
set -euo pipefail
cd "$(dirname "$0")/.."
packages=() options=()
case ${1:-} in
  clang) packages=(--fuzz) options=(-DCMAKE_CXX_COMPILER=clang++) ;;
  portable) options=(-DHEBB_NATIVE=OFF) ;;
  *) echo "variant.sh: found \"${1:-}\", expected clang or portable" >&2; exit 2 ;;
esac
build=build-$1
tools/setup.sh "${packages[@]}"
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DHEBB_CUDA=OFF -DHEBB_WERROR=ON "${options[@]}"
cmake --build "$build"
result=0
ctest --test-dir "$build" -j2 --output-on-failure -R '^test_[a-z_]*\.(fast|threads)$|^processor_levels$' || result=$?
tests/count_skips.sh "$build"
exit $result
