"""Replies of parts, as the tests of several answers tell them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count

from hypothesis import strategies as st

from app.engine.outputs import Part

THOUGHT = Part("reasoning")
IMAGE = Part("image")

Segment = tuple[Part | None, Sequence[str]]
"""Some tokens of one part, by their texts."""


def call(number: int, name: str = "weather") -> Part:
    return Part("call", number, name)


TEXT = st.text(max_size=4).filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text))
TEXTS = st.lists(TEXT, min_size=1, max_size=6)
ARGUMENTS = st.dictionaries(TEXT, st.integers() | TEXT, max_size=3).map(json.dumps)


@st.composite
def segments(draw: st.DrawFn) -> list[Segment]:
    """Thoughts, texts and calls in any order; calls are numbered and their markup is silent."""
    numbers = count()
    found: list[Segment] = []
    for kind in draw(st.lists(st.sampled_from(["text", "thought", "call"]), max_size=5)):
        if kind == "call":
            arguments = draw(ARGUMENTS)
            cut = draw(st.integers(0, len(arguments)))
            found.append((call(next(numbers)), ["", "", arguments[:cut], arguments[cut:], ""]))
        else:
            found.append((THOUGHT if kind == "thought" else None, draw(TEXTS)))
    return found
