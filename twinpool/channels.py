"""Makes every gRPC channel: traffic inside a machine or a cluster goes to no proxy.

gRPC itself sends whatever it dials, loopback too, to the proxy that the environment names (`http_proxy`).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

import grpc

Options = Sequence[tuple[str, int]]
_DIRECT = ("grpc.enable_http_proxy", 0)
_SCHEME = re.compile(r"^(dns:(//[^/]*/)?|ipv[46]:)")
"""Before a host, by gRPC's naming: dns:host, dns://resolver/host, ipv4:address, ipv6:address."""


def client_channel(target: str, options: Options) -> grpc.Channel:
    """For blocking calls to a server anywhere; where it is elsewhere, by gRPC's own rules for proxies."""
    return grpc.insecure_channel(target, options=_for_client(target, options))


def async_client_channel(target: str, options: Options) -> grpc.aio.Channel:
    """Its asynchronous twin."""
    return grpc.aio.insecure_channel(target, options=_for_client(target, options))


def cluster_channel(address: str, options: Options) -> grpc.Channel:
    """For blocking calls to a process of this cluster, wherever it runs."""
    return grpc.insecure_channel(address, options=[*options, _DIRECT])


def async_cluster_channel(address: str, options: Options) -> grpc.aio.Channel:
    """Its asynchronous twin."""
    return grpc.aio.insecure_channel(address, options=[*options, _DIRECT])


def is_on_this_machine(target: str) -> bool:
    """Whether a target of gRPC's names this machine itself, by name or address."""
    if target.startswith(("unix:", "unix-abstract:")):
        return True
    host = _host(target)
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def _host(target: str) -> str:
    """In lower case, without brackets; empty where there is none."""
    try:
        return urlsplit(f"//{_SCHEME.sub('', target, count=1)}").hostname or ""
    except ValueError:  # brackets that do not match
        return ""


def _for_client(target: str, options: Options) -> list[tuple[str, int]]:
    return [*options, _DIRECT] if is_on_this_machine(target) else [*options]
