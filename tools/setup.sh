#!/usr/bin/env bash
# Installs what hebb needs from the distribution's packages: says what is missing and why, and does
# nothing (and needs no rights) where all is there. Usage: tools/setup.sh [--text] [--fuzz] [--format] [--tidy] [--mpi] [--slurm]
#   --text  also the small public-domain text that the quickstart trains on
#   --fuzz  also clang and its runtime for the fuzzers
#   --format  also clang-format 14, which tools/format.sh takes
#   --tidy  also clang-tidy 14, which tools/tidy.sh takes
#   --mpi   also Open MPI, for ranks on CPUs
#   --slurm  also Slurm, for the test of ladders on a cluster of two nodes on this machine
set -euo pipefail

need=()        # package:reason
want() { # package, file or command that proves it, reason
  local proof=$2
  if [[ $proof == /* ]]; then
    compgen -G "$proof" >/dev/null && return 0
  elif [[ $proof == *.h || $proof == *.hpp ]]; then
    for d in /usr/include /usr/local/include ${CPLUS_INCLUDE_PATH:+${CPLUS_INCLUDE_PATH//:/ }}; do [[ -e $d/$proof ]] && return 0; done
  else
    command -v "$proof" >/dev/null && return 0
  fi
  need+=("$1:$3")
}
want g++ g++ "C++20 compiler"
want cmake cmake "build system"
want ninja-build ninja "parallel builds"
want python3 python3 "test scripts"
want ccache ccache "fast rebuilds"
want nlohmann-json3-dev nlohmann/json.hpp "configuration files"
want libcli11-dev CLI/CLI.hpp "command line"
want libfmt-dev fmt/format.h "text"
want libspdlog-dev spdlog/spdlog.h "logs"
want libsentencepiece-dev sentencepiece_processor.h "tokenizers"
want libutf8proc-dev utf8proc.h "Unicode"
want zlib1g-dev zlib.h "gzip input"
want libzstd-dev zstd.h "zstd input"
want libcpp-httplib-dev httplib.h "hebb serve"
want pkg-config pkg-config "flags of libraries"
want catch2 "/usr/include/catch2/catch*.hpp" "tests"
for option in "$@"; do
  case $option in
    --text) want bible-kjv bible "a small public-domain text" ;;
    --fuzz) want clang clang++ "fuzzers"; want libclang-rt-14-dev "/usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer*" "fuzzers" ;;
    --format) [[ $(clang-format --version 2>/dev/null) == *"version 14."* ]] || want clang-format-14 clang-format-14 "formatting of the sources" ;;
    --tidy) want clang-tidy-14 clang-tidy-14 "checks of changed sources" ;;
    --mpi) want libopenmpi-dev "/usr/lib/*/openmpi/include/mpi.h" "ranks on CPUs"; want openmpi-bin mpirun "ranks on CPUs" ;;
    --slurm) want slurmctld /usr/sbin/slurmctld "ladders on Slurm"; want slurmd /usr/sbin/slurmd "ladders on Slurm"
      want slurm-client sbatch "ladders on Slurm"; want munge /usr/sbin/munged "ladders on Slurm" ;;
    *) echo "setup.sh: unknown option $option (known: --text --fuzz --format --tidy --mpi --slurm)" >&2; exit 2 ;;
  esac
done

if [[ ${#need[@]} -eq 0 ]]; then
  echo "setup: everything is installed"
  exit 0
fi
echo "setup: missing packages:"
packages=()
for entry in "${need[@]}"; do
  printf '  %-24s %s\n' "${entry%%:*}" "${entry#*:}"
  packages+=("${entry%%:*}")
done
if ! command -v apt-get >/dev/null; then
  echo "setup: no apt-get here; install the packages above with your system's tools and run this again" >&2
  exit 1
fi
run=()
if [[ $(id -u) -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "setup: installing needs root; run: apt-get install ${packages[*]}" >&2
    exit 1
  fi
  run=(sudo)
fi
"${run[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${run[@]}" apt-get install -y -qq --no-install-recommends "${packages[@]}"
