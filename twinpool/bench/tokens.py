"""A tokenizer by its file alone, for servers that do not tokenize for us."""

from __future__ import annotations

from pathlib import Path

import tokenizers

from twinpool.bench.prompts import Prompt
from twinpool.config import ConfigError


class TokenizerFile:
    """path: a tokenizer.json, or a folder with one. Raises ConfigError if it cannot be read."""

    def __init__(self, path: Path) -> None:
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            self._backend = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises nothing narrower
            raise ConfigError(f"tokenizer: cannot read {file}: {error}") from error

    @property
    def vocab_size(self) -> int:
        """Ids are below it."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str) -> list[int]:
        """Without special tokens."""
        return self._backend.encode(text, add_special_tokens=False).ids

    def text_of(self, prompt: Prompt) -> str:
        """The prompt as text; its ids, written out and read again, may be a few more or fewer."""
        content = prompt.content
        return content if isinstance(content, str) else self._backend.decode(content)
