"""The Python client: prompts in, typed chunks and typed errors out."""

from twinpool.client.asynchronous import AsyncClient
from twinpool.client.blocking import Client
from twinpool.client.errors import ClientForked, ServerUnreachable
from twinpool.client.operations import AsyncOperationsClient, OperationsClient
from twinpool.client.streams import AsyncStream, Stream
from twinpool.client.values import Chunk, Completion, Options, Summary

__all__ = [
    "AsyncClient",
    "AsyncOperationsClient",
    "AsyncStream",
    "Chunk",
    "Client",
    "ClientForked",
    "Completion",
    "OperationsClient",
    "Options",
    "ServerUnreachable",
    "Stream",
    "Summary",
]
