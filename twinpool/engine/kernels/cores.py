"""The ledger of busy cores: a node's workers see what threads the others compute with, and take the rest.

A file in shared memory, of one user on one node: for each slot the process that has it, then the slots that
native kernels read and write (`tp_cores` in native/csrc/twinpool_native.h). It is
there while anybody uses it.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

NUM_SLOTS = 128
"""Workers of a node that can share; more compute with their shares alone."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 (of one user, and holds no secret)
_PATIENCE_S = 5.0
_WORD_BYTES = 8
_FILE_BYTES = 2 * NUM_SLOTS * _WORD_BYTES


class SharedCores:
    """One worker's slot, its own until it is closed or its process ends.

    own: the slot's number. num_cpus: for all together. share: threads that this worker may use in any case.
    """

    num_slots = NUM_SLOTS

    def __init__(self, folder: Path, memory: mmap.mmap, own: int, num_cpus: int, share: int) -> None:
        self._folder = folder
        self._memory = memory
        self.own = own
        self.num_cpus = num_cpus
        self.share = share

    @classmethod
    def claim(cls, num_cpus: int, share: int, folder: Path | None = None) -> Self | None:
        """A free slot; None where this system has no shared memory, or no slot is left."""
        folder = folder or SHARED_MEMORY
        with suppress(OSError), _locked(folder, create=True) as memory:
            owners = _words(memory)[:NUM_SLOTS]
            for slot, owner in enumerate(owners):
                if not _lives(owner):
                    owners[slot], _words(memory)[NUM_SLOTS + slot] = os.getpid(), 0
                    return cls(folder, memory, slot, num_cpus, share)
        return None

    @property
    def address(self) -> int:
        """Of the slots, for kernels; valid while this object lives."""
        return ctypes.addressof(ctypes.c_int64.from_buffer(self._memory, NUM_SLOTS * _WORD_BYTES))

    def close(self) -> None:
        """Give the slot up; nothing may compute with it any more."""
        _words(self._memory)[self.own] = 0
        remove_unused(self._folder)


def remove_unused(folder: Path = SHARED_MEMORY) -> None:
    """Remove the ledger where no living process has a slot: those that were killed gave none up."""
    with suppress(OSError), _locked(folder, create=False) as memory:
        if not any(_lives(owner) for owner in _words(memory)[:NUM_SLOTS]):
            _path(folder).unlink()


def _path(folder: Path) -> Path:
    return folder / f"twinpool-cores-{os.getuid()}"


@contextmanager
def _locked(folder: Path, *, create: bool) -> Iterator[mmap.mmap]:
    """The ledger's memory, while no other process claims or removes."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
    while True:
        descriptor = os.open(_path(folder), flags, 0o600)
        try:
            _lock(descriptor)
            if not _is_current(descriptor, folder):
                continue  # removed while this one waited
            if os.fstat(descriptor).st_size < _FILE_BYTES:
                os.ftruncate(descriptor, _FILE_BYTES)
            yield mmap.mmap(descriptor, _FILE_BYTES)
            return
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # else the mapping's own descriptor would keep the lock
            os.close(descriptor)


def _lock(descriptor: int) -> None:
    """Raises OSError where another process holds the lock for seconds; it is held for microseconds."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_PATIENCE_S / 1000)


def _is_current(descriptor: int, folder: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), _path(folder).stat())
    except FileNotFoundError:
        return False


def _words(memory: mmap.mmap) -> memoryview:
    return memoryview(memory).cast("q")


def _lives(process: int) -> bool:
    if process <= 0:
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's by now, or in a container of its own
    return True
