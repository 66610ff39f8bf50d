"""Twinpool serves large language models with prefill and decode on separate pools of workers."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twinpool.client import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]


def __getattr__(name: str) -> object:
    # Loaded on first use: the pure modules of this package must not pull gRPC in.
    if name in __all__:
        return getattr(importlib.import_module("twinpool.client"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
