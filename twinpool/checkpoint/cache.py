"""Where prepared models live, and how one appears there: whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from twinpool.checkpoint.home import in_home
from twinpool.checkpoint.manifest import PREPARED_FILE
from twinpool.errors import ModelSourceError

# Another pull of the same model may be downloading gigabytes.
_LOCK_TIMEOUT_S = 3600.0


def models_folder(cache_dir: Path | None) -> Path:
    """The folder of all prepared models; None takes the user's cache folder (XDG Base Directory spec).

    Raises ModelSourceError where the user has none.
    """
    if cache_dir is None:
        named = os.environ.get("XDG_CACHE_HOME")
        cache_dir = Path(named) if named else in_home("~/.cache", "name a folder with --cache-dir")
    return cache_dir.absolute() / "twinpool" / "models"


def is_prepared(folder: Path) -> bool:
    """Whether a folder holds a prepared model; one that appears at all is complete."""
    return (folder / PREPARED_FILE).is_file()


@contextmanager
def only_one_pull(folder: Path) -> Iterator[None]:
    """Hold the right to make this folder, among all processes that share the cache.

    Whoever holds it removes what interrupted pulls of the same folder left behind.
    """
    import filelock  # noqa: PLC0415 (the router asks for prepared folders and needs no lock)

    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(_sibling(folder, ".lock"), timeout=_LOCK_TIMEOUT_S)
    try:
        with lock:
            for stale in folder.parent.glob(f".{folder.name}.*.tmp"):
                shutil.rmtree(stale, ignore_errors=True)
            yield
    except filelock.Timeout as error:
        raise ModelSourceError(
            f"another pull has held {lock.lock_file} for {_LOCK_TIMEOUT_S:.0f} s"
        ) from error


@contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """A scratch folder on the same file system, gone in any case; a crash leaves it to the next pull."""
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".tmp", dir=folder.parent))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def publish(made: Path, folder: Path) -> None:
    """Give a finished folder its final name, in one step that survives a power cut."""
    for file in made.iterdir():
        _flush(file)
    _flush(made)
    if folder.exists():  # unfinished, or somebody emptied it: prepared folders are never replaced
        shutil.rmtree(folder)
    made.replace(folder)
    _flush(folder.parent)


def _sibling(folder: Path, suffix: str) -> Path:
    return folder.parent / f".{folder.name}{suffix}"


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
