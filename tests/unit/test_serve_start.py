"""What `serve` finds out before it starts anything slow, and how it keeps stdout for results."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from twinpool.cli.listening import require_free_ports
from twinpool.config import ServeConfig
from twinpool.errors import StartFailed
from twinpool.serving.cluster import ray_cluster


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_free_ports_are_fine() -> None:
    require_free_ports(ServeConfig(port=0, ops_port=0, metrics_port=0))


@pytest.mark.parametrize(
    ("knob", "flag"), [("port", "--port"), ("ops_port", "--ops-port"), ("metrics_port", "--metrics-port")]
)
def test_taken_port_is_refused_with_the_systems_reason_and_a_way_out(
    taken_port: int, knob: str, flag: str
) -> None:
    ports = {"port": 0, "ops_port": 0, "metrics_port": 0, knob: taken_port}
    with pytest.raises(StartFailed, match=rf"{taken_port}: Address already in use; {flag} 0 takes"):
        require_free_ports(ServeConfig(**ports))  # type: ignore[arg-type]


def test_address_that_is_none_is_refused_with_the_systems_reason() -> None:
    with pytest.raises(StartFailed, match=r"cannot listen on 300\.1\.1\.1:0: "):
        require_free_ports(ServeConfig(host="300.1.1.1", port=0, ops_port=0, metrics_port=0))


def test_cluster_that_does_not_answer_is_refused_at_once(taken_port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(StartFailed, match="no Ray cluster answers"), ray_cluster(f"127.0.0.1:{port}", 2):
        pass


def test_only_results_reach_stdout() -> None:
    program = (
        "import os, subprocess, sys\n"
        "from twinpool.cli.stdout import only_results_on_stdout\n"
        "with only_results_on_stdout() as say:\n"
        "    print('from a library', flush=True)\n"
        "    subprocess.run([sys.executable, '-c', 'print(1)'])\n"
        "    say('ready')\n"
        "print('after')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "ready\nafter\n"
    assert "from a library" in done.stderr


@pytest.mark.parametrize(
    ("given", "found"), [({}, ""), ({"no_proxy": "a.test"}, "a.test,"), ({"NO_PROXY": "b.test"}, "b.test,")]
)
def test_what_rays_processes_say_to_one_another_goes_to_no_proxy(given: dict[str, str], found: str) -> None:
    program = (
        "import os\n"
        "from twinpool.serving.ray_environment import set_ray_environment\n"
        "set_ray_environment()\n"
        "print(os.environ['no_proxy'], os.environ['NO_PROXY'])\n"
    )
    kept = {name: value for name, value in os.environ.items() if name.lower() != "no_proxy"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=kept | given, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [f"{found}localhost,127.0.0.1,::1"] * 2
