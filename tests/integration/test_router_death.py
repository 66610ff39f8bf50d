"""On a cluster that outlives the router its workers live on, hold nothing, and serve the next router."""

from __future__ import annotations

import signal

import pytest

from tests.support.system.shared_cluster import (
    ServeOnce,
    SharedCluster,
    lives_of,
    require_exact_and_at_rest,
    wait_for,
)
from twinpool import Client
from twinpool.errors import TwinpoolError

ORPHAN_S = "4"
LONG_TOKENS = 2800
"""As many as the caches hold: it takes longer than another router's start."""


def test_workers_of_a_killed_router_keep_their_weights_and_free_its_blocks(
    cluster: SharedCluster, serve: ServeOnce
) -> None:
    first = serve("--prefill", "2")
    lives = lives_of(first)
    with Client(first.inference) as client:
        stream = client.generate("Once upon a time", max_tokens=2000, temperature=0.0, ignore_eos=True)
        next(stream)
        first.end(signal.SIGKILL)
        with pytest.raises(TwinpoolError) as ending:
            list(stream)
    assert ending.value.reason == "SERVER_UNREACHABLE"
    second = serve("--prefill", "2")
    assert lives_of(second) == lives
    assert second.log.read_text().count("was up and is taken over") == 3
    require_exact_and_at_rest(second)


def test_workers_stay_for_the_next_router_after_sigterm_and_not_after_sigint(
    cluster: SharedCluster, serve: ServeOnce
) -> None:
    first = serve()
    lives = lives_of(first)
    assert first.end(signal.SIGTERM) == 0
    second = serve()
    assert lives_of(second) == lives
    require_exact_and_at_rest(second)
    assert second.end(signal.SIGINT) == 0
    wait_for(lambda: not cluster.workers())


def test_workers_that_differ_from_what_the_next_router_wants_are_ended(
    cluster: SharedCluster, serve: ServeOnce
) -> None:
    first = serve("--prefill", "2")
    lives = lives_of(first)
    first.end(signal.SIGKILL)
    second = serve("--prefill-budget-tokens", "128")
    assert {life for life, _ in lives_of(second).values()}.isdisjoint(life for life, _ in lives.values())
    assert len(cluster.workers()) == 2
    require_exact_and_at_rest(second)


def test_newer_router_ends_the_older_and_takes_its_workers(cluster: SharedCluster, serve: ServeOnce) -> None:
    first = serve()
    lives = lives_of(first)
    with Client(first.inference) as client:
        stream = client.generate("Once upon a time", max_tokens=LONG_TOKENS, temperature=0.0, ignore_eos=True)
        next(stream)
        second = serve()
        with pytest.raises(TwinpoolError) as ending:
            list(stream)
    assert ending.value.reason == "POOL_UNAVAILABLE"
    assert first.process.wait(60.0) == 0
    assert "another router has taken the worker over" in first.log.read_text()
    assert lives_of(second) == lives
    require_exact_and_at_rest(second)


def test_of_two_routers_that_start_at_one_moment_one_keeps_the_workers(
    cluster: SharedCluster, serve: ServeOnce
) -> None:
    both = [serve.start("--prefill", "2"), serve.start("--prefill", "2")]
    wait_for(lambda: any(each.process.poll() is not None for each in both))
    older, newer = sorted(both, key=lambda each: each.process.poll() is None)
    assert "another router has taken the worker over" in older.log.read_text()
    newer.wait_until_ready()
    require_exact_and_at_rest(newer)
    wait_for(lambda: len(cluster.workers()) == 3)
    assert newer.process.poll() is None


def test_deployments_of_other_names_do_not_touch_one_another(
    cluster: SharedCluster, serve: ServeOnce
) -> None:
    first = serve()
    lives = lives_of(first)
    second = serve("--deployment", "other")
    require_exact_and_at_rest(first)
    require_exact_and_at_rest(second)
    assert lives_of(first) == lives


def test_workers_that_no_router_takes_over_leave(cluster: SharedCluster, serve: ServeOnce) -> None:
    served = serve("--orphan-timeout-s", ORPHAN_S)
    served.end(signal.SIGKILL)
    assert len(cluster.workers()) == 2
    wait_for(lambda: not cluster.workers())
