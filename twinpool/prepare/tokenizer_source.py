"""Makes the tokenizer that transformers would use for a source, and the facts that go with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from twinpool.checkpoint.chat_template import ChatTemplate
from twinpool.checkpoint.manifest import CHAT_TEMPLATE_FILE, TOKENIZER_FILE
from twinpool.errors import ModelSourceError
from twinpool.prepare.gguf_tokenizer import GgufVocabulary

# Tokens that end a turn; where the chat template writes one, it ends an answer too.
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|end|>")


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """What the rest of the system must know of a tokenizer; see `Manifest`."""

    bos_token_id: int | None
    end_token_ids: frozenset[int]
    adds_bos: bool
    special_tokens: Mapping[str, str]


def convert_folder_tokenizer(folder: Path, into: Path) -> TokenizerFacts:
    """Write tokenizer.json and the chat template of a Hugging Face folder."""
    if not (folder / "tokenizer.json").is_file():
        raise ModelSourceError(f"{folder} has no tokenizer.json")
    tokenizer = _load(folder)
    return _write(tokenizer, tokenizer.backend_tokenizer, into)


def convert_gguf_tokenizer(path: Path, vocabulary: GgufVocabulary, into: Path) -> TokenizerFacts:
    """Write tokenizer.json and the chat template of a GGUF file."""
    tokenizer = _load(path.parent, gguf_file=path.name)
    return _write(tokenizer, vocabulary.mended(tokenizer.backend_tokenizer), into)


def _load(folder: Path, **options: str) -> Any:
    # Imported here: it takes seconds, and only a pull that converts needs it.
    from transformers import AutoTokenizer  # noqa: PLC0415

    try:
        return AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, **options
        )
    except Exception as error:  # whatever transformers trips over, the source is at fault
        raise ModelSourceError(f"cannot make the tokenizer of {folder}: {error}") from error


def _write(tokenizer: Any, backend: tokenizers.Tokenizer, into: Path) -> TokenizerFacts:
    """tokenizer: transformers', for what it knows beside the tokens."""
    backend.save(str(into / TOKENIZER_FILE))
    special_tokens = {
        name: text for name, text in tokenizer.special_tokens_map.items() if isinstance(text, str)
    }
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    ends = {tokenizer.eos_token_id} - {None}
    if template:
        ChatTemplate(template, special_tokens)  # one that does not compile is refused now, not at a request
        (into / CHAT_TEMPLATE_FILE).write_text(template, "utf-8")
        vocabulary = backend.get_vocab()
        ends |= {vocabulary[end] for end in _TURN_ENDS if end in template and end in vocabulary}
    bos = tokenizer.bos_token_id
    starts = backend.encode("").ids
    return TokenizerFacts(bos, frozenset(ends), bos is not None and starts[:1] == [bos], special_tokens)
