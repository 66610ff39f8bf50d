"""Every method that can be called has its label."""

from __future__ import annotations

from router.telemetry.series import METHODS
from twinpool.v1 import inference_pb2, operations_pb2


def test_every_method_has_a_label() -> None:
    services = (
        inference_pb2.DESCRIPTOR.services_by_name["Inference"],
        operations_pb2.DESCRIPTOR.services_by_name["Operations"],
    )
    assert set(METHODS) == {method.name for service in services for method in service.methods}
