#!/usr/bin/env bash
# Runs clang-tidy with the checks of .clang-tidy. Usage: tools/tidy.sh [FILE.cpp ...]
#   without files: those that differ from the last commit; --all: every source outside tests (half an hour on two cores)
# Reads how the sources are compiled from build/, or from the folder that HEBB_BUILD names.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${HEBB_BUILD:-build}
program=$(command -v clang-tidy-14 || command -v clang-tidy || true)
[[ -n $program ]] || { echo "tidy.sh: clang-tidy not found; install the package clang-tidy" >&2; exit 1; }
[[ -f $build/compile_commands.json ]] || { echo "tidy.sh: $build/compile_commands.json is missing; configure a build first" >&2; exit 1; }
case ${1:-} in
  --all) mapfile -t files < <(git ls-files '*.cpp' ':!tests') ;;
  --*) echo "tidy.sh: unknown option $1 (known: --all)" >&2; exit 2 ;;
  "") mapfile -t files < <(git diff --name-only --diff-filter=d HEAD -- '*.cpp'; git ls-files --others --exclude-standard '*.cpp') ;;
  *) files=("$@") ;;
esac
# Files that this build does not compile have no command line.
known=()
for file in "${files[@]}"; do
  if grep -q "\"[^\"]*/$file\"" "$build/compile_commands.json"; then known+=("$file"); else echo "tidy.sh: $build does not compile $file"; fi
done
[[ ${#known[@]} -gt 0 ]] || { echo "tidy.sh: nothing to check"; exit 0; }
printf '%s\0' "${known[@]}" | xargs -0 -n 4 -P "$(nproc)" "$program" -p "$build" --quiet --extra-arg=-Wno-unknown-warning-option 2>/dev/null
echo "tidy: ${#known[@]} files are clean"
