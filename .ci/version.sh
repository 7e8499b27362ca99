#!/usr/bin/env bash
# version.sh v1.2.3: fails unless this is the version of the package, and CHANGELOG.md has a section.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
fail() {
  echo "$1" >&2
  exit 1
}
[ "$1" = "v$version" ] \
  || fail "the tag is $1: expected v$version, the version in pyproject.toml; edit that, or tag again."
grep -qx "__version__ = \"$version\"" harness/__init__.py \
  || fail "harness/__init__.py has another __version__: expected $version."
grep -qF "## [$version]" CHANGELOG.md \
  || fail "CHANGELOG.md has no section [$version]: rename [Unreleased], and begin a new one."
