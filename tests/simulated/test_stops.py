"""Stop strings and stop tokens, against a naive walk over the tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.engine.core.outputs import Finish
from app.engine.simulated.endings import Reply, stopped
from tests.engine.harness import engine_request


def script(*texts: str) -> Reply:
    return Reply(list(texts), list(range(len(texts))), Finish("length"))


def naive(texts: list[str], stops: list[str], min_tokens: int, include: bool) -> tuple[str, int, str | None]:
    """Text, token count and matched stop, found one token at a time as vLLM's detokenizer does."""
    text = ""
    for count, piece in enumerate(texts, 1):
        boundary = len("".join(texts[:min_tokens]))
        text += piece
        if count <= min_tokens:
            continue
        ends = []
        for order, stop in enumerate(stops):
            start = text.find(stop)
            while start >= 0 and start + len(stop) <= boundary:
                start = text.find(stop, start + 1)
            if start >= 0:
                ends.append((start + len(stop), order, start, stop))
        if ends:
            end, _, start, stop = min(ends)
            return text[: end if include else start], count, stop
    return text, len(texts), None


@given(
    texts=st.lists(st.text("abc", max_size=3), min_size=1, max_size=12),
    stops=st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=4),
    min_tokens=st.integers(0, 5),
    include=st.booleans(),
)
def test_a_reply_ends_where_a_walk_token_by_token_would_end_it(
    texts: list[str], stops: list[str], min_tokens: int, include: bool
) -> None:
    got = stopped(
        script(*texts), engine_request(stop=tuple(stops), min_tokens=min_tokens, include_stop=include)
    )
    text, count, stop = naive(texts, stops, min_tokens, include)
    assert ("".join(got.texts), len(got.ids)) == (text, count)
    assert got.finish == (Finish("stop", stop) if stop else Finish("length"))
    assert len(got.texts) == len(got.ids)


def test_what_might_begin_a_stop_is_held_back_until_it_is_known() -> None:
    got = stopped(script("Hello", " wor", "ld", " END", "!"), engine_request(stop=("END",)))
    assert got.texts == ["Hel", "lo w", "or", "ld "]
    assert got.finish == Finish("stop", "END")


def test_a_stop_token_is_counted_but_not_shown_and_not_before_min_tokens() -> None:
    got = stopped(script("a", "b", "c"), engine_request(stop_token_ids=frozenset({1})))
    assert (got.texts, got.ids, got.finish) == (["a", ""], [0, 1], Finish("stop", 1))
    got = stopped(script("a", "b", "c"), engine_request(stop_token_ids=frozenset({0, 2}), min_tokens=1))
    assert got.finish == Finish("stop", 2)
