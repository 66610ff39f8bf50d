"""What callers give the Python client by mistake: refused before it is sent, in words about the value."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.clients.fake_server import FakeServer
from twinpool import AsyncClient, Client, errors


@pytest.fixture
def client(server: FakeServer) -> Iterator[Client]:
    with Client(server.target) as client:
        yield client


@pytest.mark.parametrize(
    ("prompt", "options", "words"),
    [
        (b"hello", {}, "token_ids.ids must be a list of integers, not bytes b'hello'"),
        (bytearray(b"x"), {}, "token_ids.ids must be a list of integers, not bytearray"),
        ({1: 2}, {}, "token_ids.ids must be a list of integers, not dict"),
        ({1, 2}, {}, "token_ids.ids must be a list of integers, not set"),
        (5, {}, "token_ids.ids must be a list of integers of 32 bits, not int 5"),
        (None, {}, "token_ids.ids must be a list of integers of 32 bits, not NoneType None"),
        ([1.5], {}, r"token_ids.ids must be a list of integers of 32 bits, not list \[1.5\]"),
        ([2**31], {}, "token_ids.ids must be a list of integers of 32 bits"),
        ("\ud800", {}, r"text must be Unicode text, not str '\\ud800'"),
        (
            "x",
            {"max_tokens": 2**40},
            "sampling.max_tokens must be an integer of 32 bits, not int 1099511627776",
        ),
        ("x", {"max_tokens": "5"}, "sampling.max_tokens must be an integer of 32 bits, not str '5'"),
        ("x", {"seed": -1}, r"sampling.seed must be an integer from 0 to 2\^64 - 1, not int -1"),
        ("x", {"temperature": "warm"}, "sampling.temperature must be a number, not str 'warm'"),
        ("x", {"temperature": 101}, r"sampling.temperature must be in 0..100, not 101"),
        ("x", {"top_p": 0}, r"sampling.top_p must be in \(0, 1\], not 0"),
        ("x", {"max_tokens": 0}, r"sampling.max_tokens must be at least 1, not 0"),
        (
            "x",
            {"skip_special_tokens": "no"},
            "output.skip_special_tokens must be true or false, not str 'no'",
        ),
        ("x", {"request_id": 7}, "request_id must be Unicode text, not int 7"),
        ("x", {"model": b"tiny"}, "model must be Unicode text, not bytes b'tiny'"),
        ("x", {"timeout": math.nan}, "timeout must be a number of seconds, not float nan"),
        ("x", {"timeout": "5"}, "timeout must be a number of seconds, not str '5'"),
    ],
)
def test_a_prompt_or_option_of_the_wrong_shape(
    prompt: Any, options: dict[str, Any], words: str, client: Client, server: FakeServer
) -> None:
    with pytest.raises(errors.InvalidRequest, match=f"^{words}") as raised:
        client.complete(prompt, **options)
    assert raised.value.field == words.partition(" ")[0]
    assert not server.inference.requests


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ("hello", "messages must be a list of them, not str 'hello'"),
        ({"role": "user", "content": "x"}, "messages must be a list of them, not dict"),
        (None, "messages must be a list of them, not NoneType None"),
        (["hello"], r"messages\[0\] must have a role and a content, not be str 'hello'"),
        ([{"role": "user", "text": "x"}], r"messages\[0\] has a role and a content, but no str 'text'"),
        ([{"role": "user", "content": b"x"}], r"messages\[0\].content must be Unicode text, not bytes b'x'"),
        ([{"role": 1, "content": "x"}], r"messages\[0\].role must be Unicode text, not int 1"),
    ],
)
def test_messages_of_the_wrong_shape(messages: Any, words: str, client: Client, server: FakeServer) -> None:
    with pytest.raises(errors.InvalidRequest, match=f"^{words}"):
        client.complete_chat(messages)
    assert not server.inference.requests


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.tokenize(b"ab"),
        lambda client: client.tokenize("ab", add_special_tokens="no"),
        lambda client: client.detokenize("ab"),
        lambda client: client.detokenize(b"ab"),
        lambda client: client.abort([1]),
        lambda client: client.abort(7),
        lambda client: client.abort(b"one"),
        lambda client: client.models(timeout=math.nan),
    ],
)
def test_the_small_calls_refuse_likewise(ask: Any, client: Client, server: FakeServer) -> None:
    with pytest.raises(errors.InvalidRequest, match="must be"):
        ask(client)
    assert not server.inference.requests


def test_what_is_shown_of_a_wrong_value_is_bounded(client: Client) -> None:
    with pytest.raises(errors.InvalidRequest) as raised:
        client.complete(b"x" * 1_000_000)
    assert len(raised.value.message) < 200


@pytest.mark.parametrize("long_s", [math.inf, 1e9, 1e18, 1e300])
async def test_a_long_timeout_is_long(long_s: float, server: FakeServer) -> None:
    with Client(server.target, timeout=long_s) as client:
        assert client.complete("hello").text == "café"
        assert client.tokenize("ab", timeout=long_s) == (97, 98)
    async with AsyncClient(server.target, timeout=long_s) as asynchronous:
        assert (await asynchronous.complete("hello", timeout=long_s)).text == "café"
