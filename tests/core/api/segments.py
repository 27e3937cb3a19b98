"""Replies of parts, as the tests of several answers tell them."""

import json
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

from hypothesis import strategies as st

from app.core.api.writer import ResponseWriter
from app.core.engine.outputs import EngineOutput, Finish, Part, Started, TokenLogprob, Tokens

THOUGHT = Part("reasoning")
IMAGE = Part("image")

Segment = tuple[Part | None, Sequence[str]]
"""Some tokens of one part, by their texts."""


def call(number: int, name: str = "weather") -> Part:
    return Part("call", number, name)


def body_of(writer: ResponseWriter, outputs: Iterable[EngineOutput]) -> bytes:
    """The whole answer after `outputs`."""
    for output in outputs:
        writer.collect(output)
    return writer.body()


def whole(writer: ResponseWriter, outputs: Iterable[EngineOutput]) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(body_of(writer, outputs))
    return body


def logprob(token: str) -> TokenLogprob:
    return TokenLogprob(1, token, -1.0, [(1, token, -1.0), (2, "other", -1.5), (3, "more", -2.0)])


def told(
    segments: Sequence[Segment],
    finish: Finish,
    most_tokens: int = 1,
    cached: int = 0,
    logprobs: bool = False,
) -> list[EngineOutput]:
    """The events of a reply, up to `most` tokens in each; at least one has the end."""
    events: list[EngineOutput] = [Started(0, 0.5, cached)]
    for part, texts in segments or [(None, [""])]:
        for start in range(0, len(texts), most_tokens):
            tokens = texts[start : start + most_tokens]
            entries = [logprob(text) for text in tokens] if logprobs else None
            events.append(
                Tokens(
                    0, tokens, ids=list(range(len(tokens))), at_s=1.0, logprobs=entries, part=part
                )
            )
    last = events[-1]
    assert isinstance(last, Tokens)
    last.finish = finish
    return events


TEXT = st.text(max_size=4).filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text))
TEXTS = st.lists(TEXT, min_size=1, max_size=6)
ARGUMENTS = st.dictionaries(TEXT, st.integers() | TEXT, max_size=3).map(json.dumps)


@st.composite
def segments(draw: st.DrawFn) -> list[Segment]:
    """Thoughts, texts and calls in any order; calls are numbered and their markup is silent."""
    numbers = count()
    drawn: list[Segment] = []
    for kind in draw(st.lists(st.sampled_from(["text", "thought", "call"]), max_size=5)):
        if kind == "call":
            arguments = draw(ARGUMENTS)
            cut = draw(st.integers(0, len(arguments)))
            drawn.append((call(next(numbers)), ["", "", arguments[:cut], arguments[cut:], ""]))
        else:
            drawn.append((THOUGHT if kind == "thought" else None, draw(TEXTS)))
    return drawn
