#!/bin/sh
# Fail if the committed gRPC code in twinpool/v1 is not what proto/ generates now, or if proto/ breaks a contract of
# the last release, whose files `make baseline` has kept in released/.
set -eu
cd "$(dirname "$0")/.."
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
if ! output=$(scripts/generate_proto.sh "$fresh" 2>&1); then
  echo "$output" >&2
  exit 1
fi
if ! diff -r --exclude=__init__.py --exclude=__pycache__ "$fresh/twinpool/v1" twinpool/v1; then
  echo "proto: twinpool/v1 is out of date; run 'make proto'" >&2
  exit 1
fi
if [ -d released/proto ] && ! "$(dirname "${PYTHON:-.venv/bin/python}")/buf" breaking proto --against released/proto; then
  echo "proto: whoever speaks the last release's contract would misread this one" >&2
  exit 1
fi
