"""Events of a stream of token ids become events of a chat or a completion; the client carries the
state.
"""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.extensions.scale_out.test_derender import (
    CALL,
    CHAT,
    MESSAGES,
    PARSER,
    REQUEST,
    TEXT,
    TOOL,
    ids_of,
    post,
)

REASONS = ("--reasoning-parser", "deepseek_r1")
PROMPT = [5, 6, 7]
Json = dict[str, Any]


def chunks_of(ids: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """Splits `ids` into chunks of `sizes`, and the rest."""
    chunks = []
    start = 0
    for size in sizes:
        chunks.append(list(ids[start : start + size]))
        start += size
    return [*chunks, list(ids[start:])]


def event(ids: Sequence[int], finish_reason: str | None = None, **fields: Any) -> Json:
    choice = {"index": 0, "token_ids": list(ids), "finish_reason": finish_reason, **fields}
    return {"request_id": "r", "choices": [choice]}


def streamed(
    path: str, chunks: Sequence[Sequence[int]], *flags: str, finish: str = "stop", **fields: Any
) -> list[Json]:
    """Answers to an event for each of `chunks`, with the state of the answer before.

    The last finishes.
    """
    answers: list[Json] = []
    state = None
    for number, ids in enumerate(chunks, 1):
        generated = event(ids, finish if number == len(chunks) else None)
        body = {"stream": True, "generate_chunk": generated, "stream_state": state, **fields}
        answer = post(path, body, *flags)
        assert answer.status_code == 200, answer.get_data(as_text=True)
        answers.append(answer.get_json())
        state = answers[-1]["stream_state"]
    return answers


def choices_of(answers: Sequence[Json]) -> list[Json]:
    return [choice for answer in answers for choice in answer["chunk"]["choices"]]


def message_of(answers: Sequence[Json]) -> Json:
    """The message that a client assembles, which keeps the first id of each call."""
    message: Json = {"content": "", "reasoning": "", "calls": []}
    for choice in choices_of(answers):
        delta = choice["delta"]
        message["content"] += delta["content"] or ""
        message["reasoning"] += delta["reasoning"] or ""
        for call in delta.get("tool_calls", []):
            if call["index"] == len(message["calls"]):
                message["calls"].append([call["id"], call["function"]["name"], ""])
            else:
                assert "id" not in call and "name" not in call["function"]
            message["calls"][call["index"]][2] += call["function"]["arguments"]
    return message


TEXTS = st.text(max_size=40) | st.text("aé😀‍🏽한 \n", max_size=20)
SIZES = st.lists(st.integers(0, 4), max_size=30)


@given(text=TEXTS, sizes=SIZES)
@settings(max_examples=30, deadline=None)
def test_derendered_text_does_not_depend_on_how_the_tokens_are_split(
    text: str, sizes: list[int]
) -> None:
    ids = ids_of("x" + text)
    completion = streamed(TEXT, chunks_of(ids, sizes))
    assert "".join(choice["text"] for choice in choices_of(completion)) == "x" + text
    chat = streamed(CHAT, chunks_of(ids, sizes))
    assert message_of(chat)["content"] == "x" + text
    deltas = [choice["delta"] for choice in choices_of(chat)]
    assert [delta["role"] for delta in deltas] == ["assistant", *[None] * (len(deltas) - 1)]
    assert all("\ufffd" not in (delta["content"] or "") for delta in deltas) or "\ufffd" in text


def test_streamed_derender_chunk_has_the_same_fields_as_in_vllm() -> None:
    ids = ids_of("Hello there")
    [chat] = streamed(
        CHAT, [ids], finish="length", chat_request={"messages": MESSAGES, "return_token_ids": True}
    )
    chunk = chat["chunk"]
    assert list(chat) == ["chunk", "stream_state"]
    assert list(chunk) == [
        *("id", "object", "created", "model", "choices", "usage", "system_fingerprint"),
        *("prompt_token_ids", "prompt_text", "metrics"),
    ]
    assert (chunk["id"], chunk["object"], chunk["usage"]) == ("r", "chat.completion.chunk", None)
    delta = {"role": "assistant", "content": "Hello there", "reasoning": None}
    assert chunk["choices"] == [
        {
            **{"index": 0, "delta": delta, "logprobs": None, "finish_reason": "length"},
            **{"stop_reason": None, "token_ids": ids},
        }
    ]
    [text] = streamed(TEXT, [ids])
    assert text["chunk"]["object"] == "text_completion"
    assert list(text["chunk"]["choices"][0]) == [
        *(
            "index",
            "text",
            "logprobs",
            "finish_reason",
            "stop_reason",
            "prompt_token_ids",
            "token_ids",
        )
    ]


def test_stream_state_without_a_parser_keeps_fewer_than_12_token_ids() -> None:
    ids = ids_of("The quick brown fox jumps over the lazy dog, again and again. " * 20)
    answers = streamed(CHAT, [[token_id] for token_id in ids])
    assert max(len(answer["stream_state"]["output_token_ids"]) for answer in answers) < 12


def test_usage_chunk_contains_token_counts_but_no_choices() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 6, "total_tokens": 16}
    for path in (CHAT, TEXT):
        for given_tokens, shown in ((None, 10), (12, 12)):
            generated = {"request_id": "r", "choices": [], "usage": usage}
            body = {"stream": True, "generate_chunk": generated, "prompt_tokens": given_tokens}
            chunk = post(path, body).get_json()["chunk"]
            assert chunk["choices"] == []
            chunk_usage = chunk["usage"]
            counts = (
                chunk_usage["prompt_tokens"],
                chunk_usage["completion_tokens"],
                chunk_usage["total_tokens"],
            )
            assert counts == (shown, 6, shown + 6)


def test_streamed_logprobs_have_texts_and_continuous_offsets() -> None:
    ids = ids_of("Hello there")
    state = None
    offsets: list[int] = []
    tokens: list[str] = []
    for token_id in ids:
        entries = [{"token_id": token_id, "logprob": -1.0, "top_logprobs": []}]
        generated = event([token_id], logprobs={"content": entries})
        body = {"stream": True, "generate_chunk": generated, "stream_state": state}
        answer = post(TEXT, body).get_json()
        state = answer["stream_state"]
        [choice] = answer["chunk"]["choices"]
        offsets += choice["logprobs"]["text_offset"]
        tokens += choice["logprobs"]["tokens"]
    assert "".join(tokens) == "Hello there"
    assert offsets == [len("".join(tokens[:number])) for number in range(len(tokens))]
    assert state is not None and state["logprob_context_token_ids"] == ids[-4:]


REPLY = f"<think>\nWho knows? 😀\n</think>\n\nOf course.\n{CALL}\n{CALL}"
CUTS = ([], [1] * 200, [4] * 40, [7, 1, 1, 30])


@pytest.mark.parametrize("sizes", CUTS, ids=["whole", "tokens", "fours", "uneven"])
@pytest.mark.parametrize("has_tail", [False, True], ids=["", "finish in an event without tokens"])
def test_concatenated_parsed_chunks_equal_the_complete_message(
    sizes: list[int], has_tail: bool
) -> None:
    flags = (*PARSER, *REASONS)
    ids = ids_of(REPLY)
    chunks = [*chunks_of(ids, sizes), *([[]] if has_tail else [])]
    answers = streamed(CHAT, chunks, *flags, chat_request=REQUEST, prompt_token_ids=PROMPT)
    message = message_of(answers)
    whole = {"generate_response": event(ids, "stop"), "chat_request": REQUEST}
    expected = post(CHAT, whole, *flags).get_json()["choices"][0]["message"]
    assert (message["content"], message["reasoning"]) == (
        expected["content"],
        expected["reasoning"],
    )
    functions = [call["function"] for call in expected["tool_calls"]]
    assert [call[1:] for call in message["calls"]] == [
        [function["name"], function["arguments"]] for function in functions
    ]
    assert len({call[0] for call in message["calls"]}) == 2
    assert all(call[0].startswith("chatcmpl-tool-") for call in message["calls"])
    reasons = [choice["finish_reason"] for choice in choices_of(answers)]
    assert reasons == [*[None] * (len(reasons) - 1), "tool_calls"]


@pytest.mark.parametrize(
    ("fields", "calls", "reason"),
    [
        ({"parallel_tool_calls": False}, 1, "tool_calls"),
        ({"tool_choice": {"type": "function", "function": {"name": "ping"}}}, 2, "stop"),
        ({"tool_choice": "none"}, 0, "stop"),
    ],
)
def test_tool_fields_of_the_chat_request_determine_the_streamed_tool_calls(
    fields: Json, calls: int, reason: str
) -> None:
    chat = {"messages": MESSAGES, "tools": [TOOL], **fields}
    chunks = chunks_of(ids_of(f"{CALL}\n{CALL}"), [3] * 20)
    answers = streamed(CHAT, chunks, *PARSER, chat_request=chat, prompt_token_ids=PROMPT)
    assert len(message_of(answers)["calls"]) == calls
    assert choices_of(answers)[-1]["finish_reason"] == reason


def test_derendered_reasoning_is_hidden_on_request() -> None:
    ids = ids_of("Hm.</think>Yes.")
    chat = {"messages": MESSAGES, "return_token_ids": True}
    for hidden, message in (
        ({"include_reasoning": False}, ("Yes.", "")),
        ({}, ("Yes.", "Hm.")),
    ):
        fields = {"chat_request": {**chat, **hidden}, "prompt_token_ids": PROMPT}
        answers = streamed(CHAT, chunks_of(ids, [1] * 9), *REASONS, **fields)
        joined = message_of(answers)
        assert (joined["content"], joined["reasoning"]) == message
        shows_ids = [choice["token_ids"] is not None for choice in choices_of(answers)]
        assert set(shows_ids) == {not hidden}
    ended = ids_of("<think></think>")
    answers = streamed(CHAT, [ids_of("Yes.")], *REASONS, chat_request=chat, prompt_token_ids=ended)
    assert message_of(answers)["content"] == "Yes."


ONE = event([5])
CHAT_EVENT = "body.DerenderChatStreamRequest"
TEXT_EVENT = "body.DerenderCompletionStreamRequest"


@pytest.mark.parametrize(
    ("path", "body", "kind", "param"),
    [
        (CHAT, {}, "Bad Request", f"{CHAT_EVENT}.generate_chunk"),
        (TEXT, {}, "Bad Request", f"{TEXT_EVENT}.generate_chunk"),
        (TEXT, {"generate_chunk": {}}, "Bad Request", f"{TEXT_EVENT}.generate_chunk.choices"),
        (CHAT, {"generate_chunk": ONE}, "BadRequestError", None),
        (CHAT, {"generate_chunk": ONE, "chat_request": REQUEST}, "BadRequestError", None),
        (TEXT, {"generate_chunk": ONE, "model": "x"}, "NotFoundError", "model"),
        (TEXT, {"generate_chunk": {"choices": ONE["choices"] * 2}}, "BadRequestError", None),
        (TEXT, {"generate_chunk": event([5] * 40_000)}, "BadRequestError", None),
        (TEXT, {"generate_chunk": ONE, "prompt_token_ids": [5] * 40_000}, "BadRequestError", None),
    ],
)
def test_invalid_derender_chunks_are_rejected_with_400(
    path: str, body: Json, kind: str, param: str | None
) -> None:
    answer = post(path, {"stream": True, **body}, *PARSER)
    error = answer.get_json()["error"]
    assert answer.status_code == (404 if kind == "NotFoundError" else 400)
    assert (error["type"], error["param"]) == (kind, param)


@pytest.mark.parametrize(
    ("state", "field"),
    [
        ({"read_offset": -1}, ".read_offset"),
        ({"read_offset": 1}, ""),
        ({"prefix_offset": -1}, ".prefix_offset"),
        ({"prev_tokens": ["a"] * 1025}, ".prev_tokens"),
        ({"output_token_ids": [1, 2, 3], "output_chunk_lens": [1, 1]}, ""),
        ({"output_token_ids": [1, 2], "output_chunk_lens": [0, 2]}, ".output_chunk_lens.0"),
        ({"output_token_ids": "no"}, ".output_token_ids"),
    ],
)
def test_error_for_an_invalid_stream_state_names_the_field(state: Json, field: str) -> None:
    answer = post(TEXT, {"stream": True, "generate_chunk": ONE, "stream_state": state})
    error = answer.get_json()["error"]
    param = f"{TEXT_EVENT}.stream_state{field}"
    assert (answer.status_code, error["type"], error["param"]) == (400, "Bad Request", param)


STATES = st.fixed_dictionaries(
    {},
    optional={
        "output_token_ids": st.lists(st.integers(0, 2**40), max_size=6),
        "output_chunk_lens": st.lists(st.integers(1, 6), max_size=3),
        "read_offset": st.integers(0, 9),
        "last_tool_call_ids": st.lists(st.text(max_size=3), max_size=3),
    },
)


@given(state=STATES, ids=st.lists(st.integers(0, 2**40), max_size=5), has_parser=st.booleans())
@settings(max_examples=60, deadline=None)
def test_no_stream_state_that_a_client_sends_causes_a_server_error(
    state: Json, ids: list[int], has_parser: bool
) -> None:
    flags = PARSER if has_parser else ()
    fields = {"chat_request": REQUEST, "prompt_token_ids": PROMPT}
    body = {"stream": True, "generate_chunk": event(ids), "stream_state": state}
    assert post(CHAT, {**body, **fields}, *flags).status_code in (200, 400)
    assert post(TEXT, body, *flags).status_code in (200, 400)


def test_derender_stream_body_that_is_not_an_object_is_rejected_with_400() -> None:
    for body in ([1, 2, 3], "x", None):
        assert post(TEXT, body).status_code == 400
