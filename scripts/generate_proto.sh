#!/bin/sh
# Regenerate the committed gRPC code in twinpool/v1 from proto/ (or into another folder: $1).
set -eu
cd "$(dirname "$0")/.."
out=${1:-.}
python=${PYTHON:-.venv/bin/python}
PATH="$(dirname "$python"):$PATH" "$python" -m grpc_tools.protoc -I proto \
  --python_out="$out" --grpc_python_out="$out" \
  --mypy_out=readable_stubs:"$out" --mypy_grpc_out=readable_stubs:"$out" \
  proto/twinpool/v1/*.proto
