"""What the clients of a storm ask, each with the tokens that are the right answer."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypedDict

from tests.support.models.reference import ReferenceCase, reference_case, reference_cases
from tests.support.system.running import RunningSystem
from twinpool.client.streams import Stream
from twinpool.client.values import Chunk

CANCEL_SHARE = 0.2
DEADLINE_SHARE = 0.1
ONE_TOKEN_SHARE = 0.05
LONG_SHARE = 0.03
"""Of long prompts, and again of long answers."""
MOST_READ_BEFORE_LEAVING = 6
FAR_TOKENS = 400
"""Asked for by clients that leave early, so that no answer is over before they do."""
LONG_ANSWER_TOKENS = 150
TIMEOUT_S = 240.0


class Kind(StrEnum):
    """What a request is like."""

    IDS = "token ids"
    TEXT = "text"
    CHAT = "chat"
    SAMPLED = "sampled"
    LONG_PROMPT = "long prompt"
    LONG_ANSWER = "long answer"


class Leaving(StrEnum):
    """How a client ends its request early."""

    HANGING_UP = "hung up"
    ABORTING = "aborted"


class Options(TypedDict):
    """A question's, as the client takes them."""

    max_tokens: int
    temperature: float
    seed: int | None
    ignore_eos: bool
    timeout: float


@dataclass(frozen=True, slots=True)
class Question:
    """prompt: text, token ids or messages. seed: None for greedy. answer: the right tokens, those known."""

    kind: Kind
    prompt: str | tuple[int, ...] | tuple[Mapping[str, str], ...]
    seed: int | None = None
    answer: tuple[int, ...] = ()

    def ask(self, system: RunningSystem, num_tokens: int, timeout_s: float = TIMEOUT_S) -> Stream[Chunk]:
        """Send it off, to be answered beyond any end of sequence."""
        temperature = 0.0 if self.seed is None else 1.0
        options = Options(
            max_tokens=num_tokens, temperature=temperature, seed=self.seed, ignore_eos=True, timeout=timeout_s
        )
        if isinstance(self.prompt, str):
            return system.client.generate(self.prompt, **options)
        ids = [part for part in self.prompt if isinstance(part, int)]
        messages = [part for part in self.prompt if not isinstance(part, int)]
        return system.client.chat(messages, **options) if messages else system.client.generate(ids, **options)


@dataclass(frozen=True, slots=True)
class Errand:
    """One client's request. deadline_s: None for none. reads: chunks before a client that leaves does so."""

    question: Question
    num_tokens: int
    deadline_s: float | None = None
    leaving: Leaving | None = None
    reads: int = 0

    def __str__(self) -> str:
        seed = "" if self.question.seed is None else f", seed {self.question.seed}"
        return f"{self.question.kind}{seed}, {self.num_tokens} tokens"


def known_questions() -> list[Question]:
    """Those that the reference answers."""
    cases = [case for case in reference_cases() if len(case.prompt_ids) <= 300]
    return [question for case in cases for question in _ways_to_ask(case)]


def learned_questions(system: RunningSystem) -> list[Question]:
    """Those that the system itself answers first, undisturbed: sampled ones and long ones."""
    plain, chat = reference_case("plain"), reference_case("chat")
    long_prompts = [reference_case(name).prompt_ids for name in ("600 tokens", "513 tokens")]
    both = (long_prompts[0] + long_prompts[1][:400], long_prompts[1] + long_prompts[0][:500])
    questions = [
        (Question(Kind.SAMPLED, plain.text or "", seed=1), 24),
        (Question(Kind.SAMPLED, reference_case("100 tokens").prompt_ids, seed=2), 24),
        (Question(Kind.SAMPLED, chat.messages or (), seed=3), 24),
        (Question(Kind.LONG_PROMPT, both[0]), 8),
        (Question(Kind.LONG_PROMPT, both[1], seed=4), 8),
        (Question(Kind.LONG_ANSWER, plain.prompt_ids), LONG_ANSWER_TOKENS),
        (Question(Kind.LONG_ANSWER, "Once upon a time", seed=5), LONG_ANSWER_TOKENS),
    ]

    def learned(question: Question, num_tokens: int) -> Question:
        chunks = question.ask(system, num_tokens)
        return replace(question, answer=tuple(token for chunk in chunks for token in chunk.token_ids))

    with ThreadPoolExecutor(len(questions)) as threads:
        return list(threads.map(learned, *zip(*questions, strict=True)))


def errands(questions: Sequence[Question], number: int, seed: int) -> list[Errand]:
    """So many requests of mixed lengths and kinds, of each kind a certain share, in any order."""
    chance = random.Random(seed)
    long = {kind: [each for each in questions if each.kind is kind] for kind in _LONG}
    common = [each for each in questions if each.kind not in _LONG]
    # Kinds come equally often, however many questions there are of each.
    by_kind = [[each for each in common if each.kind is kind] for kind in Kind if kind not in _LONG]

    def some(share: float) -> range:
        return range(max(2, round(share * number)))

    def question() -> Question:
        return chance.choice(chance.choice(by_kind))

    def asked_for(question: Question) -> int:
        return chance.randint(2, len(question.answer))

    todo = [
        Errand(question(), FAR_TOKENS, leaving=leaving, reads=chance.randint(1, MOST_READ_BEFORE_LEAVING))
        for _, leaving in zip(some(CANCEL_SHARE), list(Leaving) * number, strict=False)
    ]
    todo += [Errand(each := question(), 1) for _ in some(ONE_TOKEN_SHARE)]
    todo += [
        Errand(each := question(), asked_for(each), deadline_s=chance.uniform(0.2, 5.0))
        for _ in some(DEADLINE_SHARE)
    ]
    for kind in _LONG:
        todo += [Errand(each := chance.choice(long[kind]), len(each.answer)) for _ in some(LONG_SHARE)]
    while len(todo) < number:
        todo.append(Errand(each := question(), asked_for(each)))
    chance.shuffle(todo)
    return todo


_LONG = (Kind.LONG_PROMPT, Kind.LONG_ANSWER)


def _ways_to_ask(case: ReferenceCase) -> list[Question]:
    ways = [Question(Kind.IDS, case.prompt_ids, answer=case.output_ids)]
    if case.text is not None:
        ways.append(Question(Kind.TEXT, case.text, answer=case.output_ids))
    if case.messages is not None:
        ways.append(Question(Kind.CHAT, case.messages, answer=case.output_ids))
    return ways
