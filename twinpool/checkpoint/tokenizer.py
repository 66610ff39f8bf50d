"""Text to token ids and back, exactly as transformers does it for the same model, without loading it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import tokenizers

from twinpool.checkpoint.chat_template import ChatTemplate, Message
from twinpool.checkpoint.decoder_kind import decoder_kind
from twinpool.checkpoint.manifest import CHAT_TEMPLATE_FILE, TOKENIZER_FILE, Manifest
from twinpool.checkpoint.prepared import read_description
from twinpool.errors import InvalidRequest, ModelSourceError


class Tokenizer:
    """A prepared model's tokenizer and chat template; safe to share among threads."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        chat_template: ChatTemplate | None = None,
        num_embeddings: int | None = None,
    ) -> None:
        """num_embeddings: of the model, where it is known; a tokenizer may have tokens beyond them.

        Raises UnsupportedModel if the tokenizer's text cannot be streamed exactly.
        """
        # A tokenizer.json may carry the padding and truncation of somebody's training run.
        backend.no_padding()
        backend.no_truncation()
        self._backend = backend
        self._chat_template = chat_template
        self.decoder_kind = decoder_kind(backend.decoder)
        added = backend.get_added_tokens_decoder().values()
        ids = backend.get_vocab(with_added_tokens=True).values()
        self._unknown_to_model = frozenset(
            id_ for id_ in ids if num_embeddings is not None and id_ >= num_embeddings
        )
        self._special = frozenset(token.content for token in added if token.special)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read a prepared folder. Raises ModelSourceError if its tokenizer is damaged."""
        try:
            backend = tokenizers.Tokenizer.from_file(str(folder / TOKENIZER_FILE))
        except Exception as error:  # the library raises nothing narrower
            raise ModelSourceError(f"cannot read {folder / TOKENIZER_FILE}: {error}") from error
        template, num_embeddings = folder / CHAT_TEMPLATE_FILE, read_description(folder).vocab_size
        if not template.exists():
            return cls(backend, num_embeddings=num_embeddings)
        special_tokens = Manifest.load(folder).special_tokens
        return cls(backend, ChatTemplate(template.read_text("utf-8"), special_tokens), num_embeddings)

    @property
    def vocab_size(self) -> int:
        """Number of tokens that have a text; the model's own vocabulary may be padded beyond it."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, add_special_tokens: bool = True, field: str = "text") -> list[int]:
        """Token ids of a text, BOS included where the model's tokenizer puts one.

        Strings of special tokens within the text become those tokens, as in transformers.
        Raises InvalidRequest naming the field, and a token that the model has no embedding for.
        """
        ids = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        if self._unknown_to_model and (unknown := self._unknown_to_model.intersection(ids)):
            piece = self.piece(min(unknown))
            raise InvalidRequest(field, f"{field} has token {min(unknown)} ({piece!r}), unknown to the model")
        return ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids; bytes that are not UTF-8 become U+FFFD, ids without a text vanish."""
        return self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def piece(self, token_id: int) -> str | None:
        """A token as the vocabulary spells it, which is not yet text; None for an id without a token."""
        return self._backend.id_to_token(token_id)

    def id_of(self, piece: str) -> int | None:
        """The id of a token as the vocabulary spells it."""
        return self._backend.token_to_id(piece)

    def is_special(self, piece: str) -> bool:
        """Whether decode leaves this token out when it skips special tokens."""
        return piece in self._special

    def apply_chat_template(self, messages: Sequence[Message]) -> list[int]:
        """The prompt of a chat, up to where the assistant's answer begins.

        The template writes the special tokens, BOS too, so none is added here.
        Raises InvalidRequest if the model has no template or the template refuses the messages.
        """
        if self._chat_template is None:
            raise InvalidRequest("messages", "the model has no chat template; send a plain prompt")
        return self.encode(self._chat_template.render(messages), add_special_tokens=False, field="messages")
