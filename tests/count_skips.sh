#!/usr/bin/env bash
# How many tests the last run of ctest skipped, and why. Usage: count_skips.sh BUILD
set -euo pipefail
log=$1/Testing/Temporary/LastTest.log
[[ -f $log ]] || { echo "count_skips.sh: $log is missing; run ctest first" >&2; exit 1; }
# Cases print "skipped: REASON: CASE", scripts "skipped: REASON".
reasons=$(sed -n 's/^skipped: \([^:]*\).*/\1/p' "$log" | sort | uniq -c | sort -rn)
[[ -n $reasons ]] || { echo "skipped: none"; exit 0; }
echo "skipped: $(awk '{ sum += $1 } END { print sum }' <<<"$reasons") ($log names them)"
echo "$reasons"
