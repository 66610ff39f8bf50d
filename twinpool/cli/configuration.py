"""Where knobs come from: a flag, else the environment (read here only), else the file, else the default."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from twinpool.cli.knobs import PREFIX, Knob, all_knobs
from twinpool.config import ConfigError, EngineConfig, HandoffConfig, RouterConfig, ServeConfig

_FILE_VARIABLE = PREFIX + "CONFIG"
_SECTIONS = {"engine": EngineConfig, "handoff": HandoffConfig, "router": RouterConfig}


def load_config(
    flags: Mapping[str, object] | None = None,
    file: Path | None = None,
    environment: Mapping[str, str] = os.environ,
) -> ServeConfig:
    """The configuration that results.

    flags: values by knob name; None means not given. file: TOML, knobs of a section in its table;
    without one, the file that TWINPOOL_CONFIG names, if any. Raises ConfigError, in one line: for a
    variable that looks like ours and is none, too, since a knob set in vain must not pass in silence.
    """
    if file is None and environment.get(_FILE_VARIABLE):
        file = Path(environment[_FILE_VARIABLE])
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    values = _from_file(file) if file else {}
    values |= _from_environment(environment)
    values |= {knob: given[knob.name] for knob in all_knobs() if knob.name in given}
    return _build(values)


def _build(values: Mapping[Knob, object]) -> ServeConfig:
    sections = {name: kind(**_section(values, name)) for name, kind in _SECTIONS.items()}
    return ServeConfig(**_section(values, ""), **sections)  # type: ignore[arg-type]


def _section(values: Mapping[Knob, object], section: str) -> dict[str, object]:
    return {knob.name: value for knob, value in values.items() if knob.section == section}


def _from_environment(environment: Mapping[str, str]) -> dict[Knob, object]:
    # An empty variable means nothing: compose files and manifests set them so.
    given = {name: text for name, text in environment.items() if name.startswith(PREFIX) and text}
    given.pop(_FILE_VARIABLE, None)
    known = {knob.variable: knob for knob in all_knobs()}
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, [*known, _FILE_VARIABLE], n=1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise ConfigError(f"the environment's {name} is no option{hint}")
    return {known[name]: known[name].parse(text, name) for name, text in given.items()}


def _from_file(file: Path) -> dict[Knob, object]:
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from None
    known = {_path(knob): knob for knob in all_knobs()}
    values = {}
    for path, value in _leaves(document):
        if path not in known:
            raise ConfigError(f"{file}: unknown key {path}{_suggestion(path, known)}")
        values[known[path]] = known[path].check(value, f"{file}: {path}")
    return values


def _leaves(document: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Keys with their table's name before them; keys may be written as the flags are, with hyphens."""
    for key, value in document.items():
        if isinstance(value, dict) and key in _SECTIONS:
            for inner, leaf in value.items():
                yield f"{key}.{inner.replace('-', '_')}", leaf
        else:
            yield key.replace("-", "_"), value


def _path(knob: Knob) -> str:
    return f"{knob.section}.{knob.name}" if knob.section else knob.name


def _suggestion(path: str, known: Mapping[str, Knob]) -> str:
    name = path.rpartition(".")[2]
    elsewhere = next((right for right, knob in known.items() if knob.name == name), None)
    close = [elsewhere] if elsewhere else difflib.get_close_matches(path, known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""
