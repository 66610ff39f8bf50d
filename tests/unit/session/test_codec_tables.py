"""Every value of an enum has its number on the wire, and every number its value."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import pytest

from router.faces.grpc.inference_codec import FINISH_REASONS
from router.faces.grpc.operations_codec import HOPS, POOLS, WORKER_STATES
from router.telemetry.series import METHODS
from twinpool.v1 import inference_pb2, operations_pb2, types_pb2

TABLES = {
    "FinishReason": (FINISH_REASONS, types_pb2.FinishReason, {0}),
    "Pool": (POOLS, types_pb2.Pool, {0}),
    "WorkerState": (WORKER_STATES, operations_pb2.WorkerState, {0}),
    "Hop": (HOPS, operations_pb2.Hop, set()),
}


@pytest.mark.parametrize(("table", "wire", "unsent"), TABLES.values(), ids=TABLES)
def test_the_table_covers_both_sides(table: Mapping[StrEnum, int], wire: Any, unsent: set[int]) -> None:
    kind = type(next(iter(table)))
    assert set(table) == set(kind)
    assert sorted([*table.values(), *unsent]) == sorted(wire.values())


def test_every_method_has_a_label() -> None:
    services = (
        inference_pb2.DESCRIPTOR.services_by_name["Inference"],
        operations_pb2.DESCRIPTOR.services_by_name["Operations"],
    )
    assert set(METHODS) == {method.name for service in services for method in service.methods}
