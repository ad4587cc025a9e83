#!/usr/bin/env bash
# Line coverage of the CUDA kernels, executed in the emulator: a table by file, the lines that nothing executes, and an error where less
# than 95 % of all lines, or 90 % of a file's, are executed. Usage: tools/coverage.sh
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh
cmake --preset coverage
cmake --build build-coverage --target test_simt
find build-coverage -name '*.gcda' -delete
build-coverage/tests/simt/test_simt "~[slow]"
python3 tests/coverage_table.py build-coverage --all 95 --file 90
