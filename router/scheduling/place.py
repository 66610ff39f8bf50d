"""A request's place among all that the router has: given once, at admission, and kept for life."""

from __future__ import annotations

import itertools
from typing import NewType

Place = NewType("Place", int)
"""The lower goes before the higher, and is called the older: in the queue, for blocks, and for a prefill
worker's steps. Whatever happens to a request, its next attempt has the same.
"""


class Places:
    """Gives places in the order in which they are asked for."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def give(self) -> Place:
        """The place after all others."""
        return Place(next(self._numbers))
