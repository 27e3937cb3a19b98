"""Images, sounds and films in messages, as a render describes them (simulator.md 6.4)."""

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypedDict

from msgspec import Struct

from app.engine.kvcache.hashing import fnv1a_32
from app.serving.protocol.chat import Message
from app.serving.protocol.common import ECTransferParams
from app.text.conversation import MODALITIES

FIELDS = {
    "image_url": ("image", "url"),
    "input_audio": ("audio", "data"),
    "audio_url": ("audio", "url"),
    "video_url": ("video", "url"),
}
"""Type of a part -> its modality, and the field that identifies the item."""
SHORT = {"image": "img", "audio": "audio", "video": "video"}
"""Modality -> prefix of its hashes."""


class MediaTokens(TypedDict):
    offset: int
    length: int


class Features(TypedDict):
    mm_hashes: dict[str, list[str]]
    mm_placeholders: dict[str, list[MediaTokens]]
    kwargs_data: dict[str, list[str]]


class BuiltPrompt(Struct, frozen=True):
    ids: Sequence[int]
    echo_text: str
    turns: tuple[tuple[str, str], ...] = ()
    """Role and text of each message, if a dataset looks them up."""
    features: Features | None = None


def features(
    messages: Sequence[Mapping[str, object]], prompt_ids: Sequence[int]
) -> Features | None:
    """Returns media by modality; None without any.

    They share the prompt's tokens evenly, in order.
    """
    media, total = list(items(messages)), len(prompt_ids)
    if not media:
        return None
    found: Features = {"mm_hashes": {}, "mm_placeholders": {}, "kwargs_data": {}}
    span = max(total // len(media), 1)
    for number, (modality, identifier) in enumerate(media):
        hashes = found["mm_hashes"].setdefault(modality, [])
        name = f"sim_{SHORT[modality]}_{len(hashes)}_{fnv1a_32(identifier.encode()):x}"
        hashes.append(name)
        offset = max(min(number * span, total - 1), 0)
        place: MediaTokens = {"offset": offset, "length": max(min(span, total - offset), 1)}
        found["mm_placeholders"].setdefault(modality, []).append(place)
        found["kwargs_data"].setdefault(modality, []).append(
            base64.b64encode(name.encode()).decode()
        )
    return found


def media_tokens(
    messages: Sequence[Message],
    modalities: Iterable[str],
    count: Callable[[Sequence[Message]], int],
) -> dict[str, int]:
    """Returns the prompt tokens that items of each modality add; `count` returns those of messages."""
    whole, added = count(messages), {}
    for modality in modalities:
        types = {kind for kind, of in MODALITIES.items() if of == modality}
        others: list[Message] = []
        for message in messages:
            content = message.get("content")
            if isinstance(content, list):
                content = [part for part in content if type_of(part) not in types]
            others.append({**message, "content": content})
        added[modality] = max(0, whole - count(others))
    return added


def placeholders(media: Features | None) -> tuple[tuple[str, int, int], ...]:
    if media is None:
        return ()
    return tuple(
        (name, place["offset"], place["length"])
        for modality, names in media["mm_hashes"].items()
        for name, place in zip(names, media["mm_placeholders"][modality], strict=True)
    )


def type_of(part: object) -> str:
    return str(part.get("type")) if isinstance(part, Mapping) else ""


def items(messages: Sequence[Mapping[str, object]]) -> Iterator[tuple[str, str]]:
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if (kind := type_of(part)) in FIELDS:
                modality, key = FIELDS[kind]
                value = part.get(kind)
                identifier = value.get(key) if isinstance(value, Mapping) else value
                if isinstance(identifier, str) and identifier:
                    yield modality, identifier


ENCODED: Mapping[str, str | int] = {
    "peer_host": "DUMMY",
    "peer_port": 1234,
    "size_bytes": 2359296,
    "nixl_agent_metadata_b64": "TklYTF9NRVRBREFUQV9QTEFDRUhPTERFUg==",
}
"""Address of an encoded item; no item can be fetched there (simulator.md section 18)."""


def encoded(hashes: Mapping[str, Sequence[str]] | None) -> ECTransferParams | None:
    names = [name for found in (hashes or {}).values() if isinstance(found, list) for name in found]
    return {name: ENCODED for name in names if isinstance(name, str)} or None
