"""A request through real workers: who makes its tokens, how it ends, and that nothing is left of it."""

from __future__ import annotations

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from pathlib import Path
from statistics import median

import pytest

from tests.support.faults.plans import Point
from tests.support.system.running import RunningSystem, StartSystem, quiesce
from tests.support.system.watched import WatchedSystem, start_watched
from twinpool.cli.app import main
from twinpool.cli.exits import Exit
from twinpool.client import Options
from twinpool.errors import DeadlineExceeded
from twinpool.types import FinishReason

PROMPT = "The capital of France is"
NUM_IN_STORM = 100
NUM_LATE = 60
EXPIRED = "twinpool_requests_expired_total{"
NUM_TIMED = 12
REST = 0.02
"""Share of a request's time that clients may measure and the server not: a few milliseconds of these."""
LONG_TOKENS = 1500
"""Read in six steps."""
SHORT_TOKENS = 20


@pytest.fixture(scope="module")
def watched(start_system: StartSystem, tmp_path_factory: pytest.TempPathFactory) -> WatchedSystem:
    return start_watched(start_system, tmp_path_factory.mktemp("faults") / "one")


@pytest.fixture(scope="module")
def one_pair(watched: WatchedSystem) -> RunningSystem:
    return watched.system


def test_prompt_is_read_by_one_process_and_tokens_are_made_by_another(system: RunningSystem) -> None:
    answer = system.client.complete(PROMPT, max_tokens=8, temperature=0.0)
    assert answer.text.startswith(" Paris")
    assert (answer.workers.prefill, answer.workers.decode) == ("prefill-0", "decode-0")
    pids = {worker.id: worker.pid for worker in system.operations.status().workers}
    assert pids["prefill-0"] != pids["decode-0"]


@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_max_tokens_gives_exactly_that_many(system: RunningSystem, max_tokens: int) -> None:
    answer = system.client.complete(PROMPT, max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    assert len(answer.token_ids) == max_tokens
    assert answer.finish_reason is FinishReason.LENGTH


def test_one_token_makes_no_hand_off(system: RunningSystem) -> None:
    before = system.metrics()['twinpool_handoff_bytes_total{transport="shm"}']
    answer = system.client.complete(PROMPT, max_tokens=1, temperature=0.0)
    assert answer.workers.decode is None
    assert answer.timing.handoff_wait_s == 0.0
    assert system.metrics()['twinpool_handoff_bytes_total{transport="shm"}'] == before


def test_hand_off_is_counted_in_bytes(system: RunningSystem) -> None:
    name = 'twinpool_handoff_bytes_total{transport="shm"}'
    before = system.metrics()[name]
    system.client.complete([1] * 20, max_tokens=2, temperature=0.0, ignore_eos=True)
    layout_bytes = 2 * 30 * 3 * 64 * 4 * 16  # K and V, layers, KV heads, head size, float32, block size
    assert system.metrics()[name] - before == 2 * layout_bytes


def test_stream_comes_in_several_chunks_that_make_the_whole(system: RunningSystem) -> None:
    chunks = list(system.client.generate(PROMPT, max_tokens=12, temperature=0.0, ignore_eos=True))
    whole = system.client.complete(PROMPT, max_tokens=12, temperature=0.0, ignore_eos=True)
    assert len(chunks) > 2
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)


def test_a_short_prompt_does_not_wait_until_a_very_long_one_is_read(
    system: RunningSystem, watched: WatchedSystem
) -> None:
    arm = watched.faults.arm
    second, last = (arm(Point.STEP_BEGUN, num_tokens=LONG_TOKENS, nth=nth) for nth in (2, 6))
    received = arm(Point.RECEIVED, num_tokens=SHORT_TOKENS)
    with ThreadPoolExecutor(2) as threads:
        long_one = threads.submit(system.client.complete, [1] * LONG_TOKENS, max_tokens=1, timeout=60.0)
        second.wait()
        # The short one comes while the long one is read.
        short = threads.submit(system.client.complete, [1] * SHORT_TOKENS, max_tokens=1, timeout=60.0)
        received.wait()
        for armed in (received, second):
            armed.release()
        last.wait()
        assert short.result(60.0).token_ids
        assert not long_one.done()
        last.release()
        assert long_one.result(60.0).token_ids


def test_same_seed_gives_the_same_tokens(system: RunningSystem) -> None:
    answers = [system.client.complete(PROMPT, max_tokens=12, temperature=1.0, seed=7) for _ in range(2)]
    assert answers[0].token_ids == answers[1].token_ids
    assert answers[0].seed == 7


def test_seed_that_the_server_drew_gives_the_answer_again(system: RunningSystem) -> None:
    drawn = system.client.complete(PROMPT, max_tokens=12, temperature=1.0)
    again = system.client.complete(PROMPT, max_tokens=12, temperature=1.0, seed=drawn.seed)
    assert drawn.token_ids == again.token_ids


def test_phases_sum_to_the_time_the_client_measured(system: RunningSystem) -> None:
    wholes_s, rests_s, first_rests_s = [], [], []
    for _ in range(NUM_TIMED):
        started = time.perf_counter()
        chunks = system.client.generate(PROMPT, max_tokens=16, temperature=0.0, ignore_eos=True)
        last = next(chunks)
        to_first_s = time.perf_counter() - started
        for chunk in chunks:
            last = chunk
        wholes_s.append(time.perf_counter() - started)
        assert last.summary is not None
        timing = last.summary.timing
        rests_s.append(wholes_s[-1] - sum(astuple(timing)))
        first_rests_s.append(to_first_s - timing.queue_s - timing.prefill_s)
    # The rest is two trips over the socket.
    assert min(*rests_s, *first_rests_s) >= 0
    assert max(median(rests_s), median(first_rests_s)) < REST * median(wholes_s)


def test_a_benchmark_sees_what_the_server_counts(system: RunningSystem, tmp_path: Path) -> None:
    def generated() -> float:
        return system.metrics()["twinpool_generation_tokens_total"]

    before, file, report = generated(), tmp_path / "result.json", tmp_path / "report.html"
    options = (
        "--dataset-name text --input-len 40 --output-len 6 --num-prompts 5 --request-rate 50 --ignore-eos"
    )
    command = ["bench", "serve", "--target", str(system.system.inference), *options.split()]
    assert (
        main([*command, "--save-result", str(file), "--save-detailed", "--report", str(report)]) == Exit.DONE
    )
    result = json.loads(file.read_text())
    assert (result["completed"], result["failed"]) == (5, 0)
    assert (result["input_lens"], result["output_lens"]) == ([40] * 5, [6] * 5)
    assert result["total_output_tokens"] == generated() - before == 30
    assert all(ttft > 0 for ttft in result["ttfts"])
    assert "handoff" in report.read_text()


def test_every_deadline_that_passes_is_counted_under_load_too(system: RunningSystem) -> None:
    def num_expired() -> float:
        return sum(n for name, n in system.metrics().items() if name.startswith(EXPIRED))

    before = num_expired()
    options = Options(max_tokens=400, ignore_eos=True)
    streams = [system.client.generate(PROMPT, timeout=0.5 + n / 100, **options) for n in range(NUM_LATE)]
    for stream in streams:
        with pytest.raises(DeadlineExceeded):
            list(stream)
    quiesce(system)
    assert num_expired() - before == NUM_LATE


def test_leaving_the_iterator_ends_the_work_in_both_pools(system: RunningSystem) -> None:
    stream = system.client.generate(PROMPT, max_tokens=400, ignore_eos=True)
    for _, _chunk in zip(range(3), stream, strict=False):
        pass
    stream.close()


def test_abort_ends_the_stream_well_and_is_idempotent(system: RunningSystem) -> None:
    stream = system.client.generate(PROMPT, max_tokens=2000, ignore_eos=True, request_id="to-abort")
    next(stream)
    outcomes = system.client.abort(["to-abort", "never-seen", "to-abort"])
    assert outcomes == {"to-abort": True, "never-seen": False}
    chunks = list(stream)
    assert chunks[-1].finish_reason is FinishReason.ABORT
    assert system.client.abort("to-abort") == {"to-abort": False}


def test_abort_of_a_finished_request_is_harmless(system: RunningSystem) -> None:
    system.client.complete(PROMPT, max_tokens=2, temperature=0.0, request_id="finished")
    assert system.client.abort("finished") == {"finished": False}


def test_storm_of_aborts_ends_each_request_once(system: RunningSystem) -> None:
    streams = [system.client.generate(PROMPT, max_tokens=2000, ignore_eos=True) for _ in range(NUM_IN_STORM)]
    waiting = {stream.request_id for stream in streams}
    times_ended: Counter[str] = Counter()
    while waiting:
        aborted = system.client.abort(waiting)
        # Once more at once: some may still be on their way to the queue.
        aborted_again = system.client.abort(waiting)
        for outcomes in (aborted, aborted_again):
            times_ended.update(request_id for request_id, was in outcomes.items() if was)
        waiting -= set(times_ended)
    assert {list(stream)[-1].finish_reason for stream in streams} == {FinishReason.ABORT}
    assert set(times_ended.values()) == {1}


def test_chat_answers_from_the_models_own_template(system: RunningSystem) -> None:
    answer = system.client.complete_chat(
        [{"role": "user", "content": "What is the capital of France?"}], max_tokens=24, temperature=0.0
    )
    assert "Paris" in answer.text
    assert "<|im_end|>" not in answer.text


def test_doctor_finds_every_pair_well(system: RunningSystem) -> None:
    checks = list(system.operations.check_pairs())
    assert [(check.pair.prefill, check.pair.decode) for check in checks] == [("prefill-0", "decode-0")]
    assert not checks[0].detail
