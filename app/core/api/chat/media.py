"""Images, sounds and films in messages, as a render describes them."""

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypedDict

from msgspec import Struct

from app.core.protocol.chat import Message
from app.core.protocol.common import ECTransferParams
from app.core.text.conversation import MODALITIES

FIELDS = {
    "image_url": ("image", "url"),
    "input_audio": ("audio", "data"),
    "audio_url": ("audio", "url"),
    "video_url": ("video", "url"),
}
"""Modality of each type of part, and the field that identifies the item."""
HASH_PREFIXES = {"image": "img", "audio": "audio", "video": "video"}
"""Prefix of an item's hash, by its modality."""
ENCODED_ADDRESS: Mapping[str, str | int] = {
    "peer_host": "DUMMY",
    "peer_port": 1234,
    "size_bytes": 2359296,
    "nixl_agent_metadata_b64": "TklYTF9NRVRBREFUQV9QTEFDRUhPTERFUg==",
}
"""Address of an encoded item; no item can be fetched there."""


class MediaTokens(TypedDict):
    """Tokens of the prompt that stand for an item."""

    offset: int
    length: int


class Features(TypedDict):
    """Media of a prompt, by modality."""

    mm_hashes: dict[str, list[str]]
    mm_placeholders: dict[str, list[MediaTokens]]
    kwargs_data: dict[str, list[str]]


class BuiltPrompt(Struct, frozen=True):
    """A prompt as tokens, and the text that mode `echo` repeats."""

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
    media = list(items(messages))
    prompt_tokens = len(prompt_ids)
    if not media:
        return None
    from app.core.engine.kvcache.hashing import fnv1a_32  # few requests have media

    result: Features = {"mm_hashes": {}, "mm_placeholders": {}, "kwargs_data": {}}
    span = max(prompt_tokens // len(media), 1)
    for number, (modality, identifier) in enumerate(media):
        hashes = result["mm_hashes"].setdefault(modality, [])
        prefix = HASH_PREFIXES[modality]
        name = f"sim_{prefix}_{len(hashes)}_{fnv1a_32(identifier.encode()):x}"
        hashes.append(name)
        offset = max(min(number * span, prompt_tokens - 1), 0)
        length = max(min(span, prompt_tokens - offset), 1)
        place: MediaTokens = {"offset": offset, "length": length}
        result["mm_placeholders"].setdefault(modality, []).append(place)
        data = base64.b64encode(name.encode()).decode()
        result["kwargs_data"].setdefault(modality, []).append(data)
    return result


def media_tokens(
    messages: Sequence[Message],
    modalities: Iterable[str],
    count_tokens: Callable[[Sequence[Message]], int],
) -> dict[str, int]:
    """Returns the prompt tokens that items of each modality add.

    `count_tokens` returns the number of tokens of some messages.
    """
    total_tokens = count_tokens(messages)
    added_tokens = {}
    for modality in modalities:
        part_types = {
            name for name, modality_name in MODALITIES.items() if modality_name == modality
        }
        stripped: list[Message] = []
        for message in messages:
            content = message.get("content")
            if isinstance(content, list):
                content = [part for part in content if type_of(part) not in part_types]
            stripped.append({**message, "content": content})
        added_tokens[modality] = max(0, total_tokens - count_tokens(stripped))
    return added_tokens


def placeholders(media: Features | None) -> tuple[tuple[str, int, int], ...]:
    """Returns hash, offset and length of each item."""
    if media is None:
        return ()
    return tuple(
        (name, place["offset"], place["length"])
        for modality, names in media["mm_hashes"].items()
        for name, place in zip(names, media["mm_placeholders"][modality], strict=True)
    )


def type_of(part: object) -> str:
    """Returns the type of a part of a message's content."""
    if isinstance(part, Mapping):
        return str(part.get("type"))
    return ""


def items(messages: Sequence[Mapping[str, object]]) -> Iterator[tuple[str, str]]:
    """Yields modality and identifier of each item in the messages."""
    for message in messages:
        content = message.get("content")
        if not isinstance(content, list):
            continue
        for part in content:
            part_type = type_of(part)
            if part_type not in FIELDS:
                continue
            modality, key = FIELDS[part_type]
            identifier = part.get(part_type)
            if isinstance(identifier, Mapping):
                identifier = identifier.get(key)
            if isinstance(identifier, str) and identifier:
                yield modality, identifier


def encoded(hashes: Mapping[str, Sequence[str]] | None) -> ECTransferParams | None:
    """Returns the address of each encoded item by its hash; None without any."""
    addresses: dict[str, Mapping[str, str | int]] = {}
    for names in (hashes or {}).values():
        addresses |= dict.fromkeys(names, ENCODED_ADDRESS)
    return addresses or None
