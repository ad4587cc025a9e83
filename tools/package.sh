#!/usr/bin/env bash
# Packages of this checkout in build-package/: .deb and .tar.gz, for any processor of this machine's architecture.
# Usage: tools/package.sh [--check]
#   --check  installs the packages on a bare Debian 12 in a folder of its own, and trains, evaluates and packs with them there
#            (needs root, debootstrap and the distribution's mirror; five minutes)
# HEBB_CUDA=OFF leaves the CUDA kernels out.
set -euo pipefail
cd "$(dirname "$0")/.."
check=0
for option in "$@"; do
  case $option in
    --check) check=1 ;;
    *) echo "package.sh: unknown option $option (known: --check)" >&2; exit 2 ;;
  esac
done
command -v dpkg-shlibdeps >/dev/null || { echo "package.sh: dpkg-shlibdeps not found; install the package dpkg-dev" >&2; exit 1; }
cmake -S . -B build-package -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=/usr -DHEBB_NATIVE=OFF -DHEBB_TESTS=OFF \
  -DHEBB_CUDA="${HEBB_CUDA:-AUTO}"
cmake --build build-package
rm -f build-package/hebb*.deb build-package/hebb*.tar.gz
(cd build-package && cpack)
ls -l build-package/hebb*.deb build-package/hebb*.tar.gz
[[ $check -eq 1 ]] || exit 0

[[ $(id -u) -eq 0 ]] || { echo "package.sh: --check needs root" >&2; exit 1; }
command -v debootstrap >/dev/null || { echo "package.sh: debootstrap not found; install the package debootstrap" >&2; exit 1; }
# The mirror and the settings of apt are those of this machine.
mirror=$(grep -rhoE 'https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null | head -n 1 || true)
root=$(mktemp -d)
trap 'umount "$root/proc" 2>/dev/null; rm -rf "$root"' EXIT
debootstrap --variant=minbase bookworm "$root" ${mirror:+"$mirror"} >"build-package/debootstrap.log" 2>&1 ||
  { tail -n 5 build-package/debootstrap.log >&2; exit 1; }
mount -t proc proc "$root/proc"
cp -r /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/"
mkdir "$root/packages"
cp build-package/hebb*.deb build-package/hebb*.tar.gz "$root/packages/"
inside() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/packages LC_ALL=C.UTF-8 bash -eu -s -- "$@"; }
inside <<'END'
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends /packages/hebb_*.deb >/dev/null
END
# Data, a tokenizer, a run of a minute, its evaluation, text; by the installed program and by that of the archive.
cat >"$root/packages/try.sh" <<'END'
set -eu
hebb=$1
cd "$(mktemp -d)"
$hebb --version
$hebb doctor
$hebb data synth --documents 300 --seed 0 --out text.jsonl
$hebb tokenizer train text.jsonl --vocab-size 400 --out tokenizer.model
$hebb data encode text.jsonl --tokenizer tokenizer.model --val-documents 30 --out corpus
$hebb data verify corpus
sed -n '/^```json/,/^```/p' /usr/share/doc/hebb/docs/model.md | sed '/^```$/q' | grep -v '```' >minimal.json
$hebb plan minimal.json
$hebb train minimal.json data.sources='[{"path": "corpus"}]' model.vocab_size=400 --run-dir run
$hebb train minimal.json data.sources='[{"path": "corpus"}]' model.vocab_size=400 --run-dir run train.steps=30
$hebb generate run --prompt "The number of" --max-new-tokens 8
$hebb report run
END
inside <<'END'
bash /packages/try.sh hebb
mkdir /packages/archive
tar -xzf /packages/hebb-*.tar.gz -C /packages/archive --strip-components=1
bash /packages/try.sh /packages/archive/bin/hebb
END
if ls build-package/hebb-mpi_*.deb >/dev/null 2>&1; then
  inside <<'END'
export DEBIAN_FRONTEND=noninteractive
apt-get install -y -qq --no-install-recommends /packages/hebb-mpi_*.deb >/dev/null
cd "$(mktemp -d)"
sed -n '/^```json/,/^```/p' /usr/share/doc/hebb/docs/model.md | sed '/^```$/q' | grep -v '```' >minimal.json
hebb train minimal.json --ranks 2 --run-dir run
END
fi
echo "package: the packages install and run on a bare system"
