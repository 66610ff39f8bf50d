"""A request's end is one line of the log at info: whose, how, how much; never what was said."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from router.scheduling.events import Cancelled, Cut
from router.scheduling.happenings import RequestFinished
from router.scheduling.phases import Phase
from router.scheduling.scheduler import SchedulerLimits
from router.scheduling.values import Ending
from router.telemetry import request_log
from tests.support.router.fakes import TIMING
from tests.support.router.shell import Shell, failure_of
from tests.support.router.small_fleet import LIMITS, SmallFleet, failures, request
from twinpool.types import FinishReason, ServedBy, Usage
from twinpool.v1 import inference_pb2 as pb

SAID = "the words of a client"


USAGE = Usage(5, 3)


@pytest.fixture(autouse=True)
def _at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def the_line(caplog: pytest.LogCaptureFixture) -> dict[str, object]:
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    return vars(record)


def listened_to(limits: SchedulerLimits = LIMITS) -> SmallFleet:
    """A fleet whose requests' ends are told."""
    fleet = SmallFleet(limits=limits)
    fleet.listeners.append(request_log.hear)
    return fleet


def test_a_good_end(caplog: pytest.LogCaptureFixture) -> None:
    ending = Ending(FinishReason.STOP, USAGE, TIMING, ServedBy("p0", "d0"), num_resumes=1)
    request_log.hear(RequestFinished("r", USAGE, (ending,)), 3.0)
    line = the_line(caplog)
    told = ("request_id", "finish_reason", "completion_tokens", "prefill", "decode", "num_resumes", "queue_s")
    assert [line[key] for key in told] == ["r", "stop", 3, "p0", "d0", 1, TIMING.queue_s]


def test_a_cut_answer_has_the_tokens_before_the_cut(caplog: pytest.LogCaptureFixture) -> None:
    fleet = listened_to()
    fleet.brings(Phase.DECODING)
    fleet.feed(Cut("r", 0, 1))
    line = the_line(caplog)
    assert (line["finish_reason"], line["prompt_tokens"], line["completion_tokens"]) == ("stop", 5, 1)


def test_a_bad_end(caplog: pytest.LogCaptureFixture) -> None:
    fleet = listened_to()
    fleet.arrives(request(timeout_s=2.5, waited_s=0.5))
    fleet.grants()
    fleet.reads()
    fleet.passes(2.0)
    line = the_line(caplog)
    assert (line["request_id"], line["error"], line["duration_s"]) == ("r", "DEADLINE_EXCEEDED", 2.5)
    assert line["completion_tokens"] == 1


def test_a_client_that_leaves(caplog: pytest.LogCaptureFixture) -> None:
    fleet = listened_to()
    fleet.arrives(request())
    fleet.now += 0.25
    fleet.feed(Cancelled("r"))
    fleet.feed(Cancelled("r"))
    line = the_line(caplog)
    assert (line["request_id"], line["error"], line["duration_s"]) == ("r", "CLIENT_LEFT", 0.25)


def test_a_request_that_gives_up_after_several_attempts_has_its_tokens_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fleet = listened_to(replace(LIMITS, most_attempts=1))
    fleet.brings(Phase.DECODING)
    fleet.goes_down("d0")
    line = the_line(caplog)
    assert (line["error"], line["completion_tokens"]) == ("WORKER_LOST", 2)


@pytest.mark.parametrize("phase", [Phase.QUEUED, Phase.PREFILLING])
def test_nothing_is_told_of_canaries(phase: Phase, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    fleet = listened_to()
    fleet.arrives(request("canary", pair=("p0", "d0"), timeout_s=1.0))
    if phase is Phase.PREFILLING:
        fleet.grants()
    assert failures(fleet.passes(1.0))
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
