"""A sink that keeps what it is given."""

from __future__ import annotations

from dataclasses import dataclass, field

from router.scheduling.values import Output
from twinpool.errors import TwinpoolError


@dataclass
class RecordingSink:
    outputs: list[Output] = field(default_factory=list)
    errors: list[TwinpoolError] = field(default_factory=list)

    def put(self, output: Output, *, last: bool) -> None:
        self.outputs.append(output)

    def fail(self, error: TwinpoolError) -> None:
        self.errors.append(error)
