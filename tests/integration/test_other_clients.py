"""Clients that share no code with ours: what they are told is the contract's, not our library's."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.support.models.reference import reference_case
from tests.support.paths import CLIENTS, ROOT
from tests.support.system.running import RunningSystem

pytestmark = pytest.mark.clients
CASE = reference_case("65 tokens")
NUM_TOKENS = 12


def ask(system: RunningSystem, *questions: dict[str, Any]) -> list[dict[str, Any]]:
    """What a client in pure Python gets for its questions, asked one after another over one connection."""
    caller = ROOT / "tests" / "support" / "clients" / "pure_python_grpc.py"
    address = system.system.inference
    ran = subprocess.run(
        [CLIENTS / "bin" / "python", caller, address.host, str(address.port)],
        input="".join(json.dumps(question) + "\n" for question in questions),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return [json.loads(line) for line in ran.stdout.splitlines()]


def question(
    prompt_ids: tuple[int, ...], max_tokens: int = NUM_TOKENS, leaves_after: int | None = None
) -> dict[str, Any]:
    return {"prompt_ids": prompt_ids, "max_tokens": max_tokens, "leaves_after": leaves_after}


def test_another_client_reads_the_right_tokens_and_the_status(system: RunningSystem) -> None:
    (answer,) = ask(system, question(CASE.prompt_ids))
    assert answer == {"token_ids": list(CASE.output_ids[:NUM_TOKENS]), "status": "OK", "words": ""}


def test_another_client_is_told_what_is_wrong_and_is_served_after_it(system: RunningSystem) -> None:
    refused, answered = ask(system, question((), NUM_TOKENS), question(CASE.prompt_ids))
    assert (refused["status"], refused["token_ids"]) == ("INVALID_ARGUMENT", [])
    assert "token_ids" in refused["words"]
    assert answered["token_ids"] == list(CASE.output_ids[:NUM_TOKENS])


def test_what_another_client_leaves_is_let_go(system: RunningSystem) -> None:
    """The fixture waits until the system holds nothing any more."""
    left, answered = ask(system, question(CASE.prompt_ids, 2000, leaves_after=2), question(CASE.prompt_ids))
    assert left["status"] == "LEFT"
    assert left["token_ids"] == list(CASE.output_ids[: len(left["token_ids"])])
    assert answered["status"] == "OK"
