#!/bin/bash
# processor_levels.sh HEBB: the program loads the kernels of the highest level that it may, and those of every level that this processor
# has compute: the self-test in fp32. A mask of the dynamic loader stands for the processor.
set -euo pipefail
hebb=$1
loader=$(readelf -p .interp "$hebb" | grep -o '/[^ ]*ld-[^ ]*')
has() { "$loader" --help | grep -q "$1 (supported"; }
found=0
for pair in x86-64-v4:AVX-512 x86-64-v3:AVX2 none:baseline; do
  level=${pair%%:*} unit=${pair#*:}
  [ "$level" = none ] || has "$level" || continue
  said=$("$loader" --glibc-hwcaps-mask "$level" "$hebb" doctor | sed -n 's/^ *compiled for *//p')
  [ "$said" = "$unit" ] || { echo "$level: the kernels are for $said, expected $unit" >&2; exit 1; }
  "$loader" --glibc-hwcaps-mask "$level" "$hebb" selftest --device cpu --precision fp32 >/dev/null
  found=$((found + 1))
done
[ "$found" -ge 1 ]
echo "$found levels"
