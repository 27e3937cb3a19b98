"""Images, sounds and films in messages, and what mode `echo` repeats of a conversation."""

import base64
from typing import Any

import pytest

from app.core.api.chat.media import encoded, features, placeholders
from app.core.api.chat.prompt import content_text, text_with_calls
from app.core.engine.kvcache.hashing import fnv1a_32

IMAGE = {"type": "image_url", "image_url": {"url": "http://x/a.png"}}
SOUND = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}


def user_message(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def test_media_items_have_hashes_and_occupy_equal_parts_of_the_prompt() -> None:
    media = features(user_message(IMAGE, SOUND, IMAGE), range(10))
    assert media is not None
    names = [f"sim_img_{place}_{fnv1a_32(b'http://x/a.png'):x}" for place in (0, 1)]
    sound = f"sim_audio_0_{fnv1a_32(b'UklGRg=='):x}"
    assert media["mm_hashes"] == {"image": names, "audio": [sound]}
    assert media["mm_placeholders"] == {
        "image": [{"offset": 0, "length": 3}, {"offset": 6, "length": 3}],
        "audio": [{"offset": 3, "length": 3}],
    }
    assert [base64.b64decode(data).decode() for data in media["kwargs_data"]["image"]] == names
    assert placeholders(media) == ((names[0], 0, 3), (names[1], 6, 3), (sound, 3, 3))
    assert placeholders(None) == ()


@pytest.mark.parametrize(
    ("tokens", "spans"), [(2, [(0, 1), (1, 1), (1, 1)]), (0, [(0, 1), (0, 1), (0, 1)])]
)
def test_media_items_of_a_short_prompt_have_one_token_each(
    tokens: int, spans: list[tuple[int, int]]
) -> None:
    offsets = placeholders(features(user_message(IMAGE, IMAGE, IMAGE), range(tokens)))
    assert [(offset, length) for _, offset, length in offsets] == spans


def test_tool_calls_of_a_message_are_appended_to_its_text() -> None:
    contents: list[tuple[Any, str]] = [
        *((None, ""), ("", ""), ("Hello", "Hello"), ([], "")),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        (["a", {"type": "text", "text": "b"}], "a\nb"),
        ([{"type": "image_url", "image_url": {"url": "http://x/y.png"}}], "image: http://x/y.png"),
        ([{"type": "image_url", "image_url": "http://x/y.png"}], "image: http://x/y.png"),
        ([{"type": "input_audio", "input_audio": {}}, {"type": "text", "text": "b"}], "b"),
        ([{"type": "text", "text": None}], ""),
    ]
    for content, text in contents:
        assert content_text(content) == text
    assert text_with_calls({"role": "assistant", "content": "last"}) == "last"
    functions = [{"name": "f", "arguments": '{"x": 1}'}, {"name": "g", "arguments": "{}"}, None]
    calls = [*({"function": function} for function in functions), {}]
    marked_up = text_with_calls({"role": "assistant", "content": "so:", "tool_calls": calls})
    assert marked_up == 'so:[f({"x": 1})][g({})]'


def test_each_encoded_media_item_has_a_dummy_address() -> None:
    address = {
        "peer_host": "DUMMY",
        "peer_port": 1234,
        "size_bytes": 2359296,
        "nixl_agent_metadata_b64": "TklYTF9NRVRBREFUQV9QTEFDRUhPTERFUg==",
    }
    hashes = {"image": ["img-1"], "audio": ["audio-2", "audio-3"]}
    assert encoded(hashes) == {"img-1": address, "audio-2": address, "audio-3": address}
    assert encoded({}) is None
