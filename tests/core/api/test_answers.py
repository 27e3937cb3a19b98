"""Streamed or whole, in small events or large ones: an answer says the same."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.api.chat.writer import ChatResponseOptions, ChatWriter
from app.core.api.completions import CompletionResponseOptions, CompletionWriter, EchoedPrompt
from app.core.api.identity import ResponseMeta
from app.core.engine.outputs import EngineOutput, Failed, Finish, Started, TokenLogprob, Tokens
from app.core.server.http.errors import too_many
from tests.client import Client, in_process
from tests.core.api.segments import TEXT, body_of, whole

META = ResponseMeta("id-1", 1_700_000_000, "a model", "fp")
PROMPT = EchoedPrompt([7, 8, 9], "The prompt", ["The", " ", "prompt"])


@dataclass(frozen=True)
class Reply:
    texts: Sequence[str]
    finish: Finish

    def event(self, index: int, start: int, stop: int, logprobs: bool) -> Tokens:
        span = range(start, stop)
        entries = [
            TokenLogprob(
                k, self.texts[k] or "?", -1.0, [(k, self.texts[k] or "?", -1.0), (k + 1, "z", -2.0)]
            )
            for k in span
        ]
        over = stop >= len(self.texts)
        return Tokens(
            index,
            self.texts[start:stop],
            ids=list(span),
            at_s=1.0,
            logprobs=entries if logprobs else None,
            finish=self.finish if over else None,
        )


REPLY = st.builds(
    Reply,
    st.lists(TEXT, min_size=1, max_size=12),
    st.builds(
        Finish, st.sampled_from(["stop", "length"]), st.none() | st.just("END") | st.integers(0, 9)
    ),
)
REPLIES = st.lists(REPLY, min_size=1, max_size=3)


def interleaved_events(
    replies: Sequence[Reply], most_tokens: int, rng: Random, logprobs: bool = False
) -> list[EngineOutput]:
    """The events of `replies`, interleaved, up to `most` tokens in each."""
    events: list[EngineOutput] = [Started(index, 0.5) for index in range(len(replies))]
    positions = [0] * len(replies)
    open_choices = list(range(len(replies)))
    while open_choices:
        index = rng.choice(open_choices)
        start = positions[index]
        reply = replies[index]
        positions[index] = stop = min(start + rng.randint(1, most_tokens), len(reply.texts))
        events.append(reply.event(index, start, stop, logprobs))
        if stop == len(reply.texts):
            open_choices.remove(index)
    return events


def chat(replies: Sequence[Reply], **shape: Any) -> ChatWriter:
    return ChatWriter(META, ChatResponseOptions(n=len(replies), prompt_ids=PROMPT.ids, **shape))


def completion(replies: Sequence[Reply], **shape: Any) -> CompletionWriter:
    return CompletionWriter(
        META, CompletionResponseOptions(prompts=[PROMPT], n=len(replies), **shape)
    )


def streamed(
    answer: ChatWriter | CompletionWriter, events: Sequence[EngineOutput]
) -> list[dict[str, Any]]:
    """The JSON of every event of the stream; it ends with [DONE] and holds nothing but events."""
    text = (b"".join(map(answer.chunk, events)) + answer.closing()).decode()
    *items, done, tail = text.split("\n\n")
    assert (done, tail) == ("data: [DONE]", "")
    return [json.loads(item.removeprefix("data: ")) for item in items]


def choices_of(chunks: Sequence[dict[str, Any]], index: int) -> list[dict[str, Any]]:
    return [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]


@given(replies=REPLIES, most_tokens=st.integers(1, 6), seed=st.integers(0, 9))
@settings(max_examples=25, deadline=None)
def test_streamed_chat_has_the_same_content_as_the_complete_chat(
    replies: list[Reply], most_tokens: int, seed: int
) -> None:
    events = interleaved_events(replies, most_tokens, Random(seed), logprobs=True)
    shape = {"include_usage": True, "token_ids": True, "top_logprobs": 1}
    chunks = streamed(chat(replies, **shape), events)
    body = whole(chat(replies, **shape), events)
    for choice in body["choices"]:
        parts = choices_of(chunks, choice["index"])
        assert parts[0]["delta"] == {"role": "assistant", "content": ""}
        assert (
            "".join(part["delta"].get("content", "") for part in parts)
            == choice["message"]["content"]
        )
        assert [part["finish_reason"] for part in parts[:-1]] == [None] * (len(parts) - 1)
        assert parts[-1]["finish_reason"] == choice["finish_reason"]
        assert parts[-1]["stop_reason"] == choice["stop_reason"]
        assert [x for part in parts for x in part.get("token_ids") or ()] == choice["token_ids"]
        entries = [x for part in parts if part["logprobs"] for x in part["logprobs"]["content"]]
        assert entries == choice["logprobs"]["content"]
    identities = {(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}
    assert identities == {(META.id, META.created, META.model)}
    assert chunks[-1]["choices"] == []
    assert {
        **chunks[-1]["usage"],
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    } == body["usage"]
    assert body["usage"]["completion_tokens"] == sum(len(reply.texts) for reply in replies)


@given(replies=REPLIES, most_tokens=st.integers(1, 6), seed=st.integers(0, 9), echo=st.booleans())
@settings(max_examples=25, deadline=None)
def test_streamed_and_complete_completion_have_the_same_content(
    replies: list[Reply], most_tokens: int, seed: int, echo: bool
) -> None:
    events = interleaved_events(replies, most_tokens, Random(seed), logprobs=True)
    for event in events:
        if isinstance(event, Started) and echo:
            event.prompt_logprobs = [None, None, None]
    shape = {"include_usage": True, "logprobs": True, "echo": echo}
    chunks = streamed(completion(replies, **shape), events)
    body = whole(completion(replies, **shape), events)
    for choice in body["choices"]:
        parts = choices_of(chunks, choice["index"])
        assert "".join(part["text"] for part in parts) == choice["text"]
        assert choice["text"].startswith(PROMPT.text if echo else "")
        assert parts[-1]["finish_reason"] == choice["finish_reason"]
        assert parts[-1]["stop_reason"] == choice["stop_reason"]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert [x for part in parts for x in part["logprobs"][name]] == choice["logprobs"][name]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == body["usage"]["completion_tokens"]


@given(replies=REPLIES, most_tokens=st.integers(2, 8), seed=st.integers(0, 9), plain=st.booleans())
@settings(max_examples=25, deadline=None)
def test_tokens_emitted_together_are_written_as_separate_chunks(
    replies: list[Reply], most_tokens: int, seed: int, plain: bool
) -> None:
    """vLLM's clients count chunks: joined tokens are still one chunk each."""
    for make in (chat, completion):
        shape = (
            {} if plain else {"token_ids": True, "continuous_usage": True, "include_usage": True}
        )
        joined = streamed(
            make(replies, **shape), interleaved_events(replies, most_tokens, Random(seed))
        )
        alone = streamed(make(replies, **shape), interleaved_events(replies, 1, Random(seed)))
        for index in range(len(replies)):
            assert choices_of(joined, index) == choices_of(alone, index)
            chunks = [
                item for item in joined if item["choices"] and item["choices"][0]["index"] == index
            ]
            assert len(chunks) == len(replies[index].texts) + (make is chat)


@given(replies=REPLIES, seed=st.integers(0, 9))
@settings(max_examples=25, deadline=None)
def test_continuous_usage_counts_each_choice_token_by_token(
    replies: list[Reply], seed: int
) -> None:
    events = interleaved_events(replies, 3, Random(seed))
    shape = {"include_usage": True, "continuous_usage": True}
    for make, skipped in ((chat, 1), (completion, 0)):
        chunks = streamed(make(replies, **shape), events)
        for index, reply in enumerate(replies):
            chunks_of_choice = [
                item for item in chunks if item["choices"] and item["choices"][0]["index"] == index
            ][skipped:]
            counted = [item["usage"]["completion_tokens"] for item in chunks_of_choice]
            assert counted == list(range(1, len(reply.texts) + 1))
            assert all(
                item["usage"]["prompt_tokens"] == len(PROMPT.ids) for item in chunks_of_choice
            )


@pytest.mark.parametrize("make", [chat, completion])
def test_failure_is_sent_as_an_error_event_only_if_the_reply_is_streamed(
    make: Any,
) -> None:
    reply = Reply(["a", "b"], Finish("stop"))
    for error, code in ((too_many("no room"), 429), (ValueError("secret detail"), 500)):
        events = [Started(0, 0.0), reply.event(0, 0, 1, False), Failed(0, error)]
        chunks = streamed(make([reply], include_usage=True), events)
        assert chunks[-1]["error"]["code"] == code
        assert "secret" not in json.dumps(chunks)
        with pytest.raises(type(error)):
            body_of(make([reply]), events)


def test_echo_of_a_token_id_prompt_shows_special_tokens() -> None:
    with in_process() as client:
        special, word = client.post("/tokenize", {"prompt": "<|endoftext|> cat"}).json()["tokens"][
            :2
        ]
        fields = {"max_tokens": 1, "echo": True}
        as_ids = client.post("/v1/completions", {"prompt": [special, word], **fields}).json()
    assert as_ids["choices"][0]["text"].startswith("<|endoftext|> cat")


@pytest.mark.parametrize("path", ["/tokenize", "/v1/chat/completions"])
@pytest.mark.parametrize("option", ["mm_processor_kwargs", "media_io_kwargs"])
def test_options_of_media_are_for_trusted_clients(client: Client, path: str, option: str) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], option: {"a": {"b": 1}}}
    answer = client.post(path, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == option
