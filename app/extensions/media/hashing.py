"""The names of media in block hashes and KV events, as vLLM computes them.

vLLM hashes a stream that names the model and the item: the length of each text or number before its
bytes, and a tag before each value.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Literal, Protocol

from app.core.base.clock.pause import pause_if_possible

Algorithm = Literal["blake3", "sha256", "sha512"]
LENGTH_BYTES = 8
SEQUENCE = b"\x01"
MAPPING = b"\x02"
LEAF = b"\x03"
SLICE_BYTES = 1 << 20
"""Bytes that are hashed between two pauses: a millisecond or two."""
MODE = "RGB"
"""vLLM converts images to this mode."""
CONVERSION: Mapping[str, object] = {
    "image_mode": MODE,
    "rgba_background_color": (255, 255, 255),
}
"""vLLM hashes these values with an image that it has converted."""


class Digest(Protocol):
    """A hash that is being computed."""

    def update(self, data: bytes, /) -> object:
        """Adds data."""

    def hexdigest(self) -> str:
        """Returns the hash in hexadecimal digits."""


def image_name(algorithm: Algorithm, model: str, data: bytes, *, mode: str) -> str:
    """Returns the hash of an image. Pauses while it hashes much data.

    `mode` is that of the file, in Pillow's words.
    """
    content: object = data
    if mode != MODE:
        content = {"io_config": CONVERSION, "data": data}
    return _name(algorithm, model, "image", [LEAF, *_framed(b"image"), *_value(content)])


def data_name(algorithm: Algorithm, model: str, modality: str, data: bytes) -> str:
    """Returns the hash of other data, such as an address. Pauses while it hashes much data."""
    return _name(algorithm, model, modality, list(_value(data)))


def _name(algorithm: Algorithm, model: str, modality: str, chunks: list[bytes]) -> str:
    digest = _new_digest(algorithm)
    fields = {
        modality: [*_framed(modality.encode()), *chunks],
        "model_id": [*_framed(b"model_id"), *_value(model)],
    }
    for name in sorted(fields):
        for chunk in fields[name]:
            _update(digest, chunk)
    return digest.hexdigest()


def _update(digest: Digest, chunk: bytes) -> None:
    if len(chunk) <= SLICE_BYTES:
        digest.update(chunk)
        return
    for place in range(0, len(chunk), SLICE_BYTES):
        digest.update(chunk[place : place + SLICE_BYTES])
        pause_if_possible()


def _new_digest(algorithm: Algorithm) -> Digest:
    if algorithm == "sha256":
        return hashlib.sha256()
    if algorithm == "sha512":
        return hashlib.sha512()
    from blake3 import blake3  # few requests have media

    return blake3()


def _value(value: object) -> Iterator[bytes]:
    """Yields the stream of a value."""
    if isinstance(value, Mapping):
        yield MAPPING
        yield _length(len(value))
        for name, content in value.items():
            yield from _framed(str(name).encode())
            yield from _value(content)
    elif isinstance(value, tuple):
        yield SEQUENCE
        yield _length(len(value))
        for content in value:
            yield from _value(content)
    else:
        yield LEAF
        if isinstance(value, int):
            yield from _framed(_length(value))
        elif isinstance(value, str):
            yield from _framed(value.encode())
        elif isinstance(value, bytes):
            yield from _framed(value)


def _framed(chunk: bytes) -> Iterator[bytes]:
    yield _length(len(chunk))
    yield chunk


def _length(number: int) -> bytes:
    return number.to_bytes(LENGTH_BYTES, "little")
