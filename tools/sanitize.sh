#!/usr/bin/env bash
# Builds the unit tests with a sanitizer and runs them.
# Usage: tools/sanitize.sh [address|thread]   address (default): address and undefined behaviour, the quick tests of core,
# kernels, config, data and layers; thread: the thread sanitizer, the tests that share work among threads.
# Warnings are no errors here: with sanitizers on, GCC 12 reports uninitialised values inside std::regex that are none.
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-address} in
  address) preset=asan programs="core kernels config data layers" select=(-L fast) ;;
  thread) preset=tsan programs="core kernels data layers" select=(-L threads) ;;
  *) echo "sanitize.sh: unknown sanitizer $1 (known: address, thread)" >&2; exit 2 ;;
esac
tools/setup.sh
cmake --preset "$preset"
# shellcheck disable=SC2086 # a list of words
cmake --build "build-$preset" --target $(printf 'test_%s ' $programs)
export UBSAN_OPTIONS=print_stacktrace=1 ASAN_OPTIONS=detect_leaks=1 TSAN_OPTIONS=halt_on_error=1
ctest --test-dir "build-$preset" -j2 --output-on-failure "${select[@]}" -R "^test_(${programs// /|})(\\.|\$)"
