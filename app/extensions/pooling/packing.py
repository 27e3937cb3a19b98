"""Vectors of pooling answers in the encodings that a request may choose."""

from __future__ import annotations

import json
from array import array
from base64 import b64encode
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

from msgspec import Raw

from app.core.base.callers import claim_memory
from app.core.base.clock.pause import paced
from app.core.protocol.common import encode
from app.core.server.http.errors import bad_request
from app.extensions.pooling.features import Pace
from app.extensions.pooling.protocol import EncodedRequest
from app.extensions.pooling.runner import PoolingJob, Rows
from app.extensions.pooling.vectors import packing


def written(items: Iterable[object], claimed_bytes: int = 0) -> list[Raw]:
    """Writes the items of an answer one by one, and claims their memory, also in the answer.

    `claimed_bytes` are claimed already.

    Raises:
        MemoryFullError, MemoryExceededError: as `claim_memory`.
    """
    parts = []
    for item in items:
        part = encode(item)
        claimed_bytes -= 2 * len(part)
        if claimed_bytes < 0:
            claim_memory(-claimed_bytes)
            claimed_bytes = 0
        parts.append(Raw(part))
    return parts


def packed_rows(rows: Rows, request: EncodedRequest, pace: Pace) -> list[bytes]:
    """Returns the numbers of each input as bytes, in the request's type and byte order.

    Claims their memory, also in the answer.

    Raises:
        MemoryFullError, MemoryExceededError: as `claim_memory`.
    """
    pack = packing(request.embed_dtype, request.endianness, pace)
    packed = []
    for input_rows in rows:
        data = b"".join(map(pack, input_rows))
        claim_memory(2 * len(data))
        packed.append(data)
    return packed


def bytes_metadata(
    request: EncodedRequest, job: PoolingJob, rows: Rows, packed: Sequence[bytes], nested: bool
) -> str:
    """Returns the `metadata` header of a body of bytes: JSON in ASCII.

    It has the place of each input's numbers in the body, and their shape, which has two dimensions
    where `nested`.
    """
    offsets = pairwise(accumulate(map(len, packed), initial=0))
    items = []
    for index, (input_rows, (start, end)) in enumerate(zip(rows, offsets, strict=True)):
        width = len(input_rows[0])
        item = {
            "index": index,
            "embed_dtype": request.embed_dtype,
            "endianness": request.endianness,
            "start": start,
            "end": end,
            "shape": (len(input_rows), width) if nested else (width,),
        }
        items.append(item)
    metadata = {
        "id": job.meta.id,
        "created": job.meta.created,
        "model": job.meta.model,
        "data": items,
        "usage": {"prompt_tokens": job.prompt_tokens, "total_tokens": job.prompt_tokens},
    }
    return json.dumps(metadata)


def typed_vectors(embedding_type: str, vectors: Sequence[array[float]], pace: Pace) -> list[Raw]:
    """Returns the vectors in a type of Cohere's API.

    The types are floats, base64, or one bit for each number, eight to a signed (`binary`) or
    unsigned (`ubinary`) byte.

    Raises:
        ApiError: 400 for bits of vectors whose width is not a multiple of 8.
    """
    if embedding_type == "float":
        return written(vector.tolist() for vector in paced(vectors))
    if embedding_type == "base64":
        pack = packing("float32", "little", pace)
        return written(b64encode(pack(vector)).decode() for vector in vectors)
    width = len(vectors[0])
    if width % 8:
        raise bad_request(f"binary embeddings require a multiple of 8 dimensions, got {width}")
    offset = -128 if embedding_type == "binary" else 0
    packed = (bits_of(vector) for vector in paced(vectors))
    return written([byte + offset for byte in bits] for bits in packed)


def bits_of(vector: array[float]) -> bytes:
    """Returns one bit for each number: 1 unless it is negative."""
    bits = int("".join("1" if number >= 0 else "0" for number in vector), 2)
    return bits.to_bytes(len(vector) // 8, "big")
