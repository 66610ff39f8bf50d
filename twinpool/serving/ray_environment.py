"""Settings of Ray's own that only the environment can give, and only before Ray is first imported."""

from __future__ import annotations

import os
import secrets
import sys

KILL_TIMEOUT_MS = "500"
"""Ray's default makes the end of a stopped process take 5 s."""
LOOPBACK = "localhost,127.0.0.1,::1"


def set_ray_environment() -> None:
    """Prepare the environment for a cluster of this process's own; what the user has set stays.

    Raises RuntimeError if Ray is loaded already: it has read its settings, and the processes that it
    starts would read others.
    """
    if "ray" in sys.modules:
        raise RuntimeError("Ray is loaded before its environment is set")
    if "RAY_AUTH_MODE" not in os.environ:
        # A token of this cluster's own: nobody else on the machine gets in, and none is left in the home.
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    # Named for the systems where Ray keeps to one machine anyway: off, it takes 127.0.0.1 as the node's
    # address here too, and listens on loopback alone.
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault("RAY_kill_worker_timeout_milliseconds", KILL_TIMEOUT_MS)
    # Ray's default of 15 starves workers as soon as anything else on the machine computes: with three busy
    # processes beside them on two cores, four workers were not up after 88 s.
    os.environ.setdefault("RAY_worker_niceness", "0")
    # A call after the cluster's end must fail, not start another cluster behind everybody's back.
    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Whatever Ray's processes may say to one another by HTTP or gRPC stays on this machine, too.
    spared = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = f"{spared},{LOOPBACK}" if spared else LOOPBACK
