"""The gRPC face, two servers: one for prompts, one for operations; health and reflection on both."""

from __future__ import annotations

import asyncio

import grpc
from grpc_health.v1 import health as health_service
from grpc_reflection.v1alpha import reflection

from router.entrance.calls import Calls
from router.entrance.entrance import Entrance
from router.entrance.operations import Operations
from router.faces.address import Address
from router.faces.grpc.boundary import Boundary
from router.faces.grpc.health import INFERENCE, OPERATIONS, Health
from router.faces.grpc.inference_service import InferenceService
from router.faces.grpc.operations_service import OperationsService
from router.faces.grpc.transport import SERVER_OPTIONS, Options
from twinpool.errors import StartFailed
from twinpool.v1 import inference_pb2_grpc, operations_pb2_grpc

# Time for the last statuses to leave, once every call of ours has ended.
CLOSE_S = 0.5


class GrpcFace:
    """Both servers: built -> started (health: not serving) -> serving or not -> closed. options: gRPC's."""

    def __init__(
        self, calls: Calls, entrance: Entrance, operations: Operations, options: Options = SERVER_OPTIONS
    ) -> None:
        self._inference = InferenceService(entrance)
        self._operations = OperationsService(operations)
        self._health = Health()
        self._boundary = Boundary(calls)
        self._options = options
        self._servers: list[grpc.aio.Server] = []

    async def start(self, inference: Address, operations: Address) -> tuple[Address, Address]:
        """Listen on both addresses; return them with the ports taken. Raises StartFailed."""
        await self._health.start()
        front, back = self._new_server(), self._new_server()
        inference_pb2_grpc.add_InferenceServicer_to_server(self._inference, front)
        operations_pb2_grpc.add_OperationsServicer_to_server(self._operations, back)
        _reflect(INFERENCE, front)
        _reflect(OPERATIONS, back)
        bound = (_bind(front, inference), _bind(back, operations))
        self._servers = [front, back]
        for server in self._servers:
            await server.start()
        return bound

    async def set_serving(self, serving: bool) -> None:
        """Tell health's clients whether prompts are served."""
        await self._health.set_serving(serving)

    async def close(self) -> None:
        """Close both ports, once all calls have ended."""
        await asyncio.gather(*(server.stop(CLOSE_S) for server in self._servers))

    def _new_server(self) -> grpc.aio.Server:
        server = grpc.aio.server(interceptors=[self._boundary], options=self._options)
        self._health.add_to(server)
        return server


def _bind(server: grpc.aio.Server, address: Address) -> Address:
    try:
        return Address(address.host, server.add_insecure_port(str(address)))
    except RuntimeError as error:
        raise StartFailed(f"cannot listen on {address}: is the port in use?") from error


def _reflect(service: str, server: grpc.aio.Server) -> None:
    names = (service, health_service.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
