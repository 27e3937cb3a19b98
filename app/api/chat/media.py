"""Images, sounds and films in messages: what a render tells of them (simulator.md 6.4)."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

FIELDS = {"image_url": ("image", "url"), "input_audio": ("audio", "data"), "video_url": ("video", "url")}
"""Type of a part -> its modality, and the field that tells one item from another."""
SHORT = {"image": "img", "audio": "audio", "video": "video"}
"""Modality -> how hashes begin."""


def features(messages: Sequence[Mapping[str, Any]], prompt_ids: Sequence[int]) -> dict[str, Any] | None:
    """Hashes, placeholders and data of all media, by modality; None when there are none.

    The placeholders share the prompt's tokens evenly, in order.
    """
    found = list(items(messages))
    if not found:
        return None
    told: dict[str, dict[str, list[Any]]] = {"mm_hashes": {}, "mm_placeholders": {}, "kwargs_data": {}}
    total = len(prompt_ids)
    span = max(total // len(found), 1)
    for number, (modality, identifier) in enumerate(found):
        place = len(told["mm_hashes"].setdefault(modality, []))
        name = f"sim_{SHORT[modality]}_{place}_{fnv1a32(identifier):x}"
        offset = max(min(number * span, total - 1), 0)
        told["mm_hashes"][modality].append(name)
        told["kwargs_data"].setdefault(modality, []).append(base64.b64encode(name.encode()).decode())
        told["mm_placeholders"].setdefault(modality, []).append(
            {"offset": offset, "length": max(min(span, total - offset), 1)}
        )
    return told


def media_tokens(told: Mapping[str, Any] | None) -> dict[str, int] | None:
    """Prompt tokens of each modality, of what `features` told; None without media."""
    if told is None:
        return None
    places = told["mm_placeholders"].items()
    return {modality: sum(place["length"] for place in found) for modality, found in places}


def placeholders(told: Mapping[str, Any] | None) -> tuple[tuple[str, int, int], ...]:
    """Hash, first token and number of tokens of each item, of what `features` told."""
    if told is None:
        return ()
    return tuple(
        (name, place["offset"], place["length"])
        for modality, names in told["mm_hashes"].items()
        for name, place in zip(names, told["mm_placeholders"][modality], strict=True)
    )


def items(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Modality and identifier of every item that is not empty, in order."""
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if isinstance(part, Mapping) and part.get("type") in FIELDS:
                modality, key = FIELDS[part["type"]]
                value = part.get(part["type"])
                identifier = value.get(key) if isinstance(value, Mapping) else value
                if isinstance(identifier, str) and identifier:
                    yield modality, identifier


def fnv1a32(text: str) -> int:
    """FNV-1a, 32 bits, of the UTF-8 bytes of `text`."""
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


ENCODED = {
    "peer_host": "DUMMY",
    "peer_port": 1234,
    "size_bytes": 2359296,
    "nixl_agent_metadata_b64": "TklYTF9NRVRBREFUQV9QTEFDRUhPTERFUg==",
}
"""Where an encoded item could be fetched, were there one (simulator.md section 18)."""


def encoded(hashes: Mapping[str, Sequence[str]] | None) -> dict[str, Any] | None:
    """`ec_transfer_params` of an encoder's answer: an address for each hash; None without media."""
    names = [name for found in (hashes or {}).values() if isinstance(found, list) for name in found]
    return {name: ENCODED for name in names if isinstance(name, str)} or None
