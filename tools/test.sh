#!/usr/bin/env bash
# Set-up, build and the test suite. Usage: tools/test.sh [--slow]
# The last lines say how many tests were skipped, and why.
# CUDA kernels are compiled where a toolkit is found; HEBB_CUDA=OFF leaves them out (the emulator runs them in any case).
#   --slow  also the tests labelled slow (kill and resume, learning; tens of minutes)
set -euo pipefail
cd "$(dirname "$0")/.."
slow=(-LE slow)
for option in "$@"; do
  case $option in
    --slow) slow=() ;;
    *) echo "test.sh: unknown option $option (known: --slow)" >&2; exit 2 ;;
  esac
done
tools/setup.sh
# shellcheck disable=SC2086 # HEBB_CMAKE_ARGS is a list of words
cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DHEBB_WERROR="${HEBB_WERROR:-OFF}" ${HEBB_CUDA:+"-DHEBB_CUDA=$HEBB_CUDA"} ${HEBB_CMAKE_ARGS:-}
cmake --build build
result=0
ctest --test-dir build -j2 --output-on-failure "${slow[@]}" || result=$?
tests/count_skips.sh build
exit $result
