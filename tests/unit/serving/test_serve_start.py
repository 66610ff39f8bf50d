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
from twinpool.serving import ray_answers
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


def test_address_where_nobody_speaks_as_ray_does_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, taken_port: int
) -> None:
    monkeypatch.setattr(ray_answers, "ANSWER_TIMEOUT_S", 0.2)
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{taken_port}")
    for address in ("auto", f"127.0.0.1:{taken_port}", f"ray://127.0.0.1:{taken_port}"):
        where = rf"answers at (ray://)?127\.0\.0\.1:{taken_port}: who listens there has said nothing"
        with pytest.raises(StartFailed, match=where), ray_cluster(address, 2):
            pass


def test_only_results_reach_stdout() -> None:
    program = (
        "import os, subprocess, sys\n"
        "from twinpool.cli.standard_streams import only_results_on_stdout\n"
        "with only_results_on_stdout() as say:\n"
        "    print('from a library', flush=True)\n"
        "    subprocess.run([sys.executable, '-c', 'print(1)'])\n"
        "    say('ready')\n"
        "print('after')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "ready\nafter\n"
    assert "from a library" in done.stderr


TALKS = (
    "import logging, sys\n"
    "from twinpool.cli.standard_streams import only_results_on_stdout, unblocked_stderr\n"
    "from twinpool.logs import set_up_logs\n"
    "with unblocked_stderr('json'):\n"
    "    set_up_logs('info', 'json')\n"
    "    with only_results_on_stdout() as say:\n"
    "        say('ready')\n"
    "        for _ in range(3000):\n"
    "            logging.info('x' * 1000)\n"
    "            print('from a library')\n"
    "    say('lost')\n"
)
"""More than a pipe holds and an outlet keeps."""


@pytest.mark.parametrize("is_read", [False, None], ids=["not read", "reader gone"])
def test_a_log_that_nobody_reads_holds_up_and_ends_nobody(is_read: bool | None) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TALKS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as talking:
        assert talking.stdout is not None
        assert talking.stderr is not None
        if is_read is None:
            talking.stderr.close()
        assert talking.wait(60.0) == 0
        assert talking.stdout.read() == "ready\n"


def test_a_ready_line_that_nobody_reads_ends_nobody() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TALKS], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as talking:
        assert talking.stdout is not None
        talking.stdout.close()
        assert talking.wait(60.0) == 0


def test_streams_that_were_never_opened_are_no_error_and_taken_by_nothing_else() -> None:
    shell = f"exec {sys.executable} -P -m twinpool.cli.app generate --bad 0<&- 1>&- 2>&-"
    assert subprocess.run(["/bin/sh", "-c", shell], check=False, timeout=60.0).returncode == 2


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
