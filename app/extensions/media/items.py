"""The media in the messages of a request, and their data."""

from __future__ import annotations

import binascii
import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct

from app.core.base.clock.pause import paced, pause_if_possible
from app.core.protocol.chat import DATA_URL
from app.core.server.http.errors import ApiError, bad_request
from app.core.text.conversation import MODALITIES, TYPE_FIELDS

SLICE_CHARS = 1 << 18
"""Base64 characters that are decoded between two pauses: a millisecond. A multiple of four."""
MAX_URL_CHARS = 8_000
"""Characters of an address that are understood; no server accepts a longer one."""
MAX_UUID_CHARS = 1_000
SHOWN_CHARS = 32
"""Characters of an invalid data URL in its error."""


class MediaItem(Struct, frozen=True, kw_only=True):
    """An image, a sound or a film in a message."""

    modality: str
    part_type: str
    address: str | None
    """URL, or None for an item that a `uuid` identifies."""
    uuid: str | None = None


def media_items(messages: Sequence[Mapping[str, object]]) -> Iterator[MediaItem]:
    """Yields the media in messages, in order; parts that are not understood are left out.

    The chat template's own reader rejects those parts. Pauses between many parts.
    """
    for message in paced(messages):
        content = message.get("content")
        if not isinstance(content, list):
            continue
        for part in paced(content):
            if isinstance(part, dict):
                item = _item(part)
                if item is not None:
                    yield item


def _item(part: Mapping[str, object]) -> MediaItem | None:
    uuid = part.get("uuid")
    part_type = part.get("type")
    if part_type is None or uuid is not None:
        part_type = next((field for field in TYPE_FIELDS if field in part), None)
    if not isinstance(part_type, str) or part_type not in MODALITIES:
        return None
    value = part.get("image_url" if part_type == "input_image" else part_type)
    if isinstance(value, dict):
        address = _address(value)
    elif isinstance(value, str):
        address = value
    else:
        address = None
    return MediaItem(
        modality=MODALITIES[part_type],
        part_type=part_type,
        address=address,
        uuid=None if uuid is None else _identifier(str(uuid)),
    )


def _identifier(uuid: str) -> str:
    """Returns a client's name of an item; its digest if it is long.

    The name is hashed with each block of the item.
    """
    if len(uuid) <= MAX_UUID_CHARS:
        return uuid
    return hashlib.sha256(uuid.encode("utf-8", "replace")).hexdigest()


def _address(value: Mapping[str, object]) -> str | None:
    url = value.get("url")
    if isinstance(url, str):
        return url
    data = value.get("data")
    form = value.get("format")
    if isinstance(data, str):
        return f"data:audio/{form};base64,{data}" if data else None
    return None


def data_of(address: str) -> bytes | None:
    """Returns the data in a data URL; None for another address. Pauses between slices.

    Raises:
        ApiError: The URL is invalid.
    """
    if address[: len(DATA_URL)].lower() != DATA_URL:
        return None
    place = address.find(",")
    if place < 0:
        raise bad_request(f"Invalid data URL {address[:SHOWN_CHARS]!r}: missing ',' separator.")
    _, separator, encoding = address[len(DATA_URL) : place].rpartition(";")
    if not separator or encoding != "base64":
        raise ApiError(501, "NotImplementedError", "Only base64 data URLs are supported for now.")
    return decode_base64(address, place + 1)


def decode_base64(text: str, start: int = 0) -> bytes:
    """Returns the data in base64 from `start` on. Pauses between slices.

    Raises:
        ApiError: The text is not base64.
    """
    slices: list[bytes] = []
    for place in range(start, len(text), SLICE_CHARS):
        chunk = text[place : place + SLICE_CHARS]
        try:
            slices.append(binascii.a2b_base64(chunk.encode("ascii"), strict_mode=True))
        except (binascii.Error, UnicodeEncodeError):
            raise bad_request("Non-base64 digit found") from None
        if len(text) - start > SLICE_CHARS:
            pause_if_possible()
    return b"".join(slices)


def split_address(
    address: str, allowed_domains: Collection[str], has_local_path: bool
) -> SplitResult:
    """Returns the parts of an address that is no data URL.

    Raises:
        ApiError: vLLM would not load from there.
    """
    try:
        url = urlsplit(address[:MAX_URL_CHARS])
        host = url.hostname
    except ValueError:
        raise bad_request(f"Failed to parse: {address}") from None
    if url.scheme.startswith("http"):
        if allowed_domains and host not in allowed_domains:
            raise bad_request(
                "The URL must be from one of the allowed domains: "
                f"{[*allowed_domains]}. Input URL domain: {host}"
            )
    elif url.scheme == "file":
        if not has_local_path:
            raise ApiError(
                500,
                "InternalServerError",
                "Cannot load local files without `--allowed-local-media-path`.",
            )
    else:
        raise bad_request("The URL must be either a HTTP, data or file URL.")
    return url
