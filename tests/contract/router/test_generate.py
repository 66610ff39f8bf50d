"""Generate, Chat, Tokenize, Detokenize and ListModels when nothing goes wrong."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.router.fakes import BOS, EOS, TIMING, FakeStream
from tests.support.router.shell import Shell, token_prompt
from twinpool.types import FinishReason
from twinpool.v1 import inference_pb2 as pb
from twinpool.v1 import types_pb2

TEXT = "naïve 東京 👩‍🚀"


def says(text: str, *, reason: FinishReason = FinishReason.STOP) -> Callable[[FakeStream], None]:
    """A stream that answers with a text, one byte a token."""

    def play(stream: FakeStream) -> None:
        for byte in text.encode():
            stream.put(byte)
        stream.end(EOS, reason=reason)

    return play


async def test_chunks_concatenate_to_exactly_the_whole_text(shell: Shell) -> None:
    shell.dispatcher.on_submit = says(TEXT)
    chunks = [message.chunk async for message in shell.inference.Generate(token_prompt())]
    assert "".join(chunk.text for chunk in chunks) == TEXT
    assert [id_ for chunk in chunks for id_ in chunk.token_ids] == [*TEXT.encode(), EOS]
    assert not any("\ufffd" in chunk.text for chunk in chunks)


async def test_a_text_that_ends_within_a_character_is_replaced_once_at_the_end(shell: Shell) -> None:
    call = shell.inference.Generate(token_prompt())
    stream = await shell.dispatcher.stream("r")
    stream.put(*"é".encode()[:1])
    messages = aiter(call)
    assert (await anext(messages)).chunk.text == ""
    stream.end()
    assert [message.chunk.text async for message in messages] == ["\ufffd"]


async def test_the_first_token_arrives_before_the_second_exists(shell: Shell) -> None:
    call = shell.inference.Generate(token_prompt())
    stream = await shell.dispatcher.stream("r")
    stream.put(65)
    messages = aiter(call)
    assert (await anext(messages)).chunk.text == "A"
    stream.end(66)
    assert [message.chunk.text async for message in messages] == ["B"]


async def test_only_the_last_message_says_why_it_ended_and_carries_the_summary(shell: Shell) -> None:
    shell.dispatcher.on_submit = says("ab")
    request = token_prompt((5, 6, 7))
    request.sampling.seed = 2**64 - 1
    request.output.return_prompt_token_ids = True
    *others, last = [message.chunk async for message in shell.inference.Generate(request)]
    assert all(chunk.finish_reason == 0 and not chunk.HasField("summary") for chunk in others)
    assert last.finish_reason == types_pb2.FINISH_REASON_STOP
    summary = last.summary
    assert (summary.usage.prompt_tokens, summary.usage.completion_tokens) == (3, 3)
    assert summary.timing == pb.Timing(
        queue_s=TIMING.queue_s,
        prefill_s=TIMING.prefill_s,
        handoff_wait_s=TIMING.handoff_wait_s,
        decode_s=TIMING.decode_s,
    )
    assert summary.workers == pb.ServedBy(prefill="prefill-0", decode="decode-0")
    assert summary.seed == 2**64 - 1
    assert list(summary.prompt_token_ids) == [5, 6, 7]


async def test_a_text_prompt_is_tokenized_with_its_special_tokens(shell: Shell) -> None:
    shell.dispatcher.on_submit = says("x")
    messages = [m async for m in shell.inference.Generate(pb.GenerateRequest(request_id="t", text="hé"))]
    assert shell.dispatcher.streams["t"].request.prompt_ids == (BOS, *"hé".encode())
    assert not messages[-1].chunk.summary.prompt_token_ids


async def test_absent_fields_get_their_defaults_and_seeds_differ(shell: Shell) -> None:
    shell.dispatcher.on_submit = says("x")
    for request_id in ("a", "b"):
        [m async for m in shell.inference.Generate(token_prompt(request_id=request_id))]
    params, other = (shell.dispatcher.streams[id_].request.params for id_ in ("a", "b"))
    assert (params.temperature, params.top_k, params.top_p, params.ignore_eos) == (1.0, 0, 1.0, False)
    assert params.max_tokens == shell.dispatcher.capacity - 3
    assert params.seed != other.seed


async def test_a_request_without_an_id_gets_a_unique_one(shell: Shell) -> None:
    shell.dispatcher.on_submit = says("x")
    for _ in range(2):
        drawn = {m.request_id async for m in shell.inference.Generate(token_prompt(request_id=""))}
        assert len(drawn) == 1
        assert drawn <= shell.dispatcher.streams.keys()
    assert len(shell.dispatcher.streams) == 2


async def test_chat_goes_through_the_models_template(shell: Shell) -> None:
    shell.dispatcher.on_submit = says("yes")
    request = pb.ChatRequest(request_id="c", messages=[pb.ChatMessage(role="user", content="really?")])
    messages = [message async for message in shell.inference.Chat(request)]
    assert shell.dispatcher.streams["c"].request.prompt_ids == (BOS, *b"user:really?\n")
    assert "".join(message.chunk.text for message in messages) == "yes"
    assert {message.request_id for message in messages} == {"c"}


async def test_tokenize_and_detokenize_are_inverse(shell: Shell) -> None:
    tokens = await shell.inference.Tokenize(pb.TokenizeRequest(text=TEXT))
    assert list(tokens.token_ids) == [BOS, *TEXT.encode()]
    back = await shell.inference.Detokenize(pb.DetokenizeRequest(token_ids=tokens.token_ids))
    assert back.text == TEXT


async def test_special_tokens_are_added_and_left_out_only_where_asked(shell: Shell) -> None:
    bare = await shell.inference.Tokenize(pb.TokenizeRequest(text="a", add_special_tokens=False))
    assert list(bare.token_ids) == [97]
    shown = await shell.inference.Detokenize(
        pb.DetokenizeRequest(token_ids=[BOS, 97], skip_special_tokens=False)
    )
    assert "<s>" in shown.text


async def test_the_served_model_is_listed_and_its_name_accepted(shell: Shell) -> None:
    (model,) = (await shell.inference.ListModels(pb.ListModelsRequest())).models
    assert (model.name, model.max_context_tokens, model.vocab_size) == ("bytes", 4096, 258)
    assert (list(model.eos_token_ids), model.dtype) == ([EOS], "float32")
    tokens = await shell.inference.Tokenize(pb.TokenizeRequest(model="bytes", text="a"))
    assert len(tokens.token_ids) == 2
