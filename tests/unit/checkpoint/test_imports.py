"""What the router may import of models stays light."""

from __future__ import annotations

import subprocess
import sys

_CODE = """
import sys
import twinpool.checkpoint.prepared, twinpool.checkpoint.detokenizer
import twinpool.checkpoint.dtype, twinpool.checkpoint.estimate
from twinpool.prepare.pull import prepared_path
prepared_path("smollm2-135m-instruct", None)
print(*sys.modules)
"""


def test_describing_and_tokenizing_a_model_loads_no_tensor_library() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CODE], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(done.stdout.split())
    assert "tokenizers" in loaded
    assert not loaded.intersection(
        {"torch", "transformers", "gguf", "numpy", "safetensors", "huggingface_hub"}
    )
