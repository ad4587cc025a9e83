#!/usr/bin/env bash
# Builds the tests with a sanitizer and runs them.
# Usage: tools/sanitize.sh [address|thread [PROGRAM ...]]
#   address (default): address and undefined behaviour; the quick tests of core, kernels, data and layers, and every CUDA kernel
#     in the emulator
#   thread: the thread sanitizer; the tests that share work among threads, ranks that are threads, their meeting and training,
#     and small cases of the CUDA kernels with barriers
#   PROGRAM: only these test programs, out of core, kernels, comm (thread), data, layers, train (thread), simt
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-address} in
  address) preset=asan programs="core kernels data layers simt" labels='fast|threads' ;;
  thread) preset=tsan programs="core kernels comm data layers train simt" labels='threads' ;;
  *) echo "sanitize.sh: unknown sanitizer $1 (known: address, thread)" >&2; exit 2 ;;
esac
shift $(( $# > 0 ))
for program in "$@"; do
  [[ " $programs " == *" $program "* ]] || { echo "sanitize.sh: unknown program $program (known: $programs)" >&2; exit 2; }
done
programs=${*:-$programs}
tools/setup.sh
cmake --preset "$preset" -DHEBB_WERROR="${HEBB_WERROR:-OFF}"
# shellcheck disable=SC2046,SC2086 # a list of words
cmake --build "build-$preset" --target $(printf 'test_%s ' $programs)
export UBSAN_OPTIONS=print_stacktrace=1 ASAN_OPTIONS=detect_leaks=1 TSAN_OPTIONS='halt_on_error=1 atexit_sleep_ms=0'
run=()
# Kernels that scatter memory widely leave the thread sanitizer of GCC before 14 no room.
if [ "$preset" = tsan ] && setarch "$(uname -m)" -R true 2>/dev/null; then run=(setarch "$(uname -m)" -R); fi
if [ "$preset" = tsan ] && [[ " $programs " == *" simt "* ]]; then
  # Each case in a process of its own: the shadow of what all of them touch has more pieces than Linux maps for a process (65,530).
  simt=build-tsan/tests/simt/test_simt
  # Catch2 2 returns the number of names; 3 has another option.
  cases=$("$simt" --list-test-names-only "[threads]~[slow]" 2>/dev/null || true)
  [ -n "$cases" ] || cases=$("$simt" --list-tests --verbosity quiet "[threads]~[slow]")
  tr '\n' '\0' <<<"${cases//,/\\,}" | xargs -0 -n1 -P2 "${run[@]}" "$simt"
  programs=$(sed 's/\bsimt\b//; s/^ *//; s/ *$//; s/  */ /g' <<<"$programs")
  [ -n "$programs" ] || exit 0
fi
"${run[@]}" ctest --test-dir "build-$preset" -j2 --output-on-failure -R "^test_(${programs// /|})\.($labels)\$"
tests/count_skips.sh "build-$preset"
