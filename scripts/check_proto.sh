#!/bin/sh
# Fail if the committed gRPC code in twinpool/v1 is not what proto/ generates now.
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
