#!/usr/bin/env bash
# Fuzzes what reads files and messages: the targets of tests/fuzz/CMakeLists.txt. Needs clang.
# Usage: tools/fuzz.sh [--keep] [SECONDS] [NAME ...]     SECONDS of each target (default 60), two at a time; NAME: only these targets
#   --keep  replace tests/fuzz/corpus by the smallest set of inputs that reaches what was reached; tests run it
# A finding stops with the input's path; run build-fuzz/tests/fuzz/fuzz_NAME PATH to see it again.
set -euo pipefail
cd "$(dirname "$0")/.."
all=$(sed -n 's/^hebb_fuzz([^ ]* \(.*\))$/\1/p' tests/fuzz/CMakeLists.txt | tr '\n' ' ')
keep=no seconds=60 names=
for option in "$@"; do
  case $option in
    --keep) keep=yes ;;
    [1-9]*) seconds=$option ;;
    *) [[ " $all" == *" $option "* ]] || { echo "fuzz.sh: unknown option $option (known: --keep, a number of seconds, $all)" >&2; exit 2; }
      names+=" $option" ;;
  esac
done
names=${names:-$all}
command -v clang++ >/dev/null || { echo "fuzz.sh: clang++ not found; install the package clang (Debian, Ubuntu)" >&2; exit 2; }
cmake -S . -B build-fuzz -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1" \
  -DCMAKE_CXX_COMPILER=clang++ -DHEBB_FUZZ=ON -DHEBB_CUDA=OFF -DHEBB_TESTS=OFF
# shellcheck disable=SC2046,SC2086 # a list of words
cmake --build build-fuzz --target $(printf 'fuzz_%s ' $names)
folder=$PWD/build-fuzz/corpus

# The inputs of a packed corpus, one file each; or the other way round.
pack() {
  python3 - "$1" "$2" "$3" <<'EOF'
import pathlib
import struct
import sys

mode, packed, folder = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
if mode == "unpack":
    folder.mkdir(parents=True, exist_ok=True)
    data, at, count = packed.read_bytes(), 0, 0
    while at < len(data):
        (size,) = struct.unpack_from("<I", data, at)
        (folder / f"kept-{count}").write_bytes(data[at + 4 : at + 4 + size])
        at, count = at + 4 + size, count + 1
else:
    inputs = sorted((path.read_bytes() for path in folder.iterdir()), key=lambda data: (len(data), data))
    packed.write_bytes(b"".join(struct.pack("<I", len(data)) + data for data in inputs))
EOF
}

fuzz_one() {
  local name=$1
  mkdir -p "$folder/$name"
  if [ -f "tests/fuzz/corpus/$name.bin" ]; then pack unpack "tests/fuzz/corpus/$name.bin" "$folder/$name"; fi
  (cd build-fuzz && "tests/fuzz/fuzz_$name" "$folder/$name" -max_total_time="$seconds" -timeout=30 -rss_limit_mb=3000 \
    -artifact_prefix="$PWD/finding-$name-" -print_final_stats=1 >"fuzz-$name.log" 2>&1) ||
    { echo "fuzz.sh: $name: a finding, see build-fuzz/fuzz-$name.log" >&2; return 1; }
  echo "$name: $(grep -a -o 'number_of_executed_units: *[0-9]*' "build-fuzz/fuzz-$name.log" | grep -o '[0-9]*') inputs, no finding"
}

failed=no
# shellcheck disable=SC2086 # a list of words
set -- $names
while [ $# -gt 0 ]; do
  fuzz_one "$1" & first=$!
  if [ $# -gt 1 ]; then
    fuzz_one "$2" & second=$!
    wait $second || failed=yes
    shift
  fi
  wait $first || failed=yes
  shift
done
[ $failed = no ] || exit 1

if [ $keep = yes ]; then
  for name in $names; do
    limit=400
    case $name in safetensors) limit=800 ;; shard) limit=1200 ;; tokenizer | encode) limit=3000 ;; run | sweep | state | journal | results | weights | dataset) limit=1500 ;; esac
    rm -rf "$folder/$name.small" && mkdir "$folder/$name.small"
    "build-fuzz/tests/fuzz/fuzz_$name" -merge=1 -max_len=$limit "$folder/$name.small" "$folder/$name" >"build-fuzz/merge-$name.log" 2>&1
    pack pack "tests/fuzz/corpus/$name.bin" "$folder/$name.small"
    echo "$name: $(find "$folder/$name.small" -type f | wc -l) inputs kept"
  done
fi
