#!/bin/bash
# processor_levels.sh HEBB [TEST...]: the program loads the kernels of the highest level that it may, and those of every level that this
# processor has compute: the self-test in fp32, and the quick tests of each TEST. A mask of the dynamic loader stands for the processor.
set -euo pipefail
hebb=$1
loader=$(readelf -p .interp "$hebb" | grep -o '/[^ ]*ld-[^ ]*')
has() { "$loader" --help | grep -q "$1 (supported"; }
masked() { "$loader" --glibc-hwcaps-mask "$level" "$@"; }
found=0
for pair in x86-64-v4:AVX-512 x86-64-v3:AVX2 none:baseline; do
  level=${pair%%:*} unit=${pair#*:}
  [ "$level" = none ] || has "$level" || continue
  said=$(masked "$hebb" doctor | sed -n 's/^ *compiled for *//p')
  [ "$said" = "$unit" ] || { echo "$level: the kernels are for $said, expected $unit" >&2; exit 1; }
  echo "$unit"
  masked "$hebb" selftest --device cpu --precision fp32
  for test in "${@:2}"; do masked "$test" '[fast]'; done
  found=$((found + 1))
done
[ "$found" -ge 1 ]
echo "$found levels"
