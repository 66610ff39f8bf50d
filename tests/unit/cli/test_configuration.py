"""Where the configuration comes from, and which source wins."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest

from twinpool.cli.configuration import load_config
from twinpool.cli.knobs import Knob, all_knobs
from twinpool.config import ConfigError, EngineConfig, HandoffConfig, RouterConfig, ServeConfig

_OTHER_VALUES: Mapping[str, str] = {
    "dtype": "float32",
    "kv_dtype": "int8",
    "weights": "int8",
    "kernels": "native",
    "transport": "ray",
    "log_level": "debug",
    "log_format": "json",
    "cache_dir": "/tmp/models",
    "host": "0.0.0.0",
    "prefill_resources": "cpus=2",
    "decode_resources": "gpus=1",
}


def config_file(folder: Path, text: str) -> Path:
    file = folder / "twinpool.toml"
    file.write_text(text)
    return file


def field_of(config: ServeConfig, knob: Knob) -> object:
    return getattr(getattr(config, knob.section) if knob.section else config, knob.name)


def test_without_any_source_the_defaults_hold() -> None:
    assert load_config(environment={}) == ServeConfig()


def test_every_field_of_the_tree_is_a_knob_with_a_docstring() -> None:
    trees = (ServeConfig, EngineConfig, HandoffConfig, RouterConfig)
    fields = [field.name for tree in trees for field in dataclasses.fields(tree)]
    knobs = [knob.name for knob in all_knobs()]
    assert sorted(knobs) == sorted(set(fields) - {"engine", "handoff", "router"})
    assert len(knobs) == len(set(knobs)) <= 60
    assert all(knob.help for knob in all_knobs())


@pytest.mark.parametrize("knob", all_knobs(), ids=lambda knob: knob.name)
def test_every_knob_comes_from_the_environment(knob: Knob) -> None:
    text = {int: "7", float: "7.5", bool: "yes"}.get(knob.kind) or _OTHER_VALUES.get(knob.name, "other")
    config = load_config(environment={knob.variable: text})
    assert field_of(config, knob) == knob.parse(text, knob.variable) != knob.default


def test_a_flag_wins_over_the_environment_and_the_environment_over_the_file(tmp_path: Path) -> None:
    file = config_file(
        tmp_path, "port = 1\nprefill = 1\ndecode = 11\n[engine]\nthreads = 1\n[router]\ngrace-s = 3\n"
    )
    environment = {"TWINPOOL_PORT": "2", "TWINPOOL_PREFILL": "2", "TWINPOOL_THREADS": "2"}
    config = load_config({"port": 3, "threads": 3, "host": None}, file, environment)
    assert (config.port, config.prefill, config.decode, config.host) == (3, 2, 11, "127.0.0.1")
    assert config.engine.threads == 3
    assert config.router.grace_s == 3.0


def test_the_environment_may_name_the_file(tmp_path: Path) -> None:
    file = config_file(tmp_path, 'model = "local"\ncache_dir = "models"\n')
    config = load_config(environment={"TWINPOOL_CONFIG": str(file)})
    assert (config.model, config.cache_dir) == ("local", Path("models"))


def test_an_empty_variable_means_nothing() -> None:
    environment = {"TWINPOOL_PORT": "", "TWINPOOL_CONFIG": "", "TWINPOOL_NEWER": ""}
    assert load_config(environment=environment) == ServeConfig()


@pytest.mark.parametrize(
    ("variable", "complaint"),
    [
        ("TWINPOOL_KV_MEMORY", "TWINPOOL_KV_MEMORY is no option (did you mean TWINPOOL_KV_MEMORY_MIB?)"),
        ("TWINPOOL_CONFG", "TWINPOOL_CONFG is no option (did you mean TWINPOOL_CONFIG?)"),
        ("TWINPOOL_ENGINE_THREADS", "(did you mean TWINPOOL_THREADS?)"),
        ("TWINPOOL_XYZZY", "TWINPOOL_XYZZY is no option"),
    ],
)
def test_a_variable_that_is_no_knob_is_refused_with_the_nearest_one(variable: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_config(environment={variable: "1", "HOME": "/root"})
    assert complaint in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("prot = 1", "unknown key prot (did you mean port?)"),
        ("block_size = 16", "unknown key block_size (did you mean engine.block_size?)"),
        ("[engine]\nblocksize = 16", "unknown key engine.blocksize (did you mean engine.block_size?)"),
        ("[enigne]\nblock_size = 16", "unknown key enigne"),
        ("port = '1'", "port must be a whole number, not '1'"),
        ("port = true", "port must be a whole number, not True"),
        ("engine = 3", "unknown key engine"),
        ("[engine]\nchecksum = 1", "did you mean handoff.checksum?"),
        ("[handoff]\nchecksum = 1", "handoff.checksum must be true or false, not 1"),
        ("port = ", "Invalid value"),
    ],
)
def test_a_wrong_file_is_refused_with_the_files_name_and_the_key(
    tmp_path: Path, text: str, complaint: str
) -> None:
    file = config_file(tmp_path, text)
    with pytest.raises(ConfigError) as refusal:
        load_config(file=file, environment={})
    assert complaint in str(refusal.value)
    assert str(file) in str(refusal.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_config(file=tmp_path / "none.toml", environment={})


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        ({"TWINPOOL_PORT": "tcp://10.0.0.1:50051"}, "TWINPOOL_PORT must be a whole number"),
        ({"TWINPOOL_CHECKSUM": "maybe"}, "TWINPOOL_CHECKSUM must be true or false"),
        ({"TWINPOOL_OVERTAKE_S": "soon"}, "TWINPOOL_OVERTAKE_S must be a number"),
        ({"TWINPOOL_PORT": "70000"}, "port must be 0 to 65535"),
        ({"TWINPOOL_DTYPE": "int4"}, "dtype must be one of auto, bfloat16, float32"),
        ({"TWINPOOL_KV_DTYPE": "int4"}, "kv-dtype must be one of auto, int8"),
        ({"TWINPOOL_KV_DTYPE": "int8", "TWINPOOL_DTYPE": "float32"}, "kv-dtype int8 needs native kernels"),
        ({"TWINPOOL_KV_DTYPE": "int8", "TWINPOOL_KERNELS": "torch"}, "kv-dtype int8 needs native kernels"),
    ],
)
def test_a_wrong_value_is_refused_by_name(environment: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load_config(environment=environment)
