"""Health, reflection and ports, as any standard gRPC client uses them."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub

from router.faces.address import Address
from tests.support.router.shell import ANY_PORT, Shell, running_shell
from twinpool.errors import StartFailed

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
INFERENCE = "twinpool.v1.Inference"


# Their types know no asynchronous stubs.
Health: Any = HealthStub
Reflection: Any = ServerReflectionStub


async def check(channel: grpc.aio.Channel, service: str) -> object:
    answer = await Health(channel).Check(health_pb2.HealthCheckRequest(service=service))
    return answer.status


async def test_the_process_lives_before_prompts_are_served_on_both_ports(shell: Shell) -> None:
    for channel in (shell.channel, shell.operations_channel):
        assert await check(channel, "") == SERVING
        assert await check(channel, INFERENCE) == NOT_SERVING
        assert await check(channel, "twinpool.v1.Operations") == SERVING
    await shell.server.set_serving(True)
    for channel in (shell.channel, shell.operations_channel):
        assert await check(channel, INFERENCE) == SERVING


async def test_an_unknown_service_is_not_found(shell: Shell) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await check(shell.channel, "nobody")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_watch_answers_at_once_and_on_change(shell: Shell) -> None:
    call = Health(shell.channel).Watch(health_pb2.HealthCheckRequest(service=INFERENCE))
    answers = aiter(call)
    assert (await anext(answers)).status == NOT_SERVING
    await shell.server.set_serving(True)
    assert (await anext(answers)).status == SERVING
    await shell.server.stop(grace_s=0)
    assert (await anext(answers)).status == NOT_SERVING


async def test_reflection_lists_each_ports_services(shell: Shell) -> None:
    async def services(channel: grpc.aio.Channel) -> set[str]:
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        call = Reflection(channel).ServerReflectionInfo(iter([asked]))
        answer = await anext(aiter(call))
        return {service.name for service in answer.list_services_response.service}

    common = {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    assert await services(shell.channel) == {INFERENCE, *common}
    assert await services(shell.operations_channel) == {"twinpool.v1.Operations", *common}


async def test_a_port_in_use_fails_the_start_by_name(shell: Shell) -> None:
    with pytest.raises(StartFailed, match=str(shell.operations_address)):
        async with running_shell(operations=shell.operations_address):
            pass


def test_an_address_of_version_six_is_bracketed() -> None:
    assert str(Address("::1", 80)) == "[::1]:80"
    assert str(ANY_PORT) == "127.0.0.1:0"
