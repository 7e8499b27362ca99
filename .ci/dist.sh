#!/usr/bin/env bash
# dist.sh OUT: the source archive and the wheels of a release, in the folder OUT.
#
# One wheel for each architecture and all Pythons from 3.11 on. zig, a C compiler with the headers of
# every glibc, compiles for any architecture on any machine, and against a glibc of 2012: so
# auditwheel finds manylinux_2_17. The tools are those of .ci/dist.lock, in an environment of their own.
# Python's headers must be the same for all architectures; Debian splits them, python.org and
# actions/setup-python do not.
set -euo pipefail
ARCHITECTURES=(x86_64 aarch64)
GLIBC=2.17
mkdir -p "$1"
OUT=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
say() { echo "[$SECONDS s] $*"; }

# The same commit gives the same bytes.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH

python3 -m venv "$WORK/tools"
"$WORK/tools/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r .ci/dist.lock
PATH=$WORK/tools/bin:$PATH
say "the tools"

# built from the archive, so that it is whole
python -m build --no-isolation --sdist --outdir "$OUT" . > "$WORK/sdist.log" 2>&1 \
  || { cat "$WORK/sdist.log"; exit 1; }
tar -xzf "$OUT"/vllm_harness-*.tar.gz -C "$WORK"
for architecture in "${ARCHITECTURES[@]}"; do
  compiler=$WORK/cc-$architecture
  printf '#!/bin/sh\nexec python -m ziglang cc -target %s-linux-gnu.%s "$@"\n' \
    "$architecture" "$GLIBC" > "$compiler"
  chmod +x "$compiler"
  rm -rf "$WORK"/vllm_harness-*/build
  CC=$compiler LDSHARED="$compiler -shared" _PYTHON_HOST_PLATFORM=linux-$architecture \
    python -m build --no-isolation --wheel --outdir "$WORK/raw" "$WORK"/vllm_harness-*/ \
    > "$WORK/wheel.log" 2>&1 || { cat "$WORK/wheel.log"; exit 1; }
  auditwheel repair --wheel-dir "$OUT" "$WORK"/raw/*"_$architecture.whl" \
    > "$WORK/repair.log" 2>&1 || { cat "$WORK/repair.log"; exit 1; }
  [ -f "$(echo "$OUT"/*-abi3-*manylinux_2_17_"$architecture.whl")" ] \
    || { echo "it is not manylinux_2_17:" "$OUT"/*; exit 1; }
  say "the wheel for $architecture"
done
abi3audit --strict "$OUT"/*.whl
for wheel in "$OUT"/*.whl; do # an extension that did not compile is left out, which is no release
  python -m zipfile -l "$wheel" > "$WORK/names"
  grep -q reader/_drain.abi3.so "$WORK/names"
  grep -q records/_arrays.abi3.so "$WORK/names"
done
ls -l "$OUT"
