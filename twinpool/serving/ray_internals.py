"""What Ray does for itself alone, and we need: all its private names are here.

In public, Ray keeps values only as objects and actors, which end with their owner or cost a process; and it
prints workers' lines itself, or leaves them in files on their nodes. So each of its versions is to be tried.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ray._private import worker
from ray.experimental import internal_kv

Print = Callable[[Mapping[str, Any]], None]
"""Takes lines of one process: `pid`, which for Ray's own processes is a name, and `lines`."""


def keep(key: str, value: bytes, namespace: str) -> None:
    """Put a value into the table of the cluster that was joined; blocks until it is there."""
    internal_kv._internal_kv_put(key, value, namespace=namespace)


def kept(key: str, namespace: str) -> bytes | None:
    """The value that was put there last; blocks."""
    value: bytes | None = internal_kv._internal_kv_get(key, namespace=namespace)
    return value


@contextmanager
def printed_by(printer: Print) -> Iterator[None]:
    """Have what workers and Ray's processes print taken by us; to be begun before Ray is."""
    rays = worker.print_to_stdstream
    worker.print_to_stdstream = lambda data, ignore_prefix: printer(data)  # noqa: ARG005 (Ray's names)
    try:
        yield
    finally:
        worker.print_to_stdstream = rays


@contextmanager
def without_warning_of_sigterm() -> Iterator[None]:
    """Ray warns that it sets no handler of SIGTERM off the main thread, which is why it is run there."""

    def is_news(record: logging.LogRecord) -> bool:
        return "SIGTERM handler is not set" not in record.getMessage()

    logger = logging.getLogger(worker.__name__)
    logger.addFilter(is_news)
    try:
        yield
    finally:
        logger.removeFilter(is_news)
