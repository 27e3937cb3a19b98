"""Text as it comes: whole characters, and nothing of a stop string."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.text.huggingface import default_tokenizer
from app.extensions.llm.sampling_params import SamplingParams
from app.extensions.llm.sequence import Detokenizer

pytestmark = pytest.mark.engine

BACKEND = default_tokenizer().backend


def shown(ids: list[int], *stops: str, include: bool = False) -> tuple[list[str], str | None]:
    params = SamplingParams(stop=stops, include_stop_str_in_output=include)
    detokenizer = Detokenizer(BACKEND, params)
    pieces = []
    for token_id in ids:
        pieces.append(detokenizer.add(token_id))
        if detokenizer.stopped is not None:
            break
    return [*pieces, detokenizer.finish()], detokenizer.stopped


@settings(deadline=None)
@given(st.text())
def test_concatenated_pieces_equal_the_text_and_split_no_character(text: str) -> None:
    ids = BACKEND.encode(text, add_special_tokens=False).ids
    pieces, _ = shown(ids)
    assert "".join(pieces) == BACKEND.decode(ids)
    assert ("\ufffd" in text) or not any("\ufffd" in piece for piece in pieces)


@settings(deadline=None)
@given(st.text("abc "), st.lists(st.text("abc ", min_size=1, max_size=4), min_size=1, max_size=3))
def test_no_part_of_a_stop_string_is_emitted(text: str, stops: list[str]) -> None:
    ids = [token_id for character in text for token_id in BACKEND.encode(character).ids]
    places = [text.find(stop) for stop in stops if stop in text]
    pieces, stopped = shown(ids, *stops)
    if not places:
        assert ("".join(pieces), stopped) == (text, None)
        return
    # Of stops that overlap, the one that is complete first.
    end = min(text.find(stop) + len(stop) for stop in stops if stop in text)
    assert stopped is not None
    assert text[:end].endswith(stopped)
    assert "".join(pieces) == text[: end - len(stopped)]


def test_stop_string_is_included_on_request() -> None:
    ids = BACKEND.encode("one. two. three").ids
    pieces, stopped = shown(ids, ". tw", include=True)
    assert ("".join(pieces), stopped) == ("one. tw", ". tw")


def test_incomplete_character_is_emitted_when_the_reply_ends() -> None:
    ids = BACKEND.encode("a🦙", add_special_tokens=False).ids[:-1]
    pieces, _ = shown(ids)
    assert pieces[:-1] == ["a", *[""] * (len(ids) - 1)]
    assert set(pieces[-1]) == {"\ufffd"}
