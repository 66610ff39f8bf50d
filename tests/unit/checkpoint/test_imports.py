"""What the router may import of models stays light."""

from __future__ import annotations

from tests.support.loaded import modules_loaded_by

_CODE = """
import twinpool.checkpoint.prepared, twinpool.checkpoint.detokenizer
import twinpool.checkpoint.dtype, twinpool.checkpoint.estimate
from twinpool.prepare.pull import prepared_path
prepared_path("smollm2-135m-instruct", None)
"""


def test_describing_and_tokenizing_a_model_loads_no_tensor_library() -> None:
    loaded = modules_loaded_by(_CODE)
    assert "tokenizers" in loaded
    assert not loaded.intersection(
        {"torch", "transformers", "gguf", "numpy", "safetensors", "huggingface_hub"}
    )
