"""`twinpool serve` asked to stop, at any moment and in any way: it ends as documented and leaves nothing."""

from __future__ import annotations

import os
import re
import signal
import socket
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.support.system.served import Served
from tests.support.system.watched import wait_until
from twinpool import Client
from twinpool.checkpoint.prepared import PreparedModel

INTERRUPTED = 130
STOP_S = 60.0
NUM_REQUESTS = 100
"""Their lines, at level debug, are more than a pipe holds."""
INFERENCE = re.compile(r"ready inference=(\S+) ")


def folders_of(served: Served) -> set[Path]:
    """Ray's temporary folders, by the commands of its processes."""
    return {Path(name) for command in served.descendants() for name in re.findall(r"/tmp/tp-\w+", command)}


def test_while_the_model_is_fetched(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as index:  # takes connections, and answers none
        index.settimeout(STOP_S)
        url = f"http://127.0.0.1:{index.getsockname()[1]}/simple"
        served = Served(tmp_path, "--cache-dir", str(tmp_path / "cache"), PIP_INDEX_URL=url, PIP_PROXY="")
        connection, _ = index.accept()
        served.process.send_signal(signal.SIGTERM)
        out, _ = served.process.communicate(timeout=STOP_S)
        connection.close()
    assert (served.process.returncode, out) == (INTERRUPTED, "")
    assert "stopped before it was ready" in served.log_file.read_text()
    assert served.descendants() == []
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix != ".lock"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_while_ray_comes_up(tmp_path: Path, model: PreparedModel, number: signal.Signals) -> None:
    served = Served(tmp_path)
    wait_until(lambda: bool(folders_of(served)))
    (folder,) = folders_of(served)
    served.process.send_signal(number)
    out, _ = served.process.communicate(timeout=STOP_S)
    assert (served.process.returncode, out) == (INTERRUPTED, "")
    assert "stopped before it was ready" in served.log_file.read_text()
    assert served.descendants() == []
    assert not folder.exists()


def test_a_terminal_that_goes_and_a_log_that_nobody_reads_cut_no_stream(
    tmp_path: Path, model: PreparedModel
) -> None:
    served = Served(tmp_path, "--log-level", "debug", "--log-format", "json", "--grace-s", "60", stderr=PIPE)
    ready = INFERENCE.match(served.wait_for_first_line())
    assert ready
    with Client(ready[1]) as client:
        for _ in range(NUM_REQUESTS):
            assert client.complete("Hello", max_tokens=1).token_ids
        stream = client.generate("Once upon a time", max_tokens=200, temperature=0.0, ignore_eos=True)
        first = next(stream)
        folders = folders_of(served)
        os.killpg(served.process.pid, signal.SIGHUP)
        assert sum(len(chunk.token_ids) for chunk in (first, *stream)) == 200
    (folder,) = folders
    assert served.process.wait(STOP_S) == 0  # while still nobody reads
    served.process.communicate()
    assert served.descendants() == []
    assert not folder.exists()
