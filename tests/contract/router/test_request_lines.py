"""A request's end is one line of the log at info: whose, how, how much; never what was said."""

from __future__ import annotations

import logging

import pytest

from router.scheduling.commands import Emit
from router.scheduling.values import Ending, Output
from router.telemetry.metrics import Metrics
from router.telemetry.observations import Observations
from tests.contract.router.fakes import TIMING
from tests.contract.router.shell import Shell, failure_of
from tests.unit.small_fleet import SmallFleet, request
from twinpool.errors import DeadlineExceeded
from twinpool.types import FinishReason, ServedBy, Token
from twinpool.v1 import inference_pb2 as pb

SAID = "the words of a client"


@pytest.fixture
def observations(caplog: pytest.LogCaptureFixture) -> Observations:
    caplog.set_level(logging.INFO)
    fleet = SmallFleet()
    return Observations(Metrics(), fleet.scheduler.fleet, fleet.scheduler.user_request)


def the_line(caplog: pytest.LogCaptureFixture) -> dict[str, object]:
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    return vars(record)


def test_a_good_end(observations: Observations, caplog: pytest.LogCaptureFixture) -> None:
    observations.arrived(request("r"), 1.0)
    observations.emitted(Emit("r", Output(0, (Token(7),))), 2.0)
    ending = Ending(FinishReason.STOP, 3, TIMING, ServedBy("p0", "d0"), num_resumes=1)
    observations.emitted(Emit("r", Output(0, (Token(8), Token(9)), ending), last=True), 3.0)
    line = the_line(caplog)
    told = ("request_id", "finish_reason", "completion_tokens", "prefill", "decode", "num_resumes", "queue_s")
    assert [line[key] for key in told] == ["r", "stop", 3, "p0", "d0", 1, TIMING.queue_s]


def test_a_cut_answer_has_the_tokens_before_the_cut(
    observations: Observations, caplog: pytest.LogCaptureFixture
) -> None:
    observations.arrived(request("r"), 1.0)
    observations.emitted(Emit("r", Output(0, (Token(7), Token(8), Token(9)))), 2.0)
    ending = Ending(FinishReason.STOP, 2, TIMING, ServedBy("p0", "d0"))
    observations.emitted(Emit("r", Output(0, (), ending), last=True), 3.0)
    line = the_line(caplog)
    assert (line["finish_reason"], line["completion_tokens"]) == ("stop", 2)


def test_a_bad_end(observations: Observations, caplog: pytest.LogCaptureFixture) -> None:
    observations.arrived(request("r"), 1.0)
    observations.failed("r", DeadlineExceeded("too late", phase="queue"), 3.5)
    line = the_line(caplog)
    assert (line["request_id"], line["error"], line["duration_s"]) == ("r", "DEADLINE_EXCEEDED", 2.5)


def test_a_client_that_leaves(observations: Observations, caplog: pytest.LogCaptureFixture) -> None:
    observations.arrived(request("r"), 1.0)
    observations.left("r", 1.25)
    observations.left("r", 1.5)
    line = the_line(caplog)
    assert (line["request_id"], line["error"], line["duration_s"]) == ("r", "CLIENT_LEFT", 0.25)


def test_nothing_is_told_of_canaries(observations: Observations, caplog: pytest.LogCaptureFixture) -> None:
    observations.arrived(request("canary", pair=("p0", "d0")), 1.0)
    observations.failed("canary", DeadlineExceeded("late", phase="queue"), 2.0)
    assert not caplog.records


async def test_a_refusal_is_told_without_the_words_that_were_refused(
    shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    message = pb.ChatMessage(role=SAID, content=SAID)
    await failure_of(shell.inference.Chat(pb.ChatRequest(request_id="r\n2", messages=[message])))
    (record,) = [record for record in caplog.records if record.name == "router.telemetry.request_log"]
    assert (vars(record)["request_id"], vars(record)["error"]) == ("r\n2", "INVALID_REQUEST")
    assert str(vars(record)["peer"]).startswith("ipv4:127.0.0.1:")
    assert "\n" not in record.getMessage()
    assert SAID not in caplog.text
