#!/bin/sh
# Print the package index that torch is to come from beside the default one; nothing where the default one will do.
# Usage: torch_index.sh PYTHON WANTED. WANTED: an index, nothing, or `auto`: on Linux without an NVIDIA GPU the index
# of CPU builds, if it can be reached, since the default one has torch for CUDA there (2 to 4 GB more).
set -eu
python=$1 wanted=$2
cpu_builds=https://download.pytorch.org/whl/cpu
if [ "$wanted" != auto ]; then
  echo "$wanted"
  exit
fi
if [ "$(uname -s)" != Linux ] || [ -e /proc/driver/nvidia/version ] || command -v nvidia-smi >/dev/null; then
  exit
fi
if timeout 8 "$python" -c "import urllib.request; urllib.request.urlopen('$cpu_builds/torch/', timeout=5)" 2>/dev/null; then
  echo "$cpu_builds"
else
  echo "setup: $cpu_builds cannot be reached, so torch comes from the default index (for CUDA, several GB)" >&2
fi
