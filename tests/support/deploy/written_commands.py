"""Finds the `twinpool` commands, variables and configuration files that documents and manifests hold."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.paths import ROOT

DEPLOY = ROOT / "deploy"
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), DEPLOY / "README.md")
MANIFESTS = (DEPLOY / "compose.yaml", *sorted((DEPLOY / "kubernetes").rglob("*.yaml")))
OTHERS = (DEPLOY / "Dockerfile", DEPLOY / "join-and-serve", *sorted(DEPLOY.rglob("*.toml")))

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`]+)`")
# What may stand before a command.
_BEFORE = {None, "do", "then", "until", "while", "exec", "--", "router", ";", "&&", "||", "|"}
_AFTER = {";", "&&", "||", "|", "&", "do", "then"}


@dataclass(frozen=True, slots=True)
class Command:
    """The words after `twinpool`. whole: as one would type it, not a mention that may lack arguments."""

    place: str
    words: tuple[str, ...]
    whole: bool = True


def name_of(file: Path) -> str:
    return str(file.relative_to(ROOT))


def fenced(file: Path, language: str) -> Iterator[str]:
    """The blocks of code in a document."""
    for found, code in _FENCE.findall(file.read_text()):
        if found == language:
            yield code


def inline(file: Path) -> Iterator[str]:
    """Code within a document's sentences, each on one line."""
    prose = _FENCE.sub("", file.read_text())
    for code in _INLINE.findall(prose):
        yield " ".join(code.split())


def documents_of(file: Path) -> list[Any]:
    """The YAML documents of a file."""
    return list(yaml.safe_load_all(file.read_text()))


def mappings(node: Any) -> Iterator[dict[str, Any]]:
    """Every mapping in a YAML document, outer ones first."""
    if isinstance(node, dict):
        yield node
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for child in children:
        yield from mappings(child)


def commands() -> Iterator[Command]:
    """Every command, wherever it is written."""
    for file in DOCUMENTS:
        for code in fenced(file, "sh"):
            yield from _in_shell(code, name_of(file))
        for code in inline(file):
            for command in _in_shell(code, name_of(file)):
                yield Command(command.place, command.words, whole=False)
    for file in MANIFESTS:
        for mapping in (each for document in documents_of(file) for each in mappings(document)):
            for key in ("command", "args", "test"):
                yield from _in_list(mapping.get(key), name_of(file))
    yield from _in_shell((DEPLOY / "join-and-serve").read_text(), "deploy/join-and-serve")


def _in_list(words: Any, place: str) -> Iterator[Command]:
    """What a container runs: words, or a shell and its script."""
    if not isinstance(words, list):
        return
    if "twinpool" in words:
        yield Command(place, tuple(words[words.index("twinpool") + 1 :]))
    for word in words:
        if isinstance(word, str) and "twinpool " in word:
            yield from _in_shell(word, place)


def _in_shell(code: str, place: str) -> Iterator[Command]:
    for line in code.replace("\\\n", " ").splitlines():
        words = _words(line)
        if words[:2] == ["make", "serve"]:
            variables = dict(word.split("=", 1) for word in words[2:] if "=" in word)
            yield Command(place, ("serve", *shlex.split(variables.get("ARGS", ""))))
        for index, word in enumerate(words):
            before = words[index - 1] if index else None
            if word == "twinpool" and (before in _BEFORE or "=" in (before or "")):
                rest = words[index + 1 :]
                end = next((at for at, each in enumerate(rest) if each in _AFTER), len(rest))
                yield Command(place, tuple(each for each in rest[:end] if each != "$@"))


def _words(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:  # a word of prose with one quotation mark
        return []
