"""A gRPC client that shares no code with gRPC's own: grpclib, over an HTTP/2 of its own.

`python pure_python_grpc.py HOST PORT` takes one question a line, as JSON: the prompt's token ids, max_tokens,
and after how many messages to leave (null: never). It answers each with one line: token ids, and the status.
"""

from __future__ import annotations

import asyncio
import json
import sys
import types
from pathlib import Path
from typing import Any

from grpclib.client import Channel, UnaryStreamMethod
from grpclib.exceptions import GRPCError

ROOT = Path(__file__).parents[3]


def contract() -> Any:
    """The generated messages, without the package around them, which imports gRPC's own client."""
    package = types.ModuleType("twinpool")
    package.__path__ = [str(ROOT / "twinpool")]
    sys.modules["twinpool"] = package
    from twinpool.v1 import inference_pb2

    return inference_pb2


async def ask(channel: Channel, pb: Any, question: dict[str, Any]) -> dict[str, Any]:
    """One Generate call, to its end or until it is left."""
    request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=question["prompt_ids"]))
    request.sampling.max_tokens = question["max_tokens"]
    request.sampling.temperature = 0.0
    generate = UnaryStreamMethod(
        channel, "/twinpool.v1.Inference/Generate", pb.GenerateRequest, pb.GenerateResponse
    )
    token_ids: list[int] = []
    try:
        async with generate.open() as stream:
            await stream.send_message(request, end=True)
            num_messages = 0
            async for response in stream:
                token_ids += response.chunk.token_ids
                num_messages += 1
                if num_messages == question["leaves_after"]:
                    await stream.cancel()
                    return {"token_ids": token_ids, "status": "LEFT", "words": ""}
    except GRPCError as error:
        return {"token_ids": token_ids, "status": error.status.name, "words": error.message}
    return {"token_ids": token_ids, "status": "OK", "words": ""}


async def main(host: str, port: str) -> None:
    pb = contract()
    channel = Channel(host, int(port))
    try:
        for line in sys.stdin:
            sys.stdout.write(json.dumps(await ask(channel, pb, json.loads(line))) + "\n")
            sys.stdout.flush()
    finally:
        channel.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
