"""vLLM on CPUs: its engine in this process, one step at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.peers.drivers.measure import MOST_ROWS, MOST_TOKENS, main

_CACHE_GIB = 2
# Without AVX512 nothing computes bfloat16 but by emulation, which is slower than float32.
_CPU_INFO = Path("/proc/cpuinfo")


class VllmEngine:
    """A folder in Hugging Face's layout, in the format that this processor computes faster."""

    def __init__(self, model: Path, threads: int) -> None:
        os.environ |= {
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": str(_CACHE_GIB),
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads])),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_LOGGING_LEVEL": "ERROR",
        }
        import vllm  # noqa: PLC0415 (reads the environment)

        dtype = "bfloat16" if "avx512f" in _CPU_INFO.read_text() else "float32"
        self.name = f"vLLM {vllm.__version__} (vllm-cpu), {dtype}"
        self._parameters = vllm.SamplingParams
        self._engine = vllm.LLM(
            str(model),
            dtype=dtype,
            skip_tokenizer_init=True,
            enable_prefix_caching=False,
            max_model_len=MOST_TOKENS,
            max_num_seqs=MOST_ROWS,
            # All prompts in one step, so that steps after it are of decoding alone.
            max_num_batched_tokens=MOST_ROWS * MOST_TOKENS,
        ).llm_engine
        self._asked = 0

    def steps(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> Iterator[int]:
        """As `Engine.steps`."""
        how = self._parameters(
            temperature=0.0, max_tokens=num_tokens, min_tokens=num_tokens, ignore_eos=True, detokenize=False
        )
        had: dict[str, int] = {}
        for prompt in prompts:
            self._asked += 1
            self._engine.add_request(str(self._asked), {"prompt_token_ids": list(prompt)}, how)
        while self._engine.has_unfinished_requests():
            before = sum(had.values())
            for output in self._engine.step():
                had[output.request_id] = len(output.outputs[0].token_ids)
            yield sum(had.values()) - before


if __name__ == "__main__":
    main(VllmEngine)
