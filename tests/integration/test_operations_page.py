"""The commands of docs/operations.md, run as they stand there, against a running system."""

from __future__ import annotations

import re
import shlex
import threading
from collections.abc import Iterator

import pytest

from tests.support.models.reference import reference_case
from tests.support.paths import ROOT
from tests.support.system.patience import PATIENT_S
from tests.support.system.running import RunningSystem, StartSystem, quiesce
from twinpool.cli.app import main
from twinpool.config import RouterConfig

PAGE = ROOT / "docs" / "operations.md"
RULES = ROOT / "deploy" / "prometheus" / "rules.yaml"
ASKS_NOBODY = ("estimate",)


def commands() -> list[str]:
    """Every line of every block of shell, in order."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


@pytest.fixture(scope="module")
def system(start_system: StartSystem) -> Iterator[RunningSystem]:
    router = RouterConfig(grace_s=20.0, stuck_after_s=PATIENT_S)
    system = start_system(prefill=2, decode=2, kv_memory_mib=128, router=router)
    yield system
    quiesce(system)


@pytest.mark.timeout(400)
def test_every_command_does_what_it_says_while_requests_run(
    system: RunningSystem, capsys: pytest.CaptureFixture[str]
) -> None:
    case, over, wrong = reference_case("33 tokens"), threading.Event(), list[object]()

    def ask_on() -> None:
        while not over.is_set():
            answer = system.client.complete(
                case.prompt_ids, max_tokens=24, temperature=0.0, ignore_eos=True, timeout=120.0
            )
            if answer.token_ids != case.output_ids:
                wrong.append(answer)

    asker = threading.Thread(target=ask_on)
    asker.start()
    try:
        for command in commands():
            program, name, *arguments = shlex.split(command, comments=True)
            assert program == "twinpool"
            target = [] if name in ASKS_NOBODY else ["--target", str(system.system.operations)]
            code = main([name, *arguments, *target])
            assert code == 0, (command, capsys.readouterr())
    finally:
        over.set()
        asker.join(120.0)
    assert not wrong
    status = system.operations.status()
    assert {str(pool): size for pool, size in status.targets.items()} == {"prefill": 2, "decode": 1}


def test_every_alert_has_its_section_and_every_section_an_alert() -> None:
    named = set(re.findall(r"docs/operations\.md#([a-z-]+)", RULES.read_text()))
    sections = set(re.findall(r"^### (twinpool-[a-z-]+)$", PAGE.read_text(), re.MULTILINE))
    assert named == sections
