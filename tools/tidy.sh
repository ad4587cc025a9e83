#!/usr/bin/env bash
# Runs clang-tidy with the checks of .clang-tidy. Usage: tools/tidy.sh [FILE ...] | --changed [BASE] | --all
#   without files: sources outside tests that differ from the last commit
#   --changed [BASE]  those that differ from BASE (default: where this branch left origin/main, on main itself the commit before).
#                     At most HEBB_TIDY_MOST of them (default 24, some minutes on two cores), those with the most changed lines first;
#                     the last line says how many were left out
#   --all             every .cpp outside tests (an hour on two cores)
# A header is checked with one source that includes it. Reads how the sources are compiled from build/, or from the folder that
# HEBB_BUILD names; a configured one is enough. CUDA sources are checked as the emulator's
# tests compile them.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${HEBB_BUILD:-build}
program=$(command -v clang-tidy-14 || command -v clang-tidy || true)
[[ -n $program ]] || { echo "tidy.sh: clang-tidy not found; install the package clang-tidy-14 (tools/setup.sh --tidy)" >&2; exit 1; }
[[ -f $build/compile_commands.json ]] || { echo "tidy.sh: $build/compile_commands.json is missing; configure a build first" >&2; exit 1; }

sources=('*.cpp' '*.cu' '*.h' '*.cuh' ':!tests')
# Names, those with the most changed lines first.
changed() { git diff --numstat --no-renames --diff-filter=d "$1" -- "${sources[@]}" | sort -k1,1nr -k3 | cut -f3; }
others() { git ls-files --others --exclude-standard -- "${sources[@]}"; }
most=100000
case ${1:-} in
  --all) mapfile -t files < <(git ls-files '*.cpp' ':!tests') ;;
  --changed)
    most=${HEBB_TIDY_MOST:-24}
    base=${2:-}
    if [[ -z $base || $base =~ ^0+$ ]]; then  # zeros: what GitHub names before the first push of a branch
      base=$(git merge-base origin/main HEAD 2>/dev/null || echo HEAD~1)
      [[ $(git rev-parse "$base") != $(git rev-parse HEAD) ]] || base=HEAD~1
    fi
    git rev-parse --quiet --verify "$base^{commit}" >/dev/null || { echo "tidy.sh: no commit $base in this clone; name one, or fetch more" >&2; exit 2; }
    mapfile -t files < <(changed "$base"; others) ;;
  --*) echo "tidy.sh: unknown option $1 (known: --all, --changed)" >&2; exit 2 ;;
  "") mapfile -t files < <(changed HEAD; others) ;;
  *) files=("$@") ;;
esac

# Without GCC's precompiled headers, which clang cannot read. Sources include what they use.
commands=$(mktemp -d)
trap 'rm -rf "$commands"' EXIT
# nvcc's commands are left out: clang knows neither its options nor this CUDA's headers.
python3 - "$build/compile_commands.json" "$commands/compile_commands.json" <<'END'
import json
import re
import sys

with open(sys.argv[1]) as source, open(sys.argv[2], "w") as to:
    entries = [{**entry, "command": re.sub(r" -Winvalid-pch -include \S*cmake_pch\.hxx", "", entry["command"])}
               for entry in json.load(source) if "--generate-code" not in entry["command"]]
    json.dump(entries, to, indent=0)
END
compiles() { grep -q "\"file\": \"[^\"]*/$1\"" "$commands/compile_commands.json"; }
# Sets source to that of a header: the one beside it, else the first that includes it, by way of other headers if need be; "": none.
find_source() {
  local file
  for file in "${1%.*}.cpp" "${1%.*}.cu" $(git grep -l --untracked "#include \"$1\"" -- '*.cpp' '*.cu'); do
    if compiles "$file"; then source=$file; return; fi
  done
  for file in $(git grep -l --untracked "#include \"$1\"" -- '*.h' '*.cuh'); do
    if [[ -z $source && " $seen " != *" $file "* ]]; then
      seen+=" $file"
      find_source "$file"
    fi
  done
}
known=() unknown=0
for file in "${files[@]}"; do
  source="" seen=$file
  case $file in
    *.h | *.cuh) find_source "$file" ;;
    *) if compiles "$file"; then source=$file; fi ;;
  esac
  if [[ -z $source ]]; then
    echo "tidy.sh: $build does not compile $file"
    unknown=$((unknown + 1))
  elif [[ " ${known[*]} " != *" $source "* ]]; then
    known+=("$source")
  fi
done
left=$((${#known[@]} > most ? ${#known[@]} - most : 0))
known=("${known[@]:0:most}")
if [[ ${#known[@]} -gt 0 ]]; then
  printf '%s\0' "${known[@]}" | xargs -0 -n 2 -P "$(nproc)" "$program" -p "$commands" --quiet --extra-arg=-Wno-unknown-warning-option 2>"$commands/errors" ||
    { grep -vE '^[0-9]+ warnings?|^Suppressed|^Use -header' "$commands/errors" >&2 || true; exit 1; }
fi
echo "tidy: ${#known[@]} sources are clean, $unknown not in this build, $left not checked"
