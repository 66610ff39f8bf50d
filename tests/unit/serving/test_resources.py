"""What a worker asks a cluster for, in one line."""

from __future__ import annotations

import pytest

from twinpool.config import ConfigError, ServeConfig
from twinpool.resources import PoolResources, ResourcesError
from twinpool.types import Pool


def test_an_empty_line_is_one_cpu() -> None:
    assert PoolResources.parse("") == PoolResources()
    assert str(PoolResources()) == "1 CPU"


def test_every_word_has_its_place() -> None:
    line = (
        "cpus=2, gpus=0.5,memory-mib=4096,threads=3,placement=spread,resource.fast=1,label.zone=a,env.A=b=c"
    )
    wants = PoolResources.parse(line)
    assert (wants.cpus, wants.gpus, wants.memory_mib, wants.threads) == (2.0, 0.5, 4096, 3)
    assert wants.placement == "spread"
    assert (wants.custom, wants.labels, wants.environment) == ({"fast": 1.0}, {"zone": "a"}, {"A": "b=c"})
    assert str(wants) == "2 CPU, 0.5 GPU, 4096 MiB, 1 fast, a node with zone=a"


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("cpus", "'cpus' is not KEY=VALUE"),
        ("cpus=two", "cpus must be a number"),
        ("cpus=-1", "cpus must not be negative"),
        ("cpus=nan", "cpus must not be negative or huge"),
        ("threads=1.5", "threads must be a whole number"),
        ("placement=far", "placement must be one of pack, spread"),
        ("speed=9", "'speed' is none of cpus"),
        ("label.=a", "does not name a label"),
        ("resource.fast=x", "fast must be a number"),
    ],
)
def test_what_cannot_be_understood_is_named(line: str, part: str) -> None:
    with pytest.raises(ResourcesError, match=part):
        PoolResources.parse(line)


def test_the_configuration_names_the_pool() -> None:
    with pytest.raises(ConfigError, match="decode-resources: 'speed'"):
        ServeConfig(decode_resources="speed=9")
    config = ServeConfig(prefill_resources="cpus=4")
    assert config.resources(Pool.PREFILL).cpus == 4
    assert config.resources(Pool.DECODE).cpus == 1
