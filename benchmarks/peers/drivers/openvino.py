"""OpenVINO GenAI: its pipeline with continuous batching, one step at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import openvino
import openvino_genai

from benchmarks.peers.drivers.measure import main

_CACHE_GIB = 1
# Whole prompts, as many as fit: a step of all rows comes only when all prompts have been read.
_STEP_TOKENS = 2048


class OpenVinoEngine:
    """A GGUF file's numbers of 4 bits, as OpenVINO reads them; all other settings are its defaults."""

    def __init__(self, model: Path, threads: int) -> None:
        self.name = f"OpenVINO GenAI {openvino_genai.__version__.split('-')[0]}, GGUF of 4 bits"
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = _CACHE_GIB
        scheduler.max_num_batched_tokens = _STEP_TOKENS
        scheduler.dynamic_split_fuse = False
        scheduler.enable_prefix_caching = False
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            str(model), scheduler, "CPU", {}, {"INFERENCE_NUM_THREADS": threads}
        )

    def steps(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> Iterator[int]:
        """As `Engine.steps`."""
        how = openvino_genai.GenerationConfig()
        how.max_new_tokens = how.min_new_tokens = num_tokens
        how.ignore_eos, how.do_sample = True, False
        handles = [
            self._pipeline.add_request(at, openvino.Tensor(np.array([prompt], dtype=np.int64)), how)
            for at, prompt in enumerate(prompts)
        ]
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            ready = [handle.read() for handle in handles if handle.can_read()]
            yield sum(len(output.generated_ids) for outputs in ready for output in outputs.values())


if __name__ == "__main__":
    main(OpenVinoEngine)
