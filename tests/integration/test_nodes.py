"""Nodes come and go under a pool: its workers wait for one, are placed, are lost with it, and wait again."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

from tests.support.models.reference import reference_case
from tests.support.system.shared_cluster import (
    Serve,
    ServeOnce,
    SharedCluster,
    free_port,
    require_exact_and_at_rest,
    status_of,
    wait_for,
)
from twinpool import Client
from twinpool.client.status import WorkerStatus
from twinpool.types import Pool, WorkerState

NUM_TOKENS = 24
NUM_ASKED = 100
TELLS_SOON = "tests.support.system.serve_that_tells_soon"
WANTS = "cpus=1,memory-mib=64,resource.decode=1,label.zone=a,env.POOL_OF_TEST=decode"


def decode_worker(served: Serve) -> WorkerStatus:
    (worker,) = status_of(served).pool(Pool.DECODE)
    return worker


def test_a_pool_waits_for_its_node_and_a_stream_outlives_the_nodes_loss(
    cluster: SharedCluster, serve: ServeOnce
) -> None:
    port = free_port()
    patient = ("--stuck-after-s", "60")
    served = serve.start("--decode-resources", WANTS, "--ops-port", str(port), *patient, module=TELLS_SOON)
    served.operations = f"127.0.0.1:{port}"
    wait_for(lambda: is_waiting(served))
    reason = decode_worker(served).reason
    assert "1 decode" in reason
    assert "a node with zone=a" in reason
    assert "0 of 0 decode" in reason
    assert "0 of 1 nodes are labelled so" in reason
    assert "64 MiB" in reason.partition(";")[0]
    assert " MiB" in reason.partition(";")[2]

    node = cluster.add_node({"decode": 1}, "zone=a")
    served.wait_until_ready()
    require_exact_and_at_rest(served)
    assert cluster.processes("POOL_OF_TEST=decode").keys() == {decode_worker(served).pid}

    case, decode = reference_case("plain"), decode_worker(served)
    reached = threading.Event()

    def ask() -> tuple[tuple[int, ...], int]:
        tokens: list[int] = []
        resumes = 0
        with Client(served.inference) as client:
            for chunk in client.generate(
                case.prompt_ids, max_tokens=NUM_ASKED, temperature=0.0, ignore_eos=True
            ):
                tokens += chunk.token_ids
                if len(tokens) > 1:  # the first is not the decode worker's
                    reached.set()
                resumes = chunk.summary.num_resumes if chunk.summary else 0
        return tuple(tokens), resumes

    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(ask)
        assert reached.wait(60.0)
        os.kill(decode.pid, signal.SIGSTOP)  # so that the answer cannot be finished before
        cluster.kill_node(node)
        wait_for(lambda: is_waiting(served))
        cluster.add_node({"decode": 1}, "zone=a")
        tokens, resumes = answer.result(120.0)
    assert (len(tokens), resumes) == (NUM_ASKED, 1)
    assert tokens[:NUM_TOKENS] == case.output_ids
    require_exact_and_at_rest(served)


def is_waiting(served: Serve) -> bool:
    """Until its ports are open there is no status."""
    if "starting" not in served.log.read_text():
        return False
    return decode_worker(served).state is WorkerState.WAITING_FOR_NODE
