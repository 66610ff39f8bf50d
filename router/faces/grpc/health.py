"""Health by the standard gRPC protocol: whether the process lives, and whether prompts are served."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

INFERENCE = "twinpool.v1.Inference"
OPERATIONS = "twinpool.v1.Operations"

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Health:
    """One state behind both ports. "" and Operations serve while the process lives."""

    def __init__(self) -> None:
        self._servicer = health.aio.HealthServicer()

    async def start(self) -> None:
        """Make every name known; Inference does not serve yet."""
        await self._servicer.set("", SERVING)
        await self._servicer.set(OPERATIONS, SERVING)
        await self.set_serving(False)

    async def set_serving(self, serving: bool) -> None:
        """Say whether prompts are served, to watchers too."""
        await self._servicer.set(INFERENCE, SERVING if serving else NOT_SERVING)

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register the health service."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)
