"""The reference file: what Hugging Face transformers generates, made by scripts/make_reference.py."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache

from tests.support.paths import DATA

FILE = DATA / "reference_smollm2.json"


@dataclass(frozen=True, slots=True)
class ReferenceCase:
    """One prompt and its greedy tokens in float32, going on past the end of sequence.

    eos_at: index of the first end-of-sequence token in output_ids, if there is one.
    """

    name: str
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    text: str | None
    messages: tuple[dict[str, str], ...] | None
    eos_at: int | None

    def __str__(self) -> str:
        return self.name.replace(" ", "-")


@cache
def reference_cases() -> tuple[ReferenceCase, ...]:
    """All cases of the file."""
    return tuple(
        ReferenceCase(
            name=case["name"],
            prompt_ids=tuple(case["prompt_ids"]),
            output_ids=tuple(case["output_ids"]),
            text=case["text"],
            messages=tuple(case["messages"]) if case["messages"] else None,
            eos_at=case["eos_at"],
        )
        for case in json.loads(FILE.read_text())["cases"]
    )


def reference_case(name: str) -> ReferenceCase:
    """One case by its name."""
    return next(case for case in reference_cases() if case.name == name)
