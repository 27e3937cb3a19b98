"""Large answers are written in pieces that say the same, and none of which is much work."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import pytest

from app.api import logprobs, pieces, writer
from app.api.anthropic.writer import MessageResponseOptions, MessageWriter
from app.api.chat.writer import ChatResponseOptions, ChatWriter
from app.api.completions.writer import CompletionResponseOptions, CompletionWriter, EchoedPrompt
from app.api.generate.writer import GenerateResponseOptions, GenerateWriter
from app.api.identity import ResponseMeta
from app.api.logprobs import TokenBytes
from app.api.pieces import BLOCK_BYTES, SLICE, WHOLE_BYTES, body_of, check_answer_size
from app.api.responses.writer import ResponsesOptions, ResponsesWriter, new_response
from app.api.writer import ResponseWriter
from app.engine.outputs import EngineOutput, Failed, Finish, Part, Started, TokenLogprob, Tokens
from app.http.errors import ApiError, too_many
from app.protocol.common import encode
from app.protocol.response_object import ResponseObject
from app.protocol.responses import ResponsesRequest

META = ResponseMeta("id-1", 1_700_000_000, "a model", "fp")
PROMPT = list(range(3 * SLICE))
WORDS = ["Hello", " there", "", '"', "日本", "\n", " x"]
ALTERNATIVES = 5


class Entries(Sequence[Any]):
    """Log probabilities of tokens, made when they are looked at; `made` counts them."""

    made = 0

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Entries(self.ids[index])
        Entries.made += ALTERNATIVES + 1
        first = self.ids[index]
        top = [(first + k, WORDS[(first + k) % len(WORDS)], -1.0 - k) for k in range(ALTERNATIVES + 1)]
        return TokenLogprob(first, top[0][1], -1.0, top)


def reply(
    choices: int, tokens: int, at_once: int = 7, part: Part | None = None, with_logprobs: bool = True
) -> Iterator[EngineOutput]:
    """The outputs of replies of so many tokens, of which some come together."""
    prompt = Entries(PROMPT) if with_logprobs else None
    for index in range(choices):
        yield Started(index, 0.5, 4, prompt)
    for start in range(0, tokens, at_once):
        ids = range(start, min(start + at_once, tokens))
        for index in range(choices):
            yield Tokens(
                index,
                [WORDS[(k + index) % len(WORDS)] for k in ids],
                list(ids),
                1.0,
                Entries(ids) if with_logprobs else None,
                Finish("length") if ids.stop == tokens else None,
                part,
            )


def chat(choices: int) -> ResponseWriter:
    options = ChatResponseOptions(n=choices, prompt_ids=PROMPT, top_logprobs=-1, token_ids=True, echo="Eh?")
    return ChatWriter(META, options)


def completion(choices: int) -> ResponseWriter:
    prompt = EchoedPrompt(PROMPT, "The prompt", ["p"] * len(PROMPT))
    options = CompletionResponseOptions(
        n=choices, prompts=[prompt], logprobs=True, echo=True, token_ids=True, token_id_names=True
    )
    return CompletionWriter(META, options)


def generate(choices: int) -> ResponseWriter:
    options = GenerateResponseOptions(
        n=choices, prompt_ids=PROMPT, logprobs=True, text=True, token_ids=True, weights=lambda: "default"
    )
    return GenerateWriter(META, options)


def message(choices: int) -> ResponseWriter:
    return MessageWriter(META, MessageResponseOptions(prompt_tokens=16), lambda: "one")


def response(choices: int, ended: Callable[[ResponseObject], None] | None = None) -> ResponseWriter:
    first = new_response(ResponsesRequest(input="hi"), META, 9)
    options = ResponsesOptions(response=first, prompt_ids=PROMPT, top_logprobs=3)
    ids = count()
    return ResponsesWriter(options, lambda: str(next(ids)), ended)


FAMILIES = [
    pytest.param(make, choices, id=f"{make.__name__}-{choices}")
    for make, choices in ((chat, 3), (chat, 1), (completion, 2), (generate, 2), (message, 1), (response, 1))
]
THOUGHT = Part("reasoning")


@pytest.mark.slow
@pytest.mark.parametrize("part", [None, THOUGHT], ids=["text", "thought"])
@pytest.mark.parametrize(("make", "choices"), FAMILIES)
def test_a_large_answer_says_in_pieces_what_it_says_in_one(
    make: Callable[[int], ResponseWriter], choices: int, part: Part | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = [*reply(choices, 2 * SLICE + 5, part=part)]
    found = b"".join(make(choices).pieces(outputs))
    assert found == make(choices).body(outputs)
    for module in (pieces, logprobs, writer):
        monkeypatch.setattr(module, "SLICE", 10**9)
    assert found == make(choices).body(outputs)
    json.loads(found)


@pytest.mark.parametrize(("make", "choices"), FAMILIES)
def test_no_piece_is_much_work(make: Callable[[int], ResponseWriter], choices: int) -> None:
    writer = make(choices)
    for output in reply(choices, 5 * SLICE):
        writer.take(output)
    before = Entries.made
    for piece in writer.pieces():
        assert len(piece) < 4 * BLOCK_BYTES
        assert Entries.made - before < 4 * SLICE
        before = Entries.made


@pytest.mark.slow
def test_many_small_choices_leave_in_pieces_of_some_size() -> None:
    found = [*chat(1000).pieces(reply(1000, 3))]
    assert len(found) > 1
    assert all(BLOCK_BYTES <= len(piece) < 4 * BLOCK_BYTES for piece in found[:-1])
    body = json.loads(b"".join(found))
    assert [choice["index"] for choice in body["choices"]] == list(range(1000))


@pytest.mark.slow
def test_writing_a_large_answer_takes_little_memory() -> None:
    """3.6 million log probabilities, 230 MB of JSON."""
    writer = ChatWriter(META, ChatResponseOptions(n=30, prompt_ids=[1], top_logprobs=-1))
    for output in reply(30, 2000, at_once=2000):
        writer.take(output)
    tracemalloc.start()
    try:
        size = sum(len(piece) for piece, _ in zip(writer.pieces(), range(100), strict=False))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size > 100 * BLOCK_BYTES
    assert peak < 4 << 20


def test_outputs_are_taken_in_with_pauses() -> None:
    tokens = 3 * writer.TAKEN
    first = [*chat(1).pieces(reply(1, tokens, at_once=1, with_logprobs=False))][:3]
    assert first == [b"", b"", b""]


def test_the_error_of_an_output_is_raised_before_anything_is_written() -> None:
    outputs: list[EngineOutput] = [*reply(1, 5), Failed(0, too_many("Full."))]
    with pytest.raises(ApiError, match="Full"):
        next(chat(1).pieces(outputs))


@pytest.mark.parametrize("tokens", [1, 3 * SLICE])
def test_a_response_that_is_written_in_pieces_is_kept_whole(tokens: int) -> None:
    kept: list[ResponseObject] = []
    body = b"".join(response(1, kept.append).pieces(reply(1, tokens)))
    assert [encode(state) for state in kept] == [body]


@pytest.mark.parametrize("make", [chat, completion, generate, message, response])
def test_a_large_output_is_streamed_in_pieces_of_whole_events(make: Callable[[int], ResponseWriter]) -> None:
    outputs = [*reply(1, 3 * SLICE, at_once=3 * SLICE)]
    one, other = make(1), make(1)
    together = b"".join(map(one.chunk, outputs)) + one.closing()
    found = [piece for output in outputs for piece in other.chunks(output)] + [other.closing()]
    assert b"".join(found) == together
    assert all(not piece or piece.endswith(b"\n\n") for piece in found)
    assert make is message or len(found) > 10


def test_a_stream_tells_all_of_a_large_prompt() -> None:
    writer = completion(1)
    data = b"".join(piece for output in reply(1, 7) for piece in writer.chunks(output))
    events = [json.loads(event.removeprefix(b"data: ")) for event in data.split(b"\n\n") if event]
    first, second = events[0]["choices"][0], events[1]["choices"][0]
    assert first["prompt_token_ids"] == PROMPT
    assert len(first["logprobs"]["tokens"]) == len(PROMPT) + 1
    assert second.get("prompt_token_ids") is None and len(second["logprobs"]["tokens"]) == 1


def test_the_roles_of_very_many_choices_leave_in_pieces() -> None:
    options = ChatResponseOptions(n=16384, prompt_ids=PROMPT, token_ids=True)
    size = largest = 0
    for piece in ChatWriter(META, options).chunks(Started(0, 0.5)):
        size += len(piece)
        largest = max(largest, len(piece))
    assert size > 16384 * len(PROMPT)
    assert largest < 4 * BLOCK_BYTES


@pytest.mark.parametrize(
    ("options", "large"),
    [
        ({}, False),
        ({"echo": "x" * SLICE}, False),
        ({"echo": "x" * (SLICE + 1)}, True),
        ({"echo": "x" * (1 + SLICE // 4), "n": 4}, True),
        ({"prompt_text": "x" * (SLICE + 1)}, True),
        ({"prompt_text": "x" * SLICE, "echo": "x" * SLICE}, True),
        ({"prompt_ids": PROMPT, "token_ids": True}, True),
        ({"prompt_ids": PROMPT}, False),
    ],
)
def test_a_chat_begins_in_pieces_where_its_first_events_are_long(options: Any, large: bool) -> None:
    options = {"n": 1, "prompt_ids": [1], **options}
    assert ChatWriter(META, ChatResponseOptions(**options)).is_large(Started(0, 0.5)) == large


@pytest.mark.parametrize(
    ("n", "tokens", "alternatives", "fits"),
    [
        (1, 1 << 20, 20, True),
        (128, 4000, 20, True),
        (128, 8193, 20, False),
        (128, 8193, None, True),
        (16384, 341, None, True),
        (16384, 342, None, False),
        (16384, 65, 0, False),
    ],
)
def test_what_takes_too_much_memory_is_refused(
    n: int, tokens: int, alternatives: int | None, fits: bool
) -> None:
    if fits:
        check_answer_size(n, tokens, alternatives)
        return
    with pytest.raises(ApiError, match="stream") as refused:
        check_answer_size(n, tokens, alternatives)
    assert (refused.value.status, refused.value.type) == (400, "BadRequestError")


def test_a_body_is_sent_in_one_up_to_some_size() -> None:
    assert body_of(iter([b"a", b"", b"b"])) == b"ab"
    large = [b"x" * (1 << 20)] * 20
    found = body_of(iter([b"", *large, b""]))
    assert not isinstance(found, bytes)
    assert [*found] == large
    assert sum(map(len, large)) > WHOLE_BYTES
    assert body_of(iter([b"x" * WHOLE_BYTES])) == b"x" * WHOLE_BYTES
    assert not isinstance(body_of(iter([b"x" * WHOLE_BYTES, b"x"])), bytes)


def test_the_bytes_of_tokens_are_remembered_within_bounds() -> None:
    known = TokenBytes(limit_bytes=4000)
    known.of("a")
    assert known.size_bytes == len(b"[97]") + TokenBytes.PLACE_BYTES
    for number in range(1000):
        text = f"token {number}"
        assert json.loads(encode(known.of(text))) == list(text.encode())
        assert known.of(text) is known.of(text)
        assert 0 < known.size_bytes <= known.limit_bytes
