"""Prepares a model once, so that everything else reads one simple folder.

Steps: find what the name means, fetch, convert into a scratch folder, publish that folder under its key.
"""

from __future__ import annotations

from pathlib import Path

from twinpool.checkpoint.cache import is_prepared, models_folder, only_one_pull, publish, staging
from twinpool.errors import ModelSourceError
from twinpool.prepare.progress import Progress, Silent
from twinpool.prepare.sources import FolderSource, Source, cache_key, find_source


def prepared_path(model: str, cache_dir: Path | None = None) -> Path | None:
    """The prepared folder of a model, or None if it was not pulled yet.

    Cheap: looks at file times, not contents. A prepared folder may itself be given as the model.
    Raises ModelSourceError if the name means nothing.
    """
    folder = _folder_of(find_source(model), cache_dir)
    return folder if is_prepared(folder) else None


def pull(model: str, *, cache_dir: Path | None = None, progress: Progress | None = None) -> Path:
    """Fetch and convert a model unless that is done already; returns its prepared folder.

    model: a known name, a hub name (owner/name), a local folder or a GGUF file.
    cache_dir: prepared models live in its twinpool/models; None takes the user's cache folder.
    Safe against interruption and against other pulls of the same model.
    Raises ModelSourceError where the source cannot be had, UnsupportedModel where it cannot be served.
    """
    source = find_source(model)
    folder = _folder_of(source, cache_dir)
    if is_prepared(folder):
        return folder
    try:
        from twinpool.prepare.convert import prepare  # noqa: PLC0415 (loads gguf, torch and transformers)
    except ImportError as error:
        raise ModelSourceError(
            f"{model} is not prepared yet, which takes the packages of twinpool[worker]: {error}"
        ) from error

    try:
        with only_one_pull(folder):
            if not is_prepared(folder):  # else another pull finished while this one waited
                with staging(folder) as scratch:
                    publish(prepare(source, scratch, progress or Silent()), folder)
    except OSError as error:  # disk full, no permission
        raise ModelSourceError(f"cannot prepare {model}: {error}") from error
    return folder


def _folder_of(source: Source, cache_dir: Path | None) -> Path:
    if isinstance(source, FolderSource) and is_prepared(source.path):
        return source.path
    return models_folder(cache_dir) / cache_key(source)
