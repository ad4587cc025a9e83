#!/usr/bin/env bash
# Formats the C++ and CUDA sources as .clang-format says. Usage: tools/format.sh [--check]
#   --check  changes nothing; names the files that are not formatted and exits with 1
# Needs clang-format 14: other versions break lines at other places.
set -euo pipefail
cd "$(dirname "$0")/.."
check=0
for option in "$@"; do
  case $option in
    --check) check=1 ;;
    *) echo "format.sh: unknown option $option (known: --check)" >&2; exit 2 ;;
  esac
done
program=$(command -v clang-format-14 || command -v clang-format || true)
[[ -n $program ]] || { echo "format.sh: clang-format not found; install the package clang-format-14" >&2; exit 1; }
version=$("$program" --version | sed -n 's/.*version \([0-9]*\).*/\1/p')
[[ $version == 14 ]] || { echo "format.sh: $program is version $version, expected 14; install the package clang-format-14" >&2; exit 1; }
sources() { git ls-files -z '*.h' '*.cpp' '*.cu' '*.cuh'; }
if [[ $check == 0 ]]; then
  sources | xargs -0 -P "$(nproc)" -n 20 "$program" -i
else
  wrong=$(sources | xargs -0 -P "$(nproc)" -n 20 "$program" --dry-run --Werror 2>&1 |
            sed -n 's/^\([^:]*\):.*clang-format-violations.*/\1/p' | sort -u) || true
  if [[ -n $wrong ]]; then
    printf 'format.sh: not formatted (tools/format.sh does it):\n%s\n' "$wrong" >&2
    exit 1
  fi
  echo "format: all sources are formatted"
fi
