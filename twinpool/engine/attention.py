"""The port through which the model reaches attention over the paged cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Segment:
    """One sequence's share of a step.

    num_new: its rows in the flat batch, consecutive; their positions end at context_tokens - 1.
    context_tokens: tokens in the cache once the step has written.
    block_table: block ids in order, enough for context_tokens.
    """

    num_new: int
    context_tokens: int
    block_table: Sequence[int]


Plan = TypeVar("Plan")  # What all layers of one step share; opaque to all but the backend that made it.


class AttentionBackend(Protocol[Plan]):
    """Writes a step's keys and values into the cache and attends over it.

    The model calls `plan` once a step and `attend` once a layer, in one thread.
    """

    def plan(self, segments: Sequence[Segment]) -> Plan:
        """Lay out a step; segments follow one another in the flat batch."""
        ...

    def attend(self, plan: Plan, layer: int, q: Tensor, kv: Tensor, out: Tensor) -> None:
        """Write kv into the step's slots, then attend causally and fill out.

        q, out: `[rows, num_heads, head_dim]`. kv: `[rows, 2 * num_kv_heads, head_dim]`, keys first.
        q and kv are rotated already. out is contiguous; of q and kv, only the last dimension need be.
        """
        ...
