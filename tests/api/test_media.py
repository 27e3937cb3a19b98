"""What is told of images, sounds and films in messages."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from app.serving.api.chat.media import ENCODED, encoded, features, fnv1a32, items, media_tokens, placeholders

IMAGE = {"type": "image_url", "image_url": {"url": "http://x/a.png"}}
SOUND = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
FILM = {"type": "video_url", "video_url": {"url": "http://x/b.mp4"}}
TEXT = {"type": "text", "text": "hi"}


def said(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def test_items_are_found_in_order_whatever_is_between_them() -> None:
    messages = [{"role": "system", "content": "be kind"}, {"role": "user"}, *said(TEXT, FILM, IMAGE, SOUND)]
    assert list(items(messages)) == [
        ("video", "http://x/b.mp4"),
        ("image", "http://x/a.png"),
        ("audio", "UklGRg=="),
    ]


def test_what_is_no_item_is_passed_over() -> None:
    for part in (
        *("text", 5, None, {}, TEXT, {"type": 5}, {"type": "other_url", "other_url": {"url": "x"}}),
        *({"type": "image_url"}, *({"type": "image_url", "image_url": url} for url in ({}, "", {"url": 5}))),
    ):
        assert list(items(said(part, IMAGE))) == [("image", "http://x/a.png")]
        assert features(said(part), [1, 2, 3]) is None
    assert list(items(said({"type": "image_url", "image_url": "x"}))) == [("image", "x")]


@pytest.mark.parametrize(("text", "value"), [("", 0x811C9DC5), ("a", 0xE40C292C), ("foobar", 0xBF9CF968)])
def test_hashes_are_fnv(text: str, value: int) -> None:
    assert fnv1a32(text) == value


def test_items_share_the_prompt_evenly_and_are_named_by_what_they_are() -> None:
    found = features(said(IMAGE, SOUND, IMAGE), range(10))
    assert found is not None
    names = [f"sim_img_{place}_{fnv1a32('http://x/a.png'):x}" for place in (0, 1)]
    sound = f"sim_audio_0_{fnv1a32('UklGRg=='):x}"
    assert found["mm_hashes"] == {"image": names, "audio": [sound]}
    assert found["mm_placeholders"] == {
        "image": [{"offset": 0, "length": 3}, {"offset": 6, "length": 3}],
        "audio": [{"offset": 3, "length": 3}],
    }
    assert [base64.b64decode(data).decode() for data in found["kwargs_data"]["image"]] == names
    assert placeholders(found) == ((names[0], 0, 3), (names[1], 6, 3), (sound, 3, 3))
    assert placeholders(None) == ()


@pytest.mark.parametrize(("tokens", "spans"), [(2, [(0, 1), (1, 1), (1, 1)]), (0, [(0, 1), (0, 1), (0, 1)])])
def test_of_a_short_prompt_everybody_has_one_token(tokens: int, spans: list[tuple[int, int]]) -> None:
    found = placeholders(features(said(IMAGE, IMAGE, IMAGE), range(tokens)))
    assert [(offset, length) for _, offset, length in found] == spans


def test_a_modality_brings_the_tokens_that_are_not_there_without_it() -> None:
    def count(messages: Any) -> int:
        costs = {"image_url": 10, "input_audio": 3, "text": 1}
        contents = [message["content"] for message in messages]
        return sum(
            costs[part["type"]] for content in contents if isinstance(content, list) for part in content
        )

    messages: Any = [{"role": "system", "content": "be kind"}, *said(TEXT, IMAGE, SOUND, IMAGE)]
    assert media_tokens(messages, ["image", "audio", "video"], count) == {"image": 20, "audio": 3, "video": 0}
    assert media_tokens(messages, ["image"], lambda left: -len(left[-1]["content"])) == {"image": 0}  # type: ignore[arg-type]


def test_an_encoder_says_where_each_item_is() -> None:
    assert encoded({"image": ["a", "b"], "audio": ["c"]}) == dict.fromkeys("abc", ENCODED)
    assert encoded({"image": "a", "audio": ["c", 5]}) == {"c": ENCODED}  # type: ignore[dict-item,list-item]
    assert encoded(None) is None and encoded({}) is None
