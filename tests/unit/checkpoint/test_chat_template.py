"""Chat templates come with foreign models: they render as in transformers, and cannot reach out."""

from __future__ import annotations

import pytest

from tests.support.models import tiny_tokenizers
from twinpool.checkpoint.chat_template import ChatTemplate
from twinpool.checkpoint.tokenizer import Tokenizer
from twinpool.errors import InvalidRequest, UnsupportedModel

_MESSAGES = [{"role": "user", "content": "a & <b>"}, {"role": "assistant", "content": "é"}]


def render(source: str) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(_MESSAGES)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}{{ messages[0].content }}", "<s>a & <b>"),
        ("{% if add_generation_prompt %}yes{% endif %}", "yes"),
        (
            "{% for m in messages %}\n  {% if loop.last %}{% break %}{% endif %}\n{{ m.role }}\n{% endfor %}",
            "user\n",
        ),
        ("{{ messages[1] | tojson }}", '{"role": "assistant", "content": "é"}'),
        ("{% generation %}{{ messages[1].role }}{% endgeneration %}", "assistant"),
        ("{% if tools is none and documents is none %}none{% endif %}", "none"),
        ("{{ strftime_now('%Y') | length }}", "4"),
    ],
)
def test_what_templates_rely_on_is_there(source: str, text: str) -> None:
    assert render(source) == text


def test_a_template_refuses_messages_in_its_own_words() -> None:
    with pytest.raises(InvalidRequest, match="roles must alternate") as caught:
        render("{{ raise_exception('roles must alternate') }}")
    assert caught.value.field == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'system'}) }}",
        "{{ raise_exception.__globals__.keys() }}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    with pytest.raises(InvalidRequest):
        render(source)


@pytest.mark.parametrize(
    "source", ["{{ messages[7].content }}", "{{ 1 / 0 }}", "{{ 'a' + 1 }}", "{{ nothing() }}"]
)
def test_a_template_that_breaks_blames_the_messages(source: str) -> None:
    with pytest.raises(InvalidRequest):
        render(source)


def test_a_template_that_does_not_compile_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="does not compile"):
        ChatTemplate("{% for %}", {})


def test_special_tokens_of_the_template_are_not_added_again() -> None:
    backend = tiny_tokenizers.byte_level()
    end = backend.token_to_id(tiny_tokenizers.END)
    template = ChatTemplate("{{ eos_token }}{{ messages[0].content }}", {"eos_token": tiny_tokenizers.END})
    ids = Tokenizer(backend, template).apply_chat_template([{"role": "user", "content": "he"}])
    assert ids == [end, backend.token_to_id("he")]


def test_a_model_without_template_takes_no_messages() -> None:
    with pytest.raises(InvalidRequest, match="no chat template"):
        Tokenizer(tiny_tokenizers.byte_level()).apply_chat_template(_MESSAGES)
