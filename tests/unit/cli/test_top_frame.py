"""The picture of `twinpool top`: it fits, it hides no trouble, and it says what it leaves out."""

from __future__ import annotations

import pytest

from twinpool.cli.charts import ASCII, BLOCKS, Glyphs
from twinpool.cli.top_frame import Screen, View, duration, frame, latency, number
from twinpool.cli.top_history import History
from twinpool.client.status import PairStatus, QueueStatus, Status, WorkerStatus
from twinpool.totals import Totals
from twinpool.types import Pool, WorkerState

WANT = "a worker needs 1 CPU and 1 GPU; free in the cluster: 0 of 16 CPU, 0 of 8 GPU " * 2


def worker(name: str, state: WorkerState = WorkerState.READY, reason: str = "") -> WorkerStatus:
    pool = Pool(name.partition("-")[0])
    up = state in (WorkerState.READY, WorkerState.DRAINING)
    return WorkerStatus(name, pool, state, 1, "node", name, 12 * up, 3 * up, 50 * up, 9, 100 * up, 0, reason)


def status(*workers: WorkerStatus) -> Status:
    return Status(
        model="tiny",
        serving=True,
        queue=QueueStatus(3, 1234),
        requests=15,
        workers=workers,
        pairs=(PairStatus("prefill-0", "decode-0", "shm", ready=True),),
        handoffs_in_flight=1,
        targets={Pool.PREFILL: 1, Pool.DECODE: 2},
        most_running={Pool.PREFILL: 8, Pool.DECODE: 64},
        totals=Totals(uptime_s=3700.0, requests_finished=1500, requests_failed=2, resumes=4),
    )


def drawn(state: Status | None, width: int = 80, height: int | None = 24, trouble: str = "") -> list[str]:
    view = View("host:1", state, History(1.0), trouble)
    return [line.plain for line in frame(view, Screen(width, height, BLOCKS))]


MANY = status(
    *(worker(f"{pool}-{index}") for pool in Pool for index in range(20)),
    worker("decode-20", WorkerState.WAITING_FOR_NODE, WANT),
    worker("decode-21", WorkerState.LOST, "session lost: Socket closed"),
)


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 250])
@pytest.mark.parametrize("height", [1, 5, 12, 24, 100])
@pytest.mark.parametrize("glyphs", [BLOCKS, ASCII])
def test_it_fits_every_terminal(width: int, height: int, glyphs: Glyphs) -> None:
    for state in (None, status(), MANY):
        lines = frame(View("host:1", state, History(1.0), "trying again"), Screen(width, height, glyphs))
        assert len(lines) <= height
        assert max(line.cell_len for line in lines) <= width
        if glyphs is ASCII:
            assert all(line.plain.isascii() for line in lines)


def test_a_usual_terminal_shows_everything_of_a_small_system() -> None:
    lines = drawn(status(worker("prefill-0"), worker("decode-0"), worker("decode-1")))
    text = "\n".join(lines)
    for part in (
        *("tiny  serving", "up 1 h 1 min", "host:1", "15 requests, 3 queued (1.2k tokens)", "1/1 ready"),
        *("done 1.5k", "failed 2", "resumes 4", "restarts 0", "TTFT", "ITL", "tokens out", "queue"),
        *("prefill 1/1 ready", "decode 2/2 ready", "12/64", "50%", "50/100"),
    ):
        assert part in text
    assert not any("…" in line for line in lines)


def test_a_worker_in_trouble_is_shown_before_those_that_are_well() -> None:
    lines = drawn(MANY)
    shown = [line.split()[0] for line in lines if line.startswith(("prefill-", "decode-"))]
    assert {"decode-20", "decode-21"} <= set(shown)
    assert any("no node" in line for line in lines)
    assert any("session lost" in line for line in lines)
    num_hidden = 42 - len(shown)
    told = [int(line.split()[1]) for line in lines if " more: " in line]
    assert sum(told) == num_hidden


def test_a_whole_reason_is_told_where_there_is_room() -> None:
    text = " ".join(line.strip() for line in drawn(MANY, width=120, height=None))
    assert WANT.strip() in text
    assert " more: " not in text


def test_a_server_that_is_gone_is_said_so_beside_what_was_seen_last() -> None:
    lines = drawn(status(worker("prefill-0")), trouble="no news for 7 s")
    assert "as it was last seen" in lines[0]
    assert lines[1] == "no news for 7 s"
    assert drawn(None, trouble="asking host:1")[1] == "asking host:1"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.42, "0.4"), (12.4, "12"), (340, "340"), (999.6, "1.0k"), (1234, "1.2k"), (15_000, "15k")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0042, "4.2 ms"), (0.12, "120 ms"), (1.25, "1.25 s"), (12.5, "12.5 s")]
)
def test_latencies_are_short(seconds: float, text: str) -> None:
    assert latency(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(42, "42 s"), (300, "5 min"), (11_520, "3 h 12 min"), (356_400, "4 d 3 h")],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text
