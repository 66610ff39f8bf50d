"""What one worker of a pool asks the cluster for, and where its workers go; written as one line.

cpus=2,gpus=0.5,memory-mib=4096,threads=2,placement=spread,resource.fast=1,label.zone=a,env.MALLOC_ARENA_MAX=2
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

PLACEMENTS = ("pack", "spread")
_NUMBERS = {"cpus": "cpus", "gpus": "gpus", "memory-mib": "memory_mib", "threads": "threads"}
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]*")


class ResourcesError(ValueError):
    """The line cannot be understood; the message says which part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolResources:
    """For each worker: logical CPUs and GPUs, memory in MiB (0: none asked), custom resources, node labels.

    environment: variables of its process. threads: compute threads; 0 leaves it to the engine's setting.
    placement: pack is Ray's own way, which fills a node to half before it takes the next; spread uses as many
    as there are.
    """

    cpus: float = 1.0
    gpus: float = 0.0
    memory_mib: int = 0
    threads: int = 0
    placement: str = "pack"
    custom: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, line: str) -> Self:
        """Read the line; an empty one is one CPU. Raises ResourcesError."""
        fields: dict[str, float | int | str] = {}
        groups: dict[str, dict[str, str]] = {"resource": {}, "label": {}, "env": {}}
        for part in filter(None, (each.strip() for each in line.split(","))):
            key, separator, value = part.partition("=")
            group, dot, name = key.partition(".")
            if not separator:
                raise ResourcesError(f"{part!r} is not KEY=VALUE")
            if dot and group in groups:
                if not _NAME.fullmatch(name):
                    raise ResourcesError(f"{key!r} does not name a {group}")
                groups[group][name] = value
            elif key in _NUMBERS:
                fields[_NUMBERS[key]] = _number(key, value, whole=key in ("memory-mib", "threads"))
            elif key == "placement":
                if value not in PLACEMENTS:
                    raise ResourcesError(f"placement must be one of {', '.join(PLACEMENTS)}, not {value!r}")
                fields[key] = value
            else:
                known = ", ".join((*_NUMBERS, "placement", "resource.NAME", "label.NAME", "env.NAME"))
                raise ResourcesError(f"{key!r} is none of {known}")
        custom = {name: _number(name, value, whole=False) for name, value in groups["resource"].items()}
        return cls(**fields, custom=custom, labels=groups["label"], environment=groups["env"])  # type: ignore[arg-type]

    def __str__(self) -> str:
        """What it asks for, in words."""
        words = [f"{self.cpus:g} CPU"]
        words += [f"{self.gpus:g} GPU"] if self.gpus else []
        words += [f"{self.memory_mib} MiB"] if self.memory_mib else []
        words += [f"{amount:g} {name}" for name, amount in self.custom.items()]
        words += [f"a node with {name}={value}" for name, value in self.labels.items()]
        return ", ".join(words)


def _number(key: str, value: str, *, whole: bool) -> float | int:
    try:
        number = int(value) if whole else float(value)
    except ValueError as error:
        raise ResourcesError(f"{key} must be a {'whole ' if whole else ''}number, not {value!r}") from error
    if not 0 <= number < 1e9:
        raise ResourcesError(f"{key} must not be negative or huge, not {value}")
    return number
