"""llama.cpp, through the low-level interface of llama-cpp-python: batches of several sequences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import llama_cpp
import numpy as np

from benchmarks.peers.drivers.measure import MOST_ROWS, MOST_TOKENS, main


class LlamaCppEngine:
    """A GGUF file with its weights as they are, a stream of cache for each sequence; else its defaults."""

    def __init__(self, model: Path, threads: int) -> None:
        self.name = f"llama.cpp (llama-cpp-python {llama_cpp.__version__}), GGUF of 4 bits"
        loaded = llama_cpp.llama_model_load_from_file(
            str(model).encode(), llama_cpp.llama_model_default_params()
        )
        how = llama_cpp.llama_context_default_params()
        how.n_ctx, how.n_seq_max = MOST_ROWS * MOST_TOKENS, MOST_ROWS
        how.n_threads = how.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(loaded, how)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(loaded))
        self._batch = llama_cpp.llama_batch_init(MOST_TOKENS, 0, 1)

    def steps(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> Iterator[int]:
        """As `Engine.steps`; a prompt is a step."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        tokens = []
        for row, prompt in enumerate(prompts):
            self._fill([(token, at, row) for at, token in enumerate(prompt)])
            self._batch.logits[len(prompt) - 1] = True
            tokens += self._compute([len(prompt) - 1])
            yield 1
        rows = range(len(prompts))
        for made in range(num_tokens - 1):
            self._fill([(tokens[row], len(prompts[row]) + made, row) for row in rows])
            for row in rows:
                self._batch.logits[row] = True
            tokens = self._compute(rows)
            yield len(rows)

    def _fill(self, entries: Sequence[tuple[int, int, int]]) -> None:
        """entries: token, position and sequence of each."""
        self._batch.n_tokens = len(entries)
        for at, (token, position, sequence) in enumerate(entries):
            self._batch.token[at], self._batch.pos[at] = token, position
            self._batch.n_seq_id[at], self._batch.seq_id[at][0] = 1, sequence
            self._batch.logits[at] = False

    def _compute(self, of: Sequence[int]) -> list[int]:
        """The likeliest next tokens of some entries."""
        if llama_cpp.llama_decode(self._context, self._batch):
            raise RuntimeError("llama_decode failed")
        return [
            int(
                np.ctypeslib.as_array(
                    llama_cpp.llama_get_logits_ith(self._context, entry), (self._vocab_size,)
                ).argmax()
            )
            for entry in of
        ]


if __name__ == "__main__":
    main(LlamaCppEngine)
