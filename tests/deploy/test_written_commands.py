"""Every command, option and setting that documents and manifests name is one that the program takes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cyclopts import App, MissingArgumentError

from tests.support.deploy.written_commands import (
    DEPLOY,
    DOCUMENTS,
    MANIFESTS,
    OTHERS,
    Command,
    commands,
    documents_of,
    fenced,
    inline,
    mappings,
    name_of,
)
from twinpool.cli.app import build_app
from twinpool.cli.configuration import load_config
from twinpool.cli.knobs import all_knobs

_VARIABLE = re.compile(r"\bTWINPOOL_[A-Z0-9_]*[A-Z0-9]")
_OPTION = re.compile(r"(--[a-z][a-z-]*)( \S+)?")
_DEFAULTED = re.compile(r"\$\{\w+:-([^}]*)\}")
BASE_FILE = DEPLOY / "kubernetes" / "base" / "serve.toml"

COMMANDS = list(dict.fromkeys(commands()))
TOMLS = [(name_of(file), file.read_text()) for file in OTHERS if file.suffix == ".toml"] + [
    (name_of(file), code) for file in DOCUMENTS for code in fenced(file, "toml")
]


def check(command: Command) -> None:
    """Parse it as the program would, and validate what it gives `serve`. Raises what the program would."""
    try:
        _, bound, _ = build_app().parse_args(command.words, print_error=False, exit_on_error=False)
    except MissingArgumentError:
        if command.whole:
            raise
        return
    if command.words[:1] == ("serve",) and "--help" not in command.words:
        load_config({name: value for name, value in bound.arguments.items() if name != "config"}, None, {})


def test_commands_are_found_everywhere() -> None:
    places = {command.place for command in COMMANDS}
    assert places >= {"README.md", "docs/operations.md", "deploy/README.md", "deploy/compose.yaml"}
    assert places >= {"deploy/join-and-serve", "deploy/kubernetes/base/router.yaml"}
    assert len(COMMANDS) > 30


@pytest.mark.parametrize("command", COMMANDS, ids=lambda each: f"{each.place}: {' '.join(each.words)}")
def test_every_written_command_is_one_that_the_program_takes(command: Command) -> None:
    check(command)


@pytest.mark.parametrize("words", ["serve --kv-memory 3", "serve --prefill 0", "sreve", "generate"])
def test_a_command_that_the_program_refuses_is_found(words: str) -> None:
    with pytest.raises(Exception, match=r"--kv-memory|prefill must be|sreve|(?i:prompt)"):
        check(Command("here", tuple(words.split())))


def option_names(app: App) -> Iterator[str]:
    """Of all commands, and of their commands."""
    if app.default_command is not None:
        for argument in app.assemble_argument_collection():
            yield from argument.names
    for command in app:
        if not command.startswith("-"):
            yield from option_names(app[command])


def test_every_option_named_in_a_sentence_is_one_of_a_command() -> None:
    options = set(option_names(build_app()))
    named = {match[1] for file in DOCUMENTS for code in inline(file) if (match := _OPTION.fullmatch(code))}
    assert named - options == set()
    assert {"--kv-memory-mib", "--slow-reader-s"} <= named


@pytest.mark.parametrize("file", [*DOCUMENTS, *MANIFESTS, *OTHERS], ids=name_of)
def test_every_variable_is_one_of_an_option(file: Path) -> None:
    known = {knob.variable for knob in all_knobs()} | {"TWINPOOL_CONFIG"}
    assert set(_VARIABLE.findall(file.read_text())) - known == set()


@pytest.mark.parametrize(("place", "text"), TOMLS, ids=[place for place, _ in TOMLS])
def test_every_configuration_file_is_valid(place: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(text)
    load_config(file=file, environment={})


def test_every_container_has_a_valid_environment() -> None:
    checked = 0
    for file in MANIFESTS:
        for mapping in (each for document in documents_of(file) for each in mappings(document)):
            environment = mapping.get("environment") or {
                **{each["name"]: each["value"] for each in mapping.get("env") or () if "value" in each},
                **dict(each.split("=", 1) for each in mapping.get("literals") or ()),
            }
            given = {name: _DEFAULTED.sub(r"\1", str(value)) for name, value in environment.items()}
            if "TWINPOOL_CONFIG" in given:
                assert given["TWINPOOL_CONFIG"] == f"/etc/twinpool/{BASE_FILE.name}"
                given["TWINPOOL_CONFIG"] = str(BASE_FILE)
            checked += any(name.startswith("TWINPOOL_") for name in given)
            load_config(environment=given)
    assert checked >= 5
