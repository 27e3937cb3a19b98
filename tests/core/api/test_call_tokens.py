"""Tokens of tool calls that a stream takes one by one, without an output of the engine each."""

from collections import Counter
from dataclasses import dataclass

import gevent
import pytest

from app.core.api.chat.call_chunks import CALL_FORMS, CallChatWriter
from app.core.api.chat.writer import ChatResponseOptions
from app.core.api.identity import ResponseMeta
from app.core.base.metrics.recorder import ParserRuns
from app.core.engine.outputs import Finish, Part, Started, Tokens
from tests.core.api.served_stream import Served, Socket

META = ResponseMeta("chatcmpl-1", 1, "m", None)
TEXTS = ["", "", "", "", '{"city"', ": ", '"Ro', 'me"}', "", "", ""]
OPENING_TOKENS = 3
OPENING = Part("call", 0)
NAMED = Part("call", 0, "get_weather", id="call-1")


@dataclass
class Streamed:
    """A stream of one call: its bytes, its counted tokens and runs, and how many were taken."""

    content: bytes
    tokens: int
    runs: ParserRuns
    taken: int


def streamed(takes: bool, *room: int, **options: object) -> Streamed:
    """Streams `TEXTS` as a call; if `takes`, the stream takes the tokens that it offers to take.

    `room` are the bytes that the socket has room for, one number for each write.
    """
    runs: ParserRuns = Counter()
    shape = ChatResponseOptions(n=1, prompt_ids=[1], parser_runs=runs, **options)  # type: ignore[arg-type]
    writer = CallChatWriter(META, shape)
    served = Served(Socket(*room), writer=writer)
    served.serve()
    served.stream.emit(Started(0, 0.0))
    take_token = None
    taken_part = None
    taken = 0
    for number, text in enumerate(TEXTS):
        is_last = number == len(TEXTS) - 1
        part = OPENING if number < OPENING_TOKENS else NAMED
        if takes and take_token is not None and part is taken_part and not is_last:
            take_token(text, number, 0.0)
            taken += 1
        else:
            finish = Finish("stop") if is_last else None
            take_token = served.stream.emit(
                Tokens(0, [text], [number], 0.0, finish=finish, part=part)
            )
            taken_part = part
        gevent.sleep(0)
    assert served.ended()
    return Streamed(served.content(), writer.choices[0].tokens, runs, taken)


@pytest.mark.parametrize("room", [(), (1000, 200, 10, 10, 300)], ids=["at once", "slowly"])
def test_shortcut_for_tool_call_tokens_does_not_change_the_stream(
    room: tuple[int, ...],
) -> None:
    taken = streamed(True, *room)
    emitted = streamed(False, *room)
    assert taken.taken == 8 and emitted.taken == 0, "all but the first of a part, and the last"
    assert taken.content == emitted.content
    assert taken.content.count(b'"arguments":') == 4, "markup has no chunks"
    assert taken.tokens == emitted.tokens == len(TEXTS)
    assert taken.runs == emitted.runs == {("streaming", True): len(TEXTS)}


@pytest.mark.parametrize(
    "options",
    [{"token_ids": True}, {"top_logprobs": 0}, {"continuous_usage": True}, {"beams": True}],
    ids=str,
)
def test_extra_response_fields_disable_the_shortcut_for_tool_call_tokens(
    options: dict[str, object],
) -> None:
    assert streamed(True, **options).taken == 0


def test_mistral_tool_calls_do_not_use_the_shortcut_for_tool_call_tokens() -> None:
    assert streamed(True, call_form=CALL_FORMS["mistral"]).taken == 0
